// Kernels that hang, each by another mistake. `wait` and `arrive` are functions, as in the code of users.
#include "../cuda/asm.h"

constexpr int WORDS = 256, STAGES = 2;

__device__ inline void wait(uint64_t *bar, uint32_t parity) { WAIT(bar, parity); }
__device__ inline void arrive(uint64_t *bar) { ARRIVE(bar); }

// The copy has half of the bytes that the mbarrier expects.
__global__ void __launch_bounds__(128) too_many_bytes(const int *in, int *out) {
    __shared__ alignas(128) int tile[WORDS];
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        FENCE_INIT();
        EXPECT(&full, 2 * sizeof tile);
        LOAD(tile, in, sizeof tile, &full);
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}

// A ring of stages. PARITY: of the producer's first wait; 0 waits for consumers that wait for the producer. The producer
// copies `fewer` chunks less than the consumers read.
template <int PARITY>
__global__ void __launch_bounds__(160) ring(const int *in, int *out, int chunks, int fewer) {
    __shared__ alignas(128) int stage[STAGES][WORDS];
    __shared__ alignas(8) uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            INIT(&full[s], 1);
            INIT(&empty[s], 4);
        }
        FENCE_INIT();
    }
    __syncthreads();
    if (threadIdx.x / 32 == 4) {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks - fewer && threadIdx.x % 32 == 0; ++chunk) {
            int s = chunk % STAGES;
            wait(&empty[s], chunk / STAGES & 1 ^ PARITY);
            EXPECT(&full[s], sizeof stage[0]);
            LOAD(stage[s], in + chunk * WORDS, sizeof stage[0], &full[s]);
        }
    } else {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            int s = chunk % STAGES;
            wait(&full[s], chunk / STAGES & 1);
            out[chunk * WORDS + threadIdx.x] = stage[s][threadIdx.x];
            FENCE_PROXY();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(&empty[s]);
        }
    }
}

// One of the four warps does not come.
__global__ void missing_warp(int *out) {
    if (threadIdx.x / 32 != 3) asm volatile("bar.sync 1, 128;" ::: "memory");
    out[threadIdx.x] = threadIdx.x;
}

// Each CTA of a pair waits for the other one too, but only the first tells the other one.
__global__ void __cluster_dims__(2, 1, 1) missing_peer(int *out) {
    __shared__ alignas(8) uint64_t ready;
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        INIT(&ready, 2);
        FENCE_INIT();
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        arrive(&ready);
        if (rank == 0)
            asm volatile("{\n.reg .b32 peer;\nmapa.shared::cluster.u32 peer, %0, 1;\n"
                         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [peer];\n}" ::"r"(S(&ready)) : "memory");
    }
    wait(&ready, 0);
    out[blockIdx.x * blockDim.x + threadIdx.x] = rank;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Every CTA waits for a flag that no CTA sets.
__global__ void unset_flag(const int *flag, int *out) {
    int found;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
    while (!found);
    out[0] = found;
}

template __global__ void ring<0>(const int *, int *, int, int);
template __global__ void ring<1>(const int *, int *, int, int);
