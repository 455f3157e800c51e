#include <cuda_pipeline.h>

// Sixteen bytes a thread straight to shared memory, the next tile in flight while this one is summed.
extern "C" __global__ void async_copy(const int4 *in, int *out, int tiles) {
    __shared__ int4 stage[2][64];
    int t = threadIdx.x, total = 0;
    __pipeline_memcpy_async(&stage[0][t], &in[t], sizeof(int4));
    __pipeline_commit();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) __pipeline_memcpy_async(&stage[(tile + 1) & 1][t], &in[(tile + 1) * 64 + t], sizeof(int4));
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        int4 v = stage[tile & 1][63 - t];
        total += v.x + 2 * v.y + 3 * v.z + 4 * v.w;
        __syncthreads();
    }
    out[t] = total;
}
