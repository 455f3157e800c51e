; The shadow of a memory, cell by cell: the last write (-1: none) and the reads since it. Reads are 0: none, n: access n
; - 1, otherwise a node, ~n. A node has an access and, in the same form, the other reads.
; %frame, of 8-byte words: the clocks' table, its stride, words from the lanes' plane to the async proxy's; arrays
; indexed by access: column (i32), value (i64), by an engine (i8), lane (i32), atomic (i8: 1, or 2 for a read), instruction (i32); for
; nodes: access (i32) and others (i32), their number, their capacity; the number of accesses. %flags: 1 a write, 2 by an engine, 4 atomic; 8: of
; the reads, only atomic ones that write count.

; Whether an access happens before a lane: the lane's clock has it; for an engine the async proxy's clock has a thread's
; access; in tensor memory (%taken: %known words) a fence has acquired another warp's access. Accesses in column %pipe
; do, and for an atomic access all atomic ones.
define internal i1 @access_over(ptr %frame, i64 %id, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known) {
  %a = and i64 %flags, 12
  %plainly = icmp eq i64 %a, 0
  br i1 %plainly, label %any, label %atomics
atomics:
  %p7 = getelementptr ptr, ptr %frame, i64 7
  %marks = load ptr, ptr %p7
  %pa = getelementptr i8, ptr %marks, i64 %id
  %mark = load i8, ptr %pa
  %only = icmp uge i64 %flags, 8
  %strong = icmp ne i8 %mark, 0
  %update = icmp eq i8 %mark, 1
  %is = select i1 %only, i1 %update, i1 %strong
  %aside = xor i1 %is, %only
  br i1 %aside, label %yes, label %any
any:
  %p3 = getelementptr ptr, ptr %frame, i64 3
  %columns = load ptr, ptr %p3
  %pc = getelementptr i32, ptr %columns, i64 %id
  %column32 = load i32, ptr %pc
  %column = sext i32 %column32 to i64
  %same = icmp eq i64 %column, %pipe
  br i1 %same, label %yes, label %other
other:
  %p4 = getelementptr ptr, ptr %frame, i64 4
  %values = load ptr, ptr %p4
  %pv = getelementptr i64, ptr %values, i64 %id
  %value = load i64, ptr %pv
  %table = load ptr, ptr %frame
  %p1 = getelementptr i64, ptr %frame, i64 1
  %stride = load i64, ptr %p1
  %row = mul i64 %lane, %stride
  %at = add i64 %row, %column
  %pk = getelementptr i32, ptr %table, i64 %at
  %k32 = load i32, ptr %pk
  %k = zext i32 %k32 to i64
  %late = icmp ult i64 %k, %value
  br i1 %late, label %no, label %ordered
ordered:
  %e = and i64 %flags, 2
  %engine = icmp ne i64 %e, 0
  br i1 %engine, label %proxy, label %tensor
proxy:
  %p5 = getelementptr ptr, ptr %frame, i64 5
  %machines = load ptr, ptr %p5
  %pm = getelementptr i8, ptr %machines, i64 %id
  %machine = load i8, ptr %pm
  %thread = icmp eq i8 %machine, 0
  br i1 %thread, label %see, label %tensor
see:
  %p2 = getelementptr i64, ptr %frame, i64 2
  %plane = load i64, ptr %p2
  %there = add i64 %at, %plane
  %ps = getelementptr i32, ptr %table, i64 %there
  %s32 = load i32, ptr %ps
  %s = zext i32 %s32 to i64
  %hidden = icmp ult i64 %s, %value
  br i1 %hidden, label %no, label %tensor
tensor:
  %plain = icmp eq ptr %taken, null
  br i1 %plain, label %yes, label %warps
warps:
  %p6 = getelementptr ptr, ptr %frame, i64 6
  %lanes = load ptr, ptr %p6
  %pl = getelementptr i32, ptr %lanes, i64 %id
  %whose32 = load i32, ptr %pl
  %whose = sext i32 %whose32 to i64
  %differs = xor i64 %whose, %lane
  %own = icmp ult i64 %differs, 32
  br i1 %own, label %yes, label %fence
fence:
  %inside = icmp ult i64 %column, %known
  br i1 %inside, label %look, label %no
look:
  %pt = getelementptr i32, ptr %taken, i64 %column
  %t32 = load i32, ptr %pt
  %t = zext i32 %t32 to i64
  %missed = icmp ult i64 %t, %value
  br i1 %missed, label %no, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether all accesses of a cell before a new one happen before it: of the write and, for a write, the reads; for a
; read, the atomic reads. 0 if one does not; otherwise 1, or 3 if the cell was never written. The cell's previous
; contents for the same lane, %old0 and %held0, are not checked again.
define internal i64 @cell_quiet(ptr %frame, i64 %old, i64 %held, i64 %old0, i64 %held0, i64 %lane, i64 %flags, i64 %pipe,
                                ptr %taken, i64 %known) alwaysinline {
entry:
  %empty = icmp slt i64 %old, 0
  %result = select i1 %empty, i64 3, i64 1
  %mode = and i64 %flags, 7
  %after = and i64 %flags, 9
  %changed = icmp ne i64 %old, %old0
  %full = xor i1 %empty, true
  %look = and i1 %changed, %full
  br i1 %look, label %written, label %reads
written:
  %over = call i1 @access_over(ptr %frame, i64 %old, i64 %lane, i64 %mode, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over, label %reads, label %trouble
reads:
  %some = icmp ne i64 %held, 0
  %differs = icmp ne i64 %held, %held0
  %asked = icmp ne i64 %after, 0
  %look1 = and i1 %some, %differs
  %look2 = and i1 %look1, %asked
  br i1 %look2, label %read, label %quiet
read:
  %over2 = call i1 @set_over(ptr %frame, i64 %held, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over2, label %quiet, label %trouble
quiet:
  ret i64 %result
trouble:
  ret i64 0
}

; The words of a shadow: the frame, the last writes, the reads, the number of cells, the logarithm of a cell's bytes, for
; every 8 bytes whether an mbarrier is there. A run is a first cell and one past the last.

; Judge and enter an access of %nbytes (a power of two) by lanes of a warp, each at its place, below 0 for none. %lane is
; the warp's first. 0: a race, nothing was entered; otherwise 1 or 3. A write must not touch an mbarrier. Adds 4 if there
; was no room for nodes, and from bit 3 on the number of lanes done: to be continued at lane %start with 16 in %flags,
; which skips the judgement.
define i64 @shadow_lanes(ptr %shadow, ptr %places, i64 %lane, i64 %nbytes, i64 %inst, i64 %flags, i64 %start) {
entry:
  %frame = load ptr, ptr %shadow
  %p1 = getelementptr ptr, ptr %shadow, i64 1
  %writer = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %shadow, i64 2
  %readers = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %shadow, i64 3
  %size = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %shadow, i64 4
  %cell = load i64, ptr %p4
  %p5 = getelementptr ptr, ptr %shadow, i64 5
  %held = load ptr, ptr %p5
  %w = and i64 %flags, 1
  %write = icmp ne i64 %w, 0
  %wide = lshr i64 %nbytes, %cell
  %small = icmp eq i64 %wide, 0
  %cells = select i1 %small, i64 1, i64 %wide
  %again = icmp uge i64 %flags, 16
  br i1 %again, label %enter, label %judge
judge:
  %i = phi i64 [ 0, %entry ], [ %i1, %judged ]
  %result = phi i64 [ 1, %entry ], [ %result2, %judged ]
  %more = icmp ult i64 %i, 32
  br i1 %more, label %lanes, label %enter
lanes:
  %who = add i64 %lane, %i
  %pp = getelementptr i64, ptr %places, i64 %i
  %place = load i64, ptr %pp
  %off = icmp slt i64 %place, 0
  br i1 %off, label %judged, label %one
one:
  %base = lshr i64 %place, %cell
  %end = add i64 %base, %cells
  %beyond = icmp ugt i64 %end, %size
  br i1 %beyond, label %trouble, label %each
each:
  %j = phi i64 [ 0, %one ], [ %j1, %good ]
  %result0 = phi i64 [ %result, %one ], [ %result1, %good ]
  %old0 = phi i64 [ -1, %one ], [ %old, %good ]
  %set0 = phi i64 [ 0, %one ], [ %set, %good ]
  %left = icmp ult i64 %j, %cells
  br i1 %left, label %look, label %alive
look:
  %at = add i64 %base, %j
  %pw = getelementptr i32, ptr %writer, i64 %at
  %old32 = load i32, ptr %pw
  %old = sext i32 %old32 to i64
  %pr = getelementptr i32, ptr %readers, i64 %at
  %set32 = load i32, ptr %pr
  %set = sext i32 %set32 to i64
  %code = call i64 @cell_quiet(ptr %frame, i64 %old, i64 %set, i64 %old0, i64 %set0, i64 %who, i64 %flags, i64 -1,
                               ptr null, i64 0)
  %bad = icmp eq i64 %code, 0
  br i1 %bad, label %trouble, label %good
good:
  %result1 = or i64 %result0, %code
  %j1 = add i64 %j, 1
  br label %each
alive:
  br i1 %write, label %words, label %judged
words:
  %first8 = lshr i64 %place, 3
  %last1 = add i64 %place, %nbytes
  %last0 = sub i64 %last1, 1
  %last8 = lshr i64 %last0, 3
  br label %word
word:
  %k = phi i64 [ %first8, %words ], [ %k1, %free ]
  %ph = getelementptr i8, ptr %held, i64 %k
  %live = load i8, ptr %ph
  %struck = icmp ne i8 %live, 0
  br i1 %struck, label %trouble, label %free
free:
  %k1 = add i64 %k, 1
  %over = icmp ugt i64 %k1, %last8
  br i1 %over, label %judged, label %word
judged:
  %result2 = phi i64 [ %result, %lanes ], [ %result0, %alive ], [ %result0, %free ]
  %i1 = add i64 %i, 1
  br label %judge
enter:
  %quiet = phi i64 [ 1, %entry ], [ %result, %judge ]
  br label %remember
remember:
  %r = phi i64 [ %start, %enter ], [ %r1, %kept ]
  %some = icmp ult i64 %r, 32
  br i1 %some, label %access, label %done
access:
  %pq = getelementptr i64, ptr %places, i64 %r
  %there = load i64, ptr %pq
  %idle = icmp slt i64 %there, 0
  br i1 %idle, label %kept, label %active
active:
  %mine = add i64 %lane, %r
  %number = call i64 @access_enter(ptr %frame, i64 %mine, i64 %inst)
  %from = lshr i64 %there, %cell
  %past = add i64 %from, %cells
  br label %mark
mark:
  %c = phi i64 [ %from, %active ], [ %c1, %marked ]
  %pc = getelementptr i32, ptr %readers, i64 %c
  br i1 %write, label %writes, label %reads
writes:
  %pv = getelementptr i32, ptr %writer, i64 %c
  %number32 = trunc i64 %number to i32
  store i32 %number32, ptr %pv
  store i32 0, ptr %pc
  br label %marked
reads:
  %had32 = load i32, ptr %pc
  %had = sext i32 %had32 to i64
  %with = call i64 @set_read(ptr %frame, i64 %had, i64 %number)
  %with32 = trunc i64 %with to i32
  %none = icmp eq i64 %with, 0
  br i1 %none, label %full, label %readable
readable:
  store i32 %with32, ptr %pc
  br label %marked
marked:
  %c1 = add i64 %c, 1
  %further = icmp ult i64 %c1, %past
  br i1 %further, label %mark, label %kept
kept:
  %r1 = add i64 %r, 1
  br label %remember
done:
  ret i64 %quiet
full:
  %pn = getelementptr i64, ptr %frame, i64 13
  store i64 %number, ptr %pn
  %done8 = shl i64 %r, 3
  %much = or i64 %done8, 4
  %told = or i64 %much, %quiet
  ret i64 %told
trouble:
  ret i64 0
}

; Enter an access of a thread: it happens before every lane that knows the current value of its clock. Returns its number.
define internal i64 @access_enter(ptr %frame, i64 %lane, i64 %inst) {
  %table = load ptr, ptr %frame
  %p1 = getelementptr i64, ptr %frame, i64 1
  %stride = load i64, ptr %p1
  %row = mul i64 %lane, %stride
  %own = add i64 %row, %lane
  %pk = getelementptr i32, ptr %table, i64 %own
  %now32 = load i32, ptr %pk
  %now = zext i32 %now32 to i64
  %id = call i64 @shadow_access(ptr %frame, i64 %lane, i64 %now, i64 0, i64 %inst, i64 %lane)
  ret i64 %id
}

; Enter an access, which is over for a lane that knows %value of %column. Returns its number; the caller has made room.
define i64 @shadow_access(ptr %frame, i64 %column, i64 %value, i64 %machine, i64 %inst, i64 %lane) {
  %p13 = getelementptr i64, ptr %frame, i64 13
  %id = load i64, ptr %p13
  %next = add i64 %id, 1
  store i64 %next, ptr %p13
  %column32 = trunc i64 %column to i32
  %p3 = getelementptr ptr, ptr %frame, i64 3
  %columns = load ptr, ptr %p3
  %pc = getelementptr i32, ptr %columns, i64 %id
  store i32 %column32, ptr %pc
  %p4 = getelementptr ptr, ptr %frame, i64 4
  %values = load ptr, ptr %p4
  %pv = getelementptr i64, ptr %values, i64 %id
  store i64 %value, ptr %pv
  %machine8 = trunc i64 %machine to i8
  %p5 = getelementptr ptr, ptr %frame, i64 5
  %machines = load ptr, ptr %p5
  %pm = getelementptr i8, ptr %machines, i64 %id
  store i8 %machine8, ptr %pm
  %lane32 = trunc i64 %lane to i32
  %p6 = getelementptr ptr, ptr %frame, i64 6
  %lanes = load ptr, ptr %p6
  %pl = getelementptr i32, ptr %lanes, i64 %id
  store i32 %lane32, ptr %pl
  %p7 = getelementptr ptr, ptr %frame, i64 7
  %atomics = load ptr, ptr %p7
  %pa = getelementptr i8, ptr %atomics, i64 %id
  store i8 0, ptr %pa
  %inst32 = trunc i64 %inst to i32
  %p8 = getelementptr ptr, ptr %frame, i64 8
  %insts = load ptr, ptr %p8
  %pi = getelementptr i32, ptr %insts, i64 %id
  store i32 %inst32, ptr %pi
  ret i64 %id
}
