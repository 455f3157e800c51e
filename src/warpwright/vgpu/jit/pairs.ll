define i32 @${op}_${kind}x2(i32 %a, i32 %b) {
  %a0 = trunc i32 %a to i16
  %b0 = trunc i32 %b to i16
  %r0 = call i16 @${op}_$kind(i16 %a0, i16 %b0)
  %ah = lshr i32 %a, 16
  %bh = lshr i32 %b, 16
  %a1 = trunc i32 %ah to i16
  %b1 = trunc i32 %bh to i16
  %r1 = call i16 @${op}_$kind(i16 %a1, i16 %b1)
  %low = zext i16 %r0 to i32
  %wide = zext i16 %r1 to i32
  %high = shl i32 %wide, 16
  %r = or i32 %low, %high
  ret i32 %r
}
