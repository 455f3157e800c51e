// C = A B in float32 with 16x16 shared tiles; any m, n, k.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float at[16][16], bt[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int start = 0; start < k; start += 16) {
        int p = start + threadIdx.x, q = start + threadIdx.y;
        at[threadIdx.y][threadIdx.x] = row < m && p < k ? a[row * k + p] : 0;
        bt[threadIdx.y][threadIdx.x] = q < k && col < n ? b[q * n + col] : 0;
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += at[threadIdx.y][j] * bt[j][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
