/* Ranks tokens by attention: computes products in tiles of 64 query rows and 64 keys, a block of 256 threads each, four times four
 * products a thread. */
#include "backend/cuda/kv/rank.h"

#include "backend/cuda/kv/soft_cap.cuh"
#include "backend/cuda/select_largest.cuh"

#include <math.h>

#define TILE 64  /* query rows, and keys */
#define SLICE 32 /* channels that are in shared memory at a time */
#define THREADS 256
#define EACH 4     /* rows and keys of a thread: 16 apart */
#define CHUNK 1024 /* keys whose sums a block makes */
#define CHOOSERS 512

/* ---- Memory: states[Hk][rows of queries][chunks], then of the whole rows; scores[Hk][n], pooled[Hk][n] */

static __host__ __device__ uint32_t query_rows(const struct rank_tokens &r) {
    return r.n_queries * (r.heads.query_heads / r.heads.kv_heads);
}
static __host__ __device__ uint32_t chunks_of(uint32_t rows) { return (rows + CHUNK - 1) / CHUNK; }
static __device__ float2 *states_of(const struct rank_tokens &r, uint32_t head) {
    return (float2 *)r.memory + (size_t)head * query_rows(r) * chunks_of(r.rows);
}
static __device__ float2 *wholes_of(const struct rank_tokens &r, uint32_t head) {
    return states_of(r, r.heads.kv_heads) + (size_t)head * query_rows(r);
}
static __device__ float *scores_of(const struct rank_tokens &r, uint32_t head) {
    return (float *)wholes_of(r, r.heads.kv_heads) + (size_t)head * r.n;
}
static __device__ float *pooled_of(const struct rank_tokens &r, uint32_t head) {
    return scores_of(r, r.heads.kv_heads) + (size_t)head * r.n;
}

size_t rank_floats(const struct head_view *heads, uint32_t n_queries, uint32_t rows, uint32_t n) {
    size_t states = (size_t)heads->query_heads * n_queries * (chunks_of(rows) + 1);
    return 2 * states + 2 * (size_t)heads->kv_heads * n;
}

/* ---- Products */

/* Computes x[i][j] = logit of query row m0 + y + 16 i and key row key0 + t + 16 j, where y, t = threadIdx / 16, % 16; -INFINITY
 * where the query does not read the key. */
static __device__ void tile_logits(const struct rank_tokens &r, uint32_t head, uint32_t m0, uint32_t key0, float (&x)[EACH][EACH]) {
    __shared__ float queries[TILE][SLICE + 1], keys[TILE][SLICE + 1];
    const uint32_t y = threadIdx.x / 16, t = threadIdx.x % 16, hd = r.heads.head_dim;
    const uint32_t group = r.heads.query_heads / r.heads.kv_heads, n_rows = query_rows(r);
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) x[i][j] = 0;
    for (uint32_t first = 0; first < hd; first += SLICE) {
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < TILE * SLICE; at += THREADS) {
            uint32_t row = at / SLICE, c = at % SLICE, m = m0 + row, key = key0 + row;
            size_t query = (size_t)(m / group) * r.heads.query_heads + head * group + m % group;
            queries[row][c] = m < n_rows ? r.q[query * hd + first + c] : 0;
            keys[row][c] = key < r.rows ? __half2float(r.k[((size_t)key * r.heads.kv_heads + head) * hd + first + c]) : 0;
        }
        __syncthreads();
        for (uint32_t c = 0; c < SLICE; c++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) x[i][j] += queries[y + 16 * i][c] * keys[t + 16 * j][c];
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            uint32_t m = m0 + y + 16 * i, key = key0 + t + 16 * j;
            bool reads = m < n_rows && key < r.rows && key <= r.first_query + m / group;
            x[i][j] = reads ? x[i][j] * r.heads.scale : -INFINITY;
            if (reads && r.heads.cap > 0) x[i][j] = soft_cap(x[i][j], r.heads.cap);
        }
}

/* Merges two states of a maximum and a sum of exponentials. */
static __device__ float2 merged(float2 a, float2 b) {
    float most = fmaxf(a.x, b.x);
    if (most == -INFINITY) return a;
    return make_float2(most, a.y * expf(a.x - most) + b.y * expf(b.x - most));
}

/* Computes the states of 64 query rows over a chunk of keys. */
static __global__ void __launch_bounds__(THREADS) states_kernel(struct rank_tokens r) {
    const uint32_t chunk = blockIdx.x, head = blockIdx.y, m0 = blockIdx.z * TILE, y = threadIdx.x / 16;
    float2 own[EACH];
    float x[EACH][EACH];
    for (int i = 0; i < EACH; i++) own[i] = make_float2(-INFINITY, 0);
    for (uint32_t key = chunk * CHUNK; key < (chunk + 1) * CHUNK && key < r.rows; key += TILE) {
        tile_logits(r, head, m0, key, x);
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++) own[i] = merged(own[i], make_float2(x[i][j], 1));
    }
    for (int i = 0; i < EACH; i++) {
        for (int lanes = 8; lanes; lanes /= 2) {
            float most = __shfl_xor_sync(0xffffffffu, own[i].x, lanes), sum = __shfl_xor_sync(0xffffffffu, own[i].y, lanes);
            own[i] = merged(own[i], make_float2(most, sum));
        }
        uint32_t m = m0 + y + 16 * i;
        if (threadIdx.x % 16 == 0 && m < query_rows(r)) states_of(r, head)[(size_t)m * chunks_of(r.rows) + chunk] = own[i];
    }
}

/* Merges the states of whole query rows: the maximum, and 1 over the sum. */
static __global__ void wholes_kernel(struct rank_tokens r) {
    uint32_t m = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, chunks = chunks_of(r.rows);
    if (m >= query_rows(r)) return;
    float2 whole = make_float2(-INFINITY, 0);
    for (uint32_t i = 0; i < chunks; i++) whole = merged(whole, states_of(r, head)[(size_t)m * chunks + i]);
    wholes_of(r, head)[m] = make_float2(whole.x, whole.y > 0 ? 1 / whole.y : 0);
}

/* Computes the scores of 64 tokens: their weights, summed up over all query rows. */
static __global__ void __launch_bounds__(THREADS) scores_kernel(struct rank_tokens r) {
    __shared__ float sums[THREADS / 16][TILE];
    const uint32_t at = blockIdx.x * TILE, head = blockIdx.y, y = threadIdx.x / 16, t = threadIdx.x % 16, n_rows = query_rows(r);
    float x[EACH][EACH], own[EACH] = {};
    for (uint32_t m0 = 0; m0 < n_rows; m0 += TILE) {
        tile_logits(r, head, m0, r.first + at, x);
        for (int i = 0; i < EACH; i++) {
            uint32_t m = m0 + y + 16 * i;
            float2 whole = m < n_rows ? wholes_of(r, head)[m] : make_float2(0, 0);
            for (int j = 0; j < EACH; j++) own[j] += x[i][j] == -INFINITY ? 0 : expf(x[i][j] - whole.x) * whole.y;
        }
    }
    for (int j = 0; j < EACH; j++) sums[y][t + 16 * j] = own[j];
    __syncthreads();
    if (threadIdx.x >= TILE || at + threadIdx.x >= r.n) return;
    float sum = 0;
    for (uint32_t i = 0; i < THREADS / 16; i++) sum += sums[i][threadIdx.x];
    scores_of(r, head)[at + threadIdx.x] = sum;
}

static __global__ void pool_kernel(struct rank_tokens r) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (i >= r.n) return;
    uint32_t first = i > r.neighbours ? i - r.neighbours : 0, last = min(i + r.neighbours, r.n - 1);
    float sum = 0;
    for (uint32_t j = first; j <= last; j++) sum += scores_of(r, head)[j];
    pooled_of(r, head)[i] = sum / (float)(last - first + 1);
}

/* ---- The choice */

/* Returns bits that order as scores do, since scores are not negative; NaN counts as 0. */
static __device__ uint32_t rank_bits(float score) { return score > 0 ? __float_as_uint(score) : 0; }

static __global__ void __launch_bounds__(CHOOSERS) choose_kernel(struct rank_tokens r) {
    const float *scores = pooled_of(r, blockIdx.x);
    uint32_t *marks = (uint32_t *)r.marks + (size_t)blockIdx.x * 2 * (r.n / 32);
    select_largest<CHOOSERS>([&](uint32_t i) { return rank_bits(scores[i]); }, r.n, r.keep,
                             [&](uint32_t place, uint32_t i) {
                                 if (r.kept) r.kept[(size_t)blockIdx.x * r.keep + place] = i;
                                 for (uint32_t side = 0; r.marks && side < 2; side++)
                                     atomicOr(&marks[side * (r.n / 32) + i / 32], 1u << i % 32);
                             });
}

cudaError_t rank_tokens(const struct rank_tokens *rank, cudaStream_t stream) {
    const uint32_t heads = rank->heads.kv_heads, rows = query_rows(*rank);
    if (!rank->keep) return cudaSuccess;
    states_kernel<<<dim3(chunks_of(rank->rows), heads, (rows + TILE - 1) / TILE), THREADS, 0, stream>>>(*rank);
    wholes_kernel<<<dim3((rows + 63) / 64, heads), 64, 0, stream>>>(*rank);
    scores_kernel<<<dim3((rank->n + TILE - 1) / TILE, heads), THREADS, 0, stream>>>(*rank);
    pool_kernel<<<dim3((rank->n + THREADS - 1) / THREADS, heads), THREADS, 0, stream>>>(*rank);
    choose_kernel<<<heads, CHOOSERS, 0, stream>>>(*rank);
    return cudaGetLastError();
}

/* ---- Keeping */

static __global__ void keep_kernel(struct keep_rows k) {
    const uint32_t i = blockIdx.x, head = blockIdx.y, hd = k.head_dim, kept = k.kept[(size_t)head * k.keep + i];
    const size_t from = ((size_t)(k.first + kept) * k.kv_heads + head) * hd, to = ((size_t)2 * head * k.capacity + k.at + i) * hd;
    for (uint32_t c = threadIdx.x; c < hd; c += blockDim.x) {
        k.to[to + c] = k.k[from + c];
        k.to[to + (size_t)k.capacity * hd + c] = k.v[from + c];
    }
    if (threadIdx.x == 0) k.tokens[(size_t)head * k.token_capacity + k.at_token + i] = k.first_token + kept;
}

cudaError_t keep_rows(const struct keep_rows *keep, cudaStream_t stream) {
    if (!keep->keep) return cudaSuccess;
    keep_kernel<<<dim3(keep->keep, keep->kv_heads), 64, 0, stream>>>(*keep);
    return cudaGetLastError();
}
