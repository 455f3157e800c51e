#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Two fp16 numbers a thread: fused multiply-add, maximum with zero.
extern "C" __global__ void half_relu(const __half2 *x, const __half2 *y, __half2 *out, float scale, int n2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n2) out[i] = __hmax2(__hfma2(x[i], __float2half2_rn(scale), y[i]), __float2half2_rn(0.0f));
}

// bf16 in and out, arithmetic in float32.
extern "C" __global__ void bfloat_scale(const __nv_bfloat16 *x, __nv_bfloat16 *out, float scale, float shift, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16(__bfloat162float(x[i]) * scale + shift);
}

// bf16 arithmetic in pairs.
extern "C" __global__ void bfloat_fma(const __nv_bfloat162 *x, const __nv_bfloat162 *y, __nv_bfloat162 *out, int n2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n2) out[i] = __hfma2(x[i], y[i], __hneg2(y[i]));
}

// Comparison and conversions: fp16 to int and back.
extern "C" __global__ void half_round(const __half *x, int *nearest, int *down, __half *back, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        nearest[i] = __half2int_rn(x[i]);
        down[i] = __half2int_rd(x[i]);
        back[i] = __hgt(x[i], __float2half(1.0f)) ? __int2half_rn(nearest[i]) : __habs(x[i]);
    }
}
