#include "asm.h"

#define COPY(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(S(to)), "l"(from) : "memory")

// The producer arrives when it has issued its copies; the consumer may read before they are complete.
extern "C" __global__ void kernel(const float *in, float *out) {
    __shared__ alignas(16) float stage[128];
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) INIT(&full, 32);
    __syncthreads();
    if (threadIdx.x < 32) {
        COPY(stage + 4 * threadIdx.x, in + 4 * threadIdx.x);
#ifdef REPAIRED
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(S(&full)) : "memory");
#else
        ARRIVE(&full);
#endif
    } else {
        WAIT(&full, 0);
        out[threadIdx.x - 32] = stage[threadIdx.x];
    }
}
