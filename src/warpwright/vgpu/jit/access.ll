; Loads and stores of $bits-bit values at the host addresses in `addr`, plus %offset bytes; instantiated for 8 to 64.

declare <32 x i$bits> @llvm.masked.gather.v32i$bits.v32p0(<32 x ptr>, i32, <32 x i1>, <32 x i$bits>)
declare void @llvm.masked.scatter.v32i$bits.v32p0(<32 x i$bits>, <32 x ptr>, i32, <32 x i1>)

; Whether all 32 lanes are active and their addresses are consecutive, so that one vector access suffices.
define i1 @dense$bits(<32 x i64> %address, i32 %mask) alwaysinline {
  %first = extractelement <32 x i64> %address, i32 0
  %f0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %fs = shufflevector <32 x i64> %f0, <32 x i64> poison, <32 x i32> zeroinitializer
  %steps = mul <32 x i64> splat (i64 $bytes), <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15, i64 16, i64 17, i64 18, i64 19, i64 20, i64 21, i64 22, i64 23, i64 24, i64 25, i64 26, i64 27, i64 28, i64 29, i64 30, i64 31>
  %line = add <32 x i64> %fs, %steps
  %same = icmp eq <32 x i64> %address, %line
  %bits = bitcast <32 x i1> %same to i32
  %both = and i32 %bits, %mask
  %all = icmp eq i32 %both, -1
  ret i1 %all
}

define <32 x i$bits> @gather$bits(ptr %w, i32 %mask, i64 %offset) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %base = load <32 x i64>, ptr %pa
  %isdense = call i1 @dense$bits(<32 x i64> %base, i32 %mask)
  br i1 %isdense, label %dense, label %sparse
dense:
  %first = extractelement <32 x i64> %base, i32 0
  %start = add i64 %first, %offset
  %p = inttoptr i64 %start to ptr
  %line = load <32 x i$bits>, ptr %p, align 1
  ret <32 x i$bits> %line
sparse:
  %o0 = insertelement <32 x i64> poison, i64 %offset, i32 0
  %os = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %address = add <32 x i64> %base, %os
  %ps = inttoptr <32 x i64> %address to <32 x ptr>
  %lanes = bitcast i32 %mask to <32 x i1>
  %r = call <32 x i$bits> @llvm.masked.gather.v32i$bits.v32p0(<32 x ptr> %ps, i32 1, <32 x i1> %lanes, <32 x i$bits> zeroinitializer)
  ret <32 x i$bits> %r
}

define void @scatter$bits(ptr %w, i32 %mask, i64 %offset, <32 x i$bits> %value) {
  %pa = getelementptr i8, ptr %w, i64 $addr
  %base = load <32 x i64>, ptr %pa
  %isdense = call i1 @dense$bits(<32 x i64> %base, i32 %mask)
  br i1 %isdense, label %dense, label %sparse
dense:
  %first = extractelement <32 x i64> %base, i32 0
  %start = add i64 %first, %offset
  %p = inttoptr i64 %start to ptr
  store <32 x i$bits> %value, ptr %p, align 1
  ret void
sparse:
  %o0 = insertelement <32 x i64> poison, i64 %offset, i32 0
  %os = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %address = add <32 x i64> %base, %os
  %ps = inttoptr <32 x i64> %address to <32 x ptr>
  %lanes = bitcast i32 %mask to <32 x i1>
  call void @llvm.masked.scatter.v32i$bits.v32p0(<32 x i$bits> %value, <32 x ptr> %ps, i32 1, <32 x i1> %lanes)
  ret void
}
