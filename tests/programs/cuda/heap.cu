// malloc and new of kernels: memory that one kernel allocates, another reads and a third frees; a heap that is full.
#include "check.h"

__global__ void make(int **lists, int count) {
    int *list = static_cast<int *>(malloc(count * sizeof(int)));
    for (int i = 0; i < count; i++) list[i] = threadIdx.x * 1000 + i;
    lists[threadIdx.x] = list;
}

__global__ void sum(int **lists, int *sums, int count) {
    for (int i = 0; i < count; i++) sums[threadIdx.x] += lists[threadIdx.x][i];
}

__global__ void release(int **lists) { free(lists[threadIdx.x]); }

__global__ void churn(int *sums) {
    for (int i = 1; i < 30; i++) {
        int *values = new int[i];
        values[i - 1] = i;
        sums[blockIdx.x * blockDim.x + threadIdx.x] += values[i - 1];
        delete[] values;
    }
}

__global__ void take(size_t nbytes, int *found) {
    void *block = malloc(nbytes);
    *found = block != nullptr;
    free(block);
}

__global__ void fill(int *found) {
    void *half = malloc(160 << 20), *other = malloc(160 << 20);
    found[0] = half && !other;
    free(half);
    free(nullptr);
    void *next = malloc(160 << 20);
    found[1] = next != nullptr;
    free(next);
}

int main() {
    size_t limit, larger = 256 << 20;
    CALL(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT_EQUAL(limit, 8 << 20);
    CALL(cudaDeviceSetLimit(cudaLimitMallocHeapSize, larger));
    int **lists, *sums;
    CALL(cudaMalloc(&lists, 64 * sizeof(int *)));
    CALL(cudaMallocManaged(&sums, 128 * sizeof(int)));
    make<<<1, 64>>>(lists, 30);
    sum<<<1, 64>>>(lists, sums, 30);
    release<<<1, 64>>>(lists);
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < 64; i++) EXPECT_EQUAL(sums[i], 30 * 1000 * i + 435);
    CALL(cudaMemset(sums, 0, 128 * sizeof(int)));
    churn<<<2, 64>>>(sums);
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < 128; i++) EXPECT_EQUAL(sums[i], 435);
    fill<<<1, 1>>>(sums);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQUAL(sums[0], 1);
    EXPECT_EQUAL(sums[1], 1);
    EXPECT_EQUAL(cudaDeviceSetLimit(cudaLimitMallocHeapSize, limit), cudaErrorInvalidValue);  // kernels have called malloc
    EXPECT_EQUAL(cudaGetLastError(), cudaErrorInvalidValue);
    CALL(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT_EQUAL(limit, larger);
    for (int spare : {4096, -1}) {  // of the heap's size, less what its headers take
        take<<<1, 1>>>(limit - spare, sums);
        CALL(cudaDeviceSynchronize());
        EXPECT_EQUAL(sums[0], spare > 0);
    }
    printf("heap: right\n");
}
