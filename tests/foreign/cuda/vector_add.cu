// One element a thread, with a guard for the last block.
extern "C" __global__ void vector_add(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

// Grid-stride loop over 16-byte vectors.
extern "C" __global__ void saxpy4(float alpha, const float4 *x, float4 *y, int n4) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += gridDim.x * blockDim.x) {
        float4 v = x[i], w = y[i];
        y[i] = make_float4(alpha * v.x + w.x, alpha * v.y + w.y, alpha * v.z + w.z, alpha * v.w + w.w);
    }
}
