#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// A CTA reads the shared memory of its peer, which may have exited.
extern "C" __global__ void __cluster_dims__(2) kernel(float *out) {
    __shared__ float mine[32];
    cg::cluster_group cluster = cg::this_cluster();
    mine[threadIdx.x] = 100 * cluster.block_rank() + threadIdx.x;
    cluster.sync();
    float *theirs = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1);
    out[32 * cluster.block_rank() + threadIdx.x] = theirs[threadIdx.x];
#ifdef REPAIRED
    cluster.sync();
#endif
}
