; Rows of the watch: instruction | warp << 32, lanes | extra << 32, two words; then as many tables of 32 words as the
; low four bits of `extra` say: host addresses of the lanes, and the first three operands packed into one word (20 bits,
; 22 bits, 22 bits). An access that equals the previous row writes no row: a loop that polls a value in memory would
; fill the buffer. Word 2 of the buffer is the offset of the previous row.
define void @watch(ptr %w, i32 %mask, i64 %inst, i64 %extra, i64 %a, i64 %b) {
entry:
  %idle = icmp eq i32 %mask, 0
  br i1 %idle, label %done, label %some
some:
  %tables = and i64 %extra, 15
  %pr = getelementptr i8, ptr %w, i64 $rows
  %rows = load ptr, ptr %pr
  %count = load i64, ptr %rows
  %again = call i1 @watch_again(ptr %w, i32 %mask, i64 %inst, i64 %extra, i64 %a, i64 %b)
  br i1 %again, label %done, label %new
new:
  %more = shl i64 %tables, 3
  %next = add i64 %count, 1
  %end = add i64 %next, %more
  %pcap = getelementptr i64, ptr %rows, i64 1
  %cap = load i64, ptr %pcap
  %fits = icmp ule i64 %end, %cap
  br i1 %fits, label %append, label %over
over:
  store i64 %cap, ptr %rows
  br label %done
append:
  store i64 %end, ptr %rows
  %pl = getelementptr i64, ptr %rows, i64 2
  store i64 %next, ptr %pl
  %at = shl i64 %next, 2
  %p0 = getelementptr i64, ptr %rows, i64 %at
  %ph = getelementptr i8, ptr %w, i64 $row_head
  %head = load i64, ptr %ph
  %who = or i64 %head, %inst
  store i64 %who, ptr %p0
  %lanes = zext i32 %mask to i64
  %high = shl i64 %extra, 32
  %word = or i64 %lanes, %high
  %p1 = getelementptr i64, ptr %p0, i64 1
  store i64 %word, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 2
  store i64 %a, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 3
  store i64 %b, ptr %p3
  %none = icmp eq i64 %tables, 0
  br i1 %none, label %done, label %addresses
addresses:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pt = getelementptr i64, ptr %p0, i64 4
  store <32 x i64> %address, ptr %pt, align 8
  %one = icmp eq i64 %tables, 1
  br i1 %one, label %done, label %operands
operands:
  %po = getelementptr i8, ptr %w, i64 $operands
  %x = load <32 x i64>, ptr %po
  %py = getelementptr i64, ptr %po, i64 32
  %y = load <32 x i64>, ptr %py
  %pz = getelementptr i64, ptr %po, i64 64
  %z = load <32 x i64>, ptr %pz
  %x1 = and <32 x i64> %x, splat (i64 1048575)
  %y1 = and <32 x i64> %y, splat (i64 4194303)
  %z1 = and <32 x i64> %z, splat (i64 4194303)
  %y2 = shl <32 x i64> %y1, splat (i64 20)
  %z2 = shl <32 x i64> %z1, splat (i64 42)
  %xy = or <32 x i64> %x1, %y2
  %packed = or <32 x i64> %xy, %z2
  %pu = getelementptr i64, ptr %p0, i64 36
  store <32 x i64> %packed, ptr %pu, align 8
  br label %done
done:
  ret void
}

; A row for lanes that have waited for one another, unless the previous row of the buffer says so, too.
define void @watch_meeting(ptr %w, i32 %mask, i64 %inst, i64 %extra) {
  %pr = getelementptr i8, ptr %w, i64 $rows
  %rows = load ptr, ptr %pr
  %count = load i64, ptr %rows
  %some = icmp ne i64 %count, 0
  br i1 %some, label %compare, label %new
compare:
  %pl = getelementptr i64, ptr %rows, i64 2
  %last = load i64, ptr %pl
  %at = shl i64 %last, 2
  %p0 = getelementptr i64, ptr %rows, i64 %at
  %who = load i64, ptr %p0
  %warp = lshr i64 %who, 32
  %ph = getelementptr i8, ptr %w, i64 $row_head
  %head = load i64, ptr %ph
  %own = lshr i64 %head, 32
  %p1 = getelementptr i64, ptr %p0, i64 1
  %before = load i64, ptr %p1
  %lanes = zext i32 %mask to i64
  %high = shl i64 %extra, 32
  %word = or i64 %lanes, %high
  %here = icmp eq i64 %warp, %own
  %same = icmp eq i64 %before, %word
  %again = and i1 %here, %same
  br i1 %again, label %done, label %new
new:
  call void @watch(ptr %w, i32 %mask, i64 %inst, i64 %extra, i64 0, i64 0)
  br label %done
done:
  ret void
}

; The offsets of up to %count rows with their tables; returns their number.
define i64 @watch_rows(ptr %rows, i64 %count, ptr %starts) {
entry:
  br label %loop
loop:
  %at = phi i64 [ 0, %entry ], [ %next, %row ]
  %n = phi i64 [ 0, %entry ], [ %n1, %row ]
  %more = icmp ult i64 %at, %count
  br i1 %more, label %row, label %done
row:
  %pn = getelementptr i64, ptr %starts, i64 %n
  store i64 %at, ptr %pn
  %word = shl i64 %at, 2
  %where = or i64 %word, 1
  %p = getelementptr i64, ptr %rows, i64 %where
  %lanes = load i64, ptr %p
  %extra = lshr i64 %lanes, 32
  %tables = and i64 %extra, 15
  %size = shl i64 %tables, 3
  %after = add i64 %at, 1
  %next = add i64 %after, %size
  %n1 = add i64 %n, 1
  br label %loop
done:
  ret i64 %n
}

; Whether an access equals the previous row.
define i1 @watch_again(ptr %w, i32 %mask, i64 %inst, i64 %extra, i64 %a, i64 %b) {
  %pr = getelementptr i8, ptr %w, i64 $rows
  %rows = load ptr, ptr %pr
  %count = load i64, ptr %rows
  %some = icmp ne i64 %count, 0
  %access = icmp eq i64 %extra, 1
  %may = and i1 %some, %access
  br i1 %may, label %compare, label %other
compare:
  %pl = getelementptr i64, ptr %rows, i64 2
  %last = load i64, ptr %pl
  %at = shl i64 %last, 2
  %p0 = getelementptr i64, ptr %rows, i64 %at
  %held = load <4 x i64>, ptr %p0, align 8
  %ph = getelementptr i8, ptr %w, i64 $row_head
  %head = load i64, ptr %ph
  %who = or i64 %head, %inst
  %lanes = zext i32 %mask to i64
  %high = shl i64 %extra, 32
  %word = or i64 %lanes, %high
  %n0 = insertelement <4 x i64> poison, i64 %who, i32 0
  %n1 = insertelement <4 x i64> %n0, i64 %word, i32 1
  %n2 = insertelement <4 x i64> %n1, i64 %a, i32 2
  %n3 = insertelement <4 x i64> %n2, i64 %b, i32 3
  %differ = icmp ne <4 x i64> %held, %n3
  %bits = bitcast <4 x i1> %differ to i4
  %same = icmp eq i4 %bits, 0
  br i1 %same, label %addresses, label %other
addresses:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pt = getelementptr i64, ptr %p0, i64 4
  %before = load <32 x i64>, ptr %pt, align 8
  %apart = icmp ne <32 x i64> %address, %before
  %places = bitcast <32 x i1> %apart to i32
  %moved = and i32 %places, %mask
  %stays = icmp eq i32 %moved, 0
  ret i1 %stays
other:
  ret i1 false
}
