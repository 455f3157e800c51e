#include <cuda.h>
#include <cuda/ptx>
#include <cstdint>

namespace ptx = cuda::ptx;

__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ inline void wait(uint64_t *barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN;\n"
        "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// A 64x32 box of floats through shared memory: loaded, scaled by the threads, stored to the same place of another map.
extern "C" __global__ void tma_tile(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, float scale) {
    __shared__ alignas(1024) float tile[64 * 32];
    __shared__ alignas(8) uint64_t full;
    int column = blockIdx.x * 32, row = blockIdx.y * 64;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)), "n"(sizeof tile) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                         "r"(shared_address(tile)), "l"(&in), "r"(column), "r"(row), "r"(shared_address(&full)) : "memory");
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 64 * 32; i += blockDim.x) tile[i] *= scale;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(column), "r"(row),
                     "r"(shared_address(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Two 4 KB stages of a 1-D copy in flight, by the names of cuda::ptx.
extern "C" __global__ void bulk_copy(const int *in, int *out, int chunks) {
    constexpr int WORDS = 1024, STAGES = 2;
    __shared__ alignas(128) int stage[STAGES][WORDS];
    __shared__ alignas(8) uint64_t full[STAGES];
    auto load = [&](int chunk) {
        int s = chunk % STAGES;
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], sizeof stage[0]);
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stage[s], in + chunk * WORDS, sizeof stage[0], &full[s]);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) ptx::mbarrier_init(&full[s], 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        for (int chunk = 0; chunk < min(chunks, STAGES); ++chunk) load(chunk);
    }
    __syncthreads();
    for (int chunk = 0; chunk < chunks; ++chunk) {
        int s = chunk % STAGES;
        while (!ptx::mbarrier_try_wait_parity(&full[s], (chunk / STAGES) & 1)) {}
        for (int i = threadIdx.x; i < WORDS; i += blockDim.x) stage[s][i] += chunk;
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + chunk * WORDS, stage[s], sizeof stage[0]);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
            if (chunk + STAGES < chunks) load(chunk + STAGES);
        }
    }
    if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}
