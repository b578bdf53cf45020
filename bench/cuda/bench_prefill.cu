/* bench_prefill_cuda measures the time of a prompt's attention over one layer, by CUDA events: the median of several rounds, each
 * as many launches as fill its share of a second. Prints lines "NAME QUERIES FIRST_QUERY HEAD_DIM MICROSECONDS TFLOPS", which
 * prefill_attention.py sets beside PyTorch's. A multiplication and an addition are two operations; those behind the mask are not
 * counted. */
#include "backend/cuda/kv/attend_prefill.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define HEADS 32
#define KV_HEADS 8
#define ROUNDS 7
#define ROUND_MS 30 /* about */

static void check(cudaError_t result, const char *doing) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "bench_prefill_cuda: %s: %s\n", doing, cudaGetErrorString(result));
    exit(1);
}

/* Returns the sum of four uniform numbers: near enough to normal, of variance 1. */
static __device__ float random_number(uint64_t i, uint32_t seed) {
    uint32_t x = (uint32_t)i * 2654435761u + seed + (uint32_t)(i >> 32), sum = 0;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    for (int b = 0; b < 4; b++) sum += x >> 8 * b & 255;
    return ((float)sum - 510) / 147.8f;
}
static __global__ void fill_floats(float *to, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = random_number(i, seed);
}
static __global__ void fill_halves(__half *to, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = __float2half(random_number(i, seed));
}

static void measure(uint32_t head_dim, size_t n, size_t first_query) {
    size_t rows = first_query + n;
    float *q, *out, *parts;
    __half *k, *v;
    cudaEvent_t begin, end;
    struct attend_prefill attend = {};
    attend.heads.layers = 1;
    attend.heads.query_heads = HEADS;
    attend.heads.kv_heads = KV_HEADS;
    attend.heads.head_dim = head_dim;
    attend.heads.scale = 1 / sqrtf((float)head_dim);
    check(cudaMalloc(&q, n * HEADS * head_dim * sizeof *q), "queries");
    check(cudaMalloc(&out, n * HEADS * head_dim * sizeof *out), "results");
    check(cudaMalloc(&k, rows * KV_HEADS * head_dim * sizeof *k), "keys");
    check(cudaMalloc(&v, rows * KV_HEADS * head_dim * sizeof *v), "values");
    check(cudaMalloc(&parts, attend_prefill_part_floats(&attend.heads) * sizeof *parts), "partial states");
    fill_floats<<<1024, 256>>>(q, n * HEADS * head_dim, 1);
    fill_halves<<<1024, 256>>>(k, rows * KV_HEADS * head_dim, 2);
    fill_halves<<<1024, 256>>>(v, rows * KV_HEADS * head_dim, 3);
    attend.q = q;
    attend.n = n;
    attend.first_query = first_query;
    attend.k = k;
    attend.v = v;
    attend.out = out;
    attend.parts = parts;
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");

    auto launches = [&](int count) {
        float ms;
        check(cudaEventRecord(begin, 0), "timing");
        for (int i = 0; i < count; i++) check(attend_prefill_launch(&attend, 0), "attention");
        check(cudaEventRecord(end, 0), "timing");
        check(cudaEventSynchronize(end), "attention");
        check(cudaEventElapsedTime(&ms, begin, end), "timing");
        return ms / (float)count;
    };
    launches(2);
    int count = std::max(1, (int)(ROUND_MS / launches(3)));
    std::vector<float> times;
    for (int i = 0; i < ROUNDS; i++) times.push_back(launches(count));
    std::sort(times.begin(), times.end());
    double us = times[ROUNDS / 2] * 1e3, pairs = (double)n * first_query + (double)n * (n + 1) / 2;
    printf("terse %zu %zu %u %.1f %.1f\n", n, first_query, head_dim, us, pairs * 4 * head_dim * HEADS / us * 1e-6);
    fflush(stdout);
    check(cudaFree(q), "freeing"), check(cudaFree(out), "freeing"), check(cudaFree(parts), "freeing");
    check(cudaFree(k), "freeing"), check(cudaFree(v), "freeing");
    check(cudaEventDestroy(begin), "freeing"), check(cudaEventDestroy(end), "freeing");
}

/* Runs bench_prefill_cuda [HEAD_DIM QUERIES FIRST_QUERY]: one shape, or all. */
int main(int argc, char **argv) {
    if (argc == 4) {
        measure((uint32_t)atoi(argv[1]), (size_t)atoll(argv[2]), (size_t)atoll(argv[3]));
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: bench_prefill_cuda [HEAD_DIM QUERIES FIRST_QUERY]\n");
        return 2;
    }
    static const uint32_t head_dims[] = {128, 64};
    static const size_t lengths[] = {4096, 16384, 65536};
    for (uint32_t hd : head_dims) {
        for (size_t n : lengths) measure(hd, n, 0);
        measure(hd, 100, 32768);
        measure(hd, 2048, 32768);
    }
    measure(96, 16384, 0);
    measure(256, 16384, 0);
    return 0;
}
