; Accesses of runs of cells in a shadow of `shadow.ll`.

; Judge an access of a lane to runs of cells (0: a race, or a cell is outside the memory; otherwise 1 or 3) and, if there
; is none, enter it as access %id, unless that is negative. Adds 4 if there was no room for nodes.
define i64 @shadow_touch(ptr %shadow, ptr %runs, i64 %count, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known,
                         i64 %id) {
entry:
  %code = call i64 @runs_quiet(ptr %shadow, ptr %runs, i64 %count, i64 %lane, i64 %flags, i64 %pipe, ptr %taken,
                               i64 %known)
  %bad = icmp eq i64 %code, 0
  %asks = icmp slt i64 %id, 0
  %over = or i1 %bad, %asks
  br i1 %over, label %done, label %enter
enter:
  %w = and i64 %flags, 1
  %write = icmp ne i64 %w, 0
  br i1 %write, label %writes, label %reads
writes:
  call void @runs_write(ptr %shadow, ptr %runs, i64 %count, i64 %id)
  br label %done
reads:
  %entered = call i64 @shadow_read(ptr %shadow, ptr %runs, i64 %count, i64 %id)
  %all = icmp eq i64 %entered, %count
  %more = select i1 %all, i64 0, i64 4
  %told = or i64 %code, %more
  ret i64 %told
done:
  ret i64 %code
}

; Judge an access to runs of cells. Cells like the one before them need no judgement: eight are compared at a time; nor do
; reads that are among the last 16 judged, by the low bits of their numbers.
define internal i64 @runs_quiet(ptr %shadow, ptr %runs, i64 %count, i64 %lane, i64 %flags, i64 %pipe, ptr %taken,
                                i64 %known) {
entry:
  %frame = load ptr, ptr %shadow
  %p1 = getelementptr ptr, ptr %shadow, i64 1
  %writer = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %shadow, i64 2
  %readers = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %shadow, i64 3
  %size = load i64, ptr %p3
  %judged = alloca [16 x i64]
  call void @llvm.memset.p0.i64(ptr %judged, i8 0, i64 128, i1 false)
  br label %run
run:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %result = phi i64 [ 1, %entry ], [ %result0, %next ]
  %old0 = phi i64 [ -2, %entry ], [ %old1, %next ]
  %held0 = phi i64 [ 0, %entry ], [ %held1, %next ]
  %left = icmp ult i64 %r, %count
  br i1 %left, label %bounds, label %quiet
bounds:
  %r2 = shl i64 %r, 1
  %pf = getelementptr i64, ptr %runs, i64 %r2
  %first = load i64, ptr %pf
  %pe = getelementptr i64, ptr %pf, i64 1
  %end = load i64, ptr %pe
  %beyond = icmp ugt i64 %end, %size
  br i1 %beyond, label %trouble, label %cells
cells:
  %at = phi i64 [ %first, %bounds ], [ %after, %same ], [ %at1, %good ]
  %result0 = phi i64 [ %result, %bounds ], [ %result0, %same ], [ %result1, %good ]
  %old1 = phi i64 [ %old0, %bounds ], [ %old1, %same ], [ %old, %good ]
  %held1 = phi i64 [ %held0, %bounds ], [ %held1, %same ], [ %held, %good ]
  %pw = getelementptr i32, ptr %writer, i64 %at
  %pr = getelementptr i32, ptr %readers, i64 %at
  %at8 = add i64 %at, 8
  %wide = icmp ule i64 %at8, %end
  br i1 %wide, label %compare, label %narrow
compare:
  %equal = call i64 @cells_equal(ptr %pw, i64 %old1, ptr %pr, i64 %held1)
  %after = add i64 %at, %equal
  %none = icmp eq i64 %equal, 0
  br i1 %none, label %cell, label %same
same:
  br label %cells
narrow:
  %some = icmp ult i64 %at, %end
  br i1 %some, label %cell, label %next
cell:
  %old32 = load i32, ptr %pw
  %old = sext i32 %old32 to i64
  %held32 = load i32, ptr %pr
  %held = sext i32 %held32 to i64
  %low = and i64 %held, 15
  %pj = getelementptr i64, ptr %judged, i64 %low
  %same0 = load i64, ptr %pj
  %code = call i64 @cell_quiet(ptr %frame, i64 %old, i64 %held, i64 %old1, i64 %same0, i64 %lane, i64 %flags,
                               i64 %pipe, ptr %taken, i64 %known)
  %bad = icmp eq i64 %code, 0
  br i1 %bad, label %trouble, label %good
good:
  store i64 %held, ptr %pj
  %result1 = or i64 %result0, %code
  %at1 = add i64 %at, 1
  br label %cells
next:
  %r1 = add i64 %r, 1
  br label %run
quiet:
  ret i64 %result
trouble:
  ret i64 0
}

; How many of eight cells, from the first on, have this last write and these reads.
define internal i64 @cells_equal(ptr %pw, i64 %old, ptr %pr, i64 %held) alwaysinline {
  %w = load <8 x i32>, ptr %pw, align 4
  %r = load <8 x i32>, ptr %pr, align 4
  %old32 = trunc i64 %old to i32
  %o0 = insertelement <8 x i32> poison, i32 %old32, i32 0
  %o = shufflevector <8 x i32> %o0, <8 x i32> poison, <8 x i32> zeroinitializer
  %held32 = trunc i64 %held to i32
  %h0 = insertelement <8 x i32> poison, i32 %held32, i32 0
  %h = shufflevector <8 x i32> %h0, <8 x i32> poison, <8 x i32> zeroinitializer
  %dw = xor <8 x i32> %w, %o
  %dr = xor <8 x i32> %r, %h
  %d = or <8 x i32> %dw, %dr
  %nonzero = icmp ne <8 x i32> %d, zeroinitializer
  %bits = bitcast <8 x i1> %nonzero to i8
  %count = call i8 @llvm.cttz.i8(i8 %bits, i1 false)
  %equal = zext i8 %count to i64
  ret i64 %equal
}

declare i8 @llvm.cttz.i8(i8, i1)

; Enter access %id as the last write of runs of cells.
define internal void @runs_write(ptr %shadow, ptr %runs, i64 %count, i64 %id) {
entry:
  %p1 = getelementptr ptr, ptr %shadow, i64 1
  %writer = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %shadow, i64 2
  %readers = load ptr, ptr %p2
  %id32 = trunc i64 %id to i32
  br label %run
run:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %left = icmp ult i64 %r, %count
  br i1 %left, label %bounds, label %done
bounds:
  %r2 = shl i64 %r, 1
  %pf = getelementptr i64, ptr %runs, i64 %r2
  %first = load i64, ptr %pf
  %pe = getelementptr i64, ptr %pf, i64 1
  %end = load i64, ptr %pe
  %pc = getelementptr i32, ptr %readers, i64 %first
  %length = sub i64 %end, %first
  %bytes = shl i64 %length, 2
  call void @llvm.memset.p0.i64(ptr %pc, i8 0, i64 %bytes, i1 false)
  br label %cells
cells:
  %at = phi i64 [ %first, %bounds ], [ %at1, %cell ]
  %some = icmp ult i64 %at, %end
  br i1 %some, label %cell, label %next
cell:
  %pw = getelementptr i32, ptr %writer, i64 %at
  store i32 %id32, ptr %pw
  %at1 = add i64 %at, 1
  br label %cells
next:
  %r1 = add i64 %r, 1
  br label %run
done:
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Enter access %id as a read of runs of cells. Returns the number of runs entered: all, unless there was no room for nodes
; or a cell is outside the memory. Cells like the one before them get its set.
define i64 @shadow_read(ptr %shadow, ptr %runs, i64 %count, i64 %id) {
entry:
  %frame = load ptr, ptr %shadow
  %p2 = getelementptr ptr, ptr %shadow, i64 2
  %readers = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %shadow, i64 3
  %size = load i64, ptr %p3
  br label %run
run:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %held0 = phi i64 [ -1, %entry ], [ %held1, %next ]
  %set0 = phi i64 [ 0, %entry ], [ %set1, %next ]
  %left = icmp ult i64 %r, %count
  br i1 %left, label %bounds, label %done
bounds:
  %r2 = shl i64 %r, 1
  %pf = getelementptr i64, ptr %runs, i64 %r2
  %first = load i64, ptr %pf
  %pe = getelementptr i64, ptr %pf, i64 1
  %end = load i64, ptr %pe
  %beyond = icmp ugt i64 %end, %size
  br i1 %beyond, label %done, label %cells
cells:
  %at = phi i64 [ %first, %bounds ], [ %after, %same ], [ %at1, %store ]
  %held1 = phi i64 [ %held0, %bounds ], [ %held1, %same ], [ %held, %store ]
  %set1 = phi i64 [ %set0, %bounds ], [ %set1, %same ], [ %set, %store ]
  %pr = getelementptr i32, ptr %readers, i64 %at
  %at8 = add i64 %at, 8
  %wide = icmp ule i64 %at8, %end
  %known = icmp ne i64 %set1, 0
  %may = and i1 %wide, %known
  br i1 %may, label %compare, label %narrow
compare:
  %equal = call i64 @cells_equal(ptr %pr, i64 %held1, ptr %pr, i64 %held1)
  %after = add i64 %at, %equal
  %alone = icmp eq i64 %equal, 0
  br i1 %alone, label %cell, label %same
same:
  %e32 = trunc i64 %equal to i32
  %e0 = insertelement <8 x i32> poison, i32 %e32, i32 0
  %e = shufflevector <8 x i32> %e0, <8 x i32> poison, <8 x i32> zeroinitializer
  %chosen = icmp ult <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %e
  %new32 = trunc i64 %set1 to i32
  %n0 = insertelement <8 x i32> poison, i32 %new32, i32 0
  %n = shufflevector <8 x i32> %n0, <8 x i32> poison, <8 x i32> zeroinitializer
  %others = load <8 x i32>, ptr %pr, align 4
  %stored = select <8 x i1> %chosen, <8 x i32> %n, <8 x i32> %others
  store <8 x i32> %stored, ptr %pr, align 4
  br label %cells
narrow:
  %some = icmp ult i64 %at, %end
  br i1 %some, label %cell, label %next
cell:
  %held32 = load i32, ptr %pr
  %held = sext i32 %held32 to i64
  %differs = icmp ne i64 %held, %held1
  %none = icmp eq i64 %set1, 0
  %fresh = or i1 %none, %differs
  br i1 %fresh, label %new, label %store
new:
  %with = call i64 @set_read(ptr %frame, i64 %held, i64 %id)
  %full = icmp eq i64 %with, 0
  br i1 %full, label %done, label %store
store:
  %set = phi i64 [ %set1, %cell ], [ %with, %new ]
  %set32 = trunc i64 %set to i32
  store i32 %set32, ptr %pr
  %at1 = add i64 %at, 1
  br label %cells
next:
  %r1 = add i64 %r, 1
  br label %run
done:
  ret i64 %r
}

; Judge the accesses of an engine's operation and enter them as one access with %value. %op, of 8-byte words: its column,
; instruction and lane; the column that orders it in tensor memory or -1; what its warp acquired, and the words of that;
; the number of accesses, and of each its shadow, its runs, their number, its flags (2: not of tensor memory), and the code
; of `runs_quiet` that is allowed beside 1. %flags: more flags of reads. Returns the number of the access and 1; 0 if something is not quiet or room is missing.
define i64 @shadow_op(ptr %op, i64 %value, i64 %flags) {
entry:
  %p1 = getelementptr i64, ptr %op, i64 1
  %inst = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %op, i64 2
  %lane = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %op, i64 3
  %pipe = load i64, ptr %p3
  %p4 = getelementptr ptr, ptr %op, i64 4
  %taken = load ptr, ptr %p4
  %p5 = getelementptr i64, ptr %op, i64 5
  %known = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %op, i64 6
  %count = load i64, ptr %p6
  %accesses = getelementptr i64, ptr %op, i64 7
  br label %judge
judge:
  %i = phi i64 [ 0, %entry ], [ %i1, %look ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %look, label %enter
look:
  %pa = getelementptr [5 x i64], ptr %accesses, i64 %i
  %shadow = load ptr, ptr %pa
  %pr = getelementptr ptr, ptr %pa, i64 1
  %runs = load ptr, ptr %pr
  %pn = getelementptr i64, ptr %pa, i64 2
  %length = load i64, ptr %pn
  %pm = getelementptr i64, ptr %pa, i64 3
  %mode = load i64, ptr %pm
  %w = and i64 %mode, 1
  %reads = icmp eq i64 %w, 0
  %more = select i1 %reads, i64 %flags, i64 0
  %both = or i64 %mode, %more
  %engine = and i64 %mode, 2
  %inside = icmp ne i64 %engine, 0
  %fenced = select i1 %inside, ptr null, ptr %taken
  %after = select i1 %inside, i64 -1, i64 %pipe
  %code = call i64 @runs_quiet(ptr %shadow, ptr %runs, i64 %length, i64 %lane, i64 %both, i64 %after, ptr %fenced,
                               i64 %known)
  %pc = getelementptr i64, ptr %pa, i64 4
  %too = load i64, ptr %pc
  %fine = icmp eq i64 %code, 1
  %allowed = icmp eq i64 %code, %too
  %good = or i1 %fine, %allowed
  %i1 = add i64 %i, 1
  br i1 %good, label %judge, label %no
enter:
  %s0 = load ptr, ptr %accesses
  %frame = load ptr, ptr %s0
  %column = load i64, ptr %op
  %id = call i64 @shadow_access(ptr %frame, i64 %column, i64 %value, i64 1, i64 %inst, i64 %lane)
  br label %each
each:
  %j = phi i64 [ 0, %enter ], [ %j1, %next ]
  %left = icmp ult i64 %j, %count
  br i1 %left, label %one, label %yes
one:
  %qa = getelementptr [5 x i64], ptr %accesses, i64 %j
  %s = load ptr, ptr %qa
  %qr = getelementptr ptr, ptr %qa, i64 1
  %r = load ptr, ptr %qr
  %qn = getelementptr i64, ptr %qa, i64 2
  %n = load i64, ptr %qn
  %qm = getelementptr i64, ptr %qa, i64 3
  %m = load i64, ptr %qm
  %write = trunc i64 %m to i1
  br i1 %write, label %store, label %load
store:
  call void @runs_write(ptr %s, ptr %r, i64 %n, i64 %id)
  br label %next
load:
  %entered = call i64 @shadow_read(ptr %s, ptr %r, i64 %n, i64 %id)
  %all = icmp eq i64 %entered, %n
  br i1 %all, label %next, label %full
next:
  %j1 = add i64 %j, 1
  br label %each
yes:
  %told = add i64 %id, 1
  ret i64 %told
full:
  %p13 = getelementptr i64, ptr %frame, i64 13
  store i64 %id, ptr %p13
  ret i64 0
no:
  ret i64 0
}
