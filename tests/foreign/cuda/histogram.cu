// Shared bins; each element is halved a data-dependent number of times first, so lanes leave the loop at different times.
extern "C" __global__ void histogram(const unsigned *in, unsigned *bins, int n) {
    __shared__ unsigned local[64];
    for (int b = threadIdx.x; b < 64; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned value = in[i];
        int steps = 0;
        while (value > 1) {
            if (value & 1) value = 3 * value + 1;
            else value /= 2;
            if (++steps == 63) break;
        }
        atomicAdd(&local[steps], 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < 64; b += blockDim.x)
        if (local[b]) atomicAdd(&bins[b], local[b]);
}
