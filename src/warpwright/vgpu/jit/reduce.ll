; Atomic operations on two floats, as bits. A NaN result has all its mantissa bits set, except in f64; minimum and maximum
; ignore a NaN operand, and -0 is less than +0 (seen on an H200).

define float @value_f16(i16 %x) {
  %h = bitcast i16 %x to half
  %f = fpext half %h to float
  ret float %f
}

define float @value_bf16(i16 %x) {
  %w = zext i16 %x to i32
  %s = shl i32 %w, 16
  %f = bitcast i32 %s to float
  ret float %f
}

define i16 @bits_f16(float %f) {
  %h = fptrunc float %f to half
  %x = bitcast half %h to i16
  ret i16 %x
}

define i16 @bits_bf16(float %f) {
  %w = bitcast float %f to i32
  %high = lshr i32 %w, 16
  %odd = and i32 %high, 1
  %half = add i32 %odd, 32767
  %up = add i32 %w, %half
  %r = lshr i32 %up, 16
  %x = trunc i32 %r to i16
  ret i16 %x
}

define float @chosen(float %x, float %y, i1 %first) {
  %bad = fcmp uno float %y, %y
  %same = fcmp oeq float %x, %y
  %bits = bitcast float %x to i32
  %sign = icmp slt i32 %bits, 0
  %less = fcmp olt float %x, %y
  %zeros = select i1 %same, i1 %sign, i1 %less
  %greater = fcmp ogt float %x, %y
  %plus = xor i1 %sign, true
  %others = select i1 %same, i1 %plus, i1 %greater
  %either = select i1 %first, i1 %zeros, i1 %others
  %keep = or i1 %either, %bad
  %r = select i1 %keep, float %x, float %y
  ret float %r
}

define i32 @add_f32(i32 %a, i32 %b) {
  %x = bitcast i32 %a to float
  %y = bitcast i32 %b to float
  %sum = fadd float %x, %y
  %nan = fcmp uno float %sum, %sum
  %bits = bitcast float %sum to i32
  %r = select i1 %nan, i32 2147483647, i32 %bits
  ret i32 %r
}

; Infinity minus infinity is 0xfff8000000000000 (seen on an H200); the host's own NaN may have another sign.
define i64 @add_f64(i64 %a, i64 %b) {
  %x = bitcast i64 %a to double
  %y = bitcast i64 %b to double
  %sum = fadd double %x, %y
  %nan = fcmp uno double %sum, %sum
  %numbers = fcmp ord double %x, %y
  %invalid = and i1 %nan, %numbers
  %bits = bitcast double %sum to i64
  %r = select i1 %invalid, i64 -2251799813685248, i64 %bits
  ret i64 %r
}

define i32 @flushed(i32 %x) {
  %size = and i32 %x, 2147483647
  %small = icmp ult i32 %size, 8388608
  %zero = and i32 %x, -2147483648
  %r = select i1 %small, i32 %zero, i32 %x
  ret i32 %r
}

; In global memory: subnormal numbers are flushed to zero.
define i32 @add_f32_flushed(i32 %a, i32 %b) {
  %x = call i32 @flushed(i32 %a)
  %y = call i32 @flushed(i32 %b)
  %sum = call i32 @add_f32(i32 %x, i32 %y)
  %r = call i32 @flushed(i32 %sum)
  ret i32 %r
}
