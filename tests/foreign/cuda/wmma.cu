// Tensor cores through nvcuda::wmma: a tiled matmul in float16, and one fragment of every type.
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

// D = 2 A B + C in float32, A m x k by rows, B k x n by columns: 32x32 tiles, four warps of 16x16; m, n, k multiples of 32.
extern "C" __global__ void wmma_matmul(const half *a, const half *b, const float *c, float *d, int n, int k) {
    __shared__ __align__(32) half at[32][48], bt[32][48];
    __shared__ __align__(32) float dt[32][36];
    int warp = threadIdx.x / 32, top = 16 * (warp / 2), left = 16 * (warp % 2);
    size_t corner = (size_t)(blockIdx.y * 32 + top) * n + blockIdx.x * 32 + left;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::load_matrix_sync(sum, c + corner, n, wmma::mem_row_major);
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 0.5f;
    for (int start = 0; start < k; start += 32) {
        for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) {
            at[i / 32][i % 32] = a[(blockIdx.y * 32 + i / 32) * k + start + i % 32];
            bt[i / 32][i % 32] = b[(blockIdx.x * 32 + i / 32) * k + start + i % 32];
        }
        __syncthreads();
        for (int step = 0; step < 32; step += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
            wmma::load_matrix_sync(x, &at[top][step], 48);
            wmma::load_matrix_sync(y, &bt[left][step], 48);
            wmma::mma_sync(sum, x, y, sum);
        }
        __syncthreads();
    }
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
    wmma::store_matrix_sync(&dt[top][left], sum, 36, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) d[corner + (size_t)(i / 16) * n + i % 16] = dt[top + i / 16][left + i % 16];
}

template <int M, int N, int K, class Type, class Layout, class T, class S>
__device__ void multiply(const T *a, const T *b, S *d) {
    wmma::fragment<wmma::matrix_a, M, N, K, Type, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, M, N, K, Type, Layout> y;
    wmma::fragment<wmma::accumulator, M, N, K, S> sum;
    wmma::load_matrix_sync(x, a, K);
    wmma::load_matrix_sync(y, b, std::is_same<Layout, wmma::row_major>::value ? N : K);
    wmma::fill_fragment(sum, S(1));
    wmma::mma_sync(sum, x, y, sum);
    wmma::store_matrix_sync(d, sum, M, wmma::mem_col_major);
}

// One warp: 1 + A B by columns, in each type; B by columns for bytes and float64.
extern "C" __global__ void wmma_types(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, const float *e, const float *f, float *g,
                                      const signed char *h, const signed char *i, int *j, const double *o, const double *p, double *q) {
    multiply<32, 8, 16, __nv_bfloat16, wmma::row_major>(a, b, c);
    multiply<16, 16, 8, wmma::precision::tf32, wmma::row_major>(e, f, g);
    multiply<8, 32, 16, signed char, wmma::col_major>(h, i, j);
    multiply<8, 8, 4, double, wmma::col_major>(o, p, q);
}
