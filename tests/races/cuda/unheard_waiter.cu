#include "asm.h"

// Two warps wait for each phase, but the next phase waits for only one of them.
extern "C" __global__ void kernel(float *out, int turns) {
    __shared__ alignas(8) uint64_t full, empty;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
#ifdef REPAIRED
        INIT(&empty, 64);
#else
        INIT(&empty, 32);
#endif
    }
    __syncthreads();
    if (threadIdx.x == 64) {
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&empty, (turn & 1) ^ 1);
            ARRIVE(&full);
        }
    } else if (threadIdx.x < 64) {
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&full, turn & 1);
#ifdef REPAIRED
            ARRIVE(&empty);
#else
            if (threadIdx.x < 32) ARRIVE(&empty);
#endif
        }
        out[threadIdx.x] = turns;
    }
}
