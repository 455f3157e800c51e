#include "asm.h"

// An mbarrier is initialised again for a second use without invalidation.
extern "C" __global__ void kernel(float *out) {
    __shared__ alignas(8) uint64_t ready;
    for (int use = 0; use < 2; ++use) {
        if (threadIdx.x == 0) INIT(&ready, 64);
        __syncthreads();
        ARRIVE(&ready);
        WAIT(&ready, 0);
        __syncthreads();
#ifdef REPAIRED
        if (threadIdx.x == 0) INVAL(&ready);
        __syncthreads();
#endif
    }
    out[threadIdx.x] = 1;
}
