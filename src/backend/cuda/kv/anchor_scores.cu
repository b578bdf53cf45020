/* Computes Anchor Scores with mma.sync. Keys are the left side of the products, so that a key's weights lie in the same four lanes
 * whatever the query, and are summed up in registers. */
#include "backend/cuda/kv/anchor_scores.h"

#include "backend/cuda/kv/attend_prefill_tile.cuh"

#define WARP 32
#define WARPS 4
#define THREADS (WARP * WARPS)
#define QUERY_ROWS 64 /* that a block takes at a time */
#define SPLITS_MOST 8
#define BLOCKS_WANTED 4 /* of a multiprocessor, before queries are dealt to several blocks */

/* A shape has the sizes for a head_dim: TILES tiles of 16 keys of a warp. A stage has a tile of queries, rows padded by 16 bytes so
 * that ldmatrix meets no bank twice, then their log sums and norms. */
template <int HD> struct score_shape {
    static constexpr int TILES = HD <= 128 ? 2 : 1, KEYS = 16 * WARPS * TILES, PITCH = HD + 8;
    static constexpr int LOG_SUMS = QUERY_ROWS * PITCH * 2, NORMS = LOG_SUMS + QUERY_ROWS * 4, STAGE = NORMS + QUERY_ROWS * 4;
    static constexpr int KEY_BYTES = KEYS * PITCH * 2, BYTES = 2 * STAGE > KEY_BYTES ? 2 * STAGE : KEY_BYTES;
};

static __host__ __device__ uint32_t keys_of_block(uint32_t head_dim) {
    return head_dim <= 128 ? (uint32_t)score_shape<128>::KEYS : (uint32_t)score_shape<256>::KEYS;
}
static __host__ __device__ uint32_t group_of(const struct anchor_scores &s) { return s.heads.query_heads / s.heads.kv_heads; }
static __host__ __device__ uint32_t padded_rows(const struct anchor_scores &s) {
    return ceil_div(s.n * group_of(s), QUERY_ROWS) * QUERY_ROWS;
}

uint32_t anchor_query_rows(const struct head_view *heads, uint32_t n) {
    return ceil_div(n * (heads->query_heads / heads->kv_heads), QUERY_ROWS) * QUERY_ROWS;
}

uint32_t anchor_score_splits(const struct head_view *heads, uint32_t multiprocessors, uint32_t n_tokens) {
    uint32_t blocks = ceil_div(n_tokens, keys_of_block(heads->head_dim)) * heads->kv_heads;
    uint32_t splits = blocks ? BLOCKS_WANTED * multiprocessors / blocks : 1;
    return splits < 1 ? 1 : splits > SPLITS_MOST ? SPLITS_MOST : splits;
}

/* ---- Queries */

/* Prepares a row by a warp. Rows behind the last query's get weights of 0. */
static __global__ void queries_kernel(struct anchor_scores s) {
    const uint32_t group = group_of(s), hd = s.heads.head_dim, head = blockIdx.y, row = blockIdx.x * WARPS + threadIdx.y,
                   rows = padded_rows(s);
    if (row >= rows) return;
    const bool there = row < s.n * group;
    const float *q = s.q + ((size_t)(row / group) * s.heads.query_heads + head * group + row % group) * hd;
    __half2 *to = (__half2 *)((__half *)s.halves + ((size_t)head * rows + row) * hd);
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < hd / 2; c += WARP) {
        float2 x = there ? ((const float2 *)q)[c] : make_float2(0, 0);
        to[c] = query_halves(x.x, x.y, s.heads.scale * LOG2_E);
        sum += x.x * x.x + x.y * x.y;
    }
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x) return;
    s.norms[(size_t)head * rows + row] = sqrtf(sum);
    if (!there) s.log_sums[(size_t)head * rows + row] = INFINITY;
}

cudaError_t prepare_anchor_queries(const struct anchor_scores *scores, cudaStream_t stream) {
    if (!scores->n) return cudaSuccess;
    queries_kernel<<<dim3(padded_rows(*scores) / WARPS, scores->heads.kv_heads), dim3(WARP, WARPS), 0, stream>>>(*scores);
    return cudaGetLastError();
}

/* ---- Scores */

/* Loads the block's keys, and zeros behind the last token, as left sides of products: through shared memory. */
template <int HD>
static __device__ __forceinline__ void load_keys(const struct anchor_scores &s, uint32_t head, uint32_t at, uint32_t shared,
                                                 uint32_t (&keys)[score_shape<HD>::TILES][HD / 16][4]) {
    using shape = score_shape<HD>;
    constexpr int CHUNKS = HD / 8; /* of 16 bytes */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x; i < shape::KEYS * CHUNKS; i += THREADS) {
        uint32_t r = i / CHUNKS, c = i % CHUNKS;
        bool there = at + r < s.n_tokens;
        copy_async<16>(shared + (r * shape::PITCH + c * 8) * 2,
                       (const __half *)s.k + ((size_t)(s.first + (there ? at + r : at)) * s.heads.kv_heads + head) * HD + c * 8,
                       there);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    const uint32_t from = shared + ((warp * 16 * shape::TILES + lane % 16) * shape::PITCH + lane / 16 * 8) * 2;
#pragma unroll
    for (int t = 0; t < shape::TILES; t++)
#pragma unroll
        for (int c = 0; c < HD / 16; c++) load_matrices(keys[t][c], from + (t * 16 * shape::PITCH + c * 16) * 2);
    __syncthreads();
}

template <int HD>
static __device__ __forceinline__ void load_tile(const struct anchor_scores &s, uint32_t head, uint32_t tile, uint32_t to) {
    using shape = score_shape<HD>;
    constexpr int CHUNKS = HD / 8;
    const size_t row = (size_t)head * padded_rows(s) + tile * QUERY_ROWS;
    const __half *from = (const __half *)s.halves + row * HD;
#pragma unroll
    for (int i = 0; i < QUERY_ROWS * CHUNKS / THREADS; i++) {
        uint32_t at = threadIdx.x + i * THREADS;
        copy_async<16>(to + (at / CHUNKS * shape::PITCH + at % CHUNKS * 8) * 2, from + at * 8);
    }
    const uint32_t i = threadIdx.x % QUERY_ROWS;
    copy_async<4>(to + (threadIdx.x < QUERY_ROWS ? shape::LOG_SUMS : shape::NORMS) + 4 * i,
                  (threadIdx.x < QUERY_ROWS ? s.log_sums : s.norms) + row + i);
    commit_copies();
}

/* A block's tile of queries: `masked` where some query does not see all of the block's keys, of which a thread's are rows key0 +
 * 16 t + 8 h of tile t. ALTERED: logits are capped or have ALiBi. */
template <int HD, bool ALTERED>
static __device__ __forceinline__ void add_tile(const struct anchor_scores &s, uint32_t head, uint32_t tile, uint32_t shared,
                                                bool masked, uint32_t key0,
                                                const uint32_t (&keys)[score_shape<HD>::TILES][HD / 16][4],
                                                float (&of_keys)[score_shape<HD>::TILES][2],
                                                float (&of_values)[score_shape<HD>::TILES][2]) {
    using shape = score_shape<HD>;
    const uint32_t lane = threadIdx.x % WARP, group = group_of(s);
    const uint32_t queries = shared + ((lane / 16 * 8 + lane % 8) * shape::PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll 2
    for (int j = 0; j < QUERY_ROWS / 16; j++) {
        float x[shape::TILES][2][4] = {};
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t right[4];
            load_matrices(right, queries + (j * 16 * shape::PITCH + c * 16) * 2);
#pragma unroll
            for (int t = 0; t < shape::TILES; t++) {
                mma(x[t][0], keys[t][c][0], keys[t][c][1], keys[t][c][2], keys[t][c][3], right[0], right[1]);
                mma(x[t][1], keys[t][c][0], keys[t][c][1], keys[t][c][2], keys[t][c][3], right[2], right[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t column = j * 16 + n * 8 + lane % 4 * 2;
            const uint2 sums = load_shared_pair(shared + shape::LOG_SUMS + 4 * column),
                        norms = load_shared_pair(shared + shape::NORMS + 4 * column);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float log_sum = __uint_as_float(e ? sums.y : sums.x), norm = __uint_as_float(e ? norms.y : norms.x);
                const uint32_t row = tile * QUERY_ROWS + column + e;
                const uint32_t reach = masked || ALTERED ? s.first_query + row / group : UINT32_MAX;
                const float slope = ALTERED && s.heads.slopes ? s.heads.slopes[head * group + row % group] * LOG2_E : 0;
#pragma unroll
                for (int t = 0; t < shape::TILES; t++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float logit = x[t][n][2 * h + e];
                        const uint32_t key = key0 + 16 * t + 8 * h;
                        if (ALTERED && s.heads.cap > 0) logit = soft_cap(logit, s.heads.cap * LOG2_E);
                        if (ALTERED && s.heads.slopes) logit += slope * (float)(int)(key - reach);
                        float weight = exp2_fast(logit - log_sum);
                        if (masked && key > reach) weight = 0;
                        of_values[t][h] += weight;
                        of_keys[t][h] = fmaf(fmaf(-weight, weight, weight), norm, of_keys[t][h]);
                    }
            }
        }
    }
}

template <int HD, bool ALTERED>
static __global__ void __launch_bounds__(THREADS, HD <= 128 ? 3 : 2) scores_kernel(const struct anchor_scores s) {
    using shape = score_shape<HD>;
    extern __shared__ __align__(16) uint8_t memory[];
    const uint32_t at = blockIdx.x * shape::KEYS, head = blockIdx.y, split = blockIdx.z, group = group_of(s),
                   shared = shared_address(memory), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t own = warp * 16 * shape::TILES + lane / 4, first = s.first + at, tiles = padded_rows(s) / QUERY_ROWS;
    const uint32_t query = first > s.first_query ? first - s.first_query : 0; /* the first that sees any of the keys */
    if (query >= s.n) return;
    uint32_t keys[shape::TILES][HD / 16][4], stage = 0, tile = query * group / QUERY_ROWS + split;
    float of_keys[shape::TILES][2] = {}, of_values[shape::TILES][2] = {};
    load_keys<HD>(s, head, at, shared, keys);
    if (tile < tiles) load_tile<HD>(s, head, tile, shared);
    for (; tile < tiles; tile += s.splits, stage ^= 1) {
        wait_copies<0>();
        __syncthreads(); /* the tile is there; the one before is done with */
        if (tile + s.splits < tiles) load_tile<HD>(s, head, tile + s.splits, shared + (stage ^ 1) * shape::STAGE);
        const bool masked = first + shape::KEYS - 1 > s.first_query + tile * QUERY_ROWS / group;
        add_tile<HD, ALTERED>(s, head, tile, shared + stage * shape::STAGE, masked, first + own, keys, of_keys, of_values);
    }
    float *scores = s.scores + ((size_t)split * s.heads.kv_heads + head) * 2 * s.n_tokens;
#pragma unroll
    for (int t = 0; t < shape::TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t i = at + own + 16 * t + 8 * h;
            const float key = sum_of_row(of_keys[t][h]), value = sum_of_row(of_values[t][h]);
            if (lane % 4 || i >= s.n_tokens) continue;
            scores[i] += key;
            scores[s.n_tokens + i] += value;
        }
}

template <int HD, bool ALTERED> static cudaError_t launch_shape(const struct anchor_scores &s, cudaStream_t stream) {
    using shape = score_shape<HD>;
    cudaError_t result =
        cudaFuncSetAttribute(scores_kernel<HD, ALTERED>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::BYTES);
    if (result != cudaSuccess) return result;
    const dim3 grid(ceil_div(s.n_tokens, shape::KEYS), s.heads.kv_heads, s.splits);
    scores_kernel<HD, ALTERED><<<grid, THREADS, shape::BYTES, stream>>>(s);
    return cudaGetLastError();
}

template <int HD> static cudaError_t launch_heads(const struct anchor_scores &s, cudaStream_t stream) {
    return s.heads.cap > 0 || s.heads.slopes ? launch_shape<HD, true>(s, stream) : launch_shape<HD, false>(s, stream);
}

cudaError_t add_anchor_scores(const struct anchor_scores *scores, cudaStream_t stream) {
    if (!scores->n || !scores->n_tokens) return cudaSuccess;
    switch (scores->heads.head_dim) {
    case 64: return launch_heads<64>(*scores, stream);
    case 96: return launch_heads<96>(*scores, stream);
    case 128: return launch_heads<128>(*scores, stream);
    case 256: return launch_heads<256>(*scores, stream);
    }
    return cudaErrorInvalidValue;
}

/* ---- Errors */

/* Scales the scores of a token, KV head and side by a warp. */
static __global__ void scale_kernel(const struct anchor_errors e) {
    const uint32_t hd = e.head_dim, of = blockIdx.y * WARPS + threadIdx.y, head = of / 2, side = of % 2, t = blockIdx.x;
    if (head >= e.kv_heads) return;
    const size_t row = ((size_t)t * e.kv_heads + head) * hd, plane = (size_t)e.kv_heads * 2 * e.n_tokens;
    const __half *x = (const __half *)e.rows[side] + row, *y = (const __half *)e.decoded[side] + row;
    float error = 0;
    for (uint32_t c = threadIdx.x; c < hd; c += WARP) {
        float difference = __half2float(x[c]) - __half2float(y[c]);
        error += e.l1 ? fabsf(difference) : difference * difference;
    }
    for (int lanes = 16; lanes; lanes /= 2) error += __shfl_xor_sync(~0u, error, lanes);
    if (threadIdx.x) return;
    float *score = e.scores + (size_t)of * e.n_tokens + e.first + t, sum = 0;
    for (uint32_t split = 0; split < e.splits; split++) sum += score[split * plane];
    *score = sum * error;
}

cudaError_t scale_anchor_scores(const struct anchor_errors *errors, cudaStream_t stream) {
    if (!errors->count) return cudaSuccess;
    scale_kernel<<<dim3(errors->count, ceil_div(2 * errors->kv_heads, WARPS)), dim3(WARP, WARPS), 0, stream>>>(*errors);
    return cudaGetLastError();
}
