// A transposed matrix through TMA: tensor maps that the driver encodes, one a parameter and one in device memory.
#include <cuda.h>

#include "../../races/cuda/asm.h"
#include "check.h"

constexpr int TILE = 32, ROWS = 96, COLUMNS = 64;

struct Maps {
    CUtensorMap from;
    float alpha;
};

__global__ void transpose(const __grid_constant__ Maps maps, const CUtensorMap *to) {
    __shared__ alignas(128) float in[TILE][TILE], out[TILE][TILE];
    __shared__ alignas(8) uint64_t full;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        FENCE_INIT();
        EXPECT(&full, sizeof in);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(S(in)), "l"(&maps.from), "r"(column), "r"(row), "r"(S(&full)) : "memory");
    }
    __syncthreads();
    WAIT(&full, 0);
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) out[i % TILE][i / TILE] = maps.alpha * in[i / TILE][i % TILE];
    FENCE_PROXY();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(to) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(to), "r"(row), "r"(column), "r"(S(out)) : "memory");
        COMMIT();
        WAIT_DONE();
    }
}

static CUtensorMap describe(void *array, uint64_t rows, uint64_t columns) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    EXPECT_EQUAL(found, cudaDriverEntryPointSuccess);
    CUtensorMap map;
    cuuint64_t dims[] = {columns, rows}, strides[] = {columns * sizeof(float)};
    cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    CUresult error = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, array, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    EXPECT_EQUAL(error, CUDA_SUCCESS);
    return map;
}

int main() {
    float *x, *y;
    CUtensorMap *to;
    CALL(cudaMallocManaged(&x, ROWS * COLUMNS * sizeof(float)));
    CALL(cudaMallocManaged(&y, ROWS * COLUMNS * sizeof(float)));
    CALL(cudaMalloc(&to, sizeof(CUtensorMap)));
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = i;
    Maps maps = {describe(x, ROWS, COLUMNS), 2};
    CUtensorMap map = describe(y, COLUMNS, ROWS);
    CALL(cudaMemcpy(to, &map, sizeof map, cudaMemcpyHostToDevice));
    transpose<<<dim3(COLUMNS / TILE, ROWS / TILE), 128>>>(maps, to);
    CALL(cudaDeviceSynchronize());
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) EXPECT_EQUAL(y[column * ROWS + row], 2 * x[row * COLUMNS + column]);
    printf("tma: right\n");
}
