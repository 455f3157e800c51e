; mma.sync with block scales. Registers of A, B and C are where `mma.ll` has them, those of scale factors follow.

; The scale factors of %rows rows, %count each, as significands (float) and exponents (i32); %to[row·%byrow + i·%byblock].
; Row r has those of the bytes from %byte on of lane %quad·(r mod 8) + %lane + r / 8 (A: two lanes of a quad, B: one).
define void @read_scales(ptr %sig, ptr %exp, ptr %from, ptr %tables, i64 %rows, i64 %count, i64 %byrow, i64 %byblock, i64 %lane, i64 %byte) {
entry:
  %exponents = getelementptr i32, ptr %tables, i64 256
  br label %row
row:
  %r = phi i64 [ 0, %entry ], [ %r1, %rowend ]
  %low = and i64 %r, 7
  %quad = shl i64 %low, 2
  %high = lshr i64 %r, 3
  %l0 = add i64 %quad, %lane
  %l1 = add i64 %l0, %high
  %l2 = shl i64 %l1, 2
  %at = add i64 %l2, %byte
  %start = mul i64 %r, %byrow
  br label %block
block:
  %i = phi i64 [ 0, %row ], [ %i1, %block ]
  %ai = add i64 %at, %i
  %p = getelementptr i8, ptr %from, i64 %ai
  %code = load i8, ptr %p
  %index = zext i8 %code to i64
  %ps = getelementptr float, ptr %tables, i64 %index
  %s = load float, ptr %ps
  %pe = getelementptr i32, ptr %exponents, i64 %index
  %e = load i32, ptr %pe
  %o0 = mul i64 %i, %byblock
  %o = add i64 %start, %o0
  %qs = getelementptr float, ptr %sig, i64 %o
  store float %s, ptr %qs
  %qe = getelementptr i32, ptr %exp, i64 %o
  store i32 %e, ptr %qe
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %count
  br i1 %end, label %rowend, label %block
rowend:
  %r1 = add i64 %r, 1
  %last = icmp uge i64 %r1, %rows
  br i1 %last, label %done, label %row
done:
  ret void
}

define <8 x double> @splat_double8(double %x) alwaysinline {
  %one = insertelement <8 x double> poison, double %x, i32 0
  %all = shufflevector <8 x double> %one, <8 x double> poison, <8 x i32> zeroinitializer
  ret <8 x double> %all
}

; The sums of %length products from %k0 on of row %i of A (16 × %k) with the 8 columns of B.
define <8 x double> @dot8(ptr %a, ptr %b, i64 %i, i64 %k, i64 %k0, i64 %length) alwaysinline {
entry:
  %ik = mul i64 %i, %k
  %stop = add i64 %k0, %length
  br label %loop
loop:
  %j = phi i64 [ %k0, %entry ], [ %j1, %loop ]
  %acc = phi <8 x double> [ zeroinitializer, %entry ], [ %acc1, %loop ]
  %ia = add i64 %ik, %j
  %pa = getelementptr float, ptr %a, i64 %ia
  %x = load float, ptr %pa
  %xd = fpext float %x to double
  %xs = call <8 x double> @splat_double8(double %xd)
  %jb = shl i64 %j, 3
  %pb = getelementptr float, ptr %b, i64 %jb
  %y = load <8 x float>, ptr %pb, align 4
  %yd = fpext <8 x float> %y to <8 x double>
  %z = fmul <8 x double> %xs, %yd
  %acc1 = fadd <8 x double> %acc, %z
  %j1 = add i64 %j, 1
  %end = icmp uge i64 %j1, %stop
  br i1 %end, label %done, label %loop
done:
  ret <8 x double> %acc1
}

; The product of the scale factors of row %i of A and of the 8 columns of B in a block: significands and exponents.
define { <8 x double>, <8 x i32> } @scale8(ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %i, i64 %count, i64 %block) alwaysinline {
  %ic = mul i64 %i, %count
  %at = add i64 %ic, %block
  %pa = getelementptr float, ptr %sa, i64 %at
  %x = load float, ptr %pa
  %xd = fpext float %x to double
  %xs = call <8 x double> @splat_double8(double %xd)
  %qa = getelementptr i32, ptr %ea, i64 %at
  %u = load i32, ptr %qa
  %us = call <8 x i32> @splat8(i32 %u)
  %bb = shl i64 %block, 3
  %pb = getelementptr float, ptr %sb, i64 %bb
  %y = load <8 x float>, ptr %pb, align 4
  %yd = fpext <8 x float> %y to <8 x double>
  %qb = getelementptr i32, ptr %eb, i64 %bb
  %v = load <8 x i32>, ptr %qb, align 4
  %sig = fmul <8 x double> %xs, %yd
  %exp = add <8 x i32> %us, %v
  %r0 = insertvalue { <8 x double>, <8 x i32> } poison, <8 x double> %sig, 0
  %r1 = insertvalue { <8 x double>, <8 x i32> } %r0, <8 x i32> %exp, 1
  ret { <8 x double>, <8 x i32> } %r1
}

; %out = %c + scaled %a (16 × K) · %b (K × 8), all 128 sums in double precision.
define void @scaled_exact(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %k, i64 %count) {
entry:
  %length = udiv i64 %k, %count
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %store ]
  br label %block
block:
  %g = phi i64 [ 0, %row ], [ %g1, %block ]
  %acc = phi <8 x double> [ zeroinitializer, %row ], [ %acc1, %block ]
  %k0 = mul i64 %g, %length
  %part = call <8 x double> @dot8(ptr %a, ptr %b, i64 %i, i64 %k, i64 %k0, i64 %length)
  %scale = call { <8 x double>, <8 x i32> } @scale8(ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %i, i64 %count, i64 %g)
  %sig = extractvalue { <8 x double>, <8 x i32> } %scale, 0
  %exp = extractvalue { <8 x double>, <8 x i32> } %scale, 1
  %power = call <8 x double> @power8(<8 x i32> %exp)
  %z0 = fmul <8 x double> %part, %sig
  %z = fmul <8 x double> %z0, %power
  %acc1 = fadd <8 x double> %acc, %z
  %g1 = add i64 %g, 1
  %all = icmp uge i64 %g1, %count
  br i1 %all, label %store, label %block
store:
  %at = shl i64 %i, 3
  %pc = getelementptr double, ptr %c, i64 %at
  %old = load <8 x double>, ptr %pc, align 8
  %sum = fadd <8 x double> %acc1, %old
  %po = getelementptr double, ptr %out, i64 %at
  store <8 x double> %sum, ptr %po, align 8
  %i1 = add i64 %i, 1
  %last = icmp uge i64 %i1, 16
  br i1 %last, label %done, label %row
done:
  ret void
}

; 4-bit kinds with the rounding of the hardware: exact sums of 16 products times significands, aligned by the exponents
; of the scale factors at 35 fraction bits and truncated, added to C, truncated to float32.
define void @scaled_fours(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %k, i64 %count) {
entry:
  %length = udiv i64 %k, %count
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %store ]
  %at = shl i64 %i, 3
  %pc = getelementptr double, ptr %c, i64 %at
  %old = load <8 x double>, ptr %pc, align 8
  %single = fptrunc <8 x double> %old to <8 x float>
  %ec0 = call <8 x i32> @exponents8(<8 x float> %single, i32 -126)
  %ec = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %ec0, <8 x i32> splat (i32 -126))
  br label %largest
largest:
  %h = phi i64 [ 0, %row ], [ %h1, %largest ]
  %top = phi <8 x i32> [ %ec, %row ], [ %top1, %largest ]
  %scaleh = call { <8 x double>, <8 x i32> } @scale8(ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %i, i64 %count, i64 %h)
  %exph = extractvalue { <8 x double>, <8 x i32> } %scaleh, 1
  %top1 = call <8 x i32> @llvm.smax.v8i32(<8 x i32> %top, <8 x i32> %exph)
  %h1 = add i64 %h, 1
  %enough = icmp uge i64 %h1, %count
  br i1 %enough, label %align, label %largest
align:
  %up0 = sub <8 x i32> splat (i32 35), %top1
  %upc = call <8 x double> @power8(<8 x i32> %up0)
  %cs = fmul <8 x double> %old, %upc
  %ct = call <8 x double> @llvm.trunc.v8f64(<8 x double> %cs)
  br label %group
group:
  %k0 = phi i64 [ 0, %align ], [ %k1, %group ]
  %acc = phi <8 x double> [ %ct, %align ], [ %acc1, %group ]
  %g = udiv i64 %k0, %length
  %part = call <8 x double> @dot8(ptr %a, ptr %b, i64 %i, i64 %k, i64 %k0, i64 16)
  %scale = call { <8 x double>, <8 x i32> } @scale8(ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %i, i64 %count, i64 %g)
  %sig = extractvalue { <8 x double>, <8 x i32> } %scale, 0
  %exp = extractvalue { <8 x double>, <8 x i32> } %scale, 1
  %up = add <8 x i32> %up0, %exp
  %power = call <8 x double> @power8(<8 x i32> %up)
  %z0 = fmul <8 x double> %part, %sig
  %z1 = fmul <8 x double> %z0, %power
  %z = call <8 x double> @llvm.trunc.v8f64(<8 x double> %z1)
  %acc1 = fadd <8 x double> %acc, %z
  %k1 = add i64 %k0, 16
  %all = icmp uge i64 %k1, %k
  br i1 %all, label %store, label %group
store:
  %down0 = sub <8 x i32> %top1, splat (i32 35)
  %down = call <8 x double> @power8(<8 x i32> %down0)
  %value = fmul <8 x double> %acc1, %down
  %cut = call <8 x float> @toward_zero8(<8 x double> %value, i32 23)
  %wide = fpext <8 x float> %cut to <8 x double>
  %nan = fcmp uno <8 x double> %value, zeroinitializer
  %clean = select <8 x i1> %nan, <8 x double> splat (double 0x7FFFFFFFE0000000), <8 x double> %wide
  %po = getelementptr double, ptr %out, i64 %at
  store <8 x double> %clean, ptr %po, align 8
  %i1 = add i64 %i, 1
  %last = icmp uge i64 %i1, 16
  br i1 %last, label %done, label %row
done:
  ret void
}

; 8-bit kinds with the rounding of the hardware: the exponents of the scale factors are added to the elements' own. A
; significand is 1 or NaN.
define void @scaled_eights(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, ptr %model) {
entry:
  %d = alloca [128 x float]
  %scratch = alloca [1536 x i32]
  %powera = alloca [512 x i32]
  %powerb = alloca [256 x i32]
  %sv = load <8 x float>, ptr %sb, align 4
  %ev = load <8 x i32>, ptr %eb, align 4
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %rowend ]
  %ps = getelementptr float, ptr %sa, i64 %i
  %s = load float, ptr %ps
  %pe = getelementptr i32, ptr %ea, i64 %i
  %e = load i32, ptr %pe
  %ik = shl i64 %i, 5
  br label %element
element:
  %j = phi i64 [ 0, %row ], [ %j1, %element ]
  %at = add i64 %ik, %j
  %pa = getelementptr float, ptr %a, i64 %at
  %x = load float, ptr %pa
  %y = fmul float %x, %s
  store float %y, ptr %pa
  %qa = getelementptr i32, ptr %powera, i64 %at
  store i32 %e, ptr %qa
  %j1 = add i64 %j, 1
  %all = icmp uge i64 %j1, 32
  br i1 %all, label %rowend, label %element
rowend:
  %i1 = add i64 %i, 1
  %last = icmp uge i64 %i1, 16
  br i1 %last, label %columns, label %row
columns:
  %n = phi i64 [ 0, %rowend ], [ %n1, %columns ]
  %nb = shl i64 %n, 3
  %pb = getelementptr float, ptr %b, i64 %nb
  %v = load <8 x float>, ptr %pb, align 4
  %vs = fmul <8 x float> %v, %sv
  store <8 x float> %vs, ptr %pb, align 4
  %qb = getelementptr i32, ptr %powerb, i64 %nb
  store <8 x i32> %ev, ptr %qb, align 4
  %n1 = add i64 %n, 1
  %done = icmp uge i64 %n1, 32
  br i1 %done, label %start, label %columns
start:
  %m = phi i64 [ 0, %columns ], [ %m1, %start ]
  %pc = getelementptr double, ptr %c, i64 %m
  %old = load <8 x double>, ptr %pc, align 8
  %single = fptrunc <8 x double> %old to <8 x float>
  %pd = getelementptr float, ptr %d, i64 %m
  store <8 x float> %single, ptr %pd, align 4
  %m1 = add i64 %m, 8
  %ready = icmp uge i64 %m1, 128
  br i1 %ready, label %multiply, label %start
multiply:
  call void @hardware_multiply(ptr %d, ptr %a, ptr %b, ptr %scratch, ptr %powera, ptr %powerb, i64 16, i64 8, i64 32, i64 32, ptr %model)
  br label %finish
finish:
  %f = phi i64 [ 0, %multiply ], [ %f1, %finish ]
  %qd = getelementptr float, ptr %d, i64 %f
  %u = load <8 x float>, ptr %qd, align 4
  %wide = fpext <8 x float> %u to <8 x double>
  %po = getelementptr double, ptr %out, i64 %f
  store <8 x double> %wide, ptr %po, align 8
  %f1 = add i64 %f, 8
  %end = icmp uge i64 %f1, 128
  br i1 %end, label %leave, label %finish
leave:
  ret void
}

; The plan (int64 words): tables of 256 values of A and of B (of 256 pairs where K is 64), K, places of A, B and C, scale
; factors of a row, tables of their significands and exponents, model. Selectors: byte and thread of A, then of B.
define void @mma_scaled(ptr %w, ptr %plan, i64 %bytea, i64 %threada, i64 %byteb, i64 %threadb) {
entry:
  %wide = alloca [1024 x float]
  %a = alloca [1024 x float]
  %b = alloca [512 x float]
  %c = alloca [128 x double]
  %out = alloca [128 x double]
  %sa = alloca [64 x float]
  %ea = alloca [64 x i32]
  %sb = alloca [32 x float]
  %eb = alloca [32 x i32]
  %tablea = load ptr, ptr %plan
  %p1 = getelementptr i64, ptr %plan, i64 1
  %tableb = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %plan, i64 2
  %k = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %plan, i64 3
  %placea = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %plan, i64 4
  %placeb = load ptr, ptr %p4
  %p5 = getelementptr i64, ptr %plan, i64 5
  %placec = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %plan, i64 6
  %count = load i64, ptr %p6
  %p7 = getelementptr i64, ptr %plan, i64 7
  %tables = load ptr, ptr %p7
  %p8 = getelementptr i64, ptr %plan, i64 8
  %model = load ptr, ptr %p8
  %ra = getelementptr i8, ptr %w, i64 $operands
  %rb = getelementptr i8, ptr %ra, i64 512
  %rc = getelementptr i8, ptr %ra, i64 768
  %rsa = getelementptr i8, ptr %ra, i64 1280
  %rsb = getelementptr i8, ptr %ra, i64 1408
  %mk = shl i64 %k, 4
  %kn = shl i64 %k, 3
  %fours = icmp eq i64 %k, 64
  %kind = select i1 %fours, i64 4, i64 3
  call void @widen(ptr %wide, ptr %ra, i64 4, i64 %kind, ptr %tablea)
  call void @pick(ptr %a, ptr %wide, ptr %placea, i64 %mk)
  call void @widen(ptr %wide, ptr %rb, i64 2, i64 %kind, ptr %tableb)
  call void @pick(ptr %b, ptr %wide, ptr %placeb, i64 %kn)
  call void @read_c(ptr %c, ptr %rc, ptr %placec, i64 0)
  %lastbyte = sub i64 4, %count
  %ba = and i64 %bytea, %lastbyte
  %bb = and i64 %byteb, %lastbyte
  %ta0 = and i64 %threada, 1
  %ta = shl i64 %ta0, 1
  %tb = and i64 %threadb, 3
  call void @read_scales(ptr %sa, ptr %ea, ptr %rsa, ptr %tables, i64 16, i64 %count, i64 %count, i64 1, i64 %ta, i64 %ba)
  call void @read_scales(ptr %sb, ptr %eb, ptr %rsb, ptr %tables, i64 8, i64 %count, i64 1, i64 8, i64 %tb, i64 %bb)
  %pn = getelementptr i8, ptr %w, i64 $hardware
  %hardware = load i32, ptr %pn
  %asked = icmp ne i32 %hardware, 0
  br i1 %asked, label %as_hardware, label %exact
as_hardware:
  br i1 %fours, label %four, label %eight
four:
  call void @scaled_fours(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %k, i64 %count)
  br label %write
eight:
  call void @scaled_eights(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, ptr %model)
  br label %write
exact:
  call void @scaled_exact(ptr %out, ptr %c, ptr %a, ptr %b, ptr %sa, ptr %ea, ptr %sb, ptr %eb, i64 %k, i64 %count)
  br label %write
write:
  call void @write_d(ptr %rc, ptr %out, ptr %placec, i64 0)
  ret void
}
