// A histogram over the shared memory of a cluster: each CTA counts a part of the bins, all CTAs add to all parts.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;
constexpr int BINS = 64;

__global__ void histogram(const unsigned char *x, int n, int *bins) {
    extern __shared__ int counts[];
    cg::cluster_group cluster = cg::this_cluster();
    int own = BINS / cluster.num_blocks();
    for (int i = threadIdx.x; i < own; i += blockDim.x) counts[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int bin = x[i] % BINS;
        atomicAdd(cluster.map_shared_rank(counts, bin / own) + bin % own, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < own; i += blockDim.x)
        atomicAdd(&bins[cluster.block_rank() * own + i], counts[i]);
}

int main() {
    const int n = 5000;
    unsigned char *x;
    int *bins, resident = 0, expected[BINS] = {};
    CALL(cudaMallocManaged(&x, n));
    CALL(cudaMallocManaged(&bins, BINS * sizeof(int)));
    CALL(cudaMemset(bins, 0, BINS * sizeof(int)));
    for (int i = 0; i < n; i++) expected[(x[i] = i * i % 251) % BINS]++;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {4, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = 8;
    config.blockDim = 128;
    config.dynamicSmemBytes = BINS / 4 * sizeof(int);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CALL(cudaOccupancyMaxActiveClusters(&resident, histogram, &config));
    EXPECT_EQUAL(resident > 0, true);
    CALL(cudaLaunchKernelEx(&config, histogram, static_cast<const unsigned char *>(x), n, bins));
    CALL(cudaDeviceSynchronize());
    for (int bin = 0; bin < BINS; bin++) EXPECT_EQUAL(bins[bin], expected[bin]);
    printf("cluster: right\n");
}
