; Rows of the watch whose meaning is compiled. %state, of 8-byte words: the shadow of shared memory; the meaning of each
; instruction (i8): 1 a read, 2 a write of shared memory, 3 a barrier of the warp's lanes, 4 a wait for tcgen05.ld, 5 for
; tcgen05.st; the clocks; for each warp the column and the number of its tcgen05.ld, then of its tcgen05.st; the warps of
; the cluster, and of a CTA; the bytes of a CTA's shared memory.

; Follows %count rows of four words; %places: 32 of each access. Returns the number of rows done: the next one accesses
; other memory too, has a finding, or has no room for nodes.
define i64 @rows_follow(ptr %state, ptr %rows, ptr %places, i64 %count, i64 %flags) {
entry:
  %p1 = getelementptr ptr, ptr %state, i64 1
  %meanings = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %state, i64 2
  %clocks = load ptr, ptr %p2
  br label %loop
loop:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %table = phi ptr [ %places, %entry ], [ %table1, %next ]
  %more = icmp ult i64 %r, %count
  br i1 %more, label %row, label %done
row:
  %r4 = shl i64 %r, 2
  %p = getelementptr i64, ptr %rows, i64 %r4
  %head = load i64, ptr %p
  %inst = and i64 %head, 4294967295
  %warp = lshr i64 %head, 32
  %first = shl i64 %warp, 5
  %pm = getelementptr i64, ptr %p, i64 1
  %mask64 = load i64, ptr %pm
  %mask = trunc i64 %mask64 to i32
  %pk = getelementptr i8, ptr %meanings, i64 %inst
  %meaning = load i8, ptr %pk
  switch i8 %meaning, label %done [ i8 1, label %access
                                    i8 2, label %access
                                    i8 3, label %sync
                                    i8 4, label %wait
                                    i8 5, label %wait ]
access:
  %pn = getelementptr i64, ptr %p, i64 2
  %nbytes = load i64, ptr %pn
  %write = icmp eq i8 %meaning, 2
  %good = call i1 @row_access_quiet(ptr %state, ptr %table, i64 %warp, i32 %mask, i64 %nbytes, i64 %inst, i1 %write,
                                    i64 %flags)
  br i1 %good, label %accessed, label %done
accessed:
  %after = getelementptr i64, ptr %table, i64 32
  br label %next
sync:
  call void @clock_sync(ptr %clocks, i64 %first, i32 %mask)
  br label %next
wait:
  %p3 = getelementptr ptr, ptr %state, i64 3
  %moves = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %state, i64 4
  %warps = load i64, ptr %p4
  %stores = icmp eq i8 %meaning, 5
  %past = select i1 %stores, i64 %warps, i64 0
  %which = add i64 %warp, %past
  %which2 = shl i64 %which, 1
  %pc = getelementptr i64, ptr %moves, i64 %which2
  %column = load i64, ptr %pc
  %pv = getelementptr i64, ptr %pc, i64 1
  %value = load i64, ptr %pv
  %some = icmp ne i64 %value, 0
  br i1 %some, label %reach, label %next
reach:
  %value32 = trunc i64 %value to i32
  call void @clock_reach(ptr %clocks, i64 %first, i32 %mask, i64 %column, i32 %value32)
  br label %next
next:
  %table1 = phi ptr [ %after, %accessed ], [ %table, %sync ], [ %table, %wait ], [ %table, %reach ]
  %r1 = add i64 %r, 1
  br label %loop
done:
  ret i64 %r
}

; Whether an access goes to the shared memory of its CTA and is quiet; then it is entered.
define internal i1 @row_access_quiet(ptr %state, ptr %places, i64 %warp, i32 %mask, i64 %nbytes, i64 %inst, i1 %write,
                                     i64 %flags) {
  %shadow = load ptr, ptr %state
  %p5 = getelementptr i64, ptr %state, i64 5
  %per = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %state, i64 6
  %bytes = load i64, ptr %p6
  %rank = udiv i64 %warp, %per
  %low = mul i64 %rank, %bytes
  %own = call i32 @lanes_inside(ptr %places, i64 %low, i64 %bytes)
  %all = icmp eq i32 %own, %mask
  br i1 %all, label %judge, label %no
judge:
  %mode = select i1 %write, i64 1, i64 %flags
  %first = shl i64 %warp, 5
  %code = call i64 @shadow_lanes(ptr %shadow, ptr %places, i64 %first, i64 %nbytes, i64 %inst, i64 %mode, i64 0)
  %fine = icmp eq i64 %code, 1
  %unwritten = icmp eq i64 %code, 3
  %too = and i1 %unwritten, %write
  %good = or i1 %fine, %too
  ret i1 %good
no:
  ret i1 false
}

; The lanes whose places are among %bytes from %low on.
define internal i32 @lanes_inside(ptr %places, i64 %low, i64 %bytes) alwaysinline {
  %x = load <32 x i64>, ptr %places, align 8
  %l0 = insertelement <32 x i64> poison, i64 %low, i32 0
  %l = shufflevector <32 x i64> %l0, <32 x i64> poison, <32 x i32> zeroinitializer
  %b0 = insertelement <32 x i64> poison, i64 %bytes, i32 0
  %b = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %from = sub <32 x i64> %x, %l
  %inside = icmp ult <32 x i64> %from, %b
  %mask = bitcast <32 x i1> %inside to i32
  ret i32 %mask
}
