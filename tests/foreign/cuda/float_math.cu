// Float functions: compiled as IEEE and, from the same source, with -use_fast_math.
extern "C" __global__ void float_math(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *to = out + 12 * i, a = x[i], b = y[i];
    to[0] = sinf(a);
    to[1] = cosf(a);
    to[2] = expf(0.1f * a);
    to[3] = logf(b);
    to[4] = sqrtf(b);
    to[5] = a / b;
    to[6] = rsqrtf(b);
    to[7] = tanhf(a);
    to[8] = powf(b, 0.3f * a);
    to[9] = exp2f(0.2f * a) + log2f(b);
    to[10] = fminf(fmaxf(a, -2.0f), b) + floorf(a) - truncf(b) + rintf(a);
    to[11] = fmaf(a, b, -a) + fabsf(a) + copysignf(b, a);
}

// Doubles: division and roots are exact to the last bit.
extern "C" __global__ void double_math(const double *x, const double *y, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double *to = out + 4 * i;
    to[0] = x[i] / y[i];
    to[1] = sqrt(y[i]);
    to[2] = exp(0.1 * x[i]);
    to[3] = fma(x[i], y[i], -1.0);
}

// Rounding modes, saturation and conversions.
extern "C" __global__ void float_convert(const float *x, int *ints, float *floats, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    ints[6 * i] = (int)a;
    ints[6 * i + 1] = __float2int_rn(a);
    ints[6 * i + 2] = __float2int_ru(a);
    ints[6 * i + 3] = (int)__float2uint_rd(a);
    ints[6 * i + 4] = (signed char)(int)a;
    ints[6 * i + 5] = isnan(a) + 2 * isinf(a) + 4 * signbit(a);
    floats[4 * i] = __saturatef(a);
    floats[4 * i + 1] = __fadd_rz(a, 1e-7f);
    floats[4 * i + 2] = __fmul_ru(a, 1.1f);
    floats[4 * i + 3] = (float)__double2float_rd((double)a * 1.0000000001);
}
