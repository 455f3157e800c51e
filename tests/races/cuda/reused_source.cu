#include <cuda/ptx>

namespace ptx = cuda::ptx;

// The source of a bulk store is written again before the store has read it.
extern "C" __global__ void kernel(float *out) {
    __shared__ alignas(16) float tile[64];
    for (int turn = 0; turn < 2; ++turn) {
        tile[threadIdx.x] = turn;
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + 64 * turn, tile, sizeof tile);
            ptx::cp_async_bulk_commit_group();
#ifdef REPAIRED
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
#endif
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
