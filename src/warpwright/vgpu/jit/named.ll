; Named barriers of checks. %bar, of 8-byte words: its column; the rounds that are over; of the open round the threads that
; arrived and the number of first arrivals of lanes; which of two tables has its arrivals, the other has those of the
; round before; its clock, and the clock's width; the tables, with three words a lane (value, instruction, order); the
; lanes of the CTA, and the first one; by warp of the CTA, the lanes that wait (i32), and how many of a warp that arrives
; in parts have arrived (i32); the threads expected, 0 for all of the CTA.

; An arrival of the round before that a lane need not know of, in the order of arrival: its place in the table and 1; 0
; for none.
define i64 @bar_unknown(ptr %clocks, ptr %bar, i64 %lane) {
entry:
  %row = call ptr @lane_row(ptr %clocks, i64 %lane, i32 0)
  %column = load i64, ptr %bar
  %pk = getelementptr i32, ptr %row, i64 %column
  %known = load i32, ptr %pk
  %known64 = zext i32 %known to i64
  %p1 = getelementptr i64, ptr %bar, i64 1
  %rounds = load i64, ptr %p1
  %late = icmp ult i64 %known64, %rounds
  br i1 %late, label %search, label %none
search:
  %p4 = getelementptr i64, ptr %bar, i64 4
  %now = load i64, ptr %p4
  %before = xor i64 %now, 1
  %table = call ptr @bar_table(ptr %bar, i64 %before)
  %p8 = getelementptr i64, ptr %bar, i64 8
  %lanes = load i64, ptr %p8
  %p9 = getelementptr i64, ptr %bar, i64 9
  %first = load i64, ptr %p9
  %own = getelementptr i32, ptr %row, i64 %first
  br label %loop
loop:
  %l = phi i64 [ 0, %search ], [ %l1, %loop ]
  %best = phi i64 [ -1, %search ], [ %best1, %loop ]
  %found = phi i64 [ 0, %search ], [ %found1, %loop ]
  %pe = getelementptr [3 x i64], ptr %table, i64 %l
  %value = load i64, ptr %pe
  %po = getelementptr i64, ptr %pe, i64 2
  %order = load i64, ptr %po
  %pv = getelementptr i32, ptr %own, i64 %l
  %seen = load i32, ptr %pv
  %seen64 = zext i32 %seen to i64
  %unknown = icmp ult i64 %seen64, %value
  %sooner = icmp ult i64 %order, %best
  %take = and i1 %unknown, %sooner
  %l1 = add i64 %l, 1
  %best1 = select i1 %take, i64 %order, i64 %best
  %found1 = select i1 %take, i64 %l1, i64 %found
  %more = icmp ult i64 %l1, %lanes
  br i1 %more, label %loop, label %over
over:
  ret i64 %found1
none:
  ret i64 0
}

; Lanes of a warp, of which %live have not exited, arrive at a barrier, whose clock is wide enough. %everyone: the threads
; of the CTA's warps that have not exited.
define void @bar_arrive(ptr %clocks, ptr %bar, i64 %first, i32 %mask, i64 %live, i64 %everyone, i64 %waits, i64 %inst) {
entry:
  %p3 = getelementptr i64, ptr %bar, i64 3
  %before = load i64, ptr %p3
  %p5 = getelementptr ptr, ptr %bar, i64 5
  %clock = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %bar, i64 6
  %width = load i64, ptr %p6
  %opens = icmp eq i64 %before, 0
  br i1 %opens, label %open, label %arrive
open:
  %bytes = shl i64 %width, 3
  call void @llvm.memset.p0.i64(ptr %clock, i8 0, i64 %bytes, i1 false)
  br label %arrive
arrive:
  %p4 = getelementptr i64, ptr %bar, i64 4
  %now = load i64, ptr %p4
  %table = call ptr @bar_table(ptr %bar, i64 %now)
  %p9 = getelementptr i64, ptr %bar, i64 9
  %base = load i64, ptr %p9
  %lowest = call i32 @llvm.cttz.i32(i32 %mask, i1 false)
  %row = call ptr @lane_row(ptr %clocks, i64 %first, i32 %lowest)
  %lowest64 = zext i32 %lowest to i64
  %lane = add i64 %first, %lowest64
  %inside = sub i64 %lane, %base
  %pe = getelementptr [3 x i64], ptr %table, i64 %inside
  %old = load i64, ptr %pe
  %fresh = icmp eq i64 %old, 0
  %pv = getelementptr i32, ptr %row, i64 %lane
  %value = load i32, ptr %pv
  %value64 = zext i32 %value to i64
  store i64 %value64, ptr %pe
  %pi = getelementptr i64, ptr %pe, i64 1
  store i64 %inst, ptr %pi
  br i1 %fresh, label %number, label %release
number:
  %after = add i64 %before, 1
  store i64 %after, ptr %p3
  %po = getelementptr i64, ptr %pe, i64 2
  store i64 %after, ptr %po
  br label %release
release:
  call void @clock_release(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width)
  %from = sub i64 %first, %base
  %warp = lshr i64 %from, 5
  %some = icmp ne i64 %waits, 0
  %asleep = select i1 %some, i32 %mask, i32 0
  %p10 = getelementptr ptr, ptr %bar, i64 10
  %masks = load ptr, ptr %p10
  %pw = getelementptr i32, ptr %masks, i64 %warp
  %waiting = load i32, ptr %pw
  %all = or i32 %waiting, %asleep
  store i32 %all, ptr %pw
  %p11 = getelementptr ptr, ptr %bar, i64 11
  %parts = load ptr, ptr %p11
  %pp = getelementptr i32, ptr %parts, i64 %warp
  %part = load i32, ptr %pp
  %count = call i32 @llvm.ctpop.i32(i32 %mask)
  %sum = add i32 %part, %count
  %live32 = trunc i64 %live to i32
  %partial = icmp ult i32 %sum, %live32
  %left = select i1 %partial, i32 %sum, i32 0
  store i32 %left, ptr %pp
  %threads = select i1 %partial, i64 0, i64 32
  %p2 = getelementptr i64, ptr %bar, i64 2
  %arrived = load i64, ptr %p2
  %arrived1 = add i64 %arrived, %threads
  store i64 %arrived1, ptr %p2
  call void @bar_settle(ptr %clocks, ptr %bar, i64 %everyone)
  ret void
}

declare i32 @llvm.ctpop.i32(i32)

; If the round is complete, the lanes that waited learn what all know.
define void @bar_settle(ptr %clocks, ptr %bar, i64 %everyone) {
entry:
  %p3 = getelementptr i64, ptr %bar, i64 3
  %some = load i64, ptr %p3
  %open = icmp ne i64 %some, 0
  %p12 = getelementptr i64, ptr %bar, i64 12
  %given = load i64, ptr %p12
  %all = icmp eq i64 %given, 0
  %expected = select i1 %all, i64 %everyone, i64 %given
  %p2 = getelementptr i64, ptr %bar, i64 2
  %arrived = load i64, ptr %p2
  %enough = icmp uge i64 %arrived, %expected
  %complete = and i1 %open, %enough
  br i1 %complete, label %turn, label %done
turn:
  %p1 = getelementptr i64, ptr %bar, i64 1
  %rounds = load i64, ptr %p1
  %rounds1 = add i64 %rounds, 1
  store i64 %rounds1, ptr %p1
  %p5 = getelementptr ptr, ptr %bar, i64 5
  %clock = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %bar, i64 6
  %width = load i64, ptr %p6
  %column = load i64, ptr %bar
  %pc = getelementptr i32, ptr %clock, i64 %column
  %rounds32 = trunc i64 %rounds1 to i32
  store i32 %rounds32, ptr %pc
  %p8 = getelementptr i64, ptr %bar, i64 8
  %lanes = load i64, ptr %p8
  %p9 = getelementptr i64, ptr %bar, i64 9
  %base = load i64, ptr %p9
  %p10 = getelementptr ptr, ptr %bar, i64 10
  %masks = load ptr, ptr %p10
  br label %loop
loop:
  %l = phi i64 [ 0, %turn ], [ %l1, %next ]
  %warp = lshr i64 %l, 5
  %pw = getelementptr i32, ptr %masks, i64 %warp
  %mask = load i32, ptr %pw
  %waits = icmp ne i32 %mask, 0
  br i1 %waits, label %wake, label %next
wake:
  %first = add i64 %base, %l
  call void @clock_acquire(ptr %clocks, i64 %first, i32 %mask, ptr %clock, i64 %width)
  store i32 0, ptr %pw
  br label %next
next:
  %l1 = add i64 %l, 32
  %more = icmp ult i64 %l1, %lanes
  br i1 %more, label %loop, label %close
close:
  store i64 0, ptr %p2
  store i64 0, ptr %p3
  %p4 = getelementptr i64, ptr %bar, i64 4
  %now = load i64, ptr %p4
  %other = xor i64 %now, 1
  store i64 %other, ptr %p4
  %table = call ptr @bar_table(ptr %bar, i64 %other)
  %bytes = mul i64 %lanes, 24
  call void @llvm.memset.p0.i64(ptr %table, i8 0, i64 %bytes, i1 false)
  br label %done
done:
  ret void
}

define internal ptr @bar_table(ptr %bar, i64 %which) alwaysinline {
  %p7 = getelementptr ptr, ptr %bar, i64 7
  %tables = load ptr, ptr %p7
  %p8 = getelementptr i64, ptr %bar, i64 8
  %lanes = load i64, ptr %p8
  %at = mul i64 %which, %lanes
  %table = getelementptr [3 x i64], ptr %tables, i64 %at
  ret ptr %table
}
