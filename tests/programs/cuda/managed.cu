// Managed memory with pointers inside: a list in the program's own order, a table of pointers, and variables of the
// device that the host reads and writes.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__managed__ int visited = 0;
__device__ int total = 100;
__constant__ int weights[4];
__device__ int *place;

__global__ void sum_list(const Node *node) {
    for (; node; node = node->next, visited++) total += weights[node->value % 4];
}

__global__ void fill(int **table, int rows) {
    if (threadIdx.x < rows) table[threadIdx.x][threadIdx.x] = *place + threadIdx.x;
}

int main() {
    const int given[4] = {1, 10, 100, 1000};
    CALL(cudaMemcpyToSymbol(weights, given, sizeof given));
    Node *nodes;
    CALL(cudaMallocManaged(&nodes, 8 * sizeof(Node)));
    for (int i = 0; i < 8; i++) nodes[i] = {i, i == 5 ? nullptr : &nodes[(i + 3) % 8]};
    sum_list<<<1, 1>>>(nodes);  // 0 3 6 1 4 7 2 5
    sum_list<<<1, 1>>>(nodes + 7);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQUAL(visited, 8 + 3);
    int result;
    CALL(cudaMemcpyFromSymbol(&result, total, sizeof result));
    EXPECT_EQUAL(result, 100 + 2 * (1 + 10 + 100 + 1000) + 1000 + 100 + 10);

    int *address, **table, *seven;
    CALL(cudaGetSymbolAddress(reinterpret_cast<void **>(&address), total));
    CALL(cudaMemset(address, 0, sizeof(int)));
    CALL(cudaMemcpyFromSymbol(&result, total, sizeof result));
    EXPECT_EQUAL(result, 0);
    CALL(cudaMallocManaged(&table, 4 * sizeof(int *)));
    CALL(cudaMallocManaged(&seven, sizeof(int)));
    cudaPointerAttributes attributes;
    CALL(cudaPointerGetAttributes(&attributes, seven));
    EXPECT_EQUAL(attributes.type, cudaMemoryTypeManaged);
    *seven = 7;
    CALL(cudaMemcpyToSymbol(place, &seven, sizeof seven));
    for (int i = 0; i < 4; i++) CALL(cudaMalloc(&table[i], 4 * sizeof(int)));
    fill<<<1, 32>>>(table, 4);
    for (int i = 0; i < 4; i++) {
        CALL(cudaMemcpy(&result, &table[i][i], sizeof result, cudaMemcpyDeviceToHost));
        EXPECT_EQUAL(result, 7 + i);
    }
    printf("managed: right\n");
}
