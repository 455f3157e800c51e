// What the programs here share: a call of the runtime that must succeed, and a result that must be right.
#pragma once
#include <cstdio>
#include <cstdlib>

#define CALL(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error));       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define EXPECT_EQUAL(given, expected)                                                              \
    do {                                                                                           \
        if ((given) != (expected)) {                                                               \
            printf("%s:%d: %s is %g, expected %g\n", __FILE__, __LINE__, #given, double(given), double(expected)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
