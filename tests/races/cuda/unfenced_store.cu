#include "asm.h"

// The thread that stores fences for all threads, after the barrier: a proxy fence orders its own thread only.
extern "C" __global__ void kernel(float *out) {
    __shared__ alignas(16) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
#ifdef REPAIRED
    FENCE_PROXY();
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
#ifndef REPAIRED
        FENCE_PROXY();
#endif
        STORE(out, tile, sizeof tile);
        COMMIT();
        WAIT_DONE();
    }
}
