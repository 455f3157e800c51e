; Issue of wgmma.mma_async: append a line to the warp's log, and move the accumulator to shadow registers. While the
; instruction is in flight the registers themselves hold NaN; the machine restores them at completion.

; Returns false if the log is full. A plan (int64 words): offset of the first shadow register, offset of the flags of
; shadows in use, number of registers, then for each its offset and the number of its shadow.
define i1 @wgmma_issue(ptr %w, i64 %inst, i64 %a, i64 %b, i64 %how, ptr %plan) {
entry:
  %pcount = getelementptr i8, ptr %w, i64 $wgmma_count
  %count = load i32, ptr %pcount
  %full = icmp sge i32 %count, $WGMMA_LOG
  br i1 %full, label %refuse, label %log
refuse:
  ret i1 false
log:
  %i = sext i32 %count to i64
  %line = shl i64 %i, 5
  %plog = getelementptr i8, ptr %w, i64 $wgmma_log
  %p0 = getelementptr i8, ptr %plog, i64 %line
  store i64 %inst, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 1
  store i64 %a, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 2
  store i64 %b, ptr %p2
  %pgroup = getelementptr i8, ptr %w, i64 $wgmma_group
  %group = load i32, ptr %pgroup
  %wide = zext i32 %group to i64
  %high = shl i64 %wide, 32
  %word = or i64 %high, %how
  %p3 = getelementptr i64, ptr %p0, i64 3
  store i64 %word, ptr %p3
  %more = add i32 %count, 1
  store i32 %more, ptr %pcount
  %shadow = load i64, ptr %plan
  %shadows = getelementptr i8, ptr %w, i64 %shadow
  %pflags = getelementptr i64, ptr %plan, i64 1
  %flag = load i64, ptr %pflags
  %flags = getelementptr i8, ptr %w, i64 %flag
  %pn = getelementptr i64, ptr %plan, i64 2
  %n = load i64, ptr %pn
  %rows = getelementptr i64, ptr %plan, i64 3
  br label %loop
loop:
  %r = phi i64 [ 0, %log ], [ %r1, %next ]
  %twice = shl i64 %r, 1
  %prow = getelementptr i64, ptr %rows, i64 %twice
  %offset = load i64, ptr %prow
  %pindex = getelementptr i64, ptr %prow, i64 1
  %index = load i64, ptr %pindex
  %pheld = getelementptr i8, ptr %flags, i64 %index
  %held = load i8, ptr %pheld
  %taken = icmp ne i8 %held, 0
  br i1 %taken, label %next, label %take
take:
  store i8 1, ptr %pheld
  %reg = getelementptr i8, ptr %w, i64 %offset
  %value = load <32 x i32>, ptr %reg
  %bytes = shl i64 %index, 7
  %to = getelementptr i8, ptr %shadows, i64 %bytes
  store <32 x i32> %value, ptr %to
  store <32 x i32> splat (i32 -1), ptr %reg
  br label %next
next:
  %r1 = add i64 %r, 1
  %again = icmp slt i64 %r1, %n
  br i1 %again, label %loop, label %done
done:
  ret i1 true
}
