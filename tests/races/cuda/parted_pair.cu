#include "asm.h"

// A CTA of a pair frees its tensor memory before it knows that the other CTA has allocated its own.
extern "C" __global__ void __cluster_dims__(2) kernel(uint32_t *out) {
    __shared__ uint32_t place;
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(S(&place)) : "memory");
    }
    __syncthreads();
    uint32_t sums = place;
#ifdef REPAIRED
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 64;" ::"r"(sums));
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sums;
}
