; The mbarrier object (PTX ISA 9.1 section 9.7.13.15).

; mbarrier words (PTX ISA 9.7.13.15): bit 0 phase, 1-20 pending arrivals, 21-40 expected arrivals, 41-61 tx-count
; (two's complement), 62-63 = 2 while the object is valid.
define i32 @mbarrier_update(ptr %b, i64 %count, i64 %expect, i64 %complete, i64 %drop) {
  %word = load i64, ptr %b
  %tag = lshr i64 %word, 62
  %valid = icmp eq i64 %tag, 2
  br i1 %valid, label %live, label %invalid
invalid:
  ret i32 $FAULT_MBARRIER_INVALID
live:
  %phase = and i64 %word, 1
  %p1 = lshr i64 %word, 1
  %pending = and i64 %p1, 1048575
  %e1 = lshr i64 %word, 21
  %expected = and i64 %e1, 1048575
  %t1 = shl i64 %word, 2
  %tx = ashr i64 %t1, 43
  %tx1 = add i64 %tx, %expect
  %tx2 = sub i64 %tx1, %complete
  %shifted = add i64 %tx2, 1048575
  %inrange = icmp ult i64 %shifted, 2097151
  br i1 %inrange, label %counted, label %overflow
overflow:
  ret i32 $FAULT_MBARRIER_OVERFLOW
counted:
  %surplus = icmp sgt i64 %count, %pending
  br i1 %surplus, label %toomany, label %apply
toomany:
  ret i32 $FAULT_MBARRIER_COUNT
apply:
  %left = sub i64 %pending, %count
  %expected1 = sub i64 %expected, %drop
  %both = or i64 %left, %tx2
  %complete_phase = icmp eq i64 %both, 0
  %left1 = select i1 %complete_phase, i64 %expected1, i64 %left
  %flip = zext i1 %complete_phase to i64
  %phase1 = xor i64 %phase, %flip
  %w1 = shl i64 %left1, 1
  %w2 = shl i64 %expected1, 21
  %txbits = and i64 %tx2, 2097151
  %w3 = shl i64 %txbits, 41
  %o1 = or i64 %phase1, %w1
  %o2 = or i64 %o1, %w2
  %o3 = or i64 %o2, %w3
  %o4 = or i64 %o3, -9223372036854775808
  store i64 %o4, ptr %b
  ret i32 0
}

; Update the barrier at each lane's host address, for the lanes of %mask: operands 0-3 are count, expect, complete,
; drop; `scratch` receives the word before the operation (the state token).
define i1 @mbarrier_lanes(ptr %w, i32 %mask) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %po = getelementptr i8, ptr %w, i64 $operands
  %ps = getelementptr i8, ptr %w, i64 $scratch
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %good ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %b = load ptr, ptr %pai
  %p0 = getelementptr i64, ptr %po, i64 %i
  %count = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 32
  %expect = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 64
  %complete = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 96
  %drop = load i64, ptr %p3
  %word = load i64, ptr %b
  %psi = getelementptr i64, ptr %ps, i64 %i
  store i64 %word, ptr %psi
  %code = call i32 @mbarrier_update(ptr %b, i64 %count, i64 %expect, i64 %complete, i64 %drop)
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %good, label %bad
good:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
bad:
  %bit = shl i32 1, %n
  %f = call i1 @fault(ptr %w, i32 %bit, i32 %code)
  ret i1 false
done:
  ret i1 true
}

; Lanes of %mask whose barrier has completed the phase of parity operand 0; an invalid object sets `fault`.
define i32 @mbarrier_test(ptr %w, i32 %mask) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %po = getelementptr i8, ptr %w, i64 $operands
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %valid ]
  %found = phi i32 [ 0, %entry ], [ %more, %valid ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %b = load ptr, ptr %pai
  %word = load i64, ptr %b
  %p0 = getelementptr i64, ptr %po, i64 %i
  %arg = load i64, ptr %p0
  %tag = lshr i64 %word, 62
  %isvalid = icmp eq i64 %tag, 2
  br i1 %isvalid, label %valid, label %bad
valid:
  %differ = xor i64 %word, %arg
  %parity = and i64 %differ, 1
  %one = trunc i64 %parity to i32
  %bit = shl i32 %one, %n
  %more = or i32 %found, %bit
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
bad:
  %only = shl i32 1, %n
  %f = call i1 @fault(ptr %w, i32 %only, i32 $FAULT_MBARRIER_INVALID)
  ret i32 0
done:
  ret i32 %found
}

; Apply %count arrivals and %bytes delivered to each of %n barriers in order; returns how many accepted the update
; before the first that refused it.
define i64 @mbarrier_update_all(ptr %barriers, i64 %n, i64 %count, i64 %bytes) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %good ]
  %end = icmp uge i64 %i, %n
  br i1 %end, label %done, label %step
step:
  %pb = getelementptr ptr, ptr %barriers, i64 %i
  %b = load ptr, ptr %pb
  %code = call i32 @mbarrier_update(ptr %b, i64 %count, i64 0, i64 %bytes, i64 0)
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %good, label %done
good:
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret i64 %i
}
