// A persistent kernel of Blackwell: each CTA asks for the tile of a CTA that has not started, until there is none.
#include "../../races/cuda/asm.h"
#include "check.h"

__global__ void tiles(int *out, int *visits, int *started) {
    extern __shared__ int room[];  // so much that an SM runs one CTA
    __shared__ alignas(16) uint4 reply;
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        FENCE_INIT();
        atomicAdd(started, 1);
        room[0] = blockIdx.x;
    }
    __syncthreads();
    uint32_t tile = blockIdx.x, more = 1;
    for (uint32_t phase = 0; more; phase ^= 1) {
        if (threadIdx.x == 0) {
            EXPECT(&full, sizeof reply);
            asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                         ::"r"(S(&reply)), "r"(S(&full)) : "memory");
            atomicAdd(visits, 1);
        }
        out[tile * blockDim.x + threadIdx.x] = 3 * tile + threadIdx.x;
        WAIT(&full, phase);
        asm volatile(
            "{\n.reg .pred p;\n.reg .b128 r;\nld.shared.b128 r, [%2];\n"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\nselp.u32 %1, 1, 0, p;\n"
            "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, r;\n}"
            : "+r"(tile), "=r"(more) : "r"(S(&reply)) : "memory");
        FENCE_PROXY();
        __syncthreads();  // all have read the reply before the next one comes
    }
}

int main() {
    const int count = 300, threads = 64, room = 200 << 10;
    int *out, *visits, *started;
    CALL(cudaMallocManaged(&out, count * threads * sizeof(int)));
    CALL(cudaMallocManaged(&visits, sizeof(int)));
    CALL(cudaMemset(out, 0xff, count * threads * sizeof(int)));
    CALL(cudaMallocManaged(&started, sizeof(int)));
    *visits = *started = 0;
    CALL(cudaFuncSetAttribute(tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    tiles<<<count, threads, room>>>(out, visits, started);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQUAL(*visits, count);
    EXPECT_EQUAL(*started < count, true);
    for (int i = 0; i < count * threads; i++) EXPECT_EQUAL(out[i], 3 * (i / threads) + i % threads);
    printf("clc: right\n");
}
