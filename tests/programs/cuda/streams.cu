// Two streams, pinned memory, events, a host function, pitched memory, and what the runtime tells of the GPU.
#include "check.h"

__global__ void scale(float *x, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}

__global__ void add_rows(float *to, size_t pitch, const float *from, int width, int height) {
    for (int i = threadIdx.x; i < width * height; i += blockDim.x) to[i / width * (pitch / 4) + i % width] += from[i];
}

static void count(void *calls) { ++*static_cast<int *>(calls); }

int main() {
    const int n = 1000;
    cudaDeviceProp properties;
    int sms = 0, calls = 0;
    CALL(cudaGetDeviceProperties(&properties, 0));
    CALL(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    EXPECT_EQUAL(properties.multiProcessorCount, sms);
    EXPECT_EQUAL(properties.warpSize, 32);
    EXPECT_EQUAL(properties.sharedMemPerBlock, 49152);

    float *host[2], *device[2];
    cudaStream_t streams[2];
    cudaEvent_t start, end;
    CALL(cudaEventCreate(&start));
    CALL(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    for (int s = 0; s < 2; s++) {
        CALL(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CALL(cudaMallocHost(&host[s], n * sizeof(float)));
        CALL(cudaMallocAsync(&device[s], n * sizeof(float), streams[s]));
        for (int i = 0; i < n; i++) host[s][i] = i + s;
        CALL(cudaMemcpyAsync(device[s], host[s], n * sizeof(float), cudaMemcpyHostToDevice, streams[s]));
    }
    CALL(cudaEventRecord(start, streams[0]));
    for (int s = 0; s < 2; s++) scale<<<(n + 127) / 128, 128, 0, streams[s]>>>(device[s], n, 2 + s);
    CALL(cudaGetLastError());
    CALL(cudaEventRecord(end, streams[1]));
    CALL(cudaStreamWaitEvent(streams[0], end, 0));
    CALL(cudaLaunchHostFunc(streams[0], count, &calls));
    for (int s = 0; s < 2; s++) {
        CALL(cudaMemcpyAsync(host[s], device[s], n * sizeof(float), cudaMemcpyDeviceToHost, streams[s]));
        CALL(cudaStreamSynchronize(streams[s]));
        for (int i = 0; i < n; i++) EXPECT_EQUAL(host[s][i], (i + s) * (2 + s));
    }
    EXPECT_EQUAL(calls, 1);
    float ms = -1;
    CALL(cudaEventElapsedTime(&ms, start, end));
    EXPECT_EQUAL(ms >= 0, true);

    float *rows, copy[6 * 5];
    size_t pitch;
    CALL(cudaMallocPitch(&rows, &pitch, 6 * sizeof(float), 5));
    CALL(cudaMemset2D(rows, pitch, 0, 6 * sizeof(float), 5));
    add_rows<<<1, 32>>>(rows, pitch, device[0], 6, 5);
    CALL(cudaMemcpy2D(copy, 6 * sizeof(float), rows, pitch, 6 * sizeof(float), 5, cudaMemcpyDefault));
    for (int i = 0; i < 30; i++) EXPECT_EQUAL(copy[i], 2 * i);
    static float registered[64];
    cudaPointerAttributes attributes;
    CALL(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    CALL(cudaMemcpyAsync(registered, device[0], sizeof registered, cudaMemcpyDeviceToHost, streams[0]));
    EXPECT_EQUAL(registered[63], 126);
    CALL(cudaHostUnregister(registered));
    CALL(cudaPointerGetAttributes(&attributes, registered));
    EXPECT_EQUAL(attributes.type, cudaMemoryTypeUnregistered);
    CALL(cudaPointerGetAttributes(&attributes, device[0] + 5));
    EXPECT_EQUAL(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQUAL(attributes.devicePointer == device[0] + 5, true);
    CALL(cudaPointerGetAttributes(&attributes, host[0]));
    EXPECT_EQUAL(attributes.type, cudaMemoryTypeHost);
    for (int s = 0; s < 2; s++) {
        CALL(cudaFreeAsync(device[s], streams[s]));
        CALL(cudaFreeHost(host[s]));
        CALL(cudaStreamDestroy(streams[s]));
    }
    printf("streams: right\n");
}
