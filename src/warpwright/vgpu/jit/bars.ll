; Named barriers of the CTAs (PTX ISA 9.1 section 9.7.13.1): 16 a CTA, each {threads that have arrived, threads that it
; is for (0: all of the CTA), mask of the warps that wait, true predicates, predicates}. A warp arrives when all its live
; lanes have. `wait_addr` of a lane has the number of its barrier, `wait_arg` (see `sync.py`) the threads that it is for
; in bits 0-31, its role in 32-33, its predicate in 34, and of bar.red the operation in 35-36 and the place of the result
; in 37-63.

; Whether all live lanes of a warp wait at one named barrier.
define i1 @at_bar(ptr %w) {
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %none = icmp eq i32 %live, 0
  br i1 %none, label %no, label %some
some:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %kinds = load <32 x i32>, ptr %pk
  %bar = icmp eq <32 x i32> %kinds, splat (i32 $WAIT_BAR)
  %pa = getelementptr i8, ptr %w, i64 $wait_addr
  %numbers = load <32 x i64>, ptr %pa
  %lane = call i32 @llvm.cttz.i32(i32 %live, i1 true)
  %first = extractelement <32 x i64> %numbers, i32 %lane
  %f0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %fs = shufflevector <32 x i64> %f0, <32 x i64> poison, <32 x i32> zeroinitializer
  %equal = icmp eq <32 x i64> %numbers, %fs
  %same = and <32 x i1> %bar, %equal
  %bits = bitcast <32 x i1> %same to i32
  %there = and i32 %bits, %blocked
  %missing = xor i32 %there, -1
  %absent = and i32 %missing, %live
  %all = icmp eq i32 %absent, 0
  ret i1 %all
no:
  ret i1 false
}

; A field of the lowest live lane: the number of its barrier, or its argument.
define i64 @first_lane(ptr %w, i64 %field) {
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %lane = call i32 @llvm.cttz.i32(i32 %live, i1 true)
  %i = zext i32 %lane to i64
  %pf = getelementptr i8, ptr %w, i64 %field
  %p = getelementptr i64, ptr %pf, i64 %i
  %value = load i64, ptr %p
  ret i64 %value
}

; Unblock the lanes that wait at a named barrier.
define void @unblock_bar(ptr %w) {
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %kinds = load <32 x i32>, ptr %pk
  %bar = icmp ne <32 x i32> %kinds, splat (i32 $WAIT_BAR)
  %others = bitcast <32 x i1> %bar to i32
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %left = and i32 %blocked, %others
  store i32 %left, ptr %pb
  ret void
}

; Threads of the warps, from number %first on in one CTA, that have not exited.
define i64 @live_threads(ptr %warps, i32 %n, i32 %first, i32 %rank) {
entry:
  br label %loop
loop:
  %i = phi i32 [ %first, %entry ], [ %i1, %count ]
  %sum = phi i64 [ 0, %entry ], [ %sum1, %count ]
  %end = icmp eq i32 %i, %n
  br i1 %end, label %done, label %look
look:
  %wi = sext i32 %i to i64
  %pw = getelementptr ptr, ptr %warps, i64 %wi
  %w = load ptr, ptr %pw
  %pr = getelementptr i8, ptr %w, i64 $rank
  %r = load i32, ptr %pr
  %own = icmp eq i32 %r, %rank
  br i1 %own, label %count, label %done
count:
  %ps = getelementptr i8, ptr %w, i64 $status
  %status = load i32, ptr %ps
  %runs = icmp ne i32 %status, 0
  %threads = select i1 %runs, i64 32, i64 0
  %sum1 = add i64 %sum, %threads
  %i1 = add i32 %i, 1
  br label %loop
done:
  ret i64 %sum
}

; Write the result of bar.red: how many of the predicates are true, or whether all or some are.
define void @bar_result(ptr %w, ptr %bar) {
  %word = call i64 @first_lane(ptr %w, i64 $wait_arg)
  %op1 = lshr i64 %word, 35
  %op = and i64 %op1, 3
  %units = lshr i64 %word, 37
  %offset = shl i64 %units, 2
  %place = getelementptr i8, ptr %w, i64 %offset
  %pyes = getelementptr i64, ptr %bar, i64 3
  %yes = load i64, ptr %pyes
  %ptotal = getelementptr i64, ptr %bar, i64 4
  %total = load i64, ptr %ptotal
  %every = icmp eq i64 %yes, %total
  %any = icmp ne i64 %yes, 0
  switch i64 %op, label %done [ i64 1, label %popc
    i64 2, label %and
    i64 3, label %or ]
popc:
  %number = trunc i64 %yes to i32
  %n0 = insertelement <32 x i32> poison, i32 %number, i32 0
  %ns = shufflevector <32 x i32> %n0, <32 x i32> poison, <32 x i32> zeroinitializer
  store <32 x i32> %ns, ptr %place, align 4
  br label %done
and:
  %all = sext i1 %every to i32
  store i32 %all, ptr %place
  br label %done
or:
  %some = sext i1 %any to i32
  store i32 %some, ptr %place
  br label %done
done:
  ret void
}

; Let the warps that wait at a barrier go on; the barrier is then as new.
define void @open_bar(ptr %warps, i32 %first, ptr %bar) {
entry:
  %pm = getelementptr i64, ptr %bar, i64 2
  %mask = load i64, ptr %pm
  br label %loop
loop:
  %left = phi i64 [ %mask, %entry ], [ %rest, %warp ]
  %none = icmp eq i64 %left, 0
  br i1 %none, label %done, label %warp
warp:
  %i = call i64 @llvm.cttz.i64(i64 %left, i1 true)
  %less = sub i64 %left, 1
  %rest = and i64 %left, %less
  %f = sext i32 %first to i64
  %index = add i64 %f, %i
  %pw = getelementptr ptr, ptr %warps, i64 %index
  %w = load ptr, ptr %pw
  call void @bar_result(ptr %w, ptr %bar)
  call void @unblock_bar(ptr %w)
  br label %loop
done:
  store [5 x i64] zeroinitializer, ptr %bar
  ret void
}

; Count the predicates of a warp that arrives by bar.red.
define void @count_votes(ptr %w, ptr %bar) {
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %pg = getelementptr i8, ptr %w, i64 $wait_arg
  %args = load <32 x i64>, ptr %pg
  %shifted = lshr <32 x i64> %args, splat (i64 34)
  %flags = trunc <32 x i64> %shifted to <32 x i1>
  %bits = bitcast <32 x i1> %flags to i32
  %true = and i32 %bits, %live
  %yes = call i32 @llvm.ctpop.i32(i32 %true)
  %all = call i32 @llvm.ctpop.i32(i32 %live)
  %yes64 = zext i32 %yes to i64
  %all64 = zext i32 %all to i64
  %pyes = getelementptr i64, ptr %bar, i64 3
  %y = load i64, ptr %pyes
  %y1 = add i64 %y, %yes64
  store i64 %y1, ptr %pyes
  %ptotal = getelementptr i64, ptr %bar, i64 4
  %t = load i64, ptr %ptotal
  %t1 = add i64 %t, %all64
  store i64 %t1, ptr %ptotal
  ret void
}

; Count the warps that have arrived since the last call, and let those go on whose barrier is complete or that do not
; wait. Returns whether some warp may run on; -1 - i if warp i is at a barrier that is illegal, or was begun with another
; number of threads. %log receives the number of warps that arrived, and the warps.
define i64 @settle_bars(ptr %warps, i32 %n, ptr %bars, ptr %log) {
entry:
  store i32 0, ptr %log
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %next ]
  %moved = phi i64 [ 0, %entry ], [ %moved1, %next ]
  %end = icmp eq i32 %i, %n
  br i1 %end, label %done, label %look
look:
  %wi = sext i32 %i to i64
  %pw = getelementptr ptr, ptr %warps, i64 %wi
  %w = load ptr, ptr %pw
  %there = call i1 @at_bar(ptr %w)
  br i1 %there, label %arrived, label %next
arrived:
  %number = call i64 @first_lane(ptr %w, i64 $wait_addr)
  %word = call i64 @first_lane(ptr %w, i64 $wait_arg)
  %for = and i64 %word, 4294967295
  %role1 = lshr i64 %word, 32
  %role = and i64 %role1, 3
  %only = icmp eq i64 %role, 1
  %exists = icmp ult i64 %number, 16
  br i1 %exists, label %known, label %bad
known:
  %pr = getelementptr i8, ptr %w, i64 $rank
  %rank = load i32, ptr %pr
  %pv = getelementptr i8, ptr %w, i64 $warp
  %own = load i32, ptr %pv
  %first = sub i32 %i, %own
  %r = sext i32 %rank to i64
  %r16 = shl i64 %r, 4
  %at = add i64 %r16, %number
  %bar = getelementptr [5 x i64], ptr %bars, i64 %at
  %pfor = getelementptr i64, ptr %bar, i64 1
  %pmask = getelementptr i64, ptr %bar, i64 2
  %mask = load i64, ptr %pmask
  %own64 = zext i32 %own to i64
  %bit = shl i64 1, %own64
  %already = and i64 %mask, %bit
  %fresh = icmp eq i64 %already, 0
  %before = load i64, ptr %bar
  br i1 %fresh, label %check, label %complete
check:
  %odd = and i64 %for, 31
  %whole = icmp eq i64 %odd, 0
  br i1 %whole, label %compare, label %bad
compare:
  %was = load i64, ptr %pfor
  %agree = icmp eq i64 %was, %for
  %begun = icmp ne i64 %before, 0
  %begun0 = xor i1 %begun, true
  %legal = or i1 %agree, %begun0
  br i1 %legal, label %count, label %bad
bad:
  %error = sub i64 -1, %wi
  ret i64 %error
count:
  store i64 %for, ptr %pfor
  %more = add i64 %before, 32
  store i64 %more, ptr %bar
  %logged = load i32, ptr %log
  %logged1 = add i32 %logged, 1
  store i32 %logged1, ptr %log
  %plog = getelementptr i32, ptr %log, i32 %logged1
  store i32 %i, ptr %plog
  br i1 %only, label %goes, label %waits
goes:
  call void @unblock_bar(ptr %w)
  br label %complete
waits:
  %mask1 = or i64 %mask, %bit
  store i64 %mask1, ptr %pmask
  %votes = icmp eq i64 %role, 2
  br i1 %votes, label %vote, label %complete
vote:
  call void @count_votes(ptr %w, ptr %bar)
  br label %complete
complete:
  %have = load i64, ptr %bar
  %all = icmp eq i64 %for, 0
  br i1 %all, label %everyone, label %enough
everyone:
  %threads = call i64 @live_threads(ptr %warps, i32 %n, i32 %first, i32 %rank)
  br label %enough
enough:
  %need = phi i64 [ %for, %complete ], [ %threads, %everyone ]
  %short = icmp slt i64 %have, %need
  br i1 %short, label %partial, label %open
partial:
  %alone = zext i1 %only to i64
  br label %next
open:
  call void @open_bar(ptr %warps, i32 %first, ptr %bar)
  br label %next
next:
  %went = phi i64 [ 0, %look ], [ %alone, %partial ], [ 1, %open ]
  %moved1 = or i64 %moved, %went
  %i1 = add i32 %i, 1
  br label %loop
done:
  ret i64 %moved
}

; The live lanes of a warp that are blocked at the barrier of the cluster: those that arrive in bits 0-31, those that wait
; for its end in 32-63.
define i64 @at_cluster(ptr %w) {
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %kinds = load <32 x i32>, ptr %pk
  %kind = icmp eq <32 x i32> %kinds, splat (i32 $WAIT_CLUSTER)
  %there = bitcast <32 x i1> %kind to i32
  %pa = getelementptr i8, ptr %w, i64 $wait_arg
  %args = load <32 x i64>, ptr %pa
  %arg = icmp ne <32 x i64> %args, zeroinitializer
  %waits = bitcast <32 x i1> %arg to i32
  %bl = and i32 %blocked, %live
  %at = and i32 %bl, %there
  %waiting = and i32 %at, %waits
  %arriving = xor i32 %at, %waiting
  %low = zext i32 %arriving to i64
  %w64 = zext i32 %waiting to i64
  %high = shl i64 %w64, 32
  %both = or i64 %low, %high
  ret i64 %both
}

; Let lanes of a warp go on that are %free, in a mask of this warp, or at %more: they owe no wait any more.
define i32 @free_lanes(ptr %w, ptr %free, i32 %waiting, i32 %more) {
  %f = load i32, ptr %free
  %ready = and i32 %waiting, %f
  %moved = or i32 %ready, %more
  %kept = xor i32 %moved, -1
  %f1 = and i32 %f, %kept
  store i32 %f1, ptr %free
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %b1 = and i32 %blocked, %kept
  store i32 %b1, ptr %pb
  ret i32 %moved
}

; Settle the barrier of the cluster (section 9.7.13.3). %state has masks of lanes by warp: those that have arrived in this
; phase and not yet waited, then those that arrived in an earlier one; %came receives those that arrive now. Returns
; whether some lane may run on, or -1, without effects, if a lane arrives twice or waits without having arrived.
define i64 @settle_cluster(ptr %warps, i32 %n, ptr %state, ptr %came) {
entry:
  %count = sext i32 %n to i64
  %frees = getelementptr i32, ptr %state, i64 %count
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i1, %legal ]
  %pw = getelementptr ptr, ptr %warps, i64 %i
  %w = load ptr, ptr %pw
  %at = call i64 @at_cluster(ptr %w)
  %arriving = trunc i64 %at to i32
  %high = lshr i64 %at, 32
  %waiting = trunc i64 %high to i32
  %pc = getelementptr i32, ptr %came, i64 %i
  store i32 %arriving, ptr %pc
  %pa = getelementptr i32, ptr %state, i64 %i
  %pf = getelementptr i32, ptr %frees, i64 %i
  %a = load i32, ptr %pa
  %f = load i32, ptr %pf
  %owed = or i32 %a, %f
  %again = and i32 %arriving, %owed
  %paid = xor i32 %owed, -1
  %early = and i32 %waiting, %paid
  %wrong = or i32 %again, %early
  %right = icmp eq i32 %wrong, 0
  br i1 %right, label %legal, label %bad
bad:
  ret i64 -1
legal:
  %i1 = add i64 %i, 1
  %im = icmp ult i64 %i1, %count
  br i1 %im, label %check, label %arrive
arrive:
  %j = phi i64 [ 0, %legal ], [ %j1, %arrive ]
  %some = phi i32 [ 0, %legal ], [ %some1, %arrive ]
  %missing = phi i32 [ 0, %legal ], [ %missing1, %arrive ]
  %moved = phi i32 [ 0, %legal ], [ %moved1, %arrive ]
  %jw = getelementptr ptr, ptr %warps, i64 %j
  %v = load ptr, ptr %jw
  %jat = call i64 @at_cluster(ptr %v)
  %jhigh = lshr i64 %jat, 32
  %jwaiting = trunc i64 %jhigh to i32
  %jc = getelementptr i32, ptr %came, i64 %j
  %new = load i32, ptr %jc
  %ja = getelementptr i32, ptr %state, i64 %j
  %old = load i32, ptr %ja
  %all = or i32 %old, %new
  store i32 %all, ptr %ja
  %jf = getelementptr i32, ptr %frees, i64 %j
  %went = call i32 @free_lanes(ptr %v, ptr %jf, i32 %jwaiting, i32 %new)
  %moved1 = or i32 %moved, %went
  %some1 = or i32 %some, %all
  %pl = getelementptr i8, ptr %v, i64 $live
  %live = load i32, ptr %pl
  %out = xor i32 %all, -1
  %absent = and i32 %live, %out
  %missing1 = or i32 %missing, %absent
  %j1 = add i64 %j, 1
  %jm = icmp ult i64 %j1, %count
  br i1 %jm, label %arrive, label %judge
judge:
  %any = icmp ne i32 %some1, 0
  %whole = icmp eq i32 %missing1, 0
  %over = and i1 %any, %whole
  br i1 %over, label %phase, label %done
done:
  %goes = icmp ne i32 %moved1, 0
  %result = zext i1 %goes to i64
  ret i64 %result
phase:
  %k = phi i64 [ 0, %judge ], [ %k1, %phase ]
  %kw = getelementptr ptr, ptr %warps, i64 %k
  %u = load ptr, ptr %kw
  %ka = getelementptr i32, ptr %state, i64 %k
  %kf = getelementptr i32, ptr %frees, i64 %k
  %arrived = load i32, ptr %ka
  %kfree = load i32, ptr %kf
  %released = or i32 %arrived, %kfree
  store i32 %released, ptr %kf
  store i32 0, ptr %ka
  %kat = call i64 @at_cluster(ptr %u)
  %khigh = lshr i64 %kat, 32
  %kwaiting = trunc i64 %khigh to i32
  %kwent = call i32 @free_lanes(ptr %u, ptr %kf, i32 %kwaiting, i32 0)
  %k1 = add i64 %k, 1
  %km = icmp ult i64 %k1, %count
  br i1 %km, label %phase, label %opened
opened:
  ret i64 1
}

; Settle the barriers of a cluster in which no warp can run, if nobody but the barriers need look at it: the queue is
; empty, no warp is done and none is at the barrier of the cluster, and rows, if any, are few.
define i1 @settle_alone(ptr %warps, i32 %n, ptr %bars, ptr %log) {
  %off = icmp eq ptr %bars, null
  br i1 %off, label %no, label %look
look:
  %w = load ptr, ptr %warps
  %pq = getelementptr i8, ptr %w, i64 $queue
  %queue = load ptr, ptr %pq
  %records = load i64, ptr %queue
  %pnews = getelementptr i64, ptr %queue, i64 2
  %news = load i64, ptr %pnews
  %bits = and i64 %news, $NEWS_OF_BARRIERS
  %bar = icmp eq i64 %bits, $NEWS_OF_BARS
  %empty = icmp eq i64 %records, 0
  %both = and i1 %bar, %empty
  br i1 %both, label %rows, label %no
rows:
  %pr = getelementptr i8, ptr %w, i64 $rows
  %tape = load ptr, ptr %pr
  %without = icmp eq ptr %tape, null
  br i1 %without, label %settle, label %few
few:
  %count = load i64, ptr %tape
  %pcap = getelementptr i64, ptr %tape, i64 1
  %cap = load i64, ptr %pcap
  %part = lshr i64 %cap, 6
  %many = icmp ugt i64 %count, %part
  br i1 %many, label %no, label %settle
settle:
  %got = call i64 @settle_bars(ptr %warps, i32 %n, ptr %bars, ptr %log)
  %refused = icmp slt i64 %got, 0
  br i1 %refused, label %no, label %settled
settled:
  store i64 0, ptr %pnews
  %moved = icmp ne i64 %got, 0
  ret i1 %moved
no:
  ret i1 false
}
