// A warp arrives twice in one round of a named barrier, so that no thread waits for its write in between.
extern "C" __global__ void kernel(float *out) {
    __shared__ float held[32];
    if (threadIdx.x < 32) {
#ifndef REPAIRED
        asm volatile("bar.arrive 1, 64;" ::: "memory");
#endif
        held[threadIdx.x] = threadIdx.x;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x - 32] = held[threadIdx.x - 32];
    }
}
