; Loops of the engines over chunks of 16 bytes; they run without the interpreter lock.

declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.umin.i64(i64, i64)

; Copy %n chunks of 16 bytes; indices count chunks from the two bases. Rows of a tensor are far apart, so the processor
; does not prefetch them itself.
define void @copy_chunks(ptr %to, ptr %to_index, ptr %from, ptr %from_index, i64 %n) {
entry:
  %last = sub i64 %n, 1
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %ahead = add i64 %i, 64
  %near = call i64 @llvm.umin.i64(i64 %ahead, i64 %last)
  %pn = getelementptr i64, ptr %from_index, i64 %near
  %next = load i64, ptr %pn
  %ns = shl i64 %next, 4
  %soon = getelementptr i8, ptr %from, i64 %ns
  call void @llvm.prefetch.p0(ptr %soon, i32 0, i32 3, i32 1)
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

; Complete %n loads whose records are at %records: copy the boxes, then complete their bytes on the mbarriers, unless
; %copies is 0 without the copies. The plan (int64 words) has what the loads of one instruction share, in the order of
; `box_batch.PLAN`, then latest coordinates and pitches by dimension. Returns how many mbarriers accepted their bytes, or
; -1, without effects, if a box is not wholly inside the tensor and the memory.
define i64 @load_boxes(ptr %records, i64 %n, ptr %plan, i64 %copies) {
entry:
  %dims = load i64, ptr %plan
  %p1 = getelementptr i64, ptr %plan, i64 1
  %word = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %plan, i64 2
  %size = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %plan, i64 3
  %base = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %plan, i64 4
  %last = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %plan, i64 5
  %targets = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %plan, i64 6
  %sources = load ptr, ptr %p6
  %p7 = getelementptr i64, ptr %plan, i64 7
  %barriers = load ptr, ptr %p7
  %p8 = getelementptr i64, ptr %plan, i64 8
  %bytes = load i64, ptr %p8
  %p9 = getelementptr i64, ptr %plan, i64 9
  %to_index = load ptr, ptr %p9
  %p10 = getelementptr i64, ptr %plan, i64 10
  %from_index = load ptr, ptr %p10
  %p11 = getelementptr i64, ptr %plan, i64 11
  %count = load i64, ptr %p11
  %latest = getelementptr i64, ptr %plan, i64 12
  %pitches = getelementptr i64, ptr %latest, i64 %dims
  br label %boxes
boxes:
  %i = phi i64 [ 0, %entry ], [ %i1, %located ]
  %row = mul i64 %i, $RECORD_WORDS
  %at = add i64 %row, %word
  %coords = getelementptr i64, ptr %records, i64 %at
  br label %axes
axes:
  %d = phi i64 [ 0, %boxes ], [ %d1, %inside ]
  %source = phi i64 [ %base, %boxes ], [ %source1, %inside ]
  %pc = getelementptr i64, ptr %coords, i64 %d
  %low = load i32, ptr %pc
  %coord = sext i32 %low to i64
  %pl = getelementptr i64, ptr %latest, i64 %d
  %most = load i64, ptr %pl
  %pp = getelementptr i64, ptr %pitches, i64 %d
  %pitch = load i64, ptr %pp
  %first = icmp eq i64 %d, 0
  %unit = select i1 %first, i64 %size, i64 16
  %offset = mul i64 %coord, %unit
  %rest = and i64 %offset, 15
  %aligned = icmp eq i64 %rest, 0
  %over = icmp sgt i64 %coord, %most
  %under = icmp slt i64 %coord, 0
  %outside = or i1 %over, %under
  %part = xor i1 %aligned, true
  %bad = or i1 %outside, %part
  br i1 %bad, label %refuse, label %inside
inside:
  %step = mul i64 %coord, %pitch
  %source1 = add i64 %source, %step
  %d1 = add i64 %d, 1
  %dm = icmp ult i64 %d1, %dims
  br i1 %dm, label %axes, label %place
place:
  %early = icmp ult i64 %source1, %base
  %late = icmp ugt i64 %source1, %last
  %beyond = or i1 %early, %late
  br i1 %beyond, label %refuse, label %located
located:
  %ps = getelementptr i64, ptr %sources, i64 %i
  store i64 %source1, ptr %ps
  %i1 = add i64 %i, 1
  %im = icmp ult i64 %i1, %n
  br i1 %im, label %boxes, label %found
found:
  %copying = icmp ne i64 %copies, 0
  br i1 %copying, label %copy, label %signal
copy:
  call void @copy_boxes(ptr %targets, ptr %sources, i64 %n, ptr %to_index, ptr %from_index, i64 %count)
  br label %signal
signal:
  %done = call i64 @mbarrier_update_all(ptr %barriers, i64 %n, i64 0, i64 %bytes)
  ret i64 %done
refuse:
  ret i64 -1
}
