// Block-wide counts, and a named barrier between the two halves of a block: producers arrive, consumers wait.
extern "C" __global__ void barriers(const int *in, int *out) {
    __shared__ int mailbox[64];
    int t = threadIdx.x, value = in[blockIdx.x * blockDim.x + t];
    int odd = __syncthreads_count(value & 1), any = __syncthreads_or(value > 95), all = __syncthreads_and(value < 99);
    if (t < 64) {
        mailbox[t] = value * 2;
        asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        value += mailbox[127 - t];
    }
    out[blockIdx.x * blockDim.x + t] = value + 1000 * odd + (any ? 1 << 20 : 0) + (all ? 1 << 21 : 0);
}
