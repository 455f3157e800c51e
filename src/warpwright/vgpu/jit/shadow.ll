; The shadow of a memory, cell by cell: the last write (-1: none) and the reads since it (0: none, n: access n - 1, -n:
; set n). %frame, of 8-byte words: the clocks' table, its stride, words from what lanes know to what the async proxy
; sees; then arrays with an entry an access: column (i32), value (i64), whether an engine made it (i8), lane (i32),
; whether it is atomic (i8); then members of sets (i32), and where each set begins and the last one ends (i64).
; %flags: 1 a write, 2 by an engine, 4 atomic; 8: only what is atomic counts.

; Whether an access is over for a lane: known; for an engine an access of threads seen by the async proxy too; in tensor
; memory (%taken: %known words) that of another warp taken up by a fence. Those in column %pipe are, and for an atomic
; access those that are atomic.
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
  %is = icmp ne i8 %mark, 0
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

; The same of all accesses of a set.
define internal i1 @set_over(ptr %frame, i64 %held, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known) {
entry:
  %one = icmp sgt i64 %held, 0
  br i1 %one, label %single, label %several
single:
  %id = sub i64 %held, 1
  %over1 = call i1 @access_over(ptr %frame, i64 %id, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known)
  ret i1 %over1
several:
  %set = xor i64 %held, -1
  %p8 = getelementptr ptr, ptr %frame, i64 8
  %members = load ptr, ptr %p8
  %p9 = getelementptr ptr, ptr %frame, i64 9
  %starts = load ptr, ptr %p9
  %pfirst = getelementptr i64, ptr %starts, i64 %set
  %first = load i64, ptr %pfirst
  %plast = getelementptr i64, ptr %pfirst, i64 1
  %last = load i64, ptr %plast
  br label %loop
loop:
  %i = phi i64 [ %first, %several ], [ %i1, %good ]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %member, label %yes
member:
  %pm = getelementptr i32, ptr %members, i64 %i
  %m32 = load i32, ptr %pm
  %m = sext i32 %m32 to i64
  %over = call i1 @access_over(ptr %frame, i64 %m, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over, label %good, label %no
good:
  %i1 = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; What an access of cells comes after, a write after reads too, a read after atomic ones (which are among the reads): 0
; when something there is not over for the lane, a lane a cell or one for all; else 1, or 3 when a cell was never written.
define i64 @shadow_quiet(ptr %frame, ptr %writer, ptr %readers, i64 %size, ptr %cells, i64 %count, ptr %lanes,
                         i64 %one, i64 %flags, i64 %pipe, ptr %taken, i64 %known) {
entry:
  %mode = and i64 %flags, 7
  %after = and i64 %flags, 9
  %alone = icmp eq ptr %lanes, null
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %result = phi i64 [ 1, %entry ], [ %result1, %next ]
  %lane0 = phi i64 [ -1, %entry ], [ %lane, %next ]
  %old0 = phi i64 [ -1, %entry ], [ %old, %next ]
  %held0 = phi i64 [ 0, %entry ], [ %held, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %cell, label %quiet
cell:
  br i1 %alone, label %go, label %own
own:
  %pl = getelementptr i64, ptr %lanes, i64 %i
  %mine = load i64, ptr %pl
  br label %go
go:
  %lane = phi i64 [ %one, %cell ], [ %mine, %own ]
  %moved = icmp ne i64 %lane, %lane0
  %pc = getelementptr i64, ptr %cells, i64 %i
  %at = load i64, ptr %pc
  %beyond = icmp uge i64 %at, %size
  br i1 %beyond, label %trouble, label %there
there:
  %pw = getelementptr i32, ptr %writer, i64 %at
  %old32 = load i32, ptr %pw
  %old = sext i32 %old32 to i64
  %empty = icmp slt i64 %old, 0
  %bits = select i1 %empty, i64 3, i64 1
  %result1 = or i64 %result, %bits
  %pr = getelementptr i32, ptr %readers, i64 %at
  %held32 = load i32, ptr %pr
  %held = sext i32 %held32 to i64
  %changed = icmp ne i64 %old, %old0
  %fresh = or i1 %moved, %changed
  %full = xor i1 %empty, true
  %look = and i1 %fresh, %full
  br i1 %look, label %written, label %reads
written:
  %over = call i1 @access_over(ptr %frame, i64 %old, i64 %lane, i64 %mode, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over, label %reads, label %trouble
reads:
  %some = icmp ne i64 %held, 0
  %changed2 = icmp ne i64 %held, %held0
  %fresh2 = or i1 %moved, %changed2
  %asked = icmp ne i64 %after, 0
  %look1 = and i1 %some, %fresh2
  %look2 = and i1 %look1, %asked
  br i1 %look2, label %read, label %next
read:
  %over2 = call i1 @set_over(ptr %frame, i64 %held, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over2, label %next, label %trouble
next:
  %i1 = add i64 %i, 1
  br label %loop
quiet:
  ret i64 %result
trouble:
  ret i64 0
}

; Remember reads, an access a cell or %one for all. It stands for those before it that are over for its lane; an engine's
; not for a thread's, and one that is not atomic not for one that is. The numbers of cells where others stay beside it go
; to %left; gives how many.
define i64 @shadow_read(ptr %frame, ptr %writer, ptr %readers, i64 %size, ptr %cells, i64 %count, ptr %ids, i64 %one, ptr %left) {
entry:
  %p6 = getelementptr ptr, ptr %frame, i64 6
  %lanes = load ptr, ptr %p6
  %alone = icmp eq ptr %ids, null
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %n = phi i64 [ 0, %entry ], [ %n1, %next ]
  %id0 = phi i64 [ -1, %entry ], [ %id, %next ]
  %held0 = phi i64 [ 0, %entry ], [ %seen, %next ]
  %kept0 = phi i1 [ false, %entry ], [ %kept, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %cell, label %done
cell:
  br i1 %alone, label %go, label %own
own:
  %pi = getelementptr i64, ptr %ids, i64 %i
  %mine = load i64, ptr %pi
  br label %go
go:
  %id = phi i64 [ %one, %cell ], [ %mine, %own ]
  %new = add i64 %id, 1
  %pc = getelementptr i64, ptr %cells, i64 %i
  %at = load i64, ptr %pc
  %beyond = icmp uge i64 %at, %size
  br i1 %beyond, label %stays, label %there
there:
  %pr = getelementptr i32, ptr %readers, i64 %at
  %held32 = load i32, ptr %pr
  %held = sext i32 %held32 to i64
  %none = icmp eq i64 %held, 0
  %again = icmp eq i64 %held, %new
  %free = or i1 %none, %again
  br i1 %free, label %store, label %taken
taken:
  %sameid = icmp eq i64 %id, %id0
  %sameheld = icmp eq i64 %held, %held0
  %same = and i1 %sameid, %sameheld
  br i1 %same, label %decided, label %look
look:
  %pl = getelementptr i32, ptr %lanes, i64 %id
  %lane32 = load i32, ptr %pl
  %lane = sext i32 %lane32 to i64
  %over = call i1 @set_over(ptr %frame, i64 %held, i64 %lane, i64 0, i64 -1, ptr null, i64 0)
  br i1 %over, label %kinds, label %stays
kinds:
  %all = call i1 @stands_for_set(ptr %frame, i64 %id, i64 %held)
  br i1 %all, label %store, label %stays
decided:
  br i1 %kept0, label %stays, label %store
store:
  %word = trunc i64 %new to i32
  store i32 %word, ptr %pr
  br label %next
stays:
  %was = phi i64 [ 0, %go ], [ %held, %look ], [ %held, %kinds ], [ %held, %decided ]
  %pn = getelementptr i64, ptr %left, i64 %n
  store i64 %i, ptr %pn
  br label %next
next:
  %kept = phi i1 [ false, %store ], [ true, %stays ]
  %seen = phi i64 [ %held, %store ], [ %was, %stays ]
  %one1 = zext i1 %kept to i64
  %n1 = add i64 %n, %one1
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret i64 %n
}

define internal i1 @stands_for(ptr %frame, i64 %new, i64 %old) {
  %p5 = getelementptr ptr, ptr %frame, i64 5
  %machines = load ptr, ptr %p5
  %p7 = getelementptr ptr, ptr %frame, i64 7
  %atomics = load ptr, ptr %p7
  %pm = getelementptr i8, ptr %machines, i64 %new
  %machine = load i8, ptr %pm
  %pn = getelementptr i8, ptr %machines, i64 %old
  %thread = load i8, ptr %pn
  %pa = getelementptr i8, ptr %atomics, i64 %old
  %atomic = load i8, ptr %pa
  %pb = getelementptr i8, ptr %atomics, i64 %new
  %too = load i8, ptr %pb
  %same = icmp ule i8 %machine, %thread
  %alike = icmp ule i8 %atomic, %too
  %both = and i1 %same, %alike
  ret i1 %both
}

define internal i1 @stands_for_set(ptr %frame, i64 %new, i64 %held) {
entry:
  %one = icmp sgt i64 %held, 0
  br i1 %one, label %single, label %several
single:
  %id = sub i64 %held, 1
  %good1 = call i1 @stands_for(ptr %frame, i64 %new, i64 %id)
  ret i1 %good1
several:
  %set = xor i64 %held, -1
  %p8 = getelementptr ptr, ptr %frame, i64 8
  %members = load ptr, ptr %p8
  %p9 = getelementptr ptr, ptr %frame, i64 9
  %starts = load ptr, ptr %p9
  %pfirst = getelementptr i64, ptr %starts, i64 %set
  %first = load i64, ptr %pfirst
  %plast = getelementptr i64, ptr %pfirst, i64 1
  %last = load i64, ptr %plast
  br label %loop
loop:
  %i = phi i64 [ %first, %several ], [ %i1, %good ]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %member, label %yes
member:
  %pm = getelementptr i32, ptr %members, i64 %i
  %m32 = load i32, ptr %pm
  %m = sext i32 %m32 to i64
  %good2 = call i1 @stands_for(ptr %frame, i64 %new, i64 %m)
  br i1 %good2, label %good, label %no
good:
  %i1 = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}
