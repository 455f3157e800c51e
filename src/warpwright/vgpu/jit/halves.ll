; Sums, minima and maxima of $kind and ${kind}x2 for atomic operations, as bits.

define i16 @clean_$kind(float %x) {
  %nan = fcmp uno float %x, %x
  %bits = call i16 @bits_$kind(float %x)
  %r = select i1 %nan, i16 32767, i16 %bits
  ret i16 %r
}

define i16 @add_$kind(i16 %a, i16 %b) {
  %x = call float @value_$kind(i16 %a)
  %y = call float @value_$kind(i16 %b)
  %sum = fadd float %x, %y
  %r = call i16 @clean_$kind(float %sum)
  ret i16 %r
}

define i16 @min_$kind(i16 %a, i16 %b) {
  %x = call float @value_$kind(i16 %a)
  %y = call float @value_$kind(i16 %b)
  %least = call float @chosen(float %x, float %y, i1 true)
  %r = call i16 @clean_$kind(float %least)
  ret i16 %r
}

define i16 @max_$kind(i16 %a, i16 %b) {
  %x = call float @value_$kind(i16 %a)
  %y = call float @value_$kind(i16 %b)
  %most = call float @chosen(float %x, float %y, i1 false)
  %r = call i16 @clean_$kind(float %most)
  ret i16 %r
}
