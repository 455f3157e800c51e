// Real calls: by name, with a struct, recursive, through a table of pointers and through a virtual function.
struct Pair { int low, high; double ratio; };

__device__ __noinline__ int scale_add(int a, int b) { return a * b + 3; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }
__device__ __noinline__ Pair ordered(int a, int b) { return {min(a, b), max(a, b), (double)a / (b ? b : 1)}; }
__device__ __noinline__ int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

__device__ int (*const table[2])(int, int) = {scale_add, subtract};

struct Shape { __device__ virtual int area(int side) const = 0; };
struct Square : Shape { __device__ int area(int side) const override { return side * side; } };
struct Strip : Shape { __device__ int area(int side) const override { return 3 * side; } };

extern "C" __global__ void calls(const int *a, const int *b, int *out, double *ratios, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair pair = ordered(a[i], b[i]);
    out[5 * i] = scale_add(a[i], b[i]);
    out[5 * i + 1] = pair.high - pair.low;
    out[5 * i + 2] = gcd(a[i], b[i]);
    out[5 * i + 3] = table[a[i] & 1](a[i], b[i]);
    Square square;
    Strip strip;
    const Shape *shape = b[i] & 1 ? (const Shape *)&square : (const Shape *)&strip;
    out[5 * i + 4] = shape->area(a[i]);
    ratios[i] = pair.ratio;
}
