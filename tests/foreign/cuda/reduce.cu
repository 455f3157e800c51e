// Sums of ints (exact in any order): by shuffles in a warp, by a tree in a block, and both with an atomic.
__device__ int warp_total(int value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
    return value;
}

extern "C" __global__ void warp_sum(const int *in, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int total = warp_total(in[i]);
    if (threadIdx.x % 32 == 0) out[i / 32] = total;
}

extern "C" __global__ void block_sum(const int *in, int *out, int n) {
    extern __shared__ int partial[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void grid_sum(const int *in, int *out, int n) {
    __shared__ int warps[32];
    int value = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += in[i];
    value = warp_total(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = warp_total(threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0);
        if (threadIdx.x == 0) atomicAdd(out, value);
    }
}

// The largest value and where it stands, exchanged as a pair by xor shuffles; ties go to the lower index.
extern "C" __global__ void warp_argmax(const float *in, float *best, int *where) {
    int lane = threadIdx.x % 32, i = blockIdx.x * blockDim.x + threadIdx.x, at = lane;
    float value = in[i];
    for (int mask = 16; mask > 0; mask /= 2) {
        float other = __shfl_xor_sync(0xffffffff, value, mask);
        int other_at = __shfl_xor_sync(0xffffffff, at, mask);
        if (other > value || (other == value && other_at < at)) value = other, at = other_at;
    }
    if (lane == 0) best[i / 32] = value, where[i / 32] = at;
}
