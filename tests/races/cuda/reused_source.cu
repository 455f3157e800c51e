#include "asm.h"

// The source of a bulk store is written again before the store has read it.
extern "C" __global__ void kernel(float *out) {
    __shared__ alignas(16) float tile[64];
    for (int turn = 0; turn < 2; ++turn) {
        tile[threadIdx.x] = turn;
        FENCE_PROXY();
        __syncthreads();
        if (threadIdx.x == 0) {
            STORE(out + 64 * turn, tile, sizeof tile);
            COMMIT();
#ifdef REPAIRED
            WAIT_READ();
#endif
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) WAIT_DONE();
}
