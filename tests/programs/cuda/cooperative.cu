// A sum over the grid in one launch: cooperative groups' grid barrier between two phases.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__device__ int launches = 0;  // module variables and the grid barrier are both at addresses of the runtime's choice

__global__ void sum(const int *x, int n, int *partial, int *result) {
    __shared__ int warps[32];
    cg::grid_group grid = cg::this_grid();
    int own = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.num_threads()) own += x[i];
    own = __reduce_add_sync(0xffffffff, own);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        int block = 0;
        for (int warp = 0; warp < blockDim.x / 32; warp++) block += warps[warp];
        partial[blockIdx.x] = block;
    }
    grid.sync();
    if (grid.thread_rank() == 0) {
        int all = 0;
        for (int block = 0; block < gridDim.x; block++) all += partial[block];
        *result = all;
        launches++;
    }
}

int main() {
    int n = 10000, blocks = 0, *x, *partial, *result;
    CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sum, 128, 0));
    blocks = blocks < 6 ? blocks : 6;
    CALL(cudaMallocManaged(&x, n * sizeof(int)));
    CALL(cudaMalloc(&partial, blocks * sizeof(int)));
    CALL(cudaMallocManaged(&result, sizeof(int)));
    for (int i = 0; i < n; i++) x[i] = i % 7;
    void *args[] = {&x, &n, &partial, &result};
    CALL(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(sum), dim3(blocks), dim3(128), args, 0, nullptr));
    CALL(cudaDeviceSynchronize());
    int expected = 0;
    for (int i = 0; i < n; i++) expected += i % 7;
    EXPECT_EQUAL(*result, expected);
    int count;
    CALL(cudaMemcpyFromSymbol(&count, launches, sizeof count));
    EXPECT_EQUAL(count, 1);
    cudaError_t error = cudaLaunchCooperativeKernel(reinterpret_cast<void *>(sum), dim3(100000), dim3(128), args, 0, nullptr);
    EXPECT_EQUAL(error, cudaErrorCooperativeLaunchTooLarge);
    EXPECT_EQUAL(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
    printf("cooperative: right\n");
}
