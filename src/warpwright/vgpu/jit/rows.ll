; Rows of the watch whose meaning is compiled. %state, of 8-byte words: the shadow of shared memory; the meaning of each
; instruction (i8): 1 a read, 2 a write of shared memory, 3 a barrier of the warp's lanes, 4 a wait for tcgen05.ld, 5 for
; tcgen05.st, 6 a tcgen05.ld, 7 a tcgen05.st, 8 an arrival at a named barrier, 9 a proxy fence; the clocks; for each warp
; the column and the number of its tcgen05.ld, then of its tcgen05.st; the warps of the cluster, and of a CTA; the bytes of
; a CTA's shared memory; the shadow of tensor memory, or none; by warp and instruction, the number of the last tcgen05.ld;
; the instructions; by warp, the clock that tcgen05.fence acquired, and its words; 16 named barriers of each CTA; by warp,
; the lanes that have not exited (i32); by CTA, the threads of its warps that have not exited; the notes of proxy fences.
; Words two and three of a row of tcgen05.ld and tcgen05.st are the number of runs of cells, and the runs.

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
                                    i8 5, label %wait
                                    i8 6, label %move
                                    i8 7, label %move
                                    i8 8, label %bar
                                    i8 9, label %fence ]
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
move:
  %store = icmp eq i8 %meaning, 7
  %moved = call i1 @row_move_quiet(ptr %state, ptr %p, i64 %warp, i32 %mask, i64 %inst, i1 %store, i64 %flags)
  br i1 %moved, label %next, label %done
bar:
  %arrived = call i1 @row_bar_quiet(ptr %state, ptr %p, i64 %warp, i32 %mask, i64 %inst)
  br i1 %arrived, label %next, label %done
fence:
  %p14 = getelementptr ptr, ptr %state, i64 14
  %notes = load ptr, ptr %p14
  %room = call i1 @clock_fits(ptr %clocks, ptr %notes, i64 1)
  br i1 %room, label %fenced, label %done
fenced:
  call void @clock_fence(ptr %clocks, i64 %first, i32 %mask, ptr %notes)
  br label %next
next:
  %table1 = phi ptr [ %after, %accessed ], [ %table, %sync ], [ %table, %wait ], [ %table, %reach ], [ %table, %move ],
                    [ %table, %bar ], [ %table, %fenced ]
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

; Whether there is room, whose width is word %word of an object, for what a lane knows now.
define internal i1 @clock_fits(ptr %clocks, ptr %object, i64 %word) {
entry:
  %none = icmp eq ptr %object, null
  br i1 %none, label %no, label %look
look:
  %p5 = getelementptr i64, ptr %clocks, i64 5
  %width = load i64, ptr %p5
  %pw = getelementptr i64, ptr %object, i64 %word
  %room = load i64, ptr %pw
  %fits = icmp uge i64 %room, %width
  ret i1 %fits
no:
  ret i1 false
}

; Whether a tcgen05.ld or tcgen05.st is quiet; then it is entered.
define internal i1 @row_move_quiet(ptr %state, ptr %row, i64 %warp, i32 %mask, i64 %inst, i1 %store, i64 %flags) {
entry:
  %p7 = getelementptr ptr, ptr %state, i64 7
  %shadow = load ptr, ptr %p7
  %p3 = getelementptr ptr, ptr %state, i64 3
  %moves = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %state, i64 4
  %warps = load i64, ptr %p4
  %past = select i1 %store, i64 %warps, i64 0
  %which = add i64 %warp, %past
  %pc = getelementptr [2 x i64], ptr %moves, i64 %which
  %column = load i64, ptr %pc
  %new = icmp eq i64 %column, 0
  %none = icmp eq ptr %shadow, null
  %not = or i1 %new, %none
  br i1 %not, label %no, label %judge
judge:
  %pn = getelementptr i64, ptr %row, i64 2
  %count = load i64, ptr %pn
  %pr = getelementptr ptr, ptr %row, i64 3
  %runs = load ptr, ptr %pr
  %first = shl i64 %warp, 5
  %lowest = call i32 @llvm.cttz.i32(i32 %mask, i1 false)
  %lowest64 = zext i32 %lowest to i64
  %lane = add i64 %first, %lowest64
  %mode = select i1 %store, i64 1, i64 %flags
  %p10 = getelementptr ptr, ptr %state, i64 10
  %fences = load ptr, ptr %p10
  %pa = getelementptr [2 x i64], ptr %fences, i64 %warp
  %taken = load ptr, ptr %pa
  %pw = getelementptr i64, ptr %pa, i64 1
  %known = load i64, ptr %pw
  %code = call i64 @shadow_touch(ptr %shadow, ptr %runs, i64 %count, i64 %lane, i64 %mode, i64 -1, ptr %taken, i64 %known,
                                 i64 -1)
  %fine = icmp eq i64 %code, 1
  %unwritten = icmp eq i64 %code, 3
  %too = and i1 %unwritten, %store
  %good = or i1 %fine, %too
  br i1 %good, label %enter, label %no
enter:
  %frame = load ptr, ptr %shadow
  %pv = getelementptr i64, ptr %pc, i64 1
  %before = load i64, ptr %pv
  %number = add i64 %before, 1
  %id = call i64 @shadow_access(ptr %frame, i64 %column, i64 %number, i64 1, i64 %inst, i64 %lane)
  br i1 %store, label %write, label %read
write:
  call void @runs_write(ptr %shadow, ptr %runs, i64 %count, i64 %id)
  store i64 %number, ptr %pv
  ret i1 true
read:
  %entered = call i64 @shadow_read(ptr %shadow, ptr %runs, i64 %count, i64 %id)
  %all = icmp eq i64 %entered, %count
  br i1 %all, label %done, label %full
full:
  %p13 = getelementptr i64, ptr %frame, i64 13
  store i64 %id, ptr %p13
  br label %no
done:
  store i64 %number, ptr %pv
  %p8 = getelementptr ptr, ptr %state, i64 8
  %loads = load ptr, ptr %p8
  %p9 = getelementptr i64, ptr %state, i64 9
  %insts = load i64, ptr %p9
  %from = mul i64 %warp, %insts
  %at = add i64 %from, %inst
  %pl = getelementptr i64, ptr %loads, i64 %at
  store i64 %number, ptr %pl
  ret i1 true
no:
  ret i1 false
}

; Whether lanes know of all arrivals of the barrier's last round; then they arrive.
define internal i1 @row_bar_quiet(ptr %state, ptr %row, i64 %warp, i32 %mask, i64 %inst) {
entry:
  %p2 = getelementptr ptr, ptr %state, i64 2
  %clocks = load ptr, ptr %p2
  %p5 = getelementptr i64, ptr %state, i64 5
  %per = load i64, ptr %p5
  %rank = udiv i64 %warp, %per
  %pn = getelementptr i64, ptr %row, i64 2
  %number = load i64, ptr %pn
  %inside = icmp ult i64 %number, 16
  br i1 %inside, label %find, label %no
find:
  %p11 = getelementptr ptr, ptr %state, i64 11
  %bars = load ptr, ptr %p11
  %r16 = shl i64 %rank, 4
  %which = or i64 %r16, %number
  %pb = getelementptr ptr, ptr %bars, i64 %which
  %bar = load ptr, ptr %pb
  %fits = call i1 @clock_fits(ptr %clocks, ptr %bar, i64 6)
  br i1 %fits, label %ask, label %no
ask:
  %first = shl i64 %warp, 5
  %lowest = call i32 @llvm.cttz.i32(i32 %mask, i1 false)
  %lowest64 = zext i32 %lowest to i64
  %lane = add i64 %first, %lowest64
  %unknown = call i64 @bar_unknown(ptr %clocks, ptr %bar, i64 %lane)
  %good = icmp eq i64 %unknown, 0
  br i1 %good, label %arrive, label %no
arrive:
  %ph = getelementptr i64, ptr %row, i64 3
  %how = load i64, ptr %ph
  %count = and i64 %how, 4294967295
  %p12 = getelementptr i64, ptr %bar, i64 12
  store i64 %count, ptr %p12
  %high = lshr i64 %how, 32
  %role = and i64 %high, 255
  %waits = icmp ne i64 %role, 1
  %waits64 = zext i1 %waits to i64
  %s12 = getelementptr ptr, ptr %state, i64 12
  %lives = load ptr, ptr %s12
  %pl = getelementptr i32, ptr %lives, i64 %warp
  %lanes = load i32, ptr %pl
  %live = call i32 @llvm.ctpop.i32(i32 %lanes)
  %live64 = zext i32 %live to i64
  %s13 = getelementptr ptr, ptr %state, i64 13
  %everyones = load ptr, ptr %s13
  %pe = getelementptr i64, ptr %everyones, i64 %rank
  %everyone = load i64, ptr %pe
  call void @bar_arrive(ptr %clocks, ptr %bar, i64 %first, i32 %mask, i64 %live64, i64 %everyone, i64 %waits64, i64 %inst)
  ret i1 true
no:
  ret i1 false
}
