#include "asm.h"

// Operands without a swizzle: 8 x 16-byte core matrices, 128 bytes apart along K and 256 bytes along rows.
__device__ inline uint64_t matrix(const void *p) {
    return (S(p) & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32 | (uint64_t)1 << 46;
}

#define PRODUCT(d, a, b, shape)                                                                                     \
    asm volatile("{\n.reg .pred none;\nsetp.ne.u32 none, 0, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, none;\n}" \
                 ::"r"(d), "l"(a), "l"(b), "r"(shape) : "memory")
#define COMMIT_TO(bar) \
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(S(bar)) : "memory")
#define READ(value, from) asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(from))

// The thread that issues the MMA arrives at the mbarrier itself, before the MMA is complete.
extern "C" __global__ void kernel(uint32_t *out) {
    __shared__ alignas(128) uint32_t a[128 * 8], b[64 * 8];
    __shared__ alignas(8) uint64_t done;
    __shared__ uint32_t place;
    if (threadIdx.x == 0) INIT(&done, 1);
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(S(&place)) : "memory");
    }
    for (int row = 0; row < 8; ++row) a[128 * row + threadIdx.x] = 0x3F803F80;
    for (int row = 0; row < 4; ++row) b[128 * row + threadIdx.x] = 0x3F803F80;
    FENCE_PROXY();
    __syncthreads();
    uint32_t sums = place, value;
    uint64_t left = matrix(a), right = matrix(b);
    if (threadIdx.x == 0) {
        PRODUCT(sums, left, right, 0x08100490);
#ifdef REPAIRED
        COMMIT_TO(&done);
#else
        ARRIVE(&done);
#endif
    }
    WAIT(&done, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    READ(value, sums + (threadIdx.x / 32 << 21));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    out[threadIdx.x] = value;
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    if (threadIdx.x < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(sums));
}
