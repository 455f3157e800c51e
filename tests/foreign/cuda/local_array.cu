// An array in local memory with run-time indices: insertion sort of 16 numbers a thread, then a gather.
extern "C" __global__ void local_array(const int *in, const int *pick, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sorted[16];
    for (int j = 0; j < 16; ++j) {
        int value = in[16 * i + j], k = j;
        for (; k > 0 && sorted[k - 1] > value; --k) sorted[k] = sorted[k - 1];
        sorted[k] = value;
    }
    int where = pick[i] & 15;
    out[2 * i] = sorted[where];
    out[2 * i + 1] = sorted[15 - where] - sorted[0];
}
