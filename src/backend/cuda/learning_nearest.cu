/* Finds the nearest centroid of each point. A thread holds some points in registers, a block goes through the centroids a tile at a
 * time in shared memory: nothing of the size of points times centroids exists. Distances are sums of squared differences in fp32, in
 * order of the channels, so that nothing cancels and every run finds the same. */
#include "backend/cuda/learning_kernels.h"

#include <math.h>

#define THREADS 128
#define POINTS 4         /* of a thread */
#define TILE_FLOATS 4096 /* of centroids in shared memory */

template <int D>
__global__ void __launch_bounds__(THREADS)
    nearest(const float *points, uint32_t n, const float *centroids, uint32_t k, uint16_t *codes) {
    __shared__ __align__(16) float tile[TILE_FLOATS];
    constexpr uint32_t COUNT = TILE_FLOATS / D;
    const uint32_t first = blockIdx.x * THREADS * POINTS + threadIdx.x;
    float x[POINTS][D], best[POINTS];
    uint32_t code[POINTS];
    for (int p = 0; p < POINTS; p++) {
        const uint32_t row = first + p * THREADS;
        for (int i = 0; i < D; i++) x[p][i] = row < n ? points[(size_t)row * D + i] : 0;
        best[p] = INFINITY;
        code[p] = 0;
    }
    for (uint32_t from = 0; from < k; from += COUNT) {
        const uint32_t count = k - from < COUNT ? k - from : COUNT;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count * D; i += THREADS) tile[i] = centroids[(size_t)from * D + i];
        __syncthreads();
        for (uint32_t c = 0; c < count; c++) {
            float square[POINTS] = {};
#pragma unroll
            for (int i = 0; i < D; i++) {
                const float number = tile[c * D + i];
#pragma unroll
                for (int p = 0; p < POINTS; p++) {
                    const float difference = x[p][i] - number;
                    square[p] += difference * difference;
                }
            }
#pragma unroll
            for (int p = 0; p < POINTS; p++) {
                code[p] = square[p] < best[p] ? from + c : code[p];
                best[p] = square[p] < best[p] ? square[p] : best[p];
            }
        }
    }
    for (int p = 0; p < POINTS; p++)
        if (first + p * THREADS < n) codes[first + p * THREADS] = (uint16_t)code[p];
}

template <int D>
static cudaError_t launch(const float *points, uint32_t n, const float *centroids, uint32_t k, uint16_t *codes,
                          cudaStream_t stream) {
    nearest<D><<<(n + THREADS * POINTS - 1) / (THREADS * POINTS), THREADS, 0, stream>>>(points, n, centroids, k, codes);
    return cudaGetLastError();
}

extern "C" cudaError_t learning_nearest(const float *points, uint32_t n, uint32_t d, const float *centroids, uint32_t k,
                                        uint16_t *codes, cudaStream_t stream) {
    switch (d) {
    case 2: return launch<2>(points, n, centroids, k, codes, stream);
    case 4: return launch<4>(points, n, centroids, k, codes, stream);
    case 8: return launch<8>(points, n, centroids, k, codes, stream);
    case 16: return launch<16>(points, n, centroids, k, codes, stream);
    case 32: return launch<32>(points, n, centroids, k, codes, stream);
    default: return cudaErrorInvalidValue;
    }
}
