; Records for the queue, and exchange between lanes.

; Append a record for every lane of %mask to the queue: instruction, rank << 32 | warp << 8 | lane, operands.
define i1 @push(ptr %w, i32 %mask, i32 %inst) {
entry:
  %pq = getelementptr i8, ptr %w, i64 $queue
  %queue = load ptr, ptr %pq
  %pcap = getelementptr i64, ptr %queue, i64 1
  %cap = load i64, ptr %pcap
  %count = load i64, ptr %queue
  %need = add i64 %count, 32
  %fits = icmp ule i64 %need, %cap
  br i1 %fits, label %start, label %full
full:
  ret i1 false
start:
  %pr = getelementptr i8, ptr %w, i64 $rank
  %rank = load i32, ptr %pr
  %pwarp = getelementptr i8, ptr %w, i64 $warp
  %warp = load i32, ptr %pwarp
  %r = zext i32 %rank to i64
  %rs = shl i64 %r, 32
  %v = zext i32 %warp to i64
  %vs = shl i64 %v, 8
  %who = or i64 %rs, %vs
  %id = zext i32 %inst to i64
  %po = getelementptr i8, ptr %w, i64 $operands
  br label %loop
loop:
  %left = phi i32 [ %mask, %start ], [ %rest, %stored ]
  %at = phi i64 [ %count, %start ], [ %at1, %stored ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %row = mul i64 %at, $RECORD_BYTES
  %row1 = add i64 %row, $QUEUE_HEADER_BYTES
  %record = getelementptr i8, ptr %queue, i64 %row1
  store i64 %id, ptr %record
  %pwho = getelementptr i64, ptr %record, i64 1
  %whoami = or i64 %who, %i
  store i64 %whoami, ptr %pwho
  br label %copy
copy:
  %k = phi i64 [ 0, %lane ], [ %k1, %copy ]
  %ko = mul i64 %k, 32
  %src = getelementptr i64, ptr %po, i64 %ko
  %srci = getelementptr i64, ptr %src, i64 %i
  %value = load i64, ptr %srci
  %kd = add i64 %k, 2
  %dst = getelementptr i64, ptr %record, i64 %kd
  store i64 %value, ptr %dst
  %k1 = add i64 %k, 1
  %enough = icmp eq i64 %k1, 14
  br i1 %enough, label %stored, label %copy
stored:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %at1 = add i64 %at, 1
  br label %loop
done:
  store i64 %at, ptr %queue
  ret i1 true
}

; Every lane takes the 32-bit value of lane operand-1[lane] of operand 0 (both stored as 64-bit lanes).
define <32 x i64> @permute(<32 x i64> %value, <32 x i32> %source) {
entry:
  %box = alloca <32 x i64>
  store <32 x i64> %value, ptr %box
  %out = alloca <32 x i64>
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %from = extractelement <32 x i32> %source, i32 %i
  %from1 = and i32 %from, 31
  %p = getelementptr i64, ptr %box, i32 %from1
  %x = load i64, ptr %p
  %q = getelementptr i64, ptr %out, i32 %i
  store i64 %x, ptr %q
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, 32
  br i1 %end, label %done, label %loop
done:
  %r = load <32 x i64>, ptr %out
  ret <32 x i64> %r
}

; For every lane the mask of the lanes of %mask with the same value.
define <32 x i32> @match_any(<32 x i64> %value, i32 %mask) {
entry:
  %out = alloca <32 x i32>
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %x = extractelement <32 x i64> %value, i32 %i
  %x0 = insertelement <32 x i64> poison, i64 %x, i32 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %value, %xs
  %bits = bitcast <32 x i1> %same to i32
  %hit = and i32 %bits, %mask
  %q = getelementptr i32, ptr %out, i32 %i
  store i32 %hit, ptr %q
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, 32
  br i1 %end, label %done, label %loop
done:
  %r = load <32 x i32>, ptr %out
  ret <32 x i32> %r
}
