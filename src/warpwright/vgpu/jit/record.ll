; Rows of the recorder: instruction | warp << 32, the first word of the warp's counters, two words, their second word.

declare i32 @llvm.ctpop.i32(i32)

define void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %a, i64 %b) {
  %idle = icmp eq i32 %mask, 0
  br i1 %idle, label %done, label %some
some:
  %pr = getelementptr i8, ptr %w, i64 $rows
  %rows = load ptr, ptr %pr
  %count = load i64, ptr %rows
  %pcap = getelementptr i64, ptr %rows, i64 1
  %cap = load i64, ptr %pcap
  %fits = icmp ult i64 %count, %cap
  br i1 %fits, label %append, label %done
append:
  %more = add i64 %count, 1
  store i64 %more, ptr %rows
  %at = mul i64 %more, $TIMED_WORDS
  %p0 = getelementptr i64, ptr %rows, i64 %at
  %ph = getelementptr i8, ptr %w, i64 $row_head
  %head = load i64, ptr %ph
  %who = or i64 %head, %inst
  store i64 %who, ptr %p0
  %pc = getelementptr i8, ptr %w, i64 $cycles
  %cycles = load <2 x i64>, ptr %pc, align 8
  %stamp = add <2 x i64> %cycles, %offset
  %low = extractelement <2 x i64> %stamp, i32 0
  %high = extractelement <2 x i64> %stamp, i32 1
  %p1 = getelementptr i64, ptr %p0, i64 1
  store i64 %low, ptr %p1
  %p4 = getelementptr i64, ptr %p0, i64 4
  store i64 %high, ptr %p4
  %pt = getelementptr i8, ptr %w, i64 $row_retry
  store i64 -1, ptr %pt
  %p2 = getelementptr i64, ptr %p0, i64 2
  store i64 %a, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 3
  store i64 %b, ptr %p3
  br label %done
done:
  ret void
}

define void @spend(ptr %w, <2 x i64> %cost) {
  %pc = getelementptr i8, ptr %w, i64 $cycles
  %cycles = load <2 x i64>, ptr %pc, align 8
  %more = add <2 x i64> %cycles, %cost
  store <2 x i64> %more, ptr %pc, align 8
  ret void
}

; Record an mbarrier operation, one row for neighbouring lanes with the same barrier: address, arrivals | bytes << 32.
; Arrivals and bytes are the sums of the lanes; if the operation %sets the barrier, they are those of the last lane.
define void @row_barriers(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i1 %sets) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %po = getelementptr i8, ptr %w, i64 $operands
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %base = load i64, ptr %ph
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %join ], [ %rest, %flush ]
  %held = phi i64 [ -1, %entry ], [ %place, %join ], [ %place, %flush ]
  %sum = phi i64 [ 0, %entry ], [ %joined, %join ], [ %word, %flush ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %pai = getelementptr i64, ptr %pa, i64 %i
  %host = load i64, ptr %pai
  %place = sub i64 %host, %base
  %p0 = getelementptr i64, ptr %po, i64 %i
  %count = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 32
  %expect = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 64
  %complete = load i64, ptr %p2
  %bytes = sub i64 %expect, %complete
  %high = shl i64 %bytes, 32
  %word = add i64 %high, %count
  %same = icmp eq i64 %place, %held
  br i1 %same, label %join, label %other
join:
  %both = add i64 %sum, %word
  %joined = select i1 %sets, i64 %word, i64 %both
  br label %loop
other:
  %fresh = icmp eq i64 %held, -1
  br i1 %fresh, label %flush, label %write
write:
  call void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %held, i64 %sum)
  br label %flush
flush:
  br label %loop
done:
  %any = icmp ne i64 %held, -1
  br i1 %any, label %last, label %end
last:
  call void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %held, i64 %sum)
  br label %end
end:
  ret void
}

; Record a test of a phase: address and parity once some lane passes. The cost of failed tests before it is subtracted,
; so that a row's counter does not depend on the order in which warps ran; not if other lanes wrote a row since.
define void @row_wait(ptr %w, i32 %mask, i32 %done, i64 %inst, <2 x i64> %offset) {
  %idle = icmp eq i32 %mask, 0
  br i1 %idle, label %end, label %some
some:
  %pc = getelementptr i8, ptr %w, i64 $cycles
  %cycles = load <2 x i64>, ptr %pc, align 8
  %pt = getelementptr i8, ptr %w, i64 $row_retry
  %retry = load i64, ptr %pt
  %again = icmp eq i64 %retry, %inst
  %ps = getelementptr i8, ptr %w, i64 $row_saved
  %failed = icmp eq i32 %done, 0
  br i1 %failed, label %fail, label %pass
fail:
  br i1 %again, label %end, label %save
save:
  store i64 %inst, ptr %pt
  store <2 x i64> %cycles, ptr %ps, align 8
  br label %end
pass:
  br i1 %again, label %restore, label %write
restore:
  %saved = load <2 x i64>, ptr %ps, align 8
  store <2 x i64> %saved, ptr %pc, align 8
  br label %write
write:
  %n = call i32 @llvm.cttz.i32(i32 %done, i1 true)
  %i = zext i32 %n to i64
  %pa = getelementptr i8, ptr %w, i64 $addr
  %pai = getelementptr i64, ptr %pa, i64 %i
  %host = load i64, ptr %pai
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %base = load i64, ptr %ph
  %place = sub i64 %host, %base
  %po = getelementptr i8, ptr %w, i64 $operands
  %p0 = getelementptr i64, ptr %po, i64 %i
  %word = load i64, ptr %p0
  %parity = and i64 %word, 1
  call void @row(ptr %w, i32 %done, i64 %inst, <2 x i64> %offset, i64 %place, i64 %parity)
  br label %end
end:
  ret void
}

; Lanes of %mask that are the first with their value.
define i32 @firsts(<32 x i64> %values, i32 %mask) {
entry:
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %lane ]
  %found = phi i32 [ 0, %entry ], [ %more, %lane ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %one = shl i32 1, %n
  %more = or i32 %found, %one
  %x = extractelement <32 x i64> %values, i32 %n
  %x0 = insertelement <32 x i64> poison, i64 %x, i32 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %values, %xs
  %bits = bitcast <32 x i1> %same to i32
  %other = xor i32 %bits, -1
  %rest = and i32 %left, %other
  br label %loop
done:
  ret i32 %found
}

; Wavefronts of a shared-memory access: the most distinct words in one bank, over groups of lanes of 128 bytes.
define i64 @wavefronts(<32 x i64> %address, i32 %mask, i64 %size) {
entry:
  %small = icmp ult i64 %size, 4
  %unit = select i1 %small, i64 4, i64 %size
  %shift = call i64 @llvm.cttz.i64(i64 %unit, i1 true)
  %banks = udiv i64 128, %unit
  %last = sub i64 %banks, 1
  %s0 = insertelement <32 x i64> poison, i64 %shift, i32 0
  %ss = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %words = lshr <32 x i64> %address, %ss
  %m0 = insertelement <32 x i64> poison, i64 %last, i32 0
  %ms = shufflevector <32 x i64> %m0, <32 x i64> poison, <32 x i32> zeroinitializer
  %bank = and <32 x i64> %words, %ms
  %narrow = trunc i64 %banks to i32
  %wide = icmp eq i32 %narrow, 32
  %together = shl i32 1, %narrow
  %ones = sub i32 %together, 1
  %group = select i1 %wide, i32 -1, i32 %ones
  br label %groups
groups:
  %from = phi i32 [ 0, %entry ], [ %from1, %next ]
  %total = phi i64 [ 0, %entry ], [ %total1, %next ]
  %members = shl i32 %group, %from
  %here = and i32 %members, %mask
  %distinct = call i32 @firsts(<32 x i64> %words, i32 %here)
  br label %loop
loop:
  %left = phi i32 [ %distinct, %groups ], [ %rest, %lane ]
  %most = phi i32 [ 0, %groups ], [ %most1, %lane ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %next, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %x = extractelement <32 x i64> %bank, i32 %n
  %x0 = insertelement <32 x i64> poison, i64 %x, i32 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %bank, %xs
  %bits = bitcast <32 x i1> %same to i32
  %both = and i32 %bits, %left
  %count = call i32 @llvm.ctpop.i32(i32 %both)
  %above = icmp ugt i32 %count, %most
  %most1 = select i1 %above, i32 %count, i32 %most
  %other = xor i32 %bits, -1
  %rest = and i32 %left, %other
  br label %loop
next:
  %w64 = zext i32 %most to i64
  %total1 = add i64 %total, %w64
  %from1 = add i32 %from, %narrow
  %end = icmp uge i32 %from1, 32
  br i1 %end, label %done, label %groups
done:
  ret i64 %total1
}

declare i64 @llvm.cttz.i64(i64, i1)

; Record an access whose host addresses are in `addr`. Global: lines of 128 bytes << 24 | sectors of 32, first address.
; Shared: 1 << 48 | least wavefronts << 24 | wavefronts, rank of the CTA with the memory.
define void @row_access(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %size) {
  %idle = icmp eq i32 %mask, 0
  br i1 %idle, label %done, label %some
some:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %n = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %first = extractelement <32 x i64> %address, i32 %n
  %ph = getelementptr i8, ptr %w, i64 $shared_host
  %base = load i64, ptr %ph
  %pstride = getelementptr i8, ptr %w, i64 $shared_stride
  %stride = load i64, ptr %pstride
  %pranks = getelementptr i8, ptr %w, i64 $ranks
  %ranks = load i32, ptr %pranks
  %wide = zext i32 %ranks to i64
  %whole = mul i64 %stride, %wide
  %place = sub i64 %first, %base
  %shared = icmp ult i64 %place, %whole
  br i1 %shared, label %inside, label %outside
inside:
  %fronts = call i64 @wavefronts(<32 x i64> %address, i32 %mask, i64 %size)
  %lanes = call i32 @llvm.ctpop.i32(i32 %mask)
  %lanes64 = zext i32 %lanes to i64
  %bytes = mul i64 %lanes64, %size
  %up = add i64 %bytes, 127
  %least = lshr i64 %up, 7
  %least1 = shl i64 %least, 24
  %both = or i64 %fronts, %least1
  %tagged = or i64 %both, 281474976710656
  %rank = udiv i64 %place, %stride
  call void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %tagged, i64 %rank)
  br label %done
outside:
  %sector = lshr <32 x i64> %address, splat (i64 5)
  %distinct = call i32 @firsts(<32 x i64> %sector, i32 %mask)
  %count = call i32 @llvm.ctpop.i32(i32 %distinct)
  %count64 = zext i32 %count to i64
  %line = lshr <32 x i64> %address, splat (i64 7)
  %apart = call i32 @firsts(<32 x i64> %line, i32 %mask)
  %lines = call i32 @llvm.ctpop.i32(i32 %apart)
  %lines64 = zext i32 %lines to i64
  %high = shl i64 %lines64, 24
  %both1 = or i64 %count64, %high
  call void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %both1, i64 %first)
  br label %done
done:
  ret void
}

; Record a warp's arrival at a named barrier: one row, when the last of its lanes arrives.
define void @row_bar(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %number, i64 %how) {
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %kinds = load <32 x i32>, ptr %pk
  %same = icmp eq <32 x i32> %kinds, splat (i32 $WAIT_BAR)
  %bits = bitcast <32 x i1> %same to i32
  %there = and i32 %bits, %blocked
  %come = or i32 %there, %mask
  %others = xor i32 %come, -1
  %missing = and i32 %live, %others
  %all = icmp eq i32 %missing, 0
  br i1 %all, label %write, label %done
write:
  call void @row(ptr %w, i32 %mask, i64 %inst, <2 x i64> %offset, i64 %number, i64 %how)
  br label %done
done:
  ret void
}
