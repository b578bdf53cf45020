/* Computes weights of attention, and gradients, from logits of a tile of queries; matrix products are cuBLASLt's. A block of threads
 * takes the row of a query and a head. */
#include "backend/cuda/learning_kernels.h"

#include "backend/cuda/block_sums.cuh"

#define THREADS 128

/* A row is a query of a head: block (token, head). It sees keys [from, to). */
struct row {
    uint32_t token, head, from, to;
    size_t at; /* of its logits */
    float slope;
};

__device__ static inline struct row row_of(const struct learning_tile &tile) {
    const uint32_t token = tile.first + blockIdx.x, head = blockIdx.y, kv_head = head / tile.group, g = head % tile.group;
    struct row r = {token, head, 0, token + 1, 0, tile.slopes ? tile.slopes[head] : 0};
    if (tile.window && r.to > tile.window) r.from = r.to - tile.window;
    r.at = (((size_t)g * tile.kv_heads + kv_head) * tile.count + blockIdx.x) * tile.stride;
    return r;
}

__device__ static inline float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }

/* ALiBi depends on how far a key is from the query. */
__device__ static inline float logit_of(const struct learning_tile &tile, const struct row &r, float x, uint32_t key) {
    return capped(x, tile.cap) + r.slope * ((float)key - (float)r.token);
}

__global__ void __launch_bounds__(THREADS) softmax(struct learning_tile tile, float *logits, float *log_sum) {
    const struct row r = row_of(tile);
    float *x = logits + r.at, most = -INFINITY, sum = 0;
    for (uint32_t j = r.from + threadIdx.x; j < r.to; j += THREADS) most = fmaxf(most, x[j] = logit_of(tile, r, x[j], j));
    most = block_most(most);
    if (tile.sinks) most = fmaxf(most, tile.sinks[r.head]);
    for (uint32_t j = threadIdx.x; j < tile.keys; j += THREADS) sum += x[j] = j >= r.from && j < r.to ? expf(x[j] - most) : 0;
    sum = block_sum(sum);
    if (tile.sinks) sum += expf(tile.sinks[r.head] - most);
    for (uint32_t j = r.from + threadIdx.x; j < r.to; j += THREADS) x[j] /= sum;
    if (threadIdx.x == 0) log_sum[(size_t)r.token * gridDim.y + r.head] = most + logf(sum);
}

/* A warp takes a head. */
__global__ void products_of(struct learning_tile tile, const float *a, const float *b, float *products) {
    const uint32_t heads = tile.kv_heads * tile.group, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= tile.count * heads) return;
    const size_t at = ((size_t)tile.first * heads + row) * tile.head_dim;
    float sum = 0;
    for (uint32_t c = threadIdx.x % 32; c < tile.head_dim; c += 32) sum += a[at + c] * b[at + c];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) products[row] = sum;
}

__global__ void __launch_bounds__(THREADS)
    softmax_backward(struct learning_tile tile, const float *log_sum, const float *products, float *logits, float *d) {
    const struct row r = row_of(tile);
    const float all = log_sum[(size_t)r.token * gridDim.y + r.head], product = products[(size_t)blockIdx.x * gridDim.y + r.head];
    float *x = logits + r.at, *own = d + r.at;
    for (uint32_t j = threadIdx.x; j < tile.keys; j += THREADS) {
        const bool seen = j >= r.from && j < r.to;
        const float weight = seen ? expf(logit_of(tile, r, x[j], j) - all) : 0, part = tile.cap > 0 ? tanhf(x[j] / tile.cap) : 0;
        own[j] = seen ? (own[j] - product) * (1 - part * part) * weight : 0;
        x[j] = weight;
    }
}

extern "C" cudaError_t learning_softmax(const struct learning_tile *tile, float *logits, float *log_sum, cudaStream_t stream) {
    softmax<<<dim3(tile->count, tile->kv_heads * tile->group), THREADS, 0, stream>>>(*tile, logits, log_sum);
    return cudaGetLastError();
}

extern "C" cudaError_t learning_products(const struct learning_tile *tile, const float *a, const float *b, float *products,
                                         cudaStream_t stream) {
    const uint32_t rows = tile->count * tile->kv_heads * tile->group;
    products_of<<<(rows + 3) / 4, 128, 0, stream>>>(*tile, a, b, products);
    return cudaGetLastError();
}

extern "C" cudaError_t learning_softmax_backward(const struct learning_tile *tile, const float *log_sum, const float *products,
                                                 float *logits, float *d, cudaStream_t stream) {
    softmax_backward<<<dim3(tile->count, tile->kv_heads * tile->group), THREADS, 0, stream>>>(*tile, log_sum, products, logits, d);
    return cudaGetLastError();
}
