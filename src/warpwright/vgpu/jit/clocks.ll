; Vector clocks of checks: a table with a row of %stride words for each lane, in two planes %plane words apart. A clock
; is two rows of %width words. Widths are multiples of 16.

declare <16 x i32> @llvm.umax.v16i32(<16 x i32>, <16 x i32>)

; Each lane's row becomes the elementwise maximum of the row and the clock.
define void @clock_acquire(ptr %table, i64 %stride, i64 %plane, ptr %lanes, i64 %count, ptr %clock, i64 %width) {
entry:
  %second = getelementptr i32, ptr %clock, i64 %width
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %lane ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %lane, label %done
lane:
  %pl = getelementptr i64, ptr %lanes, i64 %i
  %which = load i64, ptr %pl
  %at = mul i64 %which, %stride
  %row = getelementptr i32, ptr %table, i64 %at
  call void @row_raise(ptr %row, ptr %clock, i64 %width)
  %seen = getelementptr i32, ptr %row, i64 %plane
  call void @row_raise(ptr %seen, ptr %second, i64 %width)
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}

; The clock (zero on entry) becomes the elementwise maximum of the lanes' rows; then each lane's own word is
; incremented.
define void @clock_release(ptr %table, i64 %stride, i64 %plane, ptr %lanes, i64 %count, ptr %clock, i64 %width) {
entry:
  %second = getelementptr i32, ptr %clock, i64 %width
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %lane ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %lane, label %done
lane:
  %pl = getelementptr i64, ptr %lanes, i64 %i
  %which = load i64, ptr %pl
  %at = mul i64 %which, %stride
  %row = getelementptr i32, ptr %table, i64 %at
  call void @row_raise(ptr %clock, ptr %row, i64 %width)
  %seen = getelementptr i32, ptr %row, i64 %plane
  call void @row_raise(ptr %second, ptr %seen, i64 %width)
  %po = getelementptr i32, ptr %row, i64 %which
  %own = load i32, ptr %po
  %next = add i32 %own, 1
  store i32 %next, ptr %po
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}

define internal void @row_raise(ptr noalias %to, ptr noalias %from, i64 %width) alwaysinline {
entry:
  br label %loop
loop:
  %c = phi i64 [ 0, %entry ], [ %c1, %loop ]
  %pt = getelementptr i32, ptr %to, i64 %c
  %pf = getelementptr i32, ptr %from, i64 %c
  %old = load <16 x i32>, ptr %pt, align 4
  %new = load <16 x i32>, ptr %pf, align 4
  %most = call <16 x i32> @llvm.umax.v16i32(<16 x i32> %old, <16 x i32> %new)
  store <16 x i32> %most, ptr %pt, align 4
  %c1 = add i64 %c, 16
  %more = icmp ult i64 %c1, %width
  br i1 %more, label %loop, label %done
done:
  ret void
}
