; Asynchronous operations that only signal (numerics="none"): lane code updates their mbarriers at issue, without data.

; The bytes of a box of the tensor map at a virtual address, a multiple of 64; its bits (layout/tensor_map_bytes.py) are
; in the first 64 bytes. -1 if none is there.
define i64 @box_bytes(ptr %w, i32 %mask, i64 %address) {
  %pf = getelementptr i8, ptr %w, i64 $signals
  %flag = load i32, ptr %pf
  %lanes = and i32 %flag, %mask
  %idle = icmp eq i32 %lanes, 0
  br i1 %idle, label %bad, label %look
look:
  %a0 = insertelement <32 x i64> poison, i64 %address, i32 0
  %as = shufflevector <32 x i64> %a0, <32 x i64> poison, <32 x i32> zeroinitializer
  %pa = getelementptr i8, ptr %w, i64 $addr
  store <32 x i64> %as, ptr %pa
  %ok = call i1 @global(ptr %w, i32 %mask, i64 64)
  br i1 %ok, label %good, label %bad
good:
  %n = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %map = load ptr, ptr %pai
  %pword = getelementptr i8, ptr %map, i64 8
  %word = load i64, ptr %pword, align 4
  %psize = getelementptr i8, ptr %map, i64 52
  %sizes = load i64, ptr %psize, align 4
  %rank0 = lshr i64 %word, 4
  %rank = and i64 %rank0, 7
  %type0 = lshr i64 %word, 5
  %type = and i64 %type0, 60
  %logs = lshr i64 1314816991760, %type
  %log = and i64 %logs, 3
  %whole = shl i64 8, %log
  %packed = icmp uge i64 %type, 44
  %six = icmp eq i64 %type, 52
  %part = select i1 %six, i64 6, i64 4
  %size = select i1 %packed, i64 %part, i64 %whole
  %woven = and i64 %word, 6144
  %plain = icmp eq i64 %woven, 0
  %dense = and i64 %sizes, -8
  %steps = select i1 %plain, i64 %dense, i64 %sizes
  %boxes = lshr i64 %sizes, 24
  %version = and i64 %word, 15
  %im2col = icmp eq i64 %version, 1
  br i1 %im2col, label %pixels, label %each
pixels:
  %ppixels = getelementptr i8, ptr %map, i64 60
  %pixels0 = load i32, ptr %ppixels, align 4
  %pixels1 = and i32 %pixels0, 1023
  %pixels2 = zext i32 %pixels1 to i64
  %count2 = add i64 %pixels2, 1
  %channels0 = and i64 %boxes, 255
  %channels = add i64 %channels0, 1
  %row = mul i64 %channels, %size
  %column = mul i64 %row, %count2
  %column1 = lshr i64 %column, 3
  ret i64 %column1
each:
  %axis = phi i64 [ 0, %good ], [ %axis1, %each ]
  %nbytes = phi i64 [ %size, %good ], [ %nbytes1, %each ]
  %at3 = mul i64 %axis, 3
  %step0 = lshr i64 %steps, %at3
  %step1 = and i64 %step0, 7
  %step = add i64 %step1, 1
  %at8 = mul i64 %axis, 8
  %box0 = lshr i64 %boxes, %at8
  %box1 = and i64 %box0, 255
  %over = add i64 %box1, %step
  %count = udiv i64 %over, %step
  %nbytes1 = mul i64 %nbytes, %count
  %axis1 = add i64 %axis, 1
  %last = icmp uge i64 %axis, %rank
  br i1 %last, label %done, label %each
done:
  %nbytes2 = lshr i64 %nbytes1, 3
  ret i64 %nbytes2
bad:
  ret i64 -1
}

; Apply %count arrivals or %nbytes to the barrier in operand %bar of each lane of %mask. With %many >= 0, that operand
; is a mask of CTAs; otherwise with %box >= 0 the CTA is that of the operand's address, otherwise the barrier's own.
; %pair: the barrier is in the CTA of a destination's pair with the named CTA's rank parity.
define void @signal(ptr %w, i32 %mask, i64 %count, i64 %nbytes, i64 %bar, i64 %many, i64 %box, i1 %pair) {
entry:
  %pf = getelementptr i8, ptr %w, i64 $signals
  %flag = load i32, ptr %pf
  %off = icmp eq i32 %flag, 0
  br i1 %off, label %done, label %begin
begin:
  %po = getelementptr i8, ptr %w, i64 $operands
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %host = load i64, ptr %ph
  %ps = getelementptr i8, ptr %w, i64 $shared_stride
  %stride = load i64, ptr %ps
  %pb = getelementptr <32 x i64>, ptr %po, i64 %bar
  %pm = getelementptr <32 x i64>, ptr %po, i64 %many
  %px = getelementptr <32 x i64>, ptr %po, i64 %box
  %multi = icmp sge i64 %many, 0
  %boxed = icmp sge i64 %box, 0
  br label %loop
loop:
  %left = phi i32 [ %mask, %begin ], [ %rest, %next ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %i = zext i32 %n to i64
  %pbi = getelementptr i64, ptr %pb, i64 %i
  %word = load i64, ptr %pbi
  %low = and i64 %word, 4294967295
  %named = lshr i64 %low, $RANK_SHIFT
  %offset = and i64 %low, 16777215
  br i1 %multi, label %several, label %single
several:
  %pmi = getelementptr i64, ptr %pm, i64 %i
  %bits = load i64, ptr %pmi
  %ctas = and i64 %bits, 65535
  br label %each
single:
  br i1 %boxed, label %at_box, label %at_named
at_box:
  %pxi = getelementptr i64, ptr %px, i64 %i
  %place = load i64, ptr %pxi
  %place1 = and i64 %place, 4294967295
  %owner = lshr i64 %place1, $RANK_SHIFT
  br label %at_named
at_named:
  %one = phi i64 [ %owner, %at_box ], [ %named, %single ]
  %bit = shl i64 1, %one
  br label %each
each:
  %todo = phi i64 [ %ctas, %several ], [ %bit, %at_named ], [ %more, %hit ]
  %empty = icmp eq i64 %todo, 0
  br i1 %empty, label %next, label %hit
hit:
  %rank = call i64 @llvm.cttz.i64(i64 %todo, i1 true)
  %todo1 = sub i64 %todo, 1
  %more = and i64 %todo, %todo1
  %even = and i64 %rank, -2
  %parity = and i64 %named, 1
  %paired = or i64 %even, %parity
  %at = select i1 %pair, i64 %paired, i64 %rank
  %far = mul i64 %at, %stride
  %base = add i64 %host, %far
  %address = add i64 %base, %offset
  %p = inttoptr i64 %address to ptr
  %code = call i32 @mbarrier_update(ptr %p, i64 %count, i64 0, i64 %nbytes, i64 0)
  br label %each
next:
  br label %loop
done:
  ret void
}

; Arrive at the cluster barrier in runs that only signal; returns the lanes that the machine must unblock itself.
define i32 @cluster_arrive(ptr %w, i32 %mask) {
  %pf = getelementptr i8, ptr %w, i64 $signals
  %flag = load i32, ptr %pf
  %off = icmp eq i32 %flag, 0
  br i1 %off, label %slow, label %fast
slow:
  ret i32 %mask
fast:
  %pm = getelementptr i8, ptr %w, i64 $meeting
  %meeting = load ptr, ptr %pm
  %count = load i64, ptr %meeting
  %lanes = call i32 @llvm.ctpop.i32(i32 %mask)
  %wide = zext i32 %lanes to i64
  %more = add i64 %count, %wide
  %pphase = getelementptr i64, ptr %meeting, i64 1
  %phase = load i64, ptr %pphase
  %po = getelementptr i8, ptr %w, i64 $owed
  store i64 %phase, ptr %po
  %ptotal = getelementptr i64, ptr %meeting, i64 2
  %total = load i64, ptr %ptotal
  %all = icmp sge i64 %more, %total
  %next = add i64 %phase, 1
  %phase1 = select i1 %all, i64 %next, i64 %phase
  %left = select i1 %all, i64 0, i64 %more
  store i64 %left, ptr %meeting
  store i64 %phase1, ptr %pphase
  ret i32 0
}

; Whether the phase of the cluster barrier in which the warp arrived is complete.
define i1 @met(ptr %w) {
  %pm = getelementptr i8, ptr %w, i64 $meeting
  %meeting = load ptr, ptr %pm
  %pphase = getelementptr i64, ptr %meeting, i64 1
  %phase = load i64, ptr %pphase
  %po = getelementptr i8, ptr %w, i64 $owed
  %owed = load i64, ptr %po
  %over = icmp sgt i64 %phase, %owed
  ret i1 %over
}
