; Control flow of warps: dispatch, blocking and unblocking of lanes, and the loop over all warps of a cluster.

; In runs for timing: whether lanes wait for a bulk group. The other lanes wait with them: compilers converge there.
define i1 @group_apart(ptr %w) {
  %pt = getelementptr i8, ptr %w, i64 $timed
  %timed_run = load i32, ptr %pt
  %untimed = icmp eq i32 %timed_run, 0
  br i1 %untimed, label %no, label %timed
timed:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %kinds = load <32 x i32>, ptr %pk
  %bulk = icmp eq <32 x i32> %kinds, splat (i32 $WAIT_BULK)
  %bits = bitcast <32 x i1> %bulk to i32
  %waiting = and i32 %bits, %blocked
  %apart = icmp ne i32 %waiting, 0
  ret i1 %apart
no:
  ret i1 false
}

; Store -1 for each lane of a mask, 0 for the others, at an offset of the warp's state.
define void @spread_mask(ptr %w, i64 %offset, i32 %mask) {
  %flags = bitcast i32 %mask to <32 x i1>
  %lanes = sext <32 x i1> %flags to <32 x i32>
  %p = getelementptr i8, ptr %w, i64 %offset
  store <32 x i32> %lanes, ptr %p
  ret void
}

; Dispatch the lowest block with a lane that can run (counted from `bias`).
define i32 @dispatch(ptr %w) {
  %plive = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %plive
  %pstatus = getelementptr i8, ptr %w, i64 $status
  %gone = icmp eq i32 %live, 0
  br i1 %gone, label %done, label %some
done:
  store i32 0, ptr %pstatus
  call void @news(ptr %w, i32 0)
  ret i32 -1
some:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pp = getelementptr i8, ptr %w, i64 $parked
  %parked = load i32, ptr %pp
  %held = or i32 %blocked, %parked
  %free = xor i32 %held, -1
  %ready = and i32 %live, %free
  %none = icmp eq i32 %ready, 0
  br i1 %none, label %wait, label %together
together:
  %apart = call i1 @group_apart(ptr %w)
  br i1 %apart, label %wait, label %pay
wait:
  store i32 1, ptr %pstatus
  ret i32 -1
pay:
  %pf = getelementptr i8, ptr %w, i64 $fuel
  %fuel = load i32, ptr %pf
  %burnt = sub i32 %fuel, 1
  store i32 %burnt, ptr %pf
  %empty = icmp slt i32 %fuel, 1
  br i1 %empty, label %tired, label %choose
tired:
  store i32 2, ptr %pstatus
  ret i32 -1
choose:
  %pc = load <32 x i32>, ptr %w
  %pbias = getelementptr i8, ptr %w, i64 $bias
  %bias = load i32, ptr %pbias
  %b0 = insertelement <32 x i32> poison, i32 %bias, i32 0
  %bs = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %key = sub <32 x i32> %pc, %bs
  %lanes = bitcast i32 %ready to <32 x i1>
  %keys = select <32 x i1> %lanes, <32 x i32> %key, <32 x i32> splat (i32 -1)
  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %keys)
  %block = add i32 %least, %bias
  %c0 = insertelement <32 x i32> poison, i32 %block, i32 0
  %cs = shufflevector <32 x i32> %c0, <32 x i32> poison, <32 x i32> zeroinitializer
  %at = icmp eq <32 x i32> %pc, %cs
  %here = bitcast <32 x i1> %at to i32
  %here1 = and i32 %here, %live
  %unblocked = xor i32 %blocked, -1
  %mask = and i32 %here1, %unblocked
  %pm = getelementptr i8, ptr %w, i64 $mask
  store i32 %mask, ptr %pm
  %stay = xor i32 %mask, -1
  %still = and i32 %parked, %stay
  store i32 %still, ptr %pp
  ret i32 %block
}

; Tell the machine that lanes began to wait for %kind, or (0) that a warp is done.
define void @news(ptr %w, i32 %kind) {
  %pq = getelementptr i8, ptr %w, i64 $queue
  %queue = load ptr, ptr %pq
  %pnews = getelementptr i64, ptr %queue, i64 2
  %old = load i64, ptr %pnews
  %wide = zext i32 %kind to i64
  %bit = shl i64 1, %wide
  %new = or i64 %old, %bit
  store i64 %new, ptr %pnews
  ret void
}

define void @set_pc(ptr %w, i32 %mask, i32 %block) {
  %pc = load <32 x i32>, ptr %w
  %b0 = insertelement <32 x i32> poison, i32 %block, i32 0
  %bs = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %lanes = bitcast i32 %mask to <32 x i1>
  %new = select <32 x i1> %lanes, <32 x i32> %bs, <32 x i32> %pc
  store <32 x i32> %new, ptr %w
  ret void
}

; Block the lanes of %mask until %kind; `addr` has the object (host address or id), operand 0 the argument.
define void @block(ptr %w, i32 %mask, i32 %kind) {
  %lanes = bitcast i32 %mask to <32 x i1>
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %k0 = insertelement <32 x i32> poison, i32 %kind, i32 0
  %ks = shufflevector <32 x i32> %k0, <32 x i32> poison, <32 x i32> zeroinitializer
  %oldk = load <32 x i32>, ptr %pk
  %newk = select <32 x i1> %lanes, <32 x i32> %ks, <32 x i32> %oldk
  store <32 x i32> %newk, ptr %pk
  %pa = getelementptr i8, ptr %w, i64 $addr
  %address = load <32 x i64>, ptr %pa
  %pw = getelementptr i8, ptr %w, i64 $wait_addr
  %olda = load <32 x i64>, ptr %pw
  %newa = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> %olda
  store <32 x i64> %newa, ptr %pw
  %po = getelementptr i8, ptr %w, i64 $operands
  %operand = load <32 x i64>, ptr %po
  %pg = getelementptr i8, ptr %w, i64 $wait_arg
  %oldg = load <32 x i64>, ptr %pg
  %newg = select <32 x i1> %lanes, <32 x i64> %operand, <32 x i64> %oldg
  store <32 x i64> %newg, ptr %pg
  call void @news(ptr %w, i32 %kind)
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %more = or i32 %blocked, %mask
  store i32 %more, ptr %pb
  ret void
}

; Whether the four warps of the warpgroup have issued as many wgmma as this warp.
define i1 @gathered(ptr %w) {
entry:
  %pi = getelementptr i8, ptr %w, i64 $issued
  %mine = load i64, ptr %pi
  %pp = getelementptr i8, ptr %w, i64 $peers
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %peer = getelementptr ptr, ptr %pp, i64 %i
  %at = load ptr, ptr %peer
  %count = load i64, ptr %at
  %behind = icmp slt i64 %count, %mine
  br i1 %behind, label %no, label %next
next:
  %i1 = add i64 %i, 1
  %end = icmp eq i64 %i1, 4
  br i1 %end, label %yes, label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; Unblock the lanes whose mbarrier phase is complete; returns true if some lane can run.
define i1 @wake(ptr %w) {
entry:
  %pb = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pb
  %pk = getelementptr i8, ptr %w, i64 $wait_kind
  %pw = getelementptr i8, ptr %w, i64 $wait_addr
  %pg = getelementptr i8, ptr %w, i64 $wait_arg
  br label %loop
loop:
  %left = phi i32 [ %blocked, %entry ], [ %rest, %next ]
  %keep = phi i32 [ %blocked, %entry ], [ %keep1, %next ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pki = getelementptr i32, ptr %pk, i64 %i
  %kind = load i32, ptr %pki
  %isbar = icmp eq i32 %kind, $WAIT_MBARRIER
  br i1 %isbar, label %test, label %other
other:
  %isgroup = icmp eq i32 %kind, $WAIT_WGMMA
  %iscluster = icmp eq i32 %kind, $WAIT_CLUSTER
  %either = or i1 %isgroup, %iscluster
  %psig = getelementptr i8, ptr %w, i64 $signals
  %signals = load i32, ptr %psig
  %only = icmp ne i32 %signals, 0
  %ask = and i1 %either, %only
  br i1 %ask, label %group, label %next
group:
  %issued = call i1 @gathered(ptr %w)
  %over = call i1 @met(ptr %w)
  %same = select i1 %isgroup, i1 %issued, i1 %over
  %here = zext i1 %same to i32
  %all = shl i32 %here, %n
  br label %next
test:
  %pwi = getelementptr i64, ptr %pw, i64 %i
  %b = load ptr, ptr %pwi
  %word = load i64, ptr %b
  %pgi = getelementptr i64, ptr %pg, i64 %i
  %arg = load i64, ptr %pgi
  %differ = xor i64 %word, %arg
  %odd = and i64 %differ, 1
  %up = trunc i64 %odd to i32
  %free = shl i32 %up, %n
  br label %next
next:
  %freed = phi i32 [ 0, %other ], [ %all, %group ], [ %free, %test ]
  %stay = xor i32 %freed, -1
  %keep1 = and i32 %keep, %stay
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
done:
  store i32 %keep, ptr %pb
  %pp = getelementptr i8, ptr %w, i64 $parked
  %parked = load i32, ptr %pp
  %held = or i32 %keep, %parked
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %open = xor i32 %held, -1
  %ready = and i32 %live, %open
  %some = icmp ne i32 %ready, 0
  %apart = call i1 @group_apart(ptr %w)
  %joined = xor i1 %apart, true
  %can = and i1 %some, %joined
  ret i1 %can
}

; A warp that used up its fuel next prefers the lowest block with a ready lane above the block it preferred, and after
; the highest block the lowest: so every group of lanes runs.
define void @rotate(ptr %w) {
  %pb = getelementptr i8, ptr %w, i64 $bias
  %bias = load i32, ptr %pb
  %b0 = insertelement <32 x i32> poison, i32 %bias, i32 0
  %bs = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %pc = load <32 x i32>, ptr %w
  %pl = getelementptr i8, ptr %w, i64 $live
  %live = load i32, ptr %pl
  %pk = getelementptr i8, ptr %w, i64 $blocked
  %blocked = load i32, ptr %pk
  %pp = getelementptr i8, ptr %w, i64 $parked
  %parked = load i32, ptr %pp
  %held = or i32 %blocked, %parked
  %free = xor i32 %held, -1
  %ready = and i32 %live, %free
  %lanes = bitcast i32 %ready to <32 x i1>
  %above = icmp ugt <32 x i32> %pc, %bs
  %later = and <32 x i1> %above, %lanes
  %keys = select <32 x i1> %later, <32 x i32> %pc, <32 x i32> splat (i32 -1)
  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %keys)
  %none = icmp eq i32 %least, -1
  %next = select i1 %none, i32 0, i32 %least
  store i32 %next, ptr %pb
  ret void
}

; Whether the recorder's rows are half full.
define i1 @crowded(ptr %w) {
  %pr = getelementptr i8, ptr %w, i64 $rows
  %rows = load ptr, ptr %pr
  %off = icmp eq ptr %rows, null
  br i1 %off, label %no, label %look
look:
  %count = load i64, ptr %rows
  %pcap = getelementptr i64, ptr %rows, i64 1
  %cap = load i64, ptr %pcap
  %half = lshr i64 %cap, 1
  %past = icmp ugt i64 %count, %half
  ret i1 %past
no:
  ret i1 false
}

; Run every warp that can run, until none can. Returns 0 if all wait, 1 if all are done, 2 if some only spin, 3 for a
; fault, 4 for a full queue, 5 after %rounds rounds (0: no limit), 6 if a warp has used up its jumps; in a round every
; warp runs until it waits. %which receives the warp's index for 3 and 4. %bars: the named barriers to settle here while
; no more than $ROUNDS rounds are over; %log: as in @settle_bars. With %bars a warp that waits for a service ends the run
; with 4, so what it frees is free before other warps run on. With null, as checks ask, the others run first: then the
; checks see what they use.
define i32 @run_cluster(ptr %warps, i32 %n, ptr %kernel, ptr %which, i32 %rounds, ptr %bars, ptr %log) {
entry:
  br label %round
round:
  %left = phi i32 [ %rounds, %entry ], [ %left1, %again ], [ %rounds, %alone ]
  %total = phi i32 [ 0, %entry ], [ %total1, %again ], [ %total1, %alone ]
  %total1 = add i32 %total, 1
  br label %loop
loop:
  %i = phi i32 [ 0, %round ], [ %i1, %next ]
  %moved = phi i1 [ false, %round ], [ %moved1, %next ]
  %spin = phi i1 [ false, %round ], [ %spin1, %next ]
  %alive = phi i1 [ false, %round ], [ %alive1, %next ]
  %wi = sext i32 %i to i64
  %pw = getelementptr ptr, ptr %warps, i64 %wi
  %w = load ptr, ptr %pw
  %ps = getelementptr i8, ptr %w, i64 $status
  %status = load i32, ptr %ps
  %isdone = icmp eq i32 %status, 0
  br i1 %isdone, label %next, label %living
living:
  %can = call i1 @wake(ptr %w)
  br i1 %can, label %room, label %next
room:
  %crowded = call i1 @crowded(ptr %w)
  br i1 %crowded, label %full, label %run
full:
  store i32 %i, ptr %which
  ret i32 4
run:
  %pf = getelementptr i8, ptr %w, i64 $fuel
  %pslice = getelementptr i8, ptr %w, i64 $slice
  %slice = load i32, ptr %pslice
  store i32 %slice, ptr %pf
  %got = call i32 %kernel(ptr %w)
  store i32 %got, ptr %ps
  %fuel = load i32, ptr %pf
  %used = sub i32 %slice, %fuel
  %used64 = sext i32 %used to i64
  %pj = getelementptr i8, ptr %w, i64 $jumps
  %jumps = load i64, ptr %pj
  %jumps1 = sub i64 %jumps, %used64
  store i64 %jumps1, ptr %pj
  %spent = icmp slt i64 %jumps1, 0
  %fault = icmp eq i32 %got, 3
  %ends = xor i1 %fault, true
  %limit = and i1 %spent, %ends
  br i1 %limit, label %endless, label %count
count:
  %trouble = icmp uge i32 %got, 3
  br i1 %trouble, label %stop, label %ran
stop:
  store i32 %i, ptr %which
  ret i32 %got
endless:
  ret i32 6
ran:
  %pq = getelementptr i8, ptr %w, i64 $queue
  %queue = load ptr, ptr %pq
  %pnews = getelementptr i64, ptr %queue, i64 2
  %news = load i64, ptr %pnews
  %asks = and i64 %news, $NEWS_OF_SERVICES
  %asked = icmp ne i64 %asks, 0
  %unseen = icmp ne ptr %bars, null
  %serve = and i1 %asked, %unseen
  br i1 %serve, label %full, label %go
go:
  %tired = icmp eq i32 %got, 2
  br i1 %tired, label %turn, label %next
turn:
  call void @rotate(ptr %w)
  br label %next
next:
  %m = phi i1 [ false, %loop ], [ false, %living ], [ true, %go ], [ false, %turn ]
  %t = phi i1 [ false, %loop ], [ false, %living ], [ false, %go ], [ true, %turn ]
  %notdone = phi i1 [ false, %loop ], [ true, %living ], [ true, %go ], [ true, %turn ]
  %moved1 = or i1 %moved, %m
  %spin1 = or i1 %spin, %t
  %alive1 = or i1 %alive, %notdone
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, %n
  br i1 %end, label %round_end, label %loop
round_end:
  br i1 %moved1, label %again, label %settled
again:
  %left1 = sub i32 %left, 1
  %over = icmp eq i32 %left1, 0
  br i1 %over, label %paused, label %round
paused:
  ret i32 5
settled:
  %early = icmp ule i32 %total1, $ROUNDS
  br i1 %early, label %alone, label %still
alone:
  %opened = call i1 @settle_alone(ptr %warps, i32 %n, ptr %bars, ptr %log)
  br i1 %opened, label %round, label %still
still:
  br i1 %spin1, label %spinning, label %quiet
spinning:
  ret i32 2
quiet:
  br i1 %alive1, label %waiting, label %finished
waiting:
  ret i32 0
finished:
  ret i32 1
}
