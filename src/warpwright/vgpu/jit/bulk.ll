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

; The host address of the box at the coordinates of a record, or 0 if the box is not wholly inside the tensor and the
; memory, or not aligned. %plan begins with what all batches of boxes have: dimensions, the word of a record with the first
; coordinate, bytes of an element, first and last host address. %latest: latest coordinates, then pitches.
define i64 @box_at(ptr %record, ptr %plan, ptr %latest) alwaysinline {
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
  %pitches = getelementptr i64, ptr %latest, i64 %dims
  %coords = getelementptr i64, ptr %record, i64 %word
  br label %axes
axes:
  %d = phi i64 [ 0, %entry ], [ %d1, %inside ]
  %at = phi i64 [ %base, %entry ], [ %at1, %inside ]
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
  %misaligned = icmp ne i64 %rest, 0
  %over = icmp sgt i64 %coord, %most
  %under = icmp slt i64 %coord, 0
  %outside = or i1 %over, %under
  %bad = or i1 %outside, %misaligned
  br i1 %bad, label %refuse, label %inside
inside:
  %step = mul i64 %coord, %pitch
  %at1 = add i64 %at, %step
  %d1 = add i64 %d, 1
  %dm = icmp ult i64 %d1, %dims
  br i1 %dm, label %axes, label %place
place:
  %early = icmp ult i64 %at1, %base
  %late = icmp ugt i64 %at1, %last
  %beyond = or i1 %early, %late
  br i1 %beyond, label %refuse, label %found
found:
  ret i64 %at1
refuse:
  ret i64 0
}

; Complete %n loads whose records are at %records: copy the boxes, then complete their bytes on the mbarriers, unless
; %copies is 0 without the copies. The plan (int64 words) has what the loads of one instruction share, in the order of
; `box_batch._resolve`. Returns how many mbarriers accepted their bytes, or -1, without effects, if a box is not wholly
; inside the tensor and the memory.
define i64 @load_boxes(ptr %records, i64 %n, ptr %plan, i64 %copies) {
entry:
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
  br label %boxes
boxes:
  %i = phi i64 [ 0, %entry ], [ %i1, %located ]
  %row = mul i64 %i, $RECORD_WORDS
  %record = getelementptr i64, ptr %records, i64 %row
  %source = call i64 @box_at(ptr %record, ptr %plan, ptr %latest)
  %outside = icmp eq i64 %source, 0
  br i1 %outside, label %refuse, label %located
located:
  %ps = getelementptr i64, ptr %sources, i64 %i
  store i64 %source, ptr %ps
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

; Complete those of %n stores whose records are at %records that are plain: a whole box from the CTA's own shared memory
; through the plan's map and at its offset in the swizzle pattern; unless %copies is 0 without the copy. The plan has the
; words of `store_batch._resolve`. Returns how many are not plain; %left (int64) receives which.
define i64 @store_boxes(ptr %records, i64 %n, ptr %plan, i64 %copies, ptr %left) {
entry:
  %p5 = getelementptr i64, ptr %plan, i64 5
  %map_word = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %plan, i64 6
  %map = load i64, ptr %p6
  %p7 = getelementptr i64, ptr %plan, i64 7
  %source_word = load i64, ptr %p7
  %p8 = getelementptr i64, ptr %plan, i64 8
  %host = load i64, ptr %p8
  %p9 = getelementptr i64, ptr %plan, i64 9
  %stride = load i64, ptr %p9
  %p10 = getelementptr i64, ptr %plan, i64 10
  %phase = load i64, ptr %p10
  %p11 = getelementptr i64, ptr %plan, i64 11
  %period = load i64, ptr %p11
  %p12 = getelementptr i64, ptr %plan, i64 12
  %least = load i64, ptr %p12
  %p13 = getelementptr i64, ptr %plan, i64 13
  %most = load i64, ptr %p13
  %p14 = getelementptr i64, ptr %plan, i64 14
  %from_index = load ptr, ptr %p14
  %p15 = getelementptr i64, ptr %plan, i64 15
  %to_index = load ptr, ptr %p15
  %p16 = getelementptr i64, ptr %plan, i64 16
  %count = load i64, ptr %p16
  %latest = getelementptr i64, ptr %plan, i64 17
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %some = phi i64 [ 0, %entry ], [ %some1, %next ]
  %row = mul i64 %i, $RECORD_WORDS
  %record = getelementptr i64, ptr %records, i64 %row
  %pi = getelementptr i64, ptr %record, i64 1
  %issuer = load i64, ptr %pi
  %own = lshr i64 %issuer, 32
  %pm = getelementptr i64, ptr %record, i64 %map_word
  %mine = load i64, ptr %pm
  %ps = getelementptr i64, ptr %record, i64 %source_word
  %address = load i64, ptr %ps
  %rank = lshr i64 %address, $RANK_SHIFT
  %base = shl i64 %rank, $RANK_SHIFT
  %offset = sub i64 %address, %base
  %place = and i64 %offset, %period
  %othermap = icmp ne i64 %mine, %map
  %otherrank = icmp ne i64 %rank, %own
  %otherplace = icmp ne i64 %place, %phase
  %low = icmp slt i64 %offset, %least
  %high = icmp sgt i64 %offset, %most
  %b1 = or i1 %othermap, %otherrank
  %b2 = or i1 %b1, %otherplace
  %b3 = or i1 %b2, %low
  %bad = or i1 %b3, %high
  br i1 %bad, label %refuse, label %locate
locate:
  %at = call i64 @box_at(ptr %record, ptr %plan, ptr %latest)
  %outside = icmp eq i64 %at, 0
  br i1 %outside, label %refuse, label %found
found:
  %copying = icmp ne i64 %copies, 0
  br i1 %copying, label %copy, label %next
copy:
  %skip = mul i64 %rank, %stride
  %cta = add i64 %host, %skip
  %start = add i64 %cta, %offset
  %pattern = sub i64 %start, %phase
  %from = inttoptr i64 %pattern to ptr
  %to = inttoptr i64 %at to ptr
  call void @copy_chunks(ptr %to, ptr %to_index, ptr %from, ptr %from_index, i64 %count)
  br label %next
refuse:
  %pl = getelementptr i64, ptr %left, i64 %some
  store i64 %i, ptr %pl
  %more = add i64 %some, 1
  br label %next
next:
  %some1 = phi i64 [ %some, %found ], [ %some, %copy ], [ %more, %refuse ]
  %i1 = add i64 %i, 1
  %im = icmp ult i64 %i1, %n
  br i1 %im, label %loop, label %done
done:
  ret i64 %some1
}
