// Tensor cores through inline PTX: ldmatrix, mma.sync of several types, stmatrix.
#include <cstdint>
#include <cuda_bf16.h>

__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// D = A Bᵀ in float32, A m x k and B n x k: 32x32 tiles, four warps of 16x16; m, n multiples of 32, k of 16.
extern "C" __global__ void mma_matmul(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d, int n, int k) {
    __shared__ __align__(16) __nv_bfloat16 at[32][24], bt[32][24];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = 16 * (warp / 2), left = 16 * (warp % 2);
    float sum[2][4] = {};
    for (int start = 0; start < k; start += 16) {
        for (int i = threadIdx.x; i < 32 * 16; i += blockDim.x) {
            at[i / 16][i % 16] = a[(blockIdx.y * 32 + i / 16) * k + start + i % 16];
            bt[i / 16][i % 16] = b[(blockIdx.x * 32 + i / 16) * k + start + i % 16];
        }
        __syncthreads();
        unsigned x[4], y[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(&at[top + lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
                     : "r"(shared_address(&bt[left + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8])));
        for (int j = 0; j < 2; ++j)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * j]), "r"(y[2 * j + 1]));
        __syncthreads();
    }
    for (int j = 0; j < 2; ++j)
        for (int i = 0; i < 4; ++i)
            d[(blockIdx.y * 32 + top + lane / 4 + 8 * (i / 2)) * n + blockIdx.x * 32 + left + 8 * j + 2 * (lane % 4) + i % 2] = sum[j][i];
}

// One warp: C (16 x 8) of bytes, K = 32; of float64, 8 x 8, K = 4; a transposed 8 x 8 of 16 bits through stmatrix.
extern "C" __global__ void mma_types(const int *a, const int *b, int *c, const double *x, const double *y, double *z, const int *h, int *t) {
    __shared__ __align__(16) int matrix[32];
    int lane = threadIdx.x, g = lane / 4, q = lane % 4, sum[4] = {}, held;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[8 * g + q]), "r"(a[8 * (g + 8) + q]), "r"(a[8 * g + q + 4]), "r"(a[8 * (g + 8) + q + 4]), "r"(b[8 * g + q]),
                   "r"(b[8 * g + q + 4]));
    for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * q + i % 2] = sum[i];
    double u = 0, v = 0;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(u), "+d"(v) : "d"(x[4 * g + q]), "d"(y[4 * g + q]));
    z[8 * g + 2 * q] = u;
    z[8 * g + 2 * q + 1] = v;
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared_address(matrix + lane % 8 * 4)), "r"(h[lane]) : "memory");
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(held) : "r"(shared_address(matrix + lane % 8 * 4)));
    t[lane] = held;
}
