// A kernel that writes behind its array, as "outside"; shared memory that was not asked for, as "smem"; a false
// assertion, as "assert"; a barrier that nobody completes, as "hang"; a reserved bit of a descriptor, as "descriptor".
#include <cassert>
#include <cstring>

#include "../../races/cuda/asm.h"
#include "check.h"

__global__ void outside(int *x, int n) { x[n + threadIdx.x] = 1; }
__global__ void large() {
    extern __shared__ int x[];
    x[threadIdx.x] = 1;
}
__global__ void check(int n) { assert(n < 3); }
__global__ void hang() {
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) INIT(&full, 1);
    __syncthreads();
    WAIT(&full, 0);
}

__global__ void multiply(float *x, uint64_t descriptor) {
    float d[4] = {};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
    x[threadIdx.x] = d[0];
}

int main(int count, char **words) {
    int *x;
    CALL(cudaMalloc(&x, 64 * sizeof(int)));
    if (!strcmp(words[1], "outside")) outside<<<1, 32>>>(x, 64);
    if (!strcmp(words[1], "smem")) large<<<1, 32, 100000>>>();
    if (!strcmp(words[1], "assert")) check<<<1, 1>>>(5);
    if (!strcmp(words[1], "hang")) hang<<<1, 32>>>();
    if (!strcmp(words[1], "descriptor")) multiply<<<1, 128>>>(reinterpret_cast<float *>(x), 1 << 14);
    cudaError_t error = cudaDeviceSynchronize();
    error = error ? error : cudaGetLastError();
    printf("%s\n", cudaGetErrorName(error));
    return 0;
}
