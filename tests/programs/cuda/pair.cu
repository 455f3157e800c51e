// A GEMM tile of Blackwell by two CTAs: D (256 × 128, float32) = A (256 × 64, bf16) B (128 × 64, bf16)ᵀ. Each CTA loads
// half of A and half of B; the tensor cores of both work on one product.
#include <cuda.h>
#include <cuda_bf16.h>

#include "../../races/cuda/asm.h"
#include "check.h"

constexpr int M = 256, N = 128, K = 64, COLUMNS = 128;
constexpr uint32_t EVEN_CTA = 0xFEFFFFFF;  // clears the bit that tells the CTAs of a pair apart
constexpr uint32_t PRODUCT = 1 << 4 | 1 << 7 | 1 << 10 | (N / 8) << 17 | (M / 16) << 24;  // float32, bf16, bf16

__device__ uint64_t describe(const void *tile) {  // K-major, swizzled by 128 bytes, groups of 8 rows 1024 bytes apart
    return (S(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

__device__ void load(void *to, const CUtensorMap *from, int row, uint32_t full) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(S(to)), "l"(from), "r"(0), "r"(row), "r"(full) : "memory");
}

__global__ void __cluster_dims__(2) multiply(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *d) {
    __shared__ alignas(1024) char left[M / 2 * K * 2], right[N / 2 * K * 2];
    __shared__ alignas(8) uint64_t full, done;
    __shared__ uint32_t sums;
    const uint32_t rank = blockIdx.x % 2, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        INIT(&done, 1);
        FENCE_INIT();
    }
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(S(&sums)), "n"(COLUMNS) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    if (threadIdx.x == 0) {
        if (rank == 0) EXPECT(&full, 2 * (sizeof left + sizeof right));
        load(left, &a, rank * M / 2, S(&full) & EVEN_CTA);
        load(right, &b, rank * N / 2, S(&full) & EVEN_CTA);
        if (rank == 0) {
            WAIT(&full, 0);
            asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
            for (int k = 0; k < K / 16; k++)
                asm volatile("{\n.reg .pred add;\nsetp.ne.u32 add, %4, 0;\n"
                             "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, add;\n}"
                             ::"r"(sums), "l"(describe(left) + 2 * k), "l"(describe(right) + 2 * k), "r"(PRODUCT), "r"(k) : "memory");
            asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
                         ::"r"(S(&done)), "h"((uint16_t)3) : "memory");
        }
    }
    __syncwarp();
    WAIT(&done, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    for (int column = 0; column < N; column += 8) {
        uint32_t v[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                     : "r"(sums + (warp << 21) + column));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        for (int i = 0; i < 8; i++) d[(rank * M / 2 + threadIdx.x) * N + column + i] = __uint_as_float(v[i]);
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(sums), "n"(COLUMNS));
}

static CUtensorMap map_of(void *array, uint64_t rows, uint32_t tile_rows) {
    CUtensorMap map;
    cuuint64_t dims[] = {K, rows}, strides[] = {K * 2};
    cuuint32_t box[] = {K, tile_rows}, steps[] = {1, 1};
    CUresult error = cuTensorMapEncodeTiled(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, array, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    EXPECT_EQUAL(error, CUDA_SUCCESS);
    return map;
}

int main() {
    __nv_bfloat16 *a, *b;
    float *d;
    CALL(cudaMallocManaged(&a, M * K * sizeof *a));
    CALL(cudaMallocManaged(&b, N * K * sizeof *b));
    CALL(cudaMallocManaged(&d, M * N * sizeof *d));
    for (int i = 0; i < M * K; i++) a[i] = __float2bfloat16(float((i * 7 + i / K) % 23 - 11));
    for (int i = 0; i < N * K; i++) b[i] = __float2bfloat16(float((i * 5 + i / K) % 19 - 9));
    CALL(cudaMemset(d, 0xff, M * N * sizeof *d));
    multiply<<<2, 128>>>(map_of(a, M, M / 2), map_of(b, N, N / 2), d);
    CALL(cudaDeviceSynchronize());
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += __bfloat162float(a[row * K + k]) * __bfloat162float(b[column * K + k]);
            EXPECT_EQUAL(d[row * N + column], sum);
        }
    printf("pair: right\n");
}
