// Every thread hits the same few words; each result is the same in any order.
extern "C" __global__ void atomics_global(const int *in, int *ints, unsigned *words, unsigned long long *wide) {
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(&ints[0], value);
    atomicSub(&ints[1], value);
    atomicMin(&ints[2], value);
    atomicMax(&ints[3], value);
    atomicAnd(&words[0], ~(1u << (value & 31)));
    atomicOr(&words[1], 1u << (value & 31));
    atomicXor(&words[2], (unsigned)value);
    atomicInc(&words[3], 99);
    atomicDec(&words[4], 99);
    atomicAdd(&wide[0], (unsigned long long)value * 1000000007ull);
    atomicMax(&wide[1], (unsigned long long)(unsigned)value << 20);
}

// Small multiples of 1/4 add exactly in any order; the product goes through a compare-and-swap loop.
extern "C" __global__ void atomics_float(const float *in, float *sum, double *wide_sum, float *largest) {
    float value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(sum, value);
    atomicAdd(wide_sum, (double)value);
    int *bits = (int *)largest, seen = *bits;
    while (__int_as_float(seen) < value) {
        int before = atomicCAS(bits, seen, __float_as_int(value));
        if (before == seen) break;
        seen = before;
    }
}

// A ticket for each thread from a shared counter: the tickets are a permutation.
extern "C" __global__ void atomics_shared(int *tickets, int *totals) {
    __shared__ int counter, highest, lock;
    if (threadIdx.x == 0) counter = 0, highest = -1, lock = 0;
    __syncthreads();
    int ticket = atomicAdd(&counter, 1);
    tickets[blockIdx.x * blockDim.x + ticket] = threadIdx.x;
    atomicMax(&highest, ticket);
    atomicExch(&lock, 7);
    __syncthreads();
    if (threadIdx.x == 0) totals[3 * blockIdx.x] = counter, totals[3 * blockIdx.x + 1] = highest, totals[3 * blockIdx.x + 2] = lock;
}
