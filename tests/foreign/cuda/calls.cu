// Calls that the compiler keeps as calls: by name, with a struct, one function calling another.
struct Pair { int low, high; double ratio; };

__device__ __noinline__ int scale_add(int a, int b) { return a * b + 3; }
__device__ __noinline__ int twice(int a, int b) { return scale_add(a, b) + scale_add(b, 2 * a); }
__device__ __noinline__ Pair ordered(int a, int b) { return {min(a, b), max(a, b), (double)a / (b ? b : 1)}; }

extern "C" __global__ void calls(const int *a, const int *b, int *out, double *ratios, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair pair = ordered(a[i], b[i]);
    out[3 * i] = scale_add(a[i], b[i]);
    out[3 * i + 1] = pair.high - pair.low;
    out[3 * i + 2] = a[i] & 1 ? twice(a[i], b[i]) : 0;
    ratios[i] = pair.ratio;
}
