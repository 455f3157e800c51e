// What the virtual GPU refuses with one clear error: recursion. And a call through a pointer, which it runs.
__device__ __noinline__ int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }
__device__ int (*const table[2])(int, int) = {add, subtract};

extern "C" __global__ void recursion(const int *a, int *out) { out[threadIdx.x] = gcd(a[threadIdx.x], 12); }
extern "C" __global__ void indirect(const int *a, int *out) { out[threadIdx.x] = table[a[threadIdx.x] & 1](a[threadIdx.x], 1); }
