; Addresses of lane code: the `addr` field has the lanes' virtual addresses; translation replaces those of the lanes in
; %mask by host addresses, or records a fault and returns false. In all .ll files a dollar and a name stand for an
; offset into the warp's state or a constant of state.py.

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

; Lanes of %mask whose [address, address + %size) is not inside [%low, %high), or is misaligned.
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

; The memory of [%low, %high) is at a fixed distance from the virtual addresses.
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

; Each lane has a local memory of its own; addresses are offsets into it.
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

; The last of the sorted allocations that begins at or before an address; the first one if none does.
define i64 @allocation(ptr %table, i64 %n, i64 %address) {
entry:
  br label %test
test:
  %low = phi i64 [ 0, %entry ], [ %lower, %halve ]
  %high = phi i64 [ %n, %entry ], [ %upper, %halve ]
  %range = sub i64 %high, %low
  %more = icmp ugt i64 %range, 1
  br i1 %more, label %halve, label %done
halve:
  %half = lshr i64 %range, 1
  %middle = add i64 %low, %half
  %row = mul i64 %middle, 24
  %p = getelementptr i8, ptr %table, i64 %row
  %first = load i64, ptr %p
  %after = icmp sle i64 %first, %address
  %lower = select i1 %after, i64 %middle, i64 %low
  %upper = select i1 %after, i64 %high, i64 %middle
  br label %test
done:
  ret i64 %low
}

; Most accesses have one allocation for all lanes: try the last one, then that of the first lane that is left.
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
  %guess = phi i1 [ true, %first ], [ false, %seek ]
  %left = phi i32 [ %mask, %first ], [ %rest, %seek ]
  %index = phi i64 [ %hint, %first ], [ %found, %seek ]
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
  br i1 %some, label %move, label %missed
missed:
  br i1 %guess, label %seek, label %bad
move:
  call void @rebase(ptr %w, <32 x i64> %address, i32 %here, i64 %shift)
  store i64 %index, ptr %ph
  %finished = icmp eq i32 %rest, 0
  br i1 %finished, label %done, label %seek
seek:
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %wide = zext i32 %lane to i64
  %slot = getelementptr i64, ptr %pa, i64 %wide
  %given = load i64, ptr %slot
  %found = call i64 @allocation(ptr %table, i64 %n, i64 %given)
  br label %loop
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
  %pf = getelementptr i8, ptr %w, i64 $fault_lane
  %lane = load i32, ptr %pf
  %given = extractelement <32 x i64> %address, i32 %lane
  %pg = getelementptr i8, ptr %w, i64 $fault_addr
  store i64 %given, ptr %pg
  ret i1 false
}
