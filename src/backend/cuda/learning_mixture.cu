/* Weighs the codewords of a round of tables for points (train/em.h, the E step), and sums what the M step needs. A block of threads takes
 * a chunk of points one after another: of a point's 64 x 64 cells a thread has 16, in one row, whose half squared norms and sums of weights
 * stay in its registers. What the blocks have summed is added in their order, in double precision. */
#include "backend/cuda/learning_kernels.h"

#include "backend/cuda/block_sums.cuh"

#define THREADS 256
#define ENTRIES LEARNING_ENTRIES
#define WIDTH (2 * ENTRIES)                 /* shares of a point: of entries as a, then as b */
#define CELLS (ENTRIES * ENTRIES / THREADS) /* of a thread: row t / 4, from column t % 4 * CELLS on */
#define ROW_THREADS (ENTRIES / CELLS)
#define TOGETHER 16 /* points whose rows and shares lie in shared memory */
#define PATCH 8     /* shares and channels of a thread's sums: PATCH x PATCH */

struct least {
    float value;
    uint32_t cell;
};

__device__ static inline struct least lesser(struct least a, struct least b) {
    return a.value < b.value || (a.value == b.value && a.cell < b.cell) ? a : b;
}

__device__ static inline struct least warp_least(struct least x) {
    for (int apart = 16; apart; apart /= 2) {
        const struct least other = {__shfl_xor_sync(~0u, x.value, apart), __shfl_xor_sync(~0u, x.cell, apart)};
        x = lesser(x, other);
    }
    return x;
}

/* Returns the least of all threads; of equal ones that of the lowest cell. */
__device__ static inline struct least block_least(struct least x) {
    __shared__ float values[THREADS / 32];
    __shared__ uint32_t cells[THREADS / 32];
    x = warp_least(x);
    __syncthreads(); /* those of the point before are read */
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = x.value;
        cells[threadIdx.x / 32] = x.cell;
    }
    __syncthreads();
    const uint32_t i = threadIdx.x % (THREADS / 32);
    return warp_least(least{values[i], cells[i]});
}

struct together {
    float rows[TOGETHER][LEARNING_MOST_CHANNELS];
    float products[TOGETHER][WIDTH];
    float shares[TOGETHER][WIDTH];
    float cells[ENTRIES][ENTRIES + 1];
    float columns[THREADS / ENTRIES][ENTRIES];
    float squares[TOGETHER];
};

/* Loads `count` points, and computes their squares and their products with the panel. */
__device__ static inline void load(struct together *t, const struct learning_mixture &m, uint32_t first, uint32_t count) {
    const uint32_t d = m.channels, column = threadIdx.x % WIDTH, from = threadIdx.x / WIDTH * (TOGETHER / 2);
    __syncthreads(); /* the points before are done with */
    for (uint32_t i = threadIdx.x; i < TOGETHER * d; i += THREADS)
        t->rows[i / d][i % d] = i / d < count ? m.rows[(size_t)m.ids[first + i / d] * d + i % d] : 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x / 32; p < TOGETHER; p += THREADS / 32) {
        float sum = 0;
        for (uint32_t j = threadIdx.x % 32; j < d; j += 32) sum += t->rows[p][j] * t->rows[p][j];
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) t->squares[p] = sum;
    }
    float sums[TOGETHER / 2] = {};
    for (uint32_t j = 0; j < d; j++) {
        const float number = m.panel[j * WIDTH + column];
#pragma unroll
        for (uint32_t p = 0; p < TOGETHER / 2; p++) sums[p] += number * t->rows[from + p][j];
    }
    for (uint32_t p = 0; p < TOGETHER / 2; p++) t->products[from + p][column] = sums[p];
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS, 2) weigh(struct learning_mixture m) {
    extern __shared__ __align__(16) char memory[];
    struct together *t = (struct together *)memory;
    const uint32_t a = threadIdx.x / ROW_THREADS, b = threadIdx.x % ROW_THREADS * CELLS, d = m.channels;
    const uint32_t share = threadIdx.x / 16 * PATCH, channel = threadIdx.x % 16 * PATCH;
    float half[CELLS], counts[CELLS] = {}, sums[PATCH][PATCH] = {};
    for (uint32_t i = 0; i < CELLS; i++) half[i] = m.half[a * ENTRIES + b + i];
    const uint32_t begin = blockIdx.x * m.chunk, end = begin + m.chunk < m.n ? begin + m.chunk : m.n;
    for (uint32_t first = begin; first < end; first += TOGETHER) {
        const uint32_t count = end - first < TOGETHER ? end - first : TOGETHER;
        load(t, m, first, count);
        for (uint32_t p = 0; p < TOGETHER; p++) { /* those beyond `count` weigh nothing */
            const float weight = p < count ? m.weights[m.ids[first + p]] : 0, *products = t->products[p];
            float values[CELLS], sum = 0;
            struct least own = {INFINITY, 0};
#pragma unroll
            for (uint32_t i = 0; i < CELLS; i++) {
                values[i] = half[i] - products[a] - products[ENTRIES + b + i];
                own = lesser(own, least{values[i], a * ENTRIES + b + i});
            }
            const struct least best = block_least(own);
            const float limit = best.value + m.faint;
#pragma unroll
            for (uint32_t i = 0; i < CELLS; i++) {
                const bool in = limit > best.value ? values[i] < limit : a * ENTRIES + b + i == best.cell;
                values[i] = in ? expf((values[i] - best.value) * m.scale) : 0;
                sum += values[i];
            }
            const float part = weight / block_sum(sum);
            float row = 0, column = 0;
#pragma unroll
            for (uint32_t i = 0; i < CELLS; i++) {
                values[i] *= part;
                counts[i] += values[i];
                row += values[i];
                t->cells[a][b + i] = values[i];
            }
            for (int apart = 1; apart < ROW_THREADS; apart *= 2) row += __shfl_xor_sync(~0u, row, apart);
            if (threadIdx.x % ROW_THREADS == 0) t->shares[p][a] = row;
            __syncthreads();
            const uint32_t quarter = threadIdx.x / ENTRIES;
            for (uint32_t i = 0; i < ENTRIES / (THREADS / ENTRIES); i++)
                column += t->cells[quarter * (ENTRIES / (THREADS / ENTRIES)) + i][threadIdx.x % ENTRIES];
            t->columns[quarter][threadIdx.x % ENTRIES] = column;
            __syncthreads();
            if (threadIdx.x < ENTRIES) {
                float all = 0;
                for (uint32_t i = 0; i < THREADS / ENTRIES; i++) all += t->columns[i][threadIdx.x];
                t->shares[p][ENTRIES + threadIdx.x] = all;
            }
            if (threadIdx.x == 0 && p < count) {
                m.codes[first + p] = (uint16_t)(best.cell / ENTRIES + best.cell % ENTRIES * ENTRIES);
                m.errors[first + p] = weight * fmaxf(t->squares[p] + 2 * best.value, 0);
            }
        }
        __syncthreads();
        for (uint32_t p = 0; p < count && channel < d; p++)
#pragma unroll
            for (uint32_t i = 0; i < PATCH; i++)
#pragma unroll
                for (uint32_t j = 0; j < PATCH; j++) sums[i][j] += t->shares[p][share + i] * t->rows[p][channel + j];
    }
    float *to = m.partial + (size_t)blockIdx.x * LEARNING_PARTIAL(d);
    for (uint32_t i = 0; i < CELLS; i++) to[a * ENTRIES + b + i] = counts[i];
    to += ENTRIES * ENTRIES;
    for (uint32_t i = 0; i < PATCH && channel < d; i++)
        for (uint32_t j = 0; j < PATCH; j++) to[(share + i) * d + channel + j] = sums[i][j];
}

__device__ static inline double over_blocks(const struct learning_mixture &m, uint32_t blocks, size_t at) {
    double sum = 0;
    for (uint32_t i = 0; i < blocks; i++) sum += (double)m.partial[i * LEARNING_PARTIAL(m.channels) + at];
    return sum;
}

/* Adds what the blocks have: counts, then for each entry the shares as a times rows, less i times those as b. */
__global__ void add_blocks(struct learning_mixture m, uint32_t blocks) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, d = m.channels, pairs = d / 2, cells = ENTRIES * ENTRIES;
    if (i < cells) m.counts[i] = over_blocks(m, blocks, i);
    if (i < cells || i >= cells + ENTRIES * d) return;
    const uint32_t k = (i - cells) / d, j = (i - cells) % d;
    const double as_a = over_blocks(m, blocks, cells + (size_t)k * d + j),
                 as_b = over_blocks(m, blocks, cells + (size_t)(ENTRIES + k) * d + (j < pairs ? pairs + j : j - pairs));
    m.sums[i - cells] = j < pairs ? as_a + as_b : as_a - as_b;
}

extern "C" cudaError_t learning_weigh(const struct learning_mixture *mixture, cudaStream_t stream) {
    const uint32_t blocks = (mixture->n + mixture->chunk - 1) / mixture->chunk, items = ENTRIES * (ENTRIES + mixture->channels);
    cudaError_t result =
        cudaFuncSetAttribute((const void *)weigh, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct together));
    if (result != cudaSuccess) return result;
    weigh<<<blocks, THREADS, sizeof(struct together), stream>>>(*mixture);
    add_blocks<<<(items + 255) / 256, 256, 0, stream>>>(*mixture, blocks);
    return cudaGetLastError();
}
