#include "asm.h"

// A stage is loaded again when its readers have arrived; their reads are not ordered before the next copy.
extern "C" __global__ void kernel(const float *in, float *out, int turns) {
    __shared__ alignas(16) float stage[32];
    __shared__ alignas(8) uint64_t full, empty;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        INIT(&empty, 32);
        FENCE_INIT();
    }
    __syncthreads();
    if (threadIdx.x == 32) {
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&empty, (turn & 1) ^ 1);
            EXPECT(&full, sizeof stage);
            LOAD(stage, in + 32 * turn, sizeof stage, &full);
        }
    } else if (threadIdx.x < 32) {
        float sum = 0;
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&full, turn & 1);
            sum += stage[threadIdx.x];
#ifdef REPAIRED
            FENCE_PROXY();
#endif
            ARRIVE(&empty);
        }
        out[threadIdx.x] = sum;
    }
}
