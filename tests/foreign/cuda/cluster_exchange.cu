#include <cooperative_groups.h>
#include <cstdint>

namespace cg = cooperative_groups;

// Each CTA of a cluster reads its right neighbour's shared memory.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_shift(const int *in, int *out) {
    __shared__ int mine[128];
    cg::cluster_group cluster = cg::this_cluster();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    mine[threadIdx.x] = in[i];
    cluster.sync();
    int *next = cluster.map_shared_rank(mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    out[i] = next[threadIdx.x];
    cluster.sync();
}

// Every CTA adds into the counters of rank 0 through distributed shared memory, in bare PTX.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_total(const int *in, int *out) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"((uint32_t)__cvta_generic_to_shared(&total)));
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(remote), "r"(value) : "memory");
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0 && rank == 0) out[blockIdx.x / 2] = total;
}
