// Declarations of every kind that nvcc writes: tables of pointers, strings, managed and constant memory, structs by value.
#include <cstdio>

struct Base { __device__ virtual int value(int x) = 0; };
struct Next : Base { __device__ int value(int x) override { return x + 1; } };
struct Triple : Base { __device__ int value(int x) override { return x * 3; } };
struct Mixed { int a; float *p; double d; };

__device__ __noinline__ int scale_add(int a, int b) { return a * b + 3; }
__device__ int (*table[2])(int, int) = {scale_add, scale_add};
__constant__ float coefficients[4] = {1.0f, 2.5f, -3.0f, 0.1f};
__device__ const char *names[2] = {"one", "two\n"};
__managed__ int counter = 4;
__device__ float storage[10];
__device__ Mixed mixed = {3, storage + 2, 2.5};

__global__ void __launch_bounds__(128, 2, 8) declared(int *p, int n, const __grid_constant__ Mixed s) {
    Next next;
    Triple triple;
    Base *base = n > 3 ? (Base *)&next : (Base *)&triple;
    p[threadIdx.x] = base->value(n) + table[n & 1](n, 2) + (int)coefficients[n] + counter + s.a;
    printf("%d %s %f\n", n, names[n], *mixed.p);
    __syncwarp();
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p bra L; L: }" ::"r"(n));
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 1) sampled(float *x, cudaTextureObject_t image, cudaSurfaceObject_t target) {
    float4 texel = tex2D<float4>(image, x[1], x[2]);
    x[0] = texel.w + tex1Dfetch<float>(image, 3);
    surf2Dwrite(texel.x, target, threadIdx.x * 4, 7);
}

// Video and SIMD instructions, a wide vector and a 128-bit move.
__global__ void unusual(unsigned *x) {
    unsigned result;
    asm("vadd.s32.u32.s32.sat %0, %1.b0, %2.h1;" : "=r"(result) : "r"(x[0]), "r"(x[1]));
    asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(x[3]) : "r"(x[0]), "r"(x[1]), "r"(result));
    asm("vmad.s32.s32.s32.shr7 %0, %1.h0, %2.b3, -%3;" : "=r"(x[4]) : "r"(x[0]), "r"(x[1]), "r"(result));
    asm("{ .reg .v4 .u32 v; ld.global.v4.u32 {v.x, v.y, v.z, v.w}, [%1]; mov.u32 %0, v.z; }" : "=r"(x[5]) : "l"(x));
    asm("{ .reg .b128 q; mov.b128 q, {%0, %1}; mov.b128 {%0, _}, q; }" : "+l"(*(unsigned long long *)x) : "l"(0ull));
}
