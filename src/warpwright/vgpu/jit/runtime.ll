; Out-of-line routines of lane code, compiled once per process. A dollar and a name stand for an offset into the warp's state or a constant
; of state.py. Virtual addresses arrive in the `addr` field, one a lane; translation replaces those of the lanes in
; %mask by host addresses, or records a fault and returns false.

declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
declare i32 @llvm.cttz.i32(i32, i1)

define i1 @fault(ptr %w, i32 %lanes, i32 %kind) {
  %lane = call i32 @llvm.cttz.i32(i32 %lanes, i1 false)
  %wide = zext i32 %lane to i64
  %addrs = getelementptr i8, ptr %w, i64 $addr
  %slot = getelementptr i64, ptr %addrs, i64 %wide
  %address = load i64, ptr %slot
  %p0 = getelementptr i8, ptr %w, i64 $fault
  store i32 %kind, ptr %p0
  %p1 = getelementptr i8, ptr %w, i64 $fault_lane
  store i32 %lane, ptr %p1
  %p2 = getelementptr i8, ptr %w, i64 $fault_addr
  store i64 %address, ptr %p2
  ret i1 false
}

; Lanes of %mask whose [address, address + %size) does not lie in [%low, %high), and those that are misaligned.
define i32 @outside(<32 x i64> %address, i32 %mask, i64 %size, i64 %low, i64 %high) alwaysinline {
  %last = sub i64 %high, %size
  %l0 = insertelement <32 x i64> poison, i64 %low, i32 0
  %lows = shufflevector <32 x i64> %l0, <32 x i64> poison, <32 x i32> zeroinitializer
  %h0 = insertelement <32 x i64> poison, i64 %last, i32 0
  %highs = shufflevector <32 x i64> %h0, <32 x i64> poison, <32 x i32> zeroinitializer
  %below = icmp slt <32 x i64> %address, %lows
  %above = icmp sgt <32 x i64> %address, %highs
  %bad = or <32 x i1> %below, %above
  %bits = bitcast <32 x i1> %bad to i32
  %hit = and i32 %bits, %mask
  ret i32 %hit
}

define i32 @unaligned(<32 x i64> %address, i32 %mask, i64 %size) alwaysinline {
  %less = sub i64 %size, 1
  %a0 = insertelement <32 x i64> poison, i64 %less, i32 0
  %ones = shufflevector <32 x i64> %a0, <32 x i64> poison, <32 x i32> zeroinitializer
  %low = and <32 x i64> %address, %ones
  %odd = icmp ne <32 x i64> %low, zeroinitializer
  %bits = bitcast <32 x i1> %odd to i32
  %hit = and i32 %bits, %mask
  ret i32 %hit
}

define void @rebase(ptr %w, <32 x i64> %address, i32 %mask, i64 %shift) alwaysinline {
  %s0 = insertelement <32 x i64> poison, i64 %shift, i32 0
  %shifts = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %moved = add <32 x i64> %address, %shifts
  %lanes = bitcast i32 %mask to <32 x i1>
  %p = getelementptr i8, ptr %w, i64 $addr
  %old = load <32 x i64>, ptr %p
  %new = select <32 x i1> %lanes, <32 x i64> %moved, <32 x i64> %old
  store <32 x i64> %new, ptr %p
  ret void
}

; [%low, %high) of virtual addresses stands at a fixed distance from its memory.
define i1 @window(ptr %w, <32 x i64> %address, i32 %mask, i64 %size, i64 %low, i64 %high, i64 %shift) {
  %out = call i32 @outside(<32 x i64> %address, i32 %mask, i64 %size, i64 %low, i64 %high)
  %isout = icmp ne i32 %out, 0
  br i1 %isout, label %bad, label %in
bad:
  %f0 = call i1 @fault(ptr %w, i32 %out, i32 $FAULT_BOUNDS)
  ret i1 false
in:
  %odd = call i32 @unaligned(<32 x i64> %address, i32 %mask, i64 %size)
  %isodd = icmp ne i32 %odd, 0
  br i1 %isodd, label %skew, label %good
skew:
  %f1 = call i1 @fault(ptr %w, i32 %odd, i32 $FAULT_MISALIGNED)
  ret i1 false
good:
  call void @rebase(ptr %w, <32 x i64> %address, i32 %mask, i64 %shift)
  ret i1 true
}

define i1 @shared_cta(ptr %w, i32 %mask, i64 %size) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pr = getelementptr i8, ptr %w, i64 $rank
  %rank = load i32, ptr %pr
  %r = zext i32 %rank to i64
  %base = shl i64 %r, $RANK_SHIFT
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %host = load i64, ptr %ph
  %ps = getelementptr i8, ptr %w, i64 $shared_stride
  %stride = load i64, ptr %ps
  %pl = getelementptr i8, ptr %w, i64 $shared_limit
  %limit = load i64, ptr %pl
  %low = add i64 %base, $RESERVED
  %high = add i64 %base, %limit
  %own = mul i64 %r, %stride
  %block = add i64 %host, %own
  %shift = sub i64 %block, %base
  %ok = call i1 @window(ptr %w, <32 x i64> %address, i32 %mask, i64 %size, i64 %low, i64 %high, i64 %shift)
  ret i1 %ok
}

define i1 @shared_cluster(ptr %w, i32 %mask, i64 %size) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %rank = lshr <32 x i64> %address, splat (i64 $RANK_SHIFT)
  %offset = and <32 x i64> %address, splat (i64 16777215)
  %pn = getelementptr i8, ptr %w, i64 $ranks
  %n = load i32, ptr %pn
  %wide = zext i32 %n to i64
  %n0 = insertelement <32 x i64> poison, i64 %wide, i32 0
  %ns = shufflevector <32 x i64> %n0, <32 x i64> poison, <32 x i32> zeroinitializer
  %far = icmp uge <32 x i64> %rank, %ns
  %farbits = bitcast <32 x i1> %far to i32
  %outs = and i32 %farbits, %mask
  %isout = icmp ne i32 %outs, 0
  br i1 %isout, label %bad, label %near
bad:
  %f = call i1 @fault(ptr %w, i32 %outs, i32 $FAULT_RANK)
  ret i1 false
near:
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %host = load i64, ptr %ph
  %ps = getelementptr i8, ptr %w, i64 $shared_stride
  %stride = load i64, ptr %ps
  %pl = getelementptr i8, ptr %w, i64 $shared_limit
  %limit = load i64, ptr %pl
  %out = call i32 @outside(<32 x i64> %offset, i32 %mask, i64 %size, i64 $RESERVED, i64 %limit)
  %over = icmp ne i32 %out, 0
  br i1 %over, label %beyond, label %inside
beyond:
  %g = call i1 @fault(ptr %w, i32 %out, i32 $FAULT_BOUNDS)
  ret i1 false
inside:
  %odd = call i32 @unaligned(<32 x i64> %offset, i32 %mask, i64 %size)
  %isodd = icmp ne i32 %odd, 0
  br i1 %isodd, label %skew, label %good
skew:
  %h = call i1 @fault(ptr %w, i32 %odd, i32 $FAULT_MISALIGNED)
  ret i1 false
good:
  %s0 = insertelement <32 x i64> poison, i64 %stride, i32 0
  %strides = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %blocks = mul <32 x i64> %rank, %strides
  %moved = add <32 x i64> %blocks, %offset
  call void @rebase(ptr %w, <32 x i64> %moved, i32 %mask, i64 %host)
  ret i1 true
}

; Each lane's local memory is a block of its own; addresses are offsets into it.
define i1 @local(ptr %w, i32 %mask, i64 %size) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pb = getelementptr i8, ptr %w, i64 $local_bytes
  %bytes = load i64, ptr %pb
  %ph = getelementptr i8, ptr %w, i64 $local_host
  %host = load i64, ptr %ph
  %ok = call i1 @window(ptr %w, <32 x i64> %address, i32 %mask, i64 %size, i64 0, i64 %bytes, i64 %host)
  br i1 %ok, label %good, label %bad
bad:
  ret i1 false
good:
  %b0 = insertelement <32 x i64> poison, i64 %bytes, i32 0
  %bs = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %own = mul <32 x i64> %bs, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15, i64 16, i64 17, i64 18, i64 19, i64 20, i64 21, i64 22, i64 23, i64 24, i64 25, i64 26, i64 27, i64 28, i64 29, i64 30, i64 31>
  %now = load <32 x i64>, ptr %pa
  %spread = add <32 x i64> %now, %own
  call void @rebase(ptr %w, <32 x i64> %spread, i32 %mask, i64 0)
  ret i1 true
}

; One allocation for all lanes in most accesses: try the last one, then every one, lanes of one allocation at a time.
define i1 @global(ptr %w, i32 %mask, i64 %size) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pt = getelementptr i8, ptr %w, i64 $global_table
  %table = load ptr, ptr %pt
  %pn = getelementptr i8, ptr %w, i64 $global_count
  %n = load i64, ptr %pn
  %ph = getelementptr i8, ptr %w, i64 $global_hint
  %hint = load i64, ptr %ph
  %odd = call i32 @unaligned(<32 x i64> %address, i32 %mask, i64 %size)
  %isodd = icmp ne i32 %odd, 0
  br i1 %isodd, label %skew, label %first
skew:
  %f = call i1 @fault(ptr %w, i32 %odd, i32 $FAULT_MISALIGNED)
  ret i1 false
first:
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %done, label %loop
loop:
  %k = phi i64 [ -1, %first ], [ %knext, %next ]
  %left = phi i32 [ %mask, %first ], [ %rest, %next ]
  %guess = icmp slt i64 %k, 0
  %index = select i1 %guess, i64 %hint, i64 %k
  %row = mul i64 %index, 24
  %e0 = getelementptr i8, ptr %table, i64 %row
  %low = load i64, ptr %e0
  %e1 = getelementptr i8, ptr %e0, i64 8
  %high = load i64, ptr %e1
  %e2 = getelementptr i8, ptr %e0, i64 16
  %shift = load i64, ptr %e2
  %rest = call i32 @outside(<32 x i64> %address, i32 %left, i64 %size, i64 %low, i64 %high)
  %inverse = xor i32 %rest, -1
  %here = and i32 %left, %inverse
  %some = icmp ne i32 %here, 0
  br i1 %some, label %move, label %next
move:
  call void @rebase(ptr %w, <32 x i64> %address, i32 %here, i64 %shift)
  store i64 %index, ptr %ph
  %finished = icmp eq i32 %rest, 0
  br i1 %finished, label %done, label %next
next:
  %knext = add i64 %k, 1
  %more = icmp slt i64 %knext, %n
  br i1 %more, label %loop, label %bad
bad:
  %g = call i1 @fault(ptr %w, i32 %rest, i32 $FAULT_BOUNDS)
  ret i1 false
done:
  ret i1 true
}

define i32 @lanes_in_window(<32 x i64> %address, i32 %mask, i64 %window) alwaysinline {
  %high = lshr <32 x i64> %address, splat (i64 32)
  %w0 = insertelement <32 x i64> poison, i64 %window, i32 0
  %ws = shufflevector <32 x i64> %w0, <32 x i64> poison, <32 x i32> zeroinitializer
  %is = icmp eq <32 x i64> %high, %ws
  %bits = bitcast <32 x i1> %is to i32
  %hit = and i32 %bits, %mask
  ret i32 %hit
}

define void @strip_window(ptr %w, <32 x i64> %address, i32 %lanes) alwaysinline {
  %low = and <32 x i64> %address, splat (i64 4294967295)
  call void @rebase(ptr %w, <32 x i64> %low, i32 %lanes, i64 0)
  ret void
}

define i1 @generic(ptr %w, i32 %mask, i64 %size) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %in_shared = call i32 @lanes_in_window(<32 x i64> %address, i32 %mask, i64 $SHARED_WINDOW_HIGH)
  %in_local = call i32 @lanes_in_window(<32 x i64> %address, i32 %mask, i64 $LOCAL_WINDOW_HIGH)
  %some_shared = icmp ne i32 %in_shared, 0
  br i1 %some_shared, label %shared, label %after_shared
shared:
  call void @strip_window(ptr %w, <32 x i64> %address, i32 %in_shared)
  %ok1 = call i1 @shared_cluster(ptr %w, i32 %in_shared, i64 %size)
  br i1 %ok1, label %after_shared, label %bad
after_shared:
  %some_local = icmp ne i32 %in_local, 0
  br i1 %some_local, label %local, label %after_local
local:
  call void @strip_window(ptr %w, <32 x i64> %address, i32 %in_local)
  %ok2 = call i1 @local(ptr %w, i32 %in_local, i64 %size)
  br i1 %ok2, label %after_local, label %bad
after_local:
  %windows = or i32 %in_shared, %in_local
  %others = xor i32 %windows, -1
  %in_global = and i32 %mask, %others
  %ok3 = call i1 @global(ptr %w, i32 %in_global, i64 %size)
  ret i1 %ok3
bad:
  ret i1 false
}

; Control flow: the lowest block with a lane that can run goes first (counted from `bias`).
define i32 @dispatch(ptr %w) {
  %plive = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %plive
  %pstatus = getelementptr i8, ptr %w, i64 $status
  %gone = icmp eq i32 %live, 0
  br i1 %gone, label %done, label %some
done:
  store i32 0, ptr %pstatus
  ret i32 -1
some:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pp = getelementptr i8, ptr %w, i64 $parked
  %parked = load i32, ptr %pp
  %held = or i32 %blocked, %parked
  %free = xor i32 %held, -1
  %ready = and i32 %live, %free
  %none = icmp eq i32 %ready, 0
  br i1 %none, label %wait, label %pay
wait:
  store i32 1, ptr %pstatus
  ret i32 -1
pay:
  %pf = getelementptr i8, ptr %w, i64 $fuel
  %fuel = load i32, ptr %pf
  %burnt = sub i32 %fuel, 1
  store i32 %burnt, ptr %pf
  %empty = icmp slt i32 %fuel, 1
  br i1 %empty, label %tired, label %choose
tired:
  store i32 2, ptr %pstatus
  ret i32 -1
choose:
  %pc = load <32 x i32>, ptr %w
  %pbias = getelementptr i8, ptr %w, i64 $bias
  %bias = load i32, ptr %pbias
  %b0 = insertelement <32 x i32> poison, i32 %bias, i32 0
  %bs = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %key = sub <32 x i32> %pc, %bs
  %lanes = bitcast i32 %ready to <32 x i1>
  %keys = select <32 x i1> %lanes, <32 x i32> %key, <32 x i32> splat (i32 -1)
  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %keys)
  %block = add i32 %least, %bias
  %c0 = insertelement <32 x i32> poison, i32 %block, i32 0
  %cs = shufflevector <32 x i32> %c0, <32 x i32> poison, <32 x i32> zeroinitializer
  %at = icmp eq <32 x i32> %pc, %cs
  %here = bitcast <32 x i1> %at to i32
  %here1 = and i32 %here, %live
  %unblocked = xor i32 %blocked, -1
  %mask = and i32 %here1, %unblocked
  %pm = getelementptr i8, ptr %w, i64 $mask
  store i32 %mask, ptr %pm
  %stay = xor i32 %mask, -1
  %still = and i32 %parked, %stay
  store i32 %still, ptr %pp
  ret i32 %block
}

define void @set_pc(ptr %w, i32 %mask, i32 %block) {
  %pc = load <32 x i32>, ptr %w
  %b0 = insertelement <32 x i32> poison, i32 %block, i32 0
  %bs = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %lanes = bitcast i32 %mask to <32 x i1>
  %new = select <32 x i1> %lanes, <32 x i32> %bs, <32 x i32> %pc
  store <32 x i32> %new, ptr %w
  ret void
}

; Lanes of %mask wait for %kind; `addr` holds what they wait on (host address or id), operand 0 the argument.
define void @block(ptr %w, i32 %mask, i32 %kind) {
  %lanes = bitcast i32 %mask to <32 x i1>
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %k0 = insertelement <32 x i32> poison, i32 %kind, i32 0
  %ks = shufflevector <32 x i32> %k0, <32 x i32> poison, <32 x i32> zeroinitializer
  %oldk = load <32 x i32>, ptr %pk
  %newk = select <32 x i1> %lanes, <32 x i32> %ks, <32 x i32> %oldk
  store <32 x i32> %newk, ptr %pk
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pw = getelementptr i8, ptr %w, i64 $wait_addr
  %olda = load <32 x i64>, ptr %pw
  %newa = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> %olda
  store <32 x i64> %newa, ptr %pw
  %po = getelementptr i8, ptr %w, i64 $operands
  %operand = load <32 x i64>, ptr %po
  %pg = getelementptr i8, ptr %w, i64 $wait_arg
  %oldg = load <32 x i64>, ptr %pg
  %newg = select <32 x i1> %lanes, <32 x i64> %operand, <32 x i64> %oldg
  store <32 x i64> %newg, ptr %pg
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %more = or i32 %blocked, %mask
  store i32 %more, ptr %pb
  ret void
}

; mbarrier words (PTX ISA 9.7.13.15): bit 0 phase, 1-20 pending arrivals, 21-40 expected arrivals, 41-61 tx-count
; (two's complement), 62-63 = 2 while the object is valid.
define i32 @mbarrier_update(ptr %b, i64 %count, i64 %expect, i64 %complete, i64 %drop) {
  %word = load i64, ptr %b
  %tag = lshr i64 %word, 62
  %valid = icmp eq i64 %tag, 2
  br i1 %valid, label %live, label %invalid
invalid:
  ret i32 $FAULT_MBARRIER_INVALID
live:
  %phase = and i64 %word, 1
  %p1 = lshr i64 %word, 1
  %pending = and i64 %p1, 1048575
  %e1 = lshr i64 %word, 21
  %expected = and i64 %e1, 1048575
  %t1 = shl i64 %word, 2
  %tx = ashr i64 %t1, 43
  %tx1 = add i64 %tx, %expect
  %tx2 = sub i64 %tx1, %complete
  %shifted = add i64 %tx2, 1048575
  %inrange = icmp ult i64 %shifted, 2097151
  br i1 %inrange, label %counted, label %overflow
overflow:
  ret i32 $FAULT_MBARRIER_OVERFLOW
counted:
  %surplus = icmp ugt i64 %count, %pending
  br i1 %surplus, label %toomany, label %apply
toomany:
  ret i32 $FAULT_MBARRIER_COUNT
apply:
  %left = sub i64 %pending, %count
  %expected1 = sub i64 %expected, %drop
  %both = or i64 %left, %tx2
  %complete_phase = icmp eq i64 %both, 0
  %left1 = select i1 %complete_phase, i64 %expected1, i64 %left
  %flip = zext i1 %complete_phase to i64
  %phase1 = xor i64 %phase, %flip
  %w1 = shl i64 %left1, 1
  %w2 = shl i64 %expected1, 21
  %txbits = and i64 %tx2, 2097151
  %w3 = shl i64 %txbits, 41
  %o1 = or i64 %phase1, %w1
  %o2 = or i64 %o1, %w2
  %o3 = or i64 %o2, %w3
  %o4 = or i64 %o3, -9223372036854775808
  store i64 %o4, ptr %b
  ret i32 0
}

; For every lane of %mask, on the barrier at its host address: operands 0-3 are count, expect, complete, drop; the
; word before the operation goes to `scratch` (it is the state token).
define i1 @mbarrier_lanes(ptr %w, i32 %mask) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %po = getelementptr i8, ptr %w, i64 $operands
  %ps = getelementptr i8, ptr %w, i64 $scratch
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %good ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %b = load ptr, ptr %pai
  %p0 = getelementptr i64, ptr %po, i64 %i
  %count = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 32
  %expect = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 64
  %complete = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 96
  %drop = load i64, ptr %p3
  %word = load i64, ptr %b
  %psi = getelementptr i64, ptr %ps, i64 %i
  store i64 %word, ptr %psi
  %code = call i32 @mbarrier_update(ptr %b, i64 %count, i64 %expect, i64 %complete, i64 %drop)
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %good, label %bad
good:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
bad:
  %bit = shl i32 1, %n
  %f = call i1 @fault(ptr %w, i32 %bit, i32 %code)
  ret i1 false
done:
  ret i1 true
}

; Lanes of %mask whose barrier has completed the phase of parity operand 0; an invalid object sets `fault`.
define i32 @mbarrier_test(ptr %w, i32 %mask) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %po = getelementptr i8, ptr %w, i64 $operands
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %valid ]
  %found = phi i32 [ 0, %entry ], [ %more, %valid ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %b = load ptr, ptr %pai
  %word = load i64, ptr %b
  %p0 = getelementptr i64, ptr %po, i64 %i
  %arg = load i64, ptr %p0
  %tag = lshr i64 %word, 62
  %isvalid = icmp eq i64 %tag, 2
  br i1 %isvalid, label %valid, label %bad
valid:
  %differ = xor i64 %word, %arg
  %parity = and i64 %differ, 1
  %one = trunc i64 %parity to i32
  %bit = shl i32 %one, %n
  %more = or i32 %found, %bit
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
bad:
  %only = shl i32 1, %n
  %f = call i1 @fault(ptr %w, i32 %only, i32 $FAULT_MBARRIER_INVALID)
  ret i32 0
done:
  ret i32 %found
}

; Unblock the lanes whose mbarrier phase is complete; true when some lane can run.
define i1 @wake(ptr %w) {
entry:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %pw = getelementptr i8, ptr %w, i64 $wait_addr
  %pg = getelementptr i8, ptr %w, i64 $wait_arg
  br label %loop
loop:
  %left = phi i32 [ %blocked, %entry ], [ %rest, %next ]
  %keep = phi i32 [ %blocked, %entry ], [ %keep1, %next ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pki = getelementptr i32, ptr %pk, i64 %i
  %kind = load i32, ptr %pki
  %isbar = icmp eq i32 %kind, $WAIT_MBARRIER
  br i1 %isbar, label %test, label %next
test:
  %pwi = getelementptr i64, ptr %pw, i64 %i
  %b = load ptr, ptr %pwi
  %word = load i64, ptr %b
  %pgi = getelementptr i64, ptr %pg, i64 %i
  %arg = load i64, ptr %pgi
  %differ = xor i64 %word, %arg
  %odd = and i64 %differ, 1
  %up = trunc i64 %odd to i32
  %free = shl i32 %up, %n
  br label %next
next:
  %freed = phi i32 [ 0, %lane ], [ %free, %test ]
  %stay = xor i32 %freed, -1
  %keep1 = and i32 %keep, %stay
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
done:
  store i32 %keep, ptr %pb
  %pp = getelementptr i8, ptr %w, i64 $parked
  %parked = load i32, ptr %pp
  %held = or i32 %keep, %parked
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %open = xor i32 %held, -1
  %ready = and i32 %live, %open
  %can = icmp ne i32 %ready, 0
  ret i1 %can
}

; Append a record for every lane of %mask to the queue: instruction, rank << 32 | warp << 8 | lane, operands.
define i1 @push(ptr %w, i32 %mask, i32 %inst) {
entry:
  %pq = getelementptr i8, ptr %w, i64 $queue
  %queue = load ptr, ptr %pq
  %pcap = getelementptr i64, ptr %queue, i64 1
  %cap = load i64, ptr %pcap
  %count = load i64, ptr %queue
  %need = add i64 %count, 32
  %fits = icmp ule i64 %need, %cap
  br i1 %fits, label %start, label %full
full:
  ret i1 false
start:
  %pr = getelementptr i8, ptr %w, i64 $rank
  %rank = load i32, ptr %pr
  %pwarp = getelementptr i8, ptr %w, i64 $warp
  %warp = load i32, ptr %pwarp
  %r = zext i32 %rank to i64
  %rs = shl i64 %r, 32
  %v = zext i32 %warp to i64
  %vs = shl i64 %v, 8
  %who = or i64 %rs, %vs
  %id = zext i32 %inst to i64
  %po = getelementptr i8, ptr %w, i64 $operands
  br label %loop
loop:
  %left = phi i32 [ %mask, %start ], [ %rest, %stored ]
  %at = phi i64 [ %count, %start ], [ %at1, %stored ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %row = mul i64 %at, $RECORD_BYTES
  %row1 = add i64 %row, 16
  %record = getelementptr i8, ptr %queue, i64 %row1
  store i64 %id, ptr %record
  %pwho = getelementptr i64, ptr %record, i64 1
  %whoami = or i64 %who, %i
  store i64 %whoami, ptr %pwho
  br label %copy
copy:
  %k = phi i64 [ 0, %lane ], [ %k1, %copy ]
  %ko = mul i64 %k, 32
  %src = getelementptr i64, ptr %po, i64 %ko
  %srci = getelementptr i64, ptr %src, i64 %i
  %value = load i64, ptr %srci
  %kd = add i64 %k, 2
  %dst = getelementptr i64, ptr %record, i64 %kd
  store i64 %value, ptr %dst
  %k1 = add i64 %k, 1
  %enough = icmp eq i64 %k1, 14
  br i1 %enough, label %stored, label %copy
stored:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %at1 = add i64 %at, 1
  br label %loop
done:
  store i64 %at, ptr %queue
  ret i1 true
}

; Every lane takes the 32-bit value of lane operand-1[lane] of operand 0 (both kept as 64-bit lanes).
define <32 x i64> @permute(<32 x i64> %value, <32 x i32> %source) {
entry:
  %box = alloca <32 x i64>
  store <32 x i64> %value, ptr %box
  %out = alloca <32 x i64>
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %from = extractelement <32 x i32> %source, i32 %i
  %from1 = and i32 %from, 31
  %p = getelementptr i64, ptr %box, i32 %from1
  %x = load i64, ptr %p
  %q = getelementptr i64, ptr %out, i32 %i
  store i64 %x, ptr %q
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, 32
  br i1 %end, label %done, label %loop
done:
  %r = load <32 x i64>, ptr %out
  ret <32 x i64> %r
}

; Run every warp that can run, until none can: 0 all wait, 1 all done, 2 some only spin, 3 fault, 4 queue full.
; %which receives the warp's index for 3 and 4.
define i32 @run_cluster(ptr %warps, i32 %n, ptr %kernel, ptr %which) {
entry:
  br label %round
round:
  %spun = phi i32 [ 0, %entry ], [ 0, %round_end ]
  br label %loop
loop:
  %i = phi i32 [ 0, %round ], [ %i1, %next ]
  %moved = phi i1 [ false, %round ], [ %moved1, %next ]
  %spin = phi i1 [ false, %round ], [ %spin1, %next ]
  %alive = phi i1 [ false, %round ], [ %alive1, %next ]
  %wi = sext i32 %i to i64
  %pw = getelementptr ptr, ptr %warps, i64 %wi
  %w = load ptr, ptr %pw
  %ps = getelementptr i8, ptr %w, i64 $status
  %status = load i32, ptr %ps
  %isdone = icmp eq i32 %status, 0
  br i1 %isdone, label %next, label %living
living:
  %can = call i1 @wake(ptr %w)
  br i1 %can, label %run, label %next
run:
  %pf = getelementptr i8, ptr %w, i64 $fuel
  store i32 $FUEL_PER_SLICE, ptr %pf
  %got = call i32 %kernel(ptr %w)
  store i32 %got, ptr %ps
  %trouble = icmp uge i32 %got, 3
  br i1 %trouble, label %stop, label %ran
stop:
  store i32 %i, ptr %which
  ret i32 %got
ran:
  %tired = icmp eq i32 %got, 2
  br i1 %tired, label %turn, label %next
turn:
  call void @rotate(ptr %w)
  br label %next
next:
  %m = phi i1 [ false, %loop ], [ false, %living ], [ true, %ran ], [ false, %turn ]
  %t = phi i1 [ false, %loop ], [ false, %living ], [ false, %ran ], [ true, %turn ]
  %notdone = phi i1 [ false, %loop ], [ true, %living ], [ true, %ran ], [ true, %turn ]
  %moved1 = or i1 %moved, %m
  %spin1 = or i1 %spin, %t
  %alive1 = or i1 %alive, %notdone
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, %n
  br i1 %end, label %round_end, label %loop
round_end:
  br i1 %moved1, label %round, label %settled
settled:
  br i1 %spin1, label %spinning, label %quiet
spinning:
  ret i32 2
quiet:
  br i1 %alive1, label %waiting, label %finished
waiting:
  ret i32 0
finished:
  ret i32 1
}

; Copy %n chunks of 16 bytes; indices count chunks from the two bases.
define void @copy_chunks(ptr %to, ptr %to_index, ptr %from, ptr %from_index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pt = getelementptr i64, ptr %to_index, i64 %i
  %t = load i64, ptr %pt
  %pf = getelementptr i64, ptr %from_index, i64 %i
  %f = load i64, ptr %pf
  %ts = shl i64 %t, 4
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <16 x i8>, ptr %src, align 1
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <16 x i8> %x, ptr %dst, align 1
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Eight 16-bit values a chunk, widened to float32: bf16 by shifting, f16 by conversion.
define void @widen_bf16(ptr %to, ptr %from, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pf = getelementptr i64, ptr %index, i64 %i
  %f = load i64, ptr %pf
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <8 x i16>, ptr %src, align 1
  %y = zext <8 x i16> %x to <8 x i32>
  %z = shl <8 x i32> %y, splat (i32 16)
  %ts = shl i64 %i, 5
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <8 x i32> %z, ptr %dst, align 4
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

define void @widen_f16(ptr %to, ptr %from, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pf = getelementptr i64, ptr %index, i64 %i
  %f = load i64, ptr %pf
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <8 x half>, ptr %src, align 1
  %y = fpext <8 x half> %x to <8 x float>
  %ts = shl i64 %i, 5
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <8 x float> %y, ptr %dst, align 4
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Mask of the lanes of %mask that hold the same value, for every lane.
define <32 x i32> @match_any(<32 x i64> %value, i32 %mask) {
entry:
  %out = alloca <32 x i32>
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %x = extractelement <32 x i64> %value, i32 %i
  %x0 = insertelement <32 x i64> poison, i64 %x, i32 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %value, %xs
  %bits = bitcast <32 x i1> %same to i32
  %hit = and i32 %bits, %mask
  %q = getelementptr i32, ptr %out, i32 %i
  store i32 %hit, ptr %q
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, 32
  br i1 %end, label %done, label %loop
done:
  %r = load <32 x i32>, ptr %out
  ret <32 x i32> %r
}

; A tensor-memory address of this warp: its lane in the warp's quarter, its %width columns allocated.
define i1 @tmem_check(ptr %w, i32 %address, i32 %width) {
  %lane = lshr i32 %address, 16
  %quarter = lshr i32 %lane, 5
  %pw = getelementptr i8, ptr %w, i64 $warp
  %warp = load i32, ptr %pw
  %own = and i32 %warp, 3
  %pa = getelementptr i8, ptr %w, i64 $addr
  %wide = zext i32 %address to i64
  store i64 %wide, ptr %pa
  %mine = icmp eq i32 %quarter, %own
  br i1 %mine, label %columns, label %foreign
foreign:
  %f = call i1 @fault(ptr %w, i32 1, i32 $FAULT_TMEM_QUARTER)
  ret i1 false
columns:
  %column = and i32 %address, 65535
  %end = add i32 %column, %width
  %past = icmp ugt i32 %end, 512
  br i1 %past, label %outside, label %inside
inside:
  %last = sub i32 %end, 1
  %g0 = lshr i32 %column, 5
  %g1 = lshr i32 %last, 5
  %span = sub i32 %g1, %g0
  %span1 = add i32 %span, 1
  %ones = shl i32 1, %span1
  %run = sub i32 %ones, 1
  %need = shl i32 %run, %g0
  %pm = getelementptr i8, ptr %w, i64 $tmem_mask
  %mask = load ptr, ptr %pm
  %have = load i32, ptr %mask
  %free = xor i32 %have, -1
  %missing = and i32 %need, %free
  %ok = icmp eq i32 %missing, 0
  br i1 %ok, label %good, label %outside
outside:
  %g = call i1 @fault(ptr %w, i32 1, i32 $FAULT_TMEM_UNALLOCATED)
  ret i1 false
good:
  ret i1 true
}

; A warp that used up its fuel prefers, next time, the blocks after the one it spins in, and after that the lowest again.
define void @rotate(ptr %w) {
  %pb = getelementptr i8, ptr %w, i64 $bias
  %bias = load i32, ptr %pb
  %turned = icmp ne i32 %bias, 0
  br i1 %turned, label %back, label %ahead
back:
  store i32 0, ptr %pb
  ret void
ahead:
  %pc = load <32 x i32>, ptr %w
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %lanes = bitcast i32 %live to <32 x i1>
  %keys = select <32 x i1> %lanes, <32 x i32> %pc, <32 x i32> splat (i32 -1)
  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %keys)
  %next = add i32 %least, 1
  store i32 %next, ptr %pb
  ret void
}
