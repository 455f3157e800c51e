; mma.sync of 16 × 8 results. The registers of A, B and C are in the operands field of the warp's state (A from byte 0,
; B from 512, C from 768 on); D replaces C. A plan (int64 words) has all other parameters, see `jit.mma`.

define void @widen(ptr %to, ptr %from, i64 %registers, i64 %kind, ptr %table) {
entry:
  switch i64 %kind, label %byte [i64 0, label %half
                                 i64 1, label %bfloat
                                 i64 2, label %word
                                 i64 4, label %pair]
half:
  %h = phi i64 [ 0, %entry ], [ %h1, %half ]
  %hf = shl i64 %h, 7
  %ph = getelementptr i8, ptr %from, i64 %hf
  %vh = load <64 x half>, ptr %ph, align 4
  %wh = fpext <64 x half> %vh to <64 x float>
  %ht = shl i64 %h, 8
  %qh = getelementptr i8, ptr %to, i64 %ht
  store <64 x float> %wh, ptr %qh, align 4
  %h1 = add i64 %h, 1
  %eh = icmp uge i64 %h1, %registers
  br i1 %eh, label %done, label %half
bfloat:
  %b = phi i64 [ 0, %entry ], [ %b1, %bfloat ]
  %bf = shl i64 %b, 7
  %pb = getelementptr i8, ptr %from, i64 %bf
  %vb = load <64 x i16>, ptr %pb, align 4
  %zb = zext <64 x i16> %vb to <64 x i32>
  %wb = shl <64 x i32> %zb, splat (i32 16)
  %bt = shl i64 %b, 8
  %qb = getelementptr i8, ptr %to, i64 %bt
  store <64 x i32> %wb, ptr %qb, align 4
  %b1 = add i64 %b, 1
  %eb = icmp uge i64 %b1, %registers
  br i1 %eb, label %done, label %bfloat
word:
  %w = phi i64 [ 0, %entry ], [ %w1, %word ]
  %wf = shl i64 %w, 7
  %pw = getelementptr i8, ptr %from, i64 %wf
  %vw = load <32 x i32>, ptr %pw, align 4
  %ww = and <32 x i32> %vw, splat (i32 -8192)
  %qw = getelementptr i8, ptr %to, i64 %wf
  store <32 x i32> %ww, ptr %qw, align 4
  %w1 = add i64 %w, 1
  %ew = icmp uge i64 %w1, %registers
  br i1 %ew, label %done, label %word
pair:
  %pairs = shl i64 %registers, 7
  br label %both
both:
  %g = phi i64 [ 0, %pair ], [ %g1, %both ]
  %pg = getelementptr i8, ptr %from, i64 %g
  %xg = load i8, ptr %pg
  %ag = zext i8 %xg to i64
  %tg = getelementptr <2 x float>, ptr %table, i64 %ag
  %vg = load <2 x float>, ptr %tg, align 4
  %qg = getelementptr <2 x float>, ptr %to, i64 %g
  store <2 x float> %vg, ptr %qg, align 4
  %g1 = add i64 %g, 1
  %eg = icmp uge i64 %g1, %pairs
  br i1 %eg, label %done, label %both
byte:
  %bytes = shl i64 %registers, 7
  br label %lookup
lookup:
  %i = phi i64 [ 0, %byte ], [ %i1, %lookup ]
  %pi = getelementptr i8, ptr %from, i64 %i
  %x = load i8, ptr %pi
  %at = zext i8 %x to i64
  %pt = getelementptr float, ptr %table, i64 %at
  %value = load float, ptr %pt
  %qi = getelementptr float, ptr %to, i64 %i
  store float %value, ptr %qi
  %i1 = add i64 %i, 1
  %ei = icmp uge i64 %i1, %bytes
  br i1 %ei, label %done, label %lookup
done:
  ret void
}

define void @pick(ptr %to, ptr %from, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %index, i64 %i
  %at = load i64, ptr %p
  %q = getelementptr i32, ptr %from, i64 %at
  %x = load i32, ptr %q
  %t = getelementptr i32, ptr %to, i64 %i
  store i32 %x, ptr %t
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; The 128 values of C as doubles, by row; kind 0 float32, 1 float16, else int32.
define void @read_c(ptr %to, ptr %from, ptr %index, i64 %kind) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %p = getelementptr i64, ptr %index, i64 %i
  %at = load i64, ptr %p
  switch i64 %kind, label %integer [i64 0, label %single
                                    i64 1, label %half]
single:
  %q0 = getelementptr float, ptr %from, i64 %at
  %x0 = load float, ptr %q0
  %y0 = fpext float %x0 to double
  br label %next
half:
  %q1 = getelementptr half, ptr %from, i64 %at
  %x1 = load half, ptr %q1
  %z1 = fpext half %x1 to float
  %y1 = fpext float %z1 to double
  br label %next
integer:
  %q2 = getelementptr i32, ptr %from, i64 %at
  %x2 = load i32, ptr %q2
  %y2 = sitofp i32 %x2 to double
  br label %next
next:
  %y = phi double [ %y0, %single ], [ %y1, %half ], [ %y2, %integer ]
  %t = getelementptr double, ptr %to, i64 %i
  store double %y, ptr %t
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, 128
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Round 8 results: float32, float16 (bits below), int32 that wraps around (2) or is clamped (3).
define <8 x i32> @round_d(<8 x double> %x, i64 %kind) {
entry:
  switch i64 %kind, label %integer [i64 0, label %single
                                    i64 1, label %half]
single:
  %f = fptrunc <8 x double> %x to <8 x float>
  %r0 = bitcast <8 x float> %f to <8 x i32>
  ret <8 x i32> %r0
half:
  %odd = call <8 x float> @round_odd8(<8 x double> %x)
  %h = fptrunc <8 x float> %odd to <8 x half>
  %b = bitcast <8 x half> %h to <8 x i16>
  %r1 = zext <8 x i16> %b to <8 x i32>
  ret <8 x i32> %r1
integer:
  %wrapped = fptosi <8 x double> %x to <8 x i64>
  %r2 = trunc <8 x i64> %wrapped to <8 x i32>
  %r3 = call <8 x i32> @llvm.fptosi.sat.v8i32.v8f64(<8 x double> %x)
  %clamp = icmp eq i64 %kind, 3
  %r4 = select i1 %clamp, <8 x i32> %r3, <8 x i32> %r2
  ret <8 x i32> %r4
}

define void @write_d(ptr %to, ptr %from, ptr %index, i64 %kind) {
entry:
  %rounded = alloca [128 x i32]
  br label %round
round:
  %j = phi i64 [ 0, %entry ], [ %j1, %round ]
  %pj = getelementptr double, ptr %from, i64 %j
  %v = load <8 x double>, ptr %pj, align 8
  %bits = call <8 x i32> @round_d(<8 x double> %v, i64 %kind)
  %qj = getelementptr i32, ptr %rounded, i64 %j
  store <8 x i32> %bits, ptr %qj, align 4
  %j1 = add i64 %j, 8
  %all = icmp uge i64 %j1, 128
  br i1 %all, label %place, label %round
place:
  %half = icmp eq i64 %kind, 1
  br label %loop
loop:
  %i = phi i64 [ 0, %place ], [ %i1, %next ]
  %p = getelementptr i64, ptr %index, i64 %i
  %at = load i64, ptr %p
  %q = getelementptr i32, ptr %rounded, i64 %i
  %x = load i32, ptr %q
  br i1 %half, label %short, label %long
short:
  %t1 = getelementptr i16, ptr %to, i64 %at
  %x1 = trunc i32 %x to i16
  store i16 %x1, ptr %t1
  br label %next
long:
  %t = getelementptr i32, ptr %to, i64 %at
  store i32 %x, ptr %t
  br label %next
next:
  %i1 = add i64 %i, 1
  %end = icmp uge i64 %i1, 128
  br i1 %end, label %done, label %loop
done:
  ret void
}

; %out = %c + %a (16 × K) · %b (K × 8), all 128 sums in double precision.
define void @sum_exact(ptr %out, ptr %c, ptr %a, ptr %b, i64 %k) {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %store ]
  %first = shl i64 %i, 3
  %ik = mul i64 %i, %k
  br label %loop
loop:
  %j = phi i64 [ 0, %row ], [ %j1, %loop ]
  %acc = phi <8 x double> [ zeroinitializer, %row ], [ %acc1, %loop ]
  %ia = add i64 %ik, %j
  %pa = getelementptr float, ptr %a, i64 %ia
  %x = load float, ptr %pa
  %x0 = insertelement <8 x float> poison, float %x, i32 0
  %xs = shufflevector <8 x float> %x0, <8 x float> poison, <8 x i32> zeroinitializer
  %jb = shl i64 %j, 3
  %pb = getelementptr float, ptr %b, i64 %jb
  %y = load <8 x float>, ptr %pb, align 4
  %xd = fpext <8 x float> %xs to <8 x double>
  %yd = fpext <8 x float> %y to <8 x double>
  %z = fmul <8 x double> %xd, %yd
  %acc1 = fadd <8 x double> %acc, %z
  %j1 = add i64 %j, 1
  %end = icmp uge i64 %j1, %k
  br i1 %end, label %store, label %loop
store:
  %pc = getelementptr double, ptr %c, i64 %first
  %old = load <8 x double>, ptr %pc, align 8
  %sum = fadd <8 x double> %acc1, %old
  %po = getelementptr double, ptr %out, i64 %first
  store <8 x double> %sum, ptr %po, align 8
  %i1 = add i64 %i, 1
  %last = icmp uge i64 %i1, 16
  br i1 %last, label %done, label %row
done:
  ret void
}

; The same with the rounding of the hardware. %apart: the sums start from zero and C is added afterwards.
define void @sum_hardware(ptr %out, ptr %c, ptr %a, ptr %b, i64 %k, i64 %step, i64 %apart, ptr %model) {
entry:
  %d = alloca [128 x float]
  %scratch = alloca [1536 x i32]
  %separate = icmp ne i64 %apart, 0
  br label %start
start:
  %i = phi i64 [ 0, %entry ], [ %i1, %start ]
  %pc = getelementptr double, ptr %c, i64 %i
  %x = load <8 x double>, ptr %pc, align 8
  %y = fptrunc <8 x double> %x to <8 x float>
  %z = select i1 %separate, <8 x float> zeroinitializer, <8 x float> %y
  %pd = getelementptr float, ptr %d, i64 %i
  store <8 x float> %z, ptr %pd, align 4
  %i1 = add i64 %i, 8
  %all = icmp uge i64 %i1, 128
  br i1 %all, label %multiply, label %start
multiply:
  call void @hardware_multiply(ptr %d, ptr %a, ptr %b, ptr %scratch, ptr null, ptr null, i64 16, i64 8, i64 %k, i64 %step, ptr %model)
  br label %finish
finish:
  %j = phi i64 [ 0, %multiply ], [ %j1, %finish ]
  %qd = getelementptr float, ptr %d, i64 %j
  %u = load <8 x float>, ptr %qd, align 4
  %wide = fpext <8 x float> %u to <8 x double>
  %qc = getelementptr double, ptr %c, i64 %j
  %old = load <8 x double>, ptr %qc, align 8
  %add = fadd <8 x double> %wide, %old
  %nan = fcmp uno <8 x double> %add, zeroinitializer
  %clean = select <8 x i1> %nan, <8 x double> splat (double 0x7FFFFFFFE0000000), <8 x double> %add
  %r = select i1 %separate, <8 x double> %clean, <8 x double> %wide
  %po = getelementptr double, ptr %out, i64 %j
  store <8 x double> %r, ptr %po, align 8
  %j1 = add i64 %j, 8
  %end = icmp uge i64 %j1, 128
  br i1 %end, label %done, label %finish
done:
  ret void
}

define void @mma_sync(ptr %w, ptr %plan) {
entry:
  %wide = alloca [512 x float]
  %a = alloca [512 x float]
  %b = alloca [256 x float]
  %c = alloca [128 x double]
  %out = alloca [128 x double]
  %na = load i64, ptr %plan
  %p1 = getelementptr i64, ptr %plan, i64 1
  %nb = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %plan, i64 2
  %kinda = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %plan, i64 3
  %tablea = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %plan, i64 4
  %kindb = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %plan, i64 5
  %tableb = load ptr, ptr %p5
  %p6 = getelementptr i64, ptr %plan, i64 6
  %k = load i64, ptr %p6
  %p7 = getelementptr i64, ptr %plan, i64 7
  %placea = load ptr, ptr %p7
  %p8 = getelementptr i64, ptr %plan, i64 8
  %placeb = load ptr, ptr %p8
  %p9 = getelementptr i64, ptr %plan, i64 9
  %placec = load ptr, ptr %p9
  %p10 = getelementptr i64, ptr %plan, i64 10
  %kindd = load i64, ptr %p10
  %p11 = getelementptr i64, ptr %plan, i64 11
  %step = load i64, ptr %p11
  %p12 = getelementptr i64, ptr %plan, i64 12
  %apart = load i64, ptr %p12
  %p13 = getelementptr i64, ptr %plan, i64 13
  %model = load ptr, ptr %p13
  %ra = getelementptr i8, ptr %w, i64 $operands
  %rb = getelementptr i8, ptr %ra, i64 512
  %rc = getelementptr i8, ptr %ra, i64 768
  %mk = shl i64 %k, 4
  %kn = shl i64 %k, 3
  call void @widen(ptr %wide, ptr %ra, i64 %na, i64 %kinda, ptr %tablea)
  call void @pick(ptr %a, ptr %wide, ptr %placea, i64 %mk)
  call void @widen(ptr %wide, ptr %rb, i64 %nb, i64 %kindb, ptr %tableb)
  call void @pick(ptr %b, ptr %wide, ptr %placeb, i64 %kn)
  call void @read_c(ptr %c, ptr %rc, ptr %placec, i64 %kindd)
  %pn = getelementptr i8, ptr %w, i64 $hardware
  %hardware = load i32, ptr %pn
  %asked = icmp ne i32 %hardware, 0
  %floating = icmp ult i64 %kindd, 2
  %as = and i1 %asked, %floating
  br i1 %as, label %model_sum, label %exact_sum
model_sum:
  call void @sum_hardware(ptr %out, ptr %c, ptr %a, ptr %b, i64 %k, i64 %step, i64 %apart, ptr %model)
  br label %write
exact_sum:
  call void @sum_exact(ptr %out, ptr %c, ptr %a, ptr %b, i64 %k)
  br label %write
write:
  call void @write_d(ptr %rc, ptr %out, ptr %placec, i64 %kindd)
  ret void
}
