// Votes, matches and reductions of a warp, whole and in part.
extern "C" __global__ void warp_ops(const int *in, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, value = in[i];
    unsigned *to = out + 10 * i;
    to[0] = __ballot_sync(0xffffffff, value & 1);
    to[1] = __any_sync(0xffffffff, value > 90) + 2 * __all_sync(0xffffffff, value >= 0);
    to[2] = __match_any_sync(0xffffffff, value & 3);
    int same;
    to[3] = __match_all_sync(0xffffffff, value, &same);
    to[3] ^= same;
    to[4] = __reduce_add_sync(0xffffffff, value);
    to[5] = __reduce_max_sync(0xffffffff, value) ^ __reduce_or_sync(0xffffffff, value) << 16;
    to[6] = __shfl_sync(0xffffffff, value, value & 7, 8);
    to[7] = __shfl_up_sync(0xffffffff, value, 3);
    to[8] = 0;
    if (value & 1) {
        unsigned odd = __activemask();
        to[8] = __popc(odd & ((1u << lane) - 1)) + 100 * __reduce_min_sync(odd, value);
    }
    __syncwarp();
    to[9] = __shfl_xor_sync(0xffffffff, to[8], 1);
}
