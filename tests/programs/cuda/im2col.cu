// A sum over a filter of 3 pixels, whose pixels TMA loads by a map of im2col mode; it pads both ends of a line.
#include <cuda.h>

#include "../../races/cuda/asm.h"
#include "check.h"

constexpr int IMAGES = 3, PIXELS = 11, CHANNELS = 8, COUNT = 16, FILTER = 3;

__global__ void sum(const __grid_constant__ CUtensorMap image, float *y) {
    __shared__ alignas(128) float tiles[FILTER][COUNT][CHANNELS];
    __shared__ alignas(8) uint64_t full;
    const int first = blockIdx.x * COUNT;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        FENCE_INIT();
        EXPECT(&full, sizeof tiles);
        for (int i = 0; i < FILTER; i++)
            asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5], {%6};"
                         ::"r"(S(tiles[i])), "l"(&image), "r"(0), "r"(first % PIXELS - 1), "r"(first / PIXELS), "r"(S(&full)), "h"((short)i) : "memory");
    }
    __syncthreads();
    WAIT(&full, 0);
    for (int i = threadIdx.x; i < COUNT * CHANNELS; i += blockDim.x) {
        const int pixel = i / CHANNELS, channel = i % CHANNELS;
        float found = 0;
        for (int j = 0; j < FILTER; j++) found += tiles[j][pixel][channel];
        if (first + pixel < IMAGES * PIXELS) y[(first + pixel) * CHANNELS + channel] = found;
    }
}

int main() {
    float *x, *y;
    CALL(cudaMallocManaged(&x, IMAGES * PIXELS * CHANNELS * sizeof(float)));
    CALL(cudaMallocManaged(&y, IMAGES * PIXELS * CHANNELS * sizeof(float)));
    for (int i = 0; i < IMAGES * PIXELS * CHANNELS; i++) x[i] = i;
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &function, 12000, cudaEnableDefault, &found));
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(function);
    CUtensorMap map;
    cuuint64_t dims[] = {CHANNELS, PIXELS, IMAGES}, strides[] = {CHANNELS * sizeof(float), PIXELS * CHANNELS * sizeof(float)};
    cuuint32_t steps[] = {1, 1, 1};
    int lower[] = {-1}, upper[] = {-1};
    auto describe = [&](int rank) {
        return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, x, dims, strides, lower, upper, CHANNELS, COUNT, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    EXPECT_EQUAL(describe(2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(describe(3), CUDA_SUCCESS);
    sum<<<(IMAGES * PIXELS + COUNT - 1) / COUNT, 128>>>(map, y);
    CALL(cudaDeviceSynchronize());
    for (int image = 0; image < IMAGES; image++)
        for (int pixel = 0; pixel < PIXELS; pixel++)
            for (int channel = 0; channel < CHANNELS; channel++) {
                float exact = 0;
                for (int j = -1; j <= 1; j++)
                    if (pixel + j >= 0 && pixel + j < PIXELS) exact += x[(image * PIXELS + pixel + j) * CHANNELS + channel];
                EXPECT_EQUAL(y[(image * PIXELS + pixel) * CHANNELS + channel], exact);
            }
    printf("im2col: right\n");
}
