; Sums of tensor cores: every product and the accumulator is aligned to the largest exponent, truncated toward zero at a
; fixed number of fraction bits, added exactly, rounded once. Eight columns of the result at a time.

declare <8 x i32> @llvm.fptosi.sat.v8i32.v8f64(<8 x double>)
declare <8 x i32> @llvm.smax.v8i32(<8 x i32>, <8 x i32>)
declare <8 x i32> @llvm.umin.v8i32(<8 x i32>, <8 x i32>)
declare <8 x i32> @llvm.abs.v8i32(<8 x i32>, i1)
declare <8 x double> @llvm.fabs.v8f64(<8 x double>)
declare <8 x double> @llvm.trunc.v8f64(<8 x double>)

define <8 x i32> @splat8(i32 %x) alwaysinline {
  %one = insertelement <8 x i32> poison, i32 %x, i32 0
  %all = shufflevector <8 x i32> %one, <8 x i32> poison, <8 x i32> zeroinitializer
  ret <8 x i32> %all
}

define <8 x double> @power8(<8 x i32> %exponent) alwaysinline {
  %biased = add <8 x i32> %exponent, splat (i32 1023)
  %wide = sext <8 x i32> %biased to <8 x i64>
  %bits = shl <8 x i64> %wide, splat (i64 52)
  %power = bitcast <8 x i64> %bits to <8 x double>
  ret <8 x double> %power
}

; Exponents, at least %least (that of subnormals); zeros have an exponent that is never the largest of a sum.
define <8 x i32> @exponents8(<8 x float> %x, i32 %least) alwaysinline {
  %bits = bitcast <8 x float> %x to <8 x i32>
  %up = lshr <8 x i32> %bits, splat (i32 23)
  %field = and <8 x i32> %up, splat (i32 255)
  %exponent = sub <8 x i32> %field, splat (i32 127)
  %floor = call <8 x i32> @splat8(i32 %least)
  %kept = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %exponent, <8 x i32> %floor)
  %zero = fcmp oeq <8 x float> %x, zeroinitializer
  %result = select <8 x i1> %zero, <8 x i32> splat (i32 -20000), <8 x i32> %kept
  ret <8 x i32> %result
}

; Significands as integers with %fraction bits after the point, for exponents that `exponents8` gave.
define <8 x i32> @significands8(<8 x float> %x, <8 x i32> %exponent, i32 %fraction) alwaysinline {
  %low = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %exponent, <8 x i32> splat (i32 -300))
  %f = call <8 x i32> @splat8(i32 %fraction)
  %up = sub <8 x i32> %f, %low
  %scale = call <8 x double> @power8(<8 x i32> %up)
  %wide = fpext <8 x float> %x to <8 x double>
  %scaled = fmul <8 x double> %wide, %scale
  %result = call <8 x i32> @llvm.fptosi.sat.v8i32.v8f64(<8 x double> %scaled)
  ret <8 x i32> %result
}

define i1 @special8(<8 x float> %x) alwaysinline {
  %bits = bitcast <8 x float> %x to <8 x i32>
  %magnitude = and <8 x i32> %bits, splat (i32 2147483647)
  %big = icmp uge <8 x i32> %magnitude, splat (i32 2139095040)
  %mask = bitcast <8 x i1> %big to i8
  %any = icmp ne i8 %mask, 0
  ret i1 %any
}

; Significands and exponents of %n numbers, a multiple of 8; true when one is infinite or NaN.
define i1 @decode_numbers(ptr %sig, ptr %exp, ptr %x, i64 %n, i32 %fraction, i32 %least) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %some = phi i1 [ false, %entry ], [ %some1, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %v = load <8 x float>, ptr %px, align 4
  %e = call <8 x i32> @exponents8(<8 x float> %v, i32 %least)
  %s = call <8 x i32> @significands8(<8 x float> %v, <8 x i32> %e, i32 %fraction)
  %pe = getelementptr i32, ptr %exp, i64 %i
  store <8 x i32> %e, ptr %pe, align 4
  %ps = getelementptr i32, ptr %sig, i64 %i
  store <8 x i32> %s, ptr %ps, align 4
  %odd = call i1 @special8(<8 x float> %v)
  %some1 = or i1 %some, %odd
  %i1 = add i64 %i, 8
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret i1 %some1
}

; Doubles rounded to odd at 23 fraction bits: a second rounding, to fewer bits, equals one rounding of the double.
define <8 x float> @round_odd8(<8 x double> %x) alwaysinline {
  %bits = bitcast <8 x double> %x to <8 x i64>
  %kept = and <8 x i64> %bits, splat (i64 -536870912)
  %lost = icmp ne <8 x i64> %kept, %bits
  %sticky = select <8 x i1> %lost, <8 x i64> splat (i64 536870912), <8 x i64> zeroinitializer
  %odd = or <8 x i64> %kept, %sticky
  %double = bitcast <8 x i64> %odd to <8 x double>
  %result = fptrunc <8 x double> %double to <8 x float>
  ret <8 x float> %result
}

; To the nearest float16, as float32.
define <8 x float> @nearest_half8(<8 x double> %x) alwaysinline {
  %odd = call <8 x float> @round_odd8(<8 x double> %x)
  %half = fptrunc <8 x float> %odd to <8 x half>
  %result = fpext <8 x half> %half to <8 x float>
  ret <8 x float> %result
}

; Toward zero, to %keep fraction bits and to what float32 holds.
define <8 x float> @toward_zero8(<8 x double> %x, i32 %keep) alwaysinline {
  %less = sub i32 52, %keep
  %wide = zext i32 %less to i64
  %mask = shl i64 -1, %wide
  %m0 = insertelement <8 x i64> poison, i64 %mask, i32 0
  %masks = shufflevector <8 x i64> %m0, <8 x i64> poison, <8 x i32> zeroinitializer
  %bits = bitcast <8 x double> %x to <8 x i64>
  %kept = and <8 x i64> %bits, %masks
  %normal = bitcast <8 x i64> %kept to <8 x double>
  %up = call <8 x double> @power8(<8 x i32> splat (i32 149))
  %down = call <8 x double> @power8(<8 x i32> splat (i32 -149))
  %units = fmul <8 x double> %normal, %up
  %whole = call <8 x double> @llvm.trunc.v8f64(<8 x double> %units)
  %subnormal = fmul <8 x double> %whole, %down
  %size = call <8 x double> @llvm.fabs.v8f64(<8 x double> %normal)
  %least = call <8 x double> @power8(<8 x i32> splat (i32 -126))
  %small = fcmp olt <8 x double> %size, %least
  %chosen = select <8 x i1> %small, <8 x double> %subnormal, <8 x double> %normal
  %result = fptrunc <8 x double> %chosen to <8 x float>
  ret <8 x float> %result
}

; Add %n int32 of %more to %to; nothing where %more is null.
define void @add_exponents(ptr %to, ptr %more, i64 %n) {
entry:
  %none = icmp eq ptr %more, null
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %pm = getelementptr i32, ptr %more, i64 %i
  %m = load <8 x i32>, ptr %pm, align 4
  %pt = getelementptr i32, ptr %to, i64 %i
  %t = load <8 x i32>, ptr %pt, align 4
  %sum = add <8 x i32> %t, %m
  store <8 x i32> %sum, ptr %pt, align 4
  %i1 = add i64 %i, 8
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; %d (M × N float32) += %a (M × K) · %b (K × N), %step elements of K at a time; N and M·K are multiples of 8.
; %model (int32): fraction bits of the sum, fraction bits and least exponent of A's type, of B's type, least exponent
; of the accumulator's type, fraction bits of the result (10: float16, to nearest). %scratch: 2 (M·K + K·N) words.
; %powera, %powerb: int32 exponents of scale factors, one for each element of A and of B, or null.
define void @hardware_multiply(ptr %d, ptr %a, ptr %b, ptr %scratch, ptr %powera, ptr %powerb, i64 %m, i64 %n, i64 %k, i64 %step, ptr %model) {
entry:
  %bits = load i32, ptr %model
  %p1 = getelementptr i32, ptr %model, i64 1
  %fa = load i32, ptr %p1
  %p2 = getelementptr i32, ptr %model, i64 2
  %la = load i32, ptr %p2
  %p3 = getelementptr i32, ptr %model, i64 3
  %fb = load i32, ptr %p3
  %p4 = getelementptr i32, ptr %model, i64 4
  %lb = load i32, ptr %p4
  %p5 = getelementptr i32, ptr %model, i64 5
  %lc = load i32, ptr %p5
  %p6 = getelementptr i32, ptr %model, i64 6
  %keep = load i32, ptr %p6
  %half = icmp eq i32 %keep, 10
  %mk = mul i64 %m, %k
  %kn = mul i64 %k, %n
  %sa = getelementptr i32, ptr %scratch, i64 0
  %ea = getelementptr i32, ptr %sa, i64 %mk
  %sb = getelementptr i32, ptr %ea, i64 %mk
  %eb = getelementptr i32, ptr %sb, i64 %kn
  %odda = call i1 @decode_numbers(ptr %sa, ptr %ea, ptr %a, i64 %mk, i32 %fa, i32 %la)
  %oddb = call i1 @decode_numbers(ptr %sb, ptr %eb, ptr %b, i64 %kn, i32 %fb, i32 %lb)
  call void @add_exponents(ptr %ea, ptr %powera, i64 %mk)
  call void @add_exponents(ptr %eb, ptr %powerb, i64 %kn)
  %oddab = or i1 %odda, %oddb
  %fab = add i32 %fa, %fb
  %left = sub i32 %bits, %fab
  %lefts = call <8 x i32> @splat8(i32 %left)
  %more = sub i32 %bits, 23
  %moresign = icmp sgt i32 %more, 0
  %cleft = select i1 %moresign, i32 %more, i32 0
  %fewer = sub i32 23, %bits
  %fewersign = icmp sgt i32 %fewer, 0
  %cright = select i1 %fewersign, i32 %fewer, i32 0
  %clefts = call <8 x i32> @splat8(i32 %cleft)
  %crights = call <8 x i32> @splat8(i32 %cright)
  %allbits = call <8 x i32> @splat8(i32 %bits)
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %inext, %rowend ]
  %ik = mul i64 %i, %k
  %in = mul i64 %i, %n
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %jnext, %columnend ]
  %at = add i64 %in, %j
  %pd = getelementptr float, ptr %d, i64 %at
  %start = load <8 x float>, ptr %pd, align 4
  br label %stepping
stepping:
  %k0 = phi i64 [ 0, %column ], [ %k1, %stepped ]
  %c = phi <8 x float> [ %start, %column ], [ %c1, %stepped ]
  %ec = call <8 x i32> @exponents8(<8 x float> %c, i32 %lc)
  %sc = call <8 x i32> @significands8(<8 x float> %c, <8 x i32> %ec, i32 23)
  %k1 = add i64 %k0, %step
  br label %largest
largest:
  %ke = phi i64 [ %k0, %stepping ], [ %ke1, %largest ]
  %top = phi <8 x i32> [ %ec, %stepping ], [ %top1, %largest ]
  %ia = add i64 %ik, %ke
  %pea = getelementptr i32, ptr %ea, i64 %ia
  %xa = load i32, ptr %pea
  %xas = call <8 x i32> @splat8(i32 %xa)
  %rowb = mul i64 %ke, %n
  %ib = add i64 %rowb, %j
  %peb = getelementptr i32, ptr %eb, i64 %ib
  %xb = load <8 x i32>, ptr %peb, align 4
  %x = add <8 x i32> %xas, %xb
  %top1 = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %top, <8 x i32> %x)
  %ke1 = add i64 %ke, 1
  %enough = icmp uge i64 %ke1, %k1
  br i1 %enough, label %sum, label %largest
sum:
  %max = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %top1, <8 x i32> splat (i32 -900))
  %mc0 = call <8 x i32> @llvm.abs.v8i32(<8 x i32> %sc, i1 false)
  %mc1 = shl <8 x i32> %mc0, %clefts
  %rc0 = sub <8 x i32> %max, %ec
  %rc1 = add <8 x i32> %rc0, %crights
  %rc = call <8 x i32> @llvm.umin.v8i32(<8 x i32> %rc1, <8 x i32> splat (i32 31))
  %mc = lshr <8 x i32> %mc1, %rc
  %nc = sub <8 x i32> zeroinitializer, %mc
  %negc = icmp slt <8 x i32> %sc, zeroinitializer
  %tc = select <8 x i1> %negc, <8 x i32> %nc, <8 x i32> %mc
  %total0 = sext <8 x i32> %tc to <8 x i64>
  br label %add
add:
  %ks = phi i64 [ %k0, %sum ], [ %ks1, %add ]
  %total = phi <8 x i64> [ %total0, %sum ], [ %total1, %add ]
  %ja = add i64 %ik, %ks
  %pea2 = getelementptr i32, ptr %ea, i64 %ja
  %ya = load i32, ptr %pea2
  %yas = call <8 x i32> @splat8(i32 %ya)
  %psa = getelementptr i32, ptr %sa, i64 %ja
  %za = load i32, ptr %psa
  %zas = call <8 x i32> @splat8(i32 %za)
  %rowb2 = mul i64 %ks, %n
  %jb = add i64 %rowb2, %j
  %peb2 = getelementptr i32, ptr %eb, i64 %jb
  %yb = load <8 x i32>, ptr %peb2, align 4
  %psb = getelementptr i32, ptr %sb, i64 %jb
  %zb = load <8 x i32>, ptr %psb, align 4
  %y = add <8 x i32> %yas, %yb
  %z = mul <8 x i32> %zas, %zb
  %m0 = call <8 x i32> @llvm.abs.v8i32(<8 x i32> %z, i1 false)
  %m1 = shl <8 x i32> %m0, %lefts
  %r0 = sub <8 x i32> %max, %y
  %r1 = call <8 x i32> @llvm.umin.v8i32(<8 x i32> %r0, <8 x i32> splat (i32 31))
  %mag = lshr <8 x i32> %m1, %r1
  %nmag = sub <8 x i32> zeroinitializer, %mag
  %neg = icmp slt <8 x i32> %z, zeroinitializer
  %t = select <8 x i1> %neg, <8 x i32> %nmag, <8 x i32> %mag
  %tw = sext <8 x i32> %t to <8 x i64>
  %total1 = add <8 x i64> %total, %tw
  %ks1 = add i64 %ks, 1
  %last = icmp uge i64 %ks1, %k1
  br i1 %last, label %round, label %add
round:
  %units = sitofp <8 x i64> %total1 to <8 x double>
  %shift = sub <8 x i32> %max, %allbits
  %scale = call <8 x double> @power8(<8 x i32> %shift)
  %value = fmul <8 x double> %units, %scale
  br i1 %half, label %tohalf, label %tofloat
tohalf:
  %near = call <8 x float> @nearest_half8(<8 x double> %value)
  br label %rounded
tofloat:
  %cut = call <8 x float> @toward_zero8(<8 x double> %value, i32 %keep)
  br label %rounded
rounded:
  %new = phi <8 x float> [ %near, %tohalf ], [ %cut, %tofloat ]
  %oddc = call i1 @special8(<8 x float> %c)
  %odd = or i1 %oddab, %oddc
  br i1 %odd, label %special, label %stepped
special:
  %cw = fpext <8 x float> %c to <8 x double>
  br label %plain
plain:
  %kp = phi i64 [ %k0, %special ], [ %kp1, %plain ]
  %acc = phi <8 x double> [ %cw, %special ], [ %acc1, %plain ]
  %la2 = add i64 %ik, %kp
  %pa = getelementptr float, ptr %a, i64 %la2
  %va = load float, ptr %pa
  %va0 = insertelement <8 x float> poison, float %va, i32 0
  %vas = shufflevector <8 x float> %va0, <8 x float> poison, <8 x i32> zeroinitializer
  %rowb3 = mul i64 %kp, %n
  %lb2 = add i64 %rowb3, %j
  %pb = getelementptr float, ptr %b, i64 %lb2
  %vb = load <8 x float>, ptr %pb, align 4
  %wa = fpext <8 x float> %vas to <8 x double>
  %wb = fpext <8 x float> %vb to <8 x double>
  %prod = fmul <8 x double> %wa, %wb
  %acc1 = fadd <8 x double> %acc, %prod
  %kp1 = add i64 %kp, 1
  %over = icmp uge i64 %kp1, %k1
  br i1 %over, label %judge, label %plain
judge:
  %isnan = fcmp uno <8 x double> %acc1, zeroinitializer
  %size = call <8 x double> @llvm.fabs.v8f64(<8 x double> %acc1)
  %isinf = fcmp oeq <8 x double> %size, splat (double 0x7FF0000000000000)
  %inf = fptrunc <8 x double> %acc1 to <8 x float>
  %nan = bitcast <8 x i32> splat (i32 2147483647) to <8 x float>
  %w1 = select <8 x i1> %isinf, <8 x float> %inf, <8 x float> %new
  %w2 = select <8 x i1> %isnan, <8 x float> %nan, <8 x float> %w1
  br label %stepped
stepped:
  %c1 = phi <8 x float> [ %new, %rounded ], [ %w2, %judge ]
  %allk = icmp uge i64 %k1, %k
  br i1 %allk, label %columnend, label %stepping
columnend:
  store <8 x float> %c1, ptr %pd, align 4
  %jnext = add i64 %j, 8
  %alln = icmp uge i64 %jnext, %n
  br i1 %alln, label %rowend, label %column
rowend:
  %inext = add i64 %i, 1
  %allm = icmp uge i64 %inext, %m
  br i1 %allm, label %done, label %row
done:
  ret void
}
