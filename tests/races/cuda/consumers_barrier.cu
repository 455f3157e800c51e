#include "asm.h"

// The consumers' function synchronises all threads; the producer waits elsewhere for the arrival that follows it.
__device__ void consume(float *held, float *out) {
    held[threadIdx.x] = threadIdx.x;
#ifdef REPAIRED
    asm volatile("bar.sync 1, 64;" ::: "memory");
#else
    __syncthreads();
#endif
    out[threadIdx.x] = held[63 - threadIdx.x];
}

extern "C" __global__ void kernel(float *out, int turns) {
    __shared__ float held[64];
    __shared__ alignas(8) uint64_t full, empty;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        INIT(&empty, 64);
    }
    __syncthreads();
    if (threadIdx.x >= 64) {
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&empty, (turn & 1) ^ 1);
            if (threadIdx.x == 64) ARRIVE(&full);
            __syncthreads();
        }
    } else {
        #pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            WAIT(&full, turn & 1);
            consume(held, out);
            __syncthreads();
            ARRIVE(&empty);
        }
    }
}
