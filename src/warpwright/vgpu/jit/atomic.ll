; `$name`: one lane after another, lowest first; returns the old values. %value and %compare are raw bits.

define <32 x i$bits> @$name(ptr %w, i32 %mask, <32 x i$bits> %value, <32 x i$bits> %compare) {
entry:
  %pa = getelementptr i8, ptr %w, i64 $addr
  %in = alloca <32 x i$bits>
  store <32 x i$bits> %value, ptr %in
  %expected = alloca <32 x i$bits>
  store <32 x i$bits> %compare, ptr %expected
  %out = alloca <32 x i$bits>
  store <32 x i$bits> zeroinitializer, ptr %out
  br label %loop
loop:
  %left = phi i32 [ %mask, %entry ], [ %rest, %stored ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %n = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %i = zext i32 %n to i64
  %pai = getelementptr i64, ptr %pa, i64 %i
  %p = load ptr, ptr %pai
  %pin = getelementptr i$bits, ptr %in, i64 %i
  %pexpected = getelementptr i$bits, ptr %expected, i64 %i
  %pout = getelementptr i$bits, ptr %out, i64 %i
  %x = load i$bits, ptr %pin
  %c = load i$bits, ptr %pexpected
$body
  store i$bits %old, ptr %pout
  br label %stored
stored:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %loop
done:
  %r = load <32 x i$bits>, ptr %out
  ret <32 x i$bits> %r
}
