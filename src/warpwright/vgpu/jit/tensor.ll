; Tensor-memory loads and stores, deferred until tcgen05.wait. A plan (int64 words): count, flags (1 store, 2
; sixteen-bit pairs), `count` register offsets, then 32 element offsets a register, relative to the address of the
; instruction.

declare <32 x i32> @llvm.masked.gather.v32i32.v32p0(<32 x ptr>, i32, <32 x i1>, <32 x i32>)
declare void @llvm.masked.scatter.v32i32.v32p0(<32 x i32>, <32 x ptr>, i32, <32 x i1>)

define void @tmem_flush(ptr %w) {
entry:
  %pn = getelementptr i8, ptr %w, i64 $pending
  %n = load i32, ptr %pn
  %count = sext i32 %n to i64
  %pt = getelementptr i8, ptr %w, i64 $tmem
  %tmem = load ptr, ptr %pt
  %any = icmp sgt i32 %n, 0
  br i1 %any, label %plans, label %done
plans:
  %k = phi i64 [ 0, %entry ], [ %k1, %plan_done ]
  %ptable = getelementptr i8, ptr %w, i64 $pend_table
  %pplan = getelementptr i64, ptr %ptable, i64 %k
  %plan = load ptr, ptr %pplan
  %paddrs = getelementptr i8, ptr %w, i64 $pend_addr
  %paddr = getelementptr i64, ptr %paddrs, i64 %k
  %at = load i64, ptr %paddr
  %base = getelementptr i32, ptr %tmem, i64 %at
  %regs = load i64, ptr %plan
  %pflags = getelementptr i64, ptr %plan, i64 1
  %flags = load i64, ptr %pflags
  %slots = getelementptr i64, ptr %plan, i64 2
  %cells = getelementptr i64, ptr %slots, i64 %regs
  %store = trunc i64 %flags to i1
  %pairbit = lshr i64 %flags, 1
  %pair = trunc i64 %pairbit to i1
  br label %regs_loop
regs_loop:
  %r = phi i64 [ 0, %plans ], [ %r1, %reg_done ]
  %pslot = getelementptr i64, ptr %slots, i64 %r
  %slot = load i64, ptr %pslot
  %reg = getelementptr i8, ptr %w, i64 %slot
  %row = mul i64 %r, 32
  %pcells = getelementptr i64, ptr %cells, i64 %row
  %offsets = load <32 x i64>, ptr %pcells, align 8
  %low = getelementptr i32, ptr %base, <32 x i64> %offsets
  %high = getelementptr i32, <32 x ptr> %low, i64 128
  br i1 %store, label %put, label %get
get:
  %x = call <32 x i32> @llvm.masked.gather.v32i32.v32p0(<32 x ptr> %low, i32 4, <32 x i1> splat (i1 true), <32 x i32> zeroinitializer)
  br i1 %pair, label %get_pair, label %keep
get_pair:
  %y = call <32 x i32> @llvm.masked.gather.v32i32.v32p0(<32 x ptr> %high, i32 4, <32 x i1> splat (i1 true), <32 x i32> zeroinitializer)
  %yh = shl <32 x i32> %y, splat (i32 16)
  %xl = and <32 x i32> %x, splat (i32 65535)
  %xy = or <32 x i32> %xl, %yh
  br label %keep
keep:
  %value = phi <32 x i32> [ %x, %get ], [ %xy, %get_pair ]
  store <32 x i32> %value, ptr %reg
  br label %reg_done
put:
  %v = load <32 x i32>, ptr %reg
  br i1 %pair, label %put_pair, label %put_one
put_one:
  call void @llvm.masked.scatter.v32i32.v32p0(<32 x i32> %v, <32 x ptr> %low, i32 4, <32 x i1> splat (i1 true))
  br label %reg_done
put_pair:
  %vl = and <32 x i32> %v, splat (i32 65535)
  %vh = lshr <32 x i32> %v, splat (i32 16)
  call void @llvm.masked.scatter.v32i32.v32p0(<32 x i32> %vl, <32 x ptr> %low, i32 4, <32 x i1> splat (i1 true))
  call void @llvm.masked.scatter.v32i32.v32p0(<32 x i32> %vh, <32 x ptr> %high, i32 4, <32 x i1> splat (i1 true))
  br label %reg_done
reg_done:
  %r1 = add i64 %r, 1
  %more = icmp slt i64 %r1, %regs
  br i1 %more, label %regs_loop, label %plan_done
plan_done:
  %k1 = add i64 %k, 1
  %again = icmp slt i64 %k1, %count
  br i1 %again, label %plans, label %done
done:
  store i32 0, ptr %pn
  ret void
}

; Defer a tensor-memory access until tcgen05.wait; with 64 outstanding the earlier ones are performed now. It begins in
; the warp's own quarter of the lanes, whichever quarter %address names.
define void @tmem_pend(ptr %w, i32 %address, i64 %plan) {
  %pn = getelementptr i8, ptr %w, i64 $pending
  %held = load i32, ptr %pn
  %full = icmp sge i32 %held, 64
  br i1 %full, label %flush, label %add
flush:
  call void @tmem_flush(ptr %w)
  br label %add
add:
  %n = load i32, ptr %pn
  %i = sext i32 %n to i64
  %column = and i32 %address, 65535
  %field = lshr i32 %address, 16
  %within = and i32 %field, 31
  %pw = getelementptr i8, ptr %w, i64 $warp
  %warp = load i32, ptr %pw
  %own = and i32 %warp, 3
  %quarter = shl i32 %own, 5
  %lane = or i32 %quarter, %within
  %cells = shl i32 %column, 7
  %at = add i32 %cells, %lane
  %wide = zext i32 %at to i64
  %pa = getelementptr i8, ptr %w, i64 $pend_addr
  %pai = getelementptr i64, ptr %pa, i64 %i
  store i64 %wide, ptr %pai
  %pt = getelementptr i8, ptr %w, i64 $pend_table
  %pti = getelementptr i64, ptr %pt, i64 %i
  store i64 %plan, ptr %pti
  %more = add i32 %n, 1
  store i32 %more, ptr %pn
  ret void
}

; Check a tensor-memory address of this warp: its lane starts %rows lanes into the warp's quarter or quarter 0, of this
; CTA or (128 lanes on) the pair's second; its %width columns are allocated.
define i1 @tmem_check(ptr %w, i32 %address, i32 %width, i32 %rows) {
  %lane = lshr i32 %address, 16
  %chunk = lshr i32 %lane, 5
  %quarter = and i32 %chunk, 3
  %pw = getelementptr i8, ptr %w, i64 $warp
  %warp = load i32, ptr %pw
  %own = and i32 %warp, 3
  %pa = getelementptr i8, ptr %w, i64 $addr
  %wide = zext i32 %address to i64
  store i64 %wide, ptr %pa
  %mine = icmp eq i32 %quarter, %own
  %none = icmp eq i32 %quarter, 0
  %named = or i1 %mine, %none
  %exists = icmp ult i32 %chunk, 8
  %reached = and i1 %named, %exists
  br i1 %reached, label %placed, label %foreign
placed:
  %inner = sub i32 %rows, 1
  %off = and i32 %lane, %inner
  %begins = icmp eq i32 %off, 0
  br i1 %begins, label %columns, label %skew
skew:
  %s = call i1 @fault(ptr %w, i32 1, i32 $FAULT_TMEM_LANE)
  ret i1 false
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
