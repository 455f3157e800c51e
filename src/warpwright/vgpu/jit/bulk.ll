; Loops of the engines over chunks of 16 bytes; they run without the interpreter lock.

; Copy %n chunks of 16 bytes; indices count chunks from the two bases.
define void @copy_chunks(ptr %to, ptr %to_index, ptr %from, ptr %from_index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pt = getelementptr i64, ptr %to_index, i64 %i
  %t = load i64, ptr %pt
  %pf = getelementptr i64, ptr %from_index, i64 %i
  %f = load i64, ptr %pf
  %ts = shl i64 %t, 4
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <16 x i8>, ptr %src, align 1
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <16 x i8> %x, ptr %dst, align 1
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Widen the eight 16-bit values of each chunk to float32: bf16 by shifting, f16 by conversion.
define void @widen_bf16(ptr %to, ptr %from, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pf = getelementptr i64, ptr %index, i64 %i
  %f = load i64, ptr %pf
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <8 x i16>, ptr %src, align 1
  %y = zext <8 x i16> %x to <8 x i32>
  %z = shl <8 x i32> %y, splat (i32 16)
  %ts = shl i64 %i, 5
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <8 x i32> %z, ptr %dst, align 4
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

define void @widen_f16(ptr %to, ptr %from, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pf = getelementptr i64, ptr %index, i64 %i
  %f = load i64, ptr %pf
  %fs = shl i64 %f, 4
  %src = getelementptr i8, ptr %from, i64 %fs
  %x = load <8 x half>, ptr %src, align 1
  %y = fpext <8 x half> %x to <8 x float>
  %ts = shl i64 %i, 5
  %dst = getelementptr i8, ptr %to, i64 %ts
  store <8 x float> %y, ptr %dst, align 4
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Copy the same %count chunks of %boxes boxes, each with its own bases.
define void @copy_boxes(ptr %to, ptr %from, i64 %boxes, ptr %to_index, ptr %from_index, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pt = getelementptr ptr, ptr %to, i64 %i
  %t = load ptr, ptr %pt
  %pf = getelementptr ptr, ptr %from, i64 %i
  %f = load ptr, ptr %pf
  call void @copy_chunks(ptr %t, ptr %to_index, ptr %f, ptr %from_index, i64 %count)
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %boxes
  br i1 %end, label %done, label %loop
done:
  ret void
}
