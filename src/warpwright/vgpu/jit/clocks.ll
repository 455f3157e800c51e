; Vector clocks of checks. %clocks, of 8-byte words: the table, with a row of %stride words for each lane in two planes;
; the stride; the words from one plane to the next; by warp, whether all its rows are alike (i8); room for a clock; its
; width now. A clock is two rows of %width words. Widths are multiples of 16. Lanes are those of %mask in the warp whose first lane is %first.
; Rows of a warp are alike if they differ at most in the columns of the warp's own lanes.

declare <16 x i32> @llvm.umax.v16i32(<16 x i32>, <16 x i32>)

; Each lane's row becomes the elementwise maximum of the row and the clock.
define void @clock_acquire(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width) {
  %pf = call ptr @warp_flag(ptr %clocks, i64 %first)
  %alike = load i8, ptr %pf
  %were = icmp ne i8 %alike, 0
  %whole = icmp eq i32 %mask, -1
  %quick = and i1 %were, %whole
  br i1 %quick, label %together, label %single
together:
  call void @rows_raise(ptr %clocks, i64 %first, ptr %clock, i64 %width)
  ret void
single:
  call void @lanes_join(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width, i64 0, i64 %width, i1 false)
  br i1 %whole, label %compare, label %apart
compare:
  %same = call i1 @rows_alike(ptr %clocks, i64 %first)
  %same8 = zext i1 %same to i8
  store i8 %same8, ptr %pf
  ret void
apart:
  store i8 0, ptr %pf
  ret void
}

; The clock becomes the elementwise maximum of itself and the lanes' rows; then each lane's own word is incremented.
define void @clock_release(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width) {
  %pf = call ptr @warp_flag(ptr %clocks, i64 %first)
  %alike = load i8, ptr %pf
  %were = icmp ne i8 %alike, 0
  br i1 %were, label %together, label %single
together:
  %lowest = call i32 @llvm.cttz.i32(i32 %mask, i1 false)
  %one = shl i32 1, %lowest
  call void @lanes_join(ptr %clocks, i64 %first, i32 %one, ptr %clock, i64 %width, i64 0, i64 %width, i1 true)
  call void @lanes_join(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width, i64 %first, i64 32, i1 true)
  br label %tick
single:
  call void @lanes_join(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width, i64 0, i64 %width, i1 true)
  br label %tick
tick:
  call void @clock_tick(ptr %clocks, i64 %first, i32 %mask)
  ret void
}

; The lanes release to one another.
define void @clock_sync(ptr %clocks, i64 %first, i32 %mask) {
  %p4 = getelementptr ptr, ptr %clocks, i64 4
  %clock = load ptr, ptr %p4
  %p5 = getelementptr i64, ptr %clocks, i64 5
  %width = load i64, ptr %p5
  %bytes = shl i64 %width, 3
  call void @llvm.memset.p0.i64(ptr %clock, i8 0, i64 %bytes, i1 false)
  call void @clock_release(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width)
  call void @clock_acquire(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width)
  ret void
}

; A column of the lanes' rows in the first plane becomes at least %value.
define void @clock_reach(ptr %clocks, i64 %first, i32 %mask, i64 %column, i32 %value) {
entry:
  %whole = icmp eq i32 %mask, -1
  br i1 %whole, label %loop, label %apart
apart:
  %pf = call ptr @warp_flag(ptr %clocks, i64 %first)
  store i8 0, ptr %pf
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %mask, %apart ], [ %less, %lane ]
  %more = icmp ne i32 %left, 0
  br i1 %more, label %lane, label %done
lane:
  %bit = call i32 @llvm.cttz.i32(i32 %left, i1 false)
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 %bit)
  %p = getelementptr i32, ptr %row, i64 %column
  %old = load i32, ptr %p
  %low = icmp ult i32 %old, %value
  %new = select i1 %low, i32 %value, i32 %old
  store i32 %new, ptr %p
  %less1 = sub i32 %left, 1
  %less = and i32 %left, %less1
  br label %loop
done:
  ret void
}

; Each lane's own word is incremented.
define void @clock_tick(ptr %clocks, i64 %first, i32 %mask) {
entry:
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %less, %lane ]
  %more = icmp ne i32 %left, 0
  br i1 %more, label %lane, label %done
lane:
  %bit = call i32 @llvm.cttz.i32(i32 %left, i1 false)
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 %bit)
  %bit64 = zext i32 %bit to i64
  %which = add i64 %first, %bit64
  %p = getelementptr i32, ptr %row, i64 %which
  %own = load i32, ptr %p
  %next = add i32 %own, 1
  store i32 %next, ptr %p
  %less1 = sub i32 %left, 1
  %less = and i32 %left, %less1
  br label %loop
done:
  ret void
}

; The async proxy sees what the lanes have done themselves. What they knew is noted in %notes, of 8-byte words: 33 rows for
; each warp, one for each lane and one for the warp; words from one row to the next; for each warp, the lanes' rows in the
; columns of its lanes; by lane (i8), 1 if its own row has what it knew, 2 if the warp's has.
define void @clock_fence(ptr %clocks, i64 %first, i32 %mask, ptr %notes) {
entry:
  %p2 = getelementptr i64, ptr %clocks, i64 2
  %plane = load i64, ptr %p2
  %p5 = getelementptr i64, ptr %clocks, i64 5
  %width = load i64, ptr %p5
  %bytes = shl i64 %width, 2
  %pf = call ptr @warp_flag(ptr %clocks, i64 %first)
  %alike = load i8, ptr %pf
  %were = icmp ne i8 %alike, 0
  %whole = icmp eq i32 %mask, -1
  %together = and i1 %were, %whole
  %kind = select i1 %together, i8 2, i8 1
  %n1 = getelementptr i64, ptr %notes, i64 1
  %stride = load i64, ptr %n1
  %n3 = getelementptr ptr, ptr %notes, i64 3
  %kinds = load ptr, ptr %n3
  %warp = lshr i64 %first, 5
  %rows = load ptr, ptr %notes
  %w33 = mul i64 %warp, 33
  %at = mul i64 %w33, %stride
  %notes0 = getelementptr i32, ptr %rows, i64 %at
  %n2 = getelementptr ptr, ptr %notes, i64 2
  %blocks = load ptr, ptr %n2
  %block = getelementptr [1024 x i32], ptr %blocks, i64 %warp
  br i1 %together, label %once, label %loop
once:
  %row0 = call ptr @lane_row(ptr %clocks, i64 %first, i32 0)
  %last = mul i64 %stride, 32
  %shared = getelementptr i32, ptr %notes0, i64 %last
  call void @llvm.memcpy.p0.p0.i64(ptr %shared, ptr %row0, i64 %bytes, i1 false)
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %mask, %once ], [ %less, %next ]
  %more = icmp ne i32 %left, 0
  br i1 %more, label %lane, label %done
lane:
  %bit = call i32 @llvm.cttz.i32(i32 %left, i1 false)
  %bit64 = zext i32 %bit to i64
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 %bit)
  %which = add i64 %first, %bit64
  %pk = getelementptr i8, ptr %kinds, i64 %which
  store i8 %kind, ptr %pk
  br i1 %together, label %part, label %all
part:
  %from = getelementptr i32, ptr %row, i64 %first
  %to = getelementptr [32 x i32], ptr %block, i64 %bit64
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 128, i1 false)
  br label %next
all:
  %there = mul i64 %bit64, %stride
  %note = getelementptr i32, ptr %notes0, i64 %there
  call void @llvm.memcpy.p0.p0.i64(ptr %note, ptr %row, i64 %bytes, i1 false)
  br label %next
next:
  %p = getelementptr i32, ptr %row, i64 %which
  %own = load i32, ptr %p
  %ps = getelementptr i32, ptr %p, i64 %plane
  store i32 %own, ptr %ps
  %tick = add i32 %own, 1
  store i32 %tick, ptr %p
  %less1 = sub i32 %left, 1
  %less = and i32 %left, %less1
  br label %loop
done:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

declare i32 @llvm.cttz.i32(i32, i1)

define internal ptr @warp_flag(ptr %clocks, i64 %first) alwaysinline {
  %p3 = getelementptr ptr, ptr %clocks, i64 3
  %flags = load ptr, ptr %p3
  %warp = lshr i64 %first, 5
  %p = getelementptr i8, ptr %flags, i64 %warp
  ret ptr %p
}

define internal ptr @lane_row(ptr %clocks, i64 %first, i32 %bit) alwaysinline {
  %table = load ptr, ptr %clocks
  %p1 = getelementptr i64, ptr %clocks, i64 1
  %stride = load i64, ptr %p1
  %bit64 = zext i32 %bit to i64
  %which = add i64 %first, %bit64
  %at = mul i64 %which, %stride
  %row = getelementptr i32, ptr %table, i64 %at
  ret ptr %row
}

; Joins %count columns from %column on of the lanes' rows into the clock (%out), or those of the clock into the rows, in
; both planes.
define internal void @lanes_join(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width, i64 %column, i64 %count,
                                 i1 %out) {
entry:
  %p2 = getelementptr i64, ptr %clocks, i64 2
  %plane = load i64, ptr %p2
  %c0 = getelementptr i32, ptr %clock, i64 %column
  %c1 = getelementptr i32, ptr %c0, i64 %width
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %less, %next ]
  %more = icmp ne i32 %left, 0
  br i1 %more, label %lane, label %done
lane:
  %bit = call i32 @llvm.cttz.i32(i32 %left, i1 false)
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 %bit)
  %r0 = getelementptr i32, ptr %row, i64 %column
  %r1 = getelementptr i32, ptr %r0, i64 %plane
  br i1 %out, label %give, label %take
give:
  call void @words_raise(ptr %c0, ptr %r0, i64 %count)
  call void @words_raise(ptr %c1, ptr %r1, i64 %count)
  br label %next
take:
  call void @words_raise(ptr %r0, ptr %c0, i64 %count)
  call void @words_raise(ptr %r1, ptr %c1, i64 %count)
  br label %next
next:
  %less1 = sub i32 %left, 1
  %less = and i32 %left, %less1
  br label %loop
done:
  ret void
}

define internal void @words_raise(ptr noalias %to, ptr noalias %from, i64 %count) alwaysinline {
entry:
  br label %loop
loop:
  %c = phi i64 [ 0, %entry ], [ %c1, %loop ]
  %pt = getelementptr i32, ptr %to, i64 %c
  %pf = getelementptr i32, ptr %from, i64 %c
  %old = load <16 x i32>, ptr %pt, align 4
  %new = load <16 x i32>, ptr %pf, align 4
  %most = call <16 x i32> @llvm.umax.v16i32(<16 x i32> %old, <16 x i32> %new)
  store <16 x i32> %most, ptr %pt, align 4
  %c1 = add i64 %c, 16
  %more = icmp ult i64 %c1, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}

; Joins the clock into the rows of a warp, which are alike: words that none of them lacks are skipped.
define internal void @rows_raise(ptr %clocks, i64 %first, ptr %clock, i64 %width) {
entry:
  %p2 = getelementptr i64, ptr %clocks, i64 2
  %plane = load i64, ptr %p2
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 0)
  call void @lanes_join(ptr %clocks, i64 %first, i32 -1, ptr %clock, i64 %width, i64 %first, i64 32, i1 false)
  %both = shl i64 %width, 1
  br label %loop
loop:
  %w = phi i64 [ 0, %entry ], [ %w1, %next ]
  %second = icmp uge i64 %w, %width
  %over = select i1 %second, i64 %width, i64 0
  %c = sub i64 %w, %over
  %base = select i1 %second, i64 %plane, i64 0
  %from = sub i64 %c, %first
  %own = icmp ult i64 %from, 32
  br i1 %own, label %next, label %compare
compare:
  %pc = getelementptr i32, ptr %clock, i64 %w
  %at = add i64 %base, %c
  %p = getelementptr i32, ptr %row, i64 %at
  %old = load <16 x i32>, ptr %p, align 4
  %new = load <16 x i32>, ptr %pc, align 4
  %most = call <16 x i32> @llvm.umax.v16i32(<16 x i32> %old, <16 x i32> %new)
  %changed = icmp ne <16 x i32> %most, %old
  %bits = bitcast <16 x i1> %changed to i16
  %same = icmp eq i16 %bits, 0
  br i1 %same, label %next, label %lanes
lanes:
  %l = phi i32 [ 0, %compare ], [ %l1, %lanes ]
  %to = call ptr @lane_row(ptr %clocks, i64 %first, i32 %l)
  %pt = getelementptr i32, ptr %to, i64 %at
  store <16 x i32> %most, ptr %pt, align 4
  %l1 = add i32 %l, 1
  %further = icmp ult i32 %l1, 32
  br i1 %further, label %lanes, label %next
next:
  %w1 = add i64 %w, 16
  %more = icmp ult i64 %w1, %both
  br i1 %more, label %loop, label %done
done:
  ret void
}

; Whether the rows of a warp are alike.
define internal i1 @rows_alike(ptr %clocks, i64 %first) {
entry:
  %p2 = getelementptr i64, ptr %clocks, i64 2
  %plane = load i64, ptr %p2
  %p1 = getelementptr i64, ptr %clocks, i64 1
  %width = load i64, ptr %p1
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 0)
  %both = shl i64 %width, 1
  br label %lane
lane:
  %l = phi i32 [ 1, %entry ], [ %l1, %done ]
  %last = icmp uge i32 %l, 32
  br i1 %last, label %yes, label %begin
begin:
  %other = call ptr @lane_row(ptr %clocks, i64 %first, i32 %l)
  br label %loop
loop:
  %w = phi i64 [ 0, %begin ], [ %w1, %next ]
  %second = icmp uge i64 %w, %width
  %over = select i1 %second, i64 %width, i64 0
  %c = sub i64 %w, %over
  %base = select i1 %second, i64 %plane, i64 0
  %from = sub i64 %c, %first
  %own = icmp ult i64 %from, 32
  br i1 %own, label %next, label %compare
compare:
  %at = add i64 %base, %c
  %pa = getelementptr i32, ptr %row, i64 %at
  %pb = getelementptr i32, ptr %other, i64 %at
  %a = load <16 x i32>, ptr %pa, align 4
  %b = load <16 x i32>, ptr %pb, align 4
  %differ = icmp ne <16 x i32> %a, %b
  %bits = bitcast <16 x i1> %differ to i16
  %same = icmp eq i16 %bits, 0
  br i1 %same, label %next, label %no
next:
  %w1 = add i64 %w, 16
  %more = icmp ult i64 %w1, %both
  br i1 %more, label %loop, label %done
done:
  %l1 = add i32 %l, 1
  br label %lane
yes:
  ret i1 true
no:
  ret i1 false
}
