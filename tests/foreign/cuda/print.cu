#include <cstdio>

// Every conversion that printf has, one thread a block.
extern "C" __global__ void print(int scale) {
    if (threadIdx.x == 0) {
        int block = blockIdx.x;
        printf("block %d of %u: %5.2f %e %lld %#x '%c' %s %%\n", block, gridDim.x, scale * 0.5f, 1.0 / (block + 1),
               (long long)block << 40, 255 * scale, 'a' + block, block % 2 ? "odd" : "even");
    }
}
