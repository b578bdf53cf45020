/* Has what benchmarks of kernels share: random rows on the device, and the time of launches by CUDA events, the median of several rounds,
 * each as many launches as fill its share of a second. */
#ifndef TERSE_BENCH_CUDA_MEASURE_CUH
#define TERSE_BENCH_CUDA_MEASURE_CUH

#include "arrays.cuh"

#include <cuda_fp16.h>

#include <algorithm>

#define ROUNDS 7
#define ROUND_MS 30 /* about */

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

/* Returns the microseconds of work that `launch` queues. */
template <class Launch> static double microseconds(Launch launch) {
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "an event"), check(cudaEventCreate(&end), "an event");
    auto launches = [&](int count) {
        float ms;
        check(cudaEventRecord(begin, 0), "timing");
        for (int i = 0; i < count; i++) launch();
        check(cudaEventRecord(end, 0), "timing");
        check(cudaEventSynchronize(end), "a launch");
        check(cudaEventElapsedTime(&ms, begin, end), "timing");
        return ms / (float)count;
    };
    launches(2);
    int count = std::max(1, (int)(ROUND_MS / launches(3)));
    std::vector<float> times;
    for (int i = 0; i < ROUNDS; i++) times.push_back(launches(count));
    std::sort(times.begin(), times.end());
    check(cudaEventDestroy(begin), "freeing"), check(cudaEventDestroy(end), "freeing");
    return times[ROUNDS / 2] * 1e3;
}

#endif
