__constant__ unsigned weights[8] = {3, 1, 4, 1, 5, 9, 2, 6};

// A small machine: a dense switch in a loop, and lanes run different programs.
extern "C" __global__ void dispatch(const unsigned char *programs, unsigned *out, int length, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = i, y = 1, saved = 0;
    for (int pc = 0; pc < length; ++pc) {
        switch (programs[i * length + pc]) {
            case 0: x += y; break;
            case 1: y = x ^ saved; break;
            case 2: x *= weights[y & 7]; break;
            case 3: saved = x; x = y; break;
            case 4: if (x & 1) y += 5; break;
            case 5: x = (x >> 3) + saved; break;
            case 6: y -= weights[pc & 7]; break;
            case 7: pc = length; break;
            case 8: out[n + i] += x; break;
            case 9: x = ~x; break;
            default: y = -y;
        }
    }
    out[i] = x + 31 * y + 7 * saved;
}

// The same choice by an indexed branch, which nvcc writes only where it pays: each lane goes its own way.
extern "C" __global__ void indexed_branch(const unsigned *which, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, result;
    asm volatile(
        "{\n"
        "targets: .branchtargets TWICE, NEGATE, KEEP;\n"
        "brx.idx %2, targets;\n"
        "TWICE: shl.b32 %0, %1, 1; bra DONE;\n"
        "NEGATE: neg.s32 %0, %1; bra DONE;\n"
        "KEEP: mov.b32 %0, %1;\n"
        "DONE:\n"
        "}"
        : "=r"(result) : "r"(i), "r"(which[i]));
    out[i] = result;
}
