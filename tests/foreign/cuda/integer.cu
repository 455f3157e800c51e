// Integer arithmetic, 32 and 64 bits: sixteen results an element.
extern "C" __global__ void integer(const int *a, const int *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i] ? b[i] : 1;
    unsigned u = x, v = y;
    long long p = (long long)x * 1000003 + y, q = (long long)y * 77777 + 1;
    long long *to = out + 16ll * i;
    to[0] = x == (int)0x80000000 && y == -1 ? 0 : x / y;
    to[1] = x == (int)0x80000000 && y == -1 ? 0 : x % y;
    to[2] = u / v;
    to[3] = u % v;
    to[4] = p / q;
    to[5] = p % q;
    to[6] = (unsigned long long)p / (unsigned long long)(q ? q : 1);
    to[7] = __mulhi(x, y);
    to[8] = __umul64hi(p, q);
    to[9] = (unsigned long long)p * q + (p >> 7) - ((unsigned long long)q << 5);
    to[10] = x / 7 + x % 1000 + (int)(u / 12345u);
    to[11] = (long long)min(x, y) << 32 ^ max(u, v);
    to[12] = abs(x >> 1) + __sad(x, y, 5u);
    to[13] = (short)x * (signed char)y;
    to[14] = __mul24(x & 0x3ffff, y & 0xfff);
    to[15] = (x > y) + 2 * (u > v) + 4 * (p <= q);
}

// Bits: counts, reversal, fields, shifts past the width, byte permutes and dot products.
extern "C" __global__ void bits(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], *to = out + 12 * i;
    to[0] = __popc(x);
    to[1] = __clz(x);
    to[2] = __brev(x);
    to[3] = __ffs(x);
    to[4] = __funnelshift_l(x, y, y);
    to[5] = __funnelshift_rc(x, y, y & 63);
    to[6] = __byte_perm(x, y, x >> 16);
    to[7] = __dp4a((int)x, (int)y, 7);
    to[8] = (x & y) | (~x & 0x0f0f0f0f) ^ y;
    to[9] = __clzll(((unsigned long long)x << 16) | y >> 31);
    to[10] = (x >> 5 & 0x7ff) + ((int)(x << 9) >> 22);
    to[11] = __vadd2(x, y) ^ __vmaxu4(x, y);
}
