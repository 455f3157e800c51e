; Sets of reads in the cells of `shadow.ll`. 0: none, n: access n - 1, otherwise a node, ~n. Cells share nodes, so nodes
; never change.

; Whether all accesses of a set happen before the lane, as `access_over`.
define internal i1 @set_over(ptr %frame, i64 %set, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known) {
entry:
  br label %loop
loop:
  %held = phi i64 [ %set, %entry ], [ %rest, %member ]
  %none = icmp eq i64 %held, 0
  br i1 %none, label %yes, label %some
some:
  %id = call i64 @set_first(ptr %frame, i64 %held)
  %over = call i1 @access_over(ptr %frame, i64 %id, i64 %lane, i64 %flags, i64 %pipe, ptr %taken, i64 %known)
  br i1 %over, label %member, label %no
member:
  %rest = call i64 @set_rest(ptr %frame, i64 %held)
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i64 @set_first(ptr %frame, i64 %held) alwaysinline {
  %one = icmp sgt i64 %held, 0
  br i1 %one, label %single, label %node
single:
  %id = sub i64 %held, 1
  ret i64 %id
node:
  %n = xor i64 %held, -1
  %p9 = getelementptr ptr, ptr %frame, i64 9
  %accesses = load ptr, ptr %p9
  %p = getelementptr i32, ptr %accesses, i64 %n
  %m = load i32, ptr %p
  %wide = sext i32 %m to i64
  ret i64 %wide
}

define internal i64 @set_rest(ptr %frame, i64 %held) alwaysinline {
  %one = icmp sgt i64 %held, 0
  br i1 %one, label %single, label %node
single:
  ret i64 0
node:
  %n = xor i64 %held, -1
  %p10 = getelementptr ptr, ptr %frame, i64 10
  %others = load ptr, ptr %p10
  %p = getelementptr i32, ptr %others, i64 %n
  %m = load i32, ptr %p
  %wide = sext i32 %m to i64
  ret i64 %wide
}

; A set with one more access; 0 if there is no room for it.
define internal i64 @set_with(ptr %frame, i64 %id, i64 %rest) alwaysinline {
  %none = icmp eq i64 %rest, 0
  br i1 %none, label %single, label %node
single:
  %alone = add i64 %id, 1
  ret i64 %alone
node:
  %pn = getelementptr i64, ptr %frame, i64 11
  %n = load i64, ptr %pn
  %pm = getelementptr i64, ptr %frame, i64 12
  %most = load i64, ptr %pm
  %full = icmp uge i64 %n, %most
  br i1 %full, label %no, label %room
no:
  ret i64 0
room:
  %p9 = getelementptr ptr, ptr %frame, i64 9
  %accesses = load ptr, ptr %p9
  %pa = getelementptr i32, ptr %accesses, i64 %n
  %id32 = trunc i64 %id to i32
  store i32 %id32, ptr %pa
  %p10 = getelementptr ptr, ptr %frame, i64 10
  %others = load ptr, ptr %p10
  %po = getelementptr i32, ptr %others, i64 %n
  %rest32 = trunc i64 %rest to i32
  store i32 %rest32, ptr %po
  %more = add i64 %n, 1
  store i64 %more, ptr %pn
  %held = xor i64 %n, -1
  ret i64 %held
}

; A set of reads with a new read, without the reads that the new one subsumes: those that happen before its lane. An
; engine's read does not subsume a thread's, nor a non-atomic read an atomic one. 0 if there is no room.
define internal i64 @set_read(ptr %frame, i64 %set, i64 %id) {
entry:
  %p6 = getelementptr ptr, ptr %frame, i64 6
  %lanes = load ptr, ptr %p6
  %pl = getelementptr i32, ptr %lanes, i64 %id
  %lane32 = load i32, ptr %pl
  %lane = sext i32 %lane32 to i64
  %some0 = icmp ne i64 %set, 0
  br i1 %some0, label %head, label %whole
head:
  %latest = call i64 @set_first(ptr %frame, i64 %set)
  %there = icmp eq i64 %latest, %id
  br i1 %there, label %already, label %search
already:
  ret i64 %set
search:
  %left = phi i64 [ %set, %head ], [ %after, %stays ]
  %end = icmp eq i64 %left, 0
  br i1 %end, label %whole, label %one
one:
  %each = call i64 @set_first(ptr %frame, i64 %left)
  %goes = call i1 @gives_way(ptr %frame, i64 %each, i64 %id, i64 %lane)
  br i1 %goes, label %loop, label %stays
stays:
  %after = call i64 @set_rest(ptr %frame, i64 %left)
  br label %search
whole:
  %longer = call i64 @set_with(ptr %frame, i64 %id, i64 %set)
  ret i64 %longer
loop:
  %held = phi i64 [ %set, %one ], [ %rest, %next ]
  %kept = phi i64 [ 0, %one ], [ %kept1, %next ]
  %none = icmp eq i64 %held, 0
  br i1 %none, label %done, label %some
some:
  %old = call i64 @set_first(ptr %frame, i64 %held)
  %rest = call i64 @set_rest(ptr %frame, i64 %held)
  %gone = call i1 @gives_way(ptr %frame, i64 %old, i64 %id, i64 %lane)
  br i1 %gone, label %next, label %keep
keep:
  %with = call i64 @set_with(ptr %frame, i64 %old, i64 %kept)
  %full = icmp eq i64 %with, 0
  br i1 %full, label %no, label %next
next:
  %kept1 = phi i64 [ %kept, %some ], [ %with, %keep ]
  br label %loop
done:
  %all = call i64 @set_with(ptr %frame, i64 %id, i64 %kept)
  ret i64 %all
no:
  ret i64 0
}

; Whether a new read of a lane subsumes an old one.
define internal i1 @gives_way(ptr %frame, i64 %old, i64 %id, i64 %lane) {
  %over = call i1 @access_over(ptr %frame, i64 %old, i64 %lane, i64 0, i64 -1, ptr null, i64 0)
  %like = call i1 @stands_for(ptr %frame, i64 %id, i64 %old)
  %gone = and i1 %over, %like
  ret i1 %gone
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
