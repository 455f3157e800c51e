#include "asm.h"

#define FENCE() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define CLOSE() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define DONE() asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
#define PRODUCT(d, a, b)                                                                                               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b))

// Operands without a swizzle: 8 x 16-byte core matrices, 128 bytes apart along K and 256 bytes along rows.
__device__ inline uint64_t matrix(const void *p) {
    return (S(p) & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

// A warpgroup stores its accumulator before the wgmma is complete.
extern "C" __global__ void __launch_bounds__(128) kernel(float *out) {
    __shared__ alignas(128) uint32_t a[64 * 8], b[8 * 8];
    for (int row = 0; row < 4; ++row) a[128 * row + threadIdx.x] = 0x3F803F80;
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3F803F80;
    FENCE_PROXY();
    __syncthreads();
    float d[4] = {};
    uint64_t left = matrix(a), right = matrix(b);
    FENCE();
    PRODUCT(d, left, right);
    CLOSE();
#ifdef REPAIRED
    DONE();
#endif
    out[threadIdx.x] = d[0];
#ifndef REPAIRED
    DONE();
#endif
}
