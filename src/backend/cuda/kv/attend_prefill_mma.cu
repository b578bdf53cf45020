/* Implements a prompt's attention by mma.sync and asynchronous copies of 16 bytes, for compute capability 8.0 and later
 * (FlashAttention-2's way).
 *
 * Each of the four warps of a block has 16 or 32 rows of its tile. A tile of queries, a block of keys and a block of values lie in
 * shared memory, rows padded by 16 bytes so that ldmatrix meets no bank twice. The values are loaded while logits are computed, and
 * the next keys while the values are summed. Logits and weights stay in registers: the layout of a product's result is that of the
 * next one's left side. */
#include "backend/cuda/kv/attend_prefill_tile.cuh"
#include "backend/cuda/ptx.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)

/* A shape has the sizes for a head_dim: KEYS rows of keys in a block, TILES tiles of 16 rows of a warp. */
template <int HD> struct mma_shape {
    static constexpr int TILES = HD <= 128 ? 2 : 1, KEYS = 64;
    static constexpr int ROWS = WARPS * 16 * TILES;
    static constexpr int PITCH = HD + 8; /* halves */
    static constexpr int BYTES = (ROWS + 2 * KEYS) * PITCH * 2;
};

static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma(d, a[0], a[1], a[2], a[3], b0, b1);
}

/* Loads a block's rows from `first` of a KV head on, and zeros from row `end` on. */
template <int HD>
static __device__ __forceinline__ void load_rows(uint32_t to, const __half *rows, uint32_t kv_heads, uint32_t head, uint32_t first,
                                                 uint32_t end) {
    constexpr int CHUNKS = HD / 8; /* of 16 bytes */
    using shape = mma_shape<HD>;
#pragma unroll
    for (int i = 0; i < shape::KEYS * CHUNKS / THREADS; i++) {
        int at = (int)threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS;
        bool there = first + r < end;
        copy_async<16>(to + (r * shape::PITCH + c * 8) * 2,
                       rows + ((size_t)(there ? first + r : first) * kv_heads + head) * HD + c * 8, there);
    }
    commit_copies();
}

template <int HD>
static __device__ __forceinline__ void load_queries(__half *to, const struct prefill_launch &a, uint32_t head, uint32_t first_row) {
    using shape = mma_shape<HD>;
    for (int at = (int)threadIdx.x; at < shape::ROWS * (HD / 4); at += THREADS) {
        int r = at / (HD / 4), c = at % (HD / 4) * 4;
        float4 x = *(const float4 *)(a.q + query_offset(a, head, min(first_row + r, a.rows - 1), HD) + c);
        __half2 *half = (__half2 *)(to + r * shape::PITCH + c);
        half[0] = query_halves(x.x, x.y, a.scale);
        half[1] = query_halves(x.z, x.w, a.scale);
    }
}

/* Computes s[tile][8 keys][4] = queries times keys. */
template <int HD>
static __device__ __forceinline__ void logits(float (&s)[mma_shape<HD>::TILES][mma_shape<HD>::KEYS / 8][4], uint32_t q,
                                              uint32_t k) {
    using shape = mma_shape<HD>;
    int lane = threadIdx.x % 32;
    q += (lane % 16 * shape::PITCH + lane / 16 * 8) * 2;
    k += ((lane / 16 * 8 + lane % 8) * shape::PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int t = 0; t < shape::TILES; t++)
#pragma unroll
        for (int j = 0; j < shape::KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[t][j][e] = 0;
#pragma unroll
    for (int c = 0; c < HD / 16; c++) {
        uint32_t left[shape::TILES][4];
#pragma unroll
        for (int t = 0; t < shape::TILES; t++) load_matrices(left[t], q + (t * 16 * shape::PITCH + c * 16) * 2);
#pragma unroll
        for (int j = 0; j < shape::KEYS / 16; j++) {
            uint32_t right[4];
            load_matrices(right, k + (j * 16 * shape::PITCH + c * 16) * 2);
#pragma unroll
            for (int t = 0; t < shape::TILES; t++) {
                multiply(s[t][2 * j], left[t], right[0], right[1]);
                multiply(s[t][2 * j + 1], left[t], right[2], right[3]);
            }
        }
    }
}

/* Adds to o[tile][8 channels][4] the weights times values. */
template <int HD>
static __device__ __forceinline__ void sum_values(float (&o)[mma_shape<HD>::TILES][HD / 8][4],
                                                  const float (&s)[mma_shape<HD>::TILES][mma_shape<HD>::KEYS / 8][4], uint32_t v) {
    using shape = mma_shape<HD>;
    int lane = threadIdx.x % 32;
    v += (lane % 16 * shape::PITCH + lane / 16 * 8) * 2;
#pragma unroll
    for (int j = 0; j < shape::KEYS / 16; j++) {
        uint32_t left[shape::TILES][4];
#pragma unroll
        for (int t = 0; t < shape::TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                left[t][e] = pack_halves(s[t][2 * j + e / 2][e % 2 * 2], s[t][2 * j + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t right[4];
            load_matrices_transposed(right, v + (j * 16 * shape::PITCH + c * 16) * 2);
#pragma unroll
            for (int t = 0; t < shape::TILES; t++) {
                multiply(o[t][2 * c], left[t], right[0], right[1]);
                multiply(o[t][2 * c + 1], left[t], right[2], right[3]);
            }
        }
    }
}

/* ALTERED: logits are capped or have ALiBi, or queries see a window. PLACED, too: rows have places, by which ALiBi counts. */
template <int HD, bool ALTERED, bool PLACED>
static __global__ void __launch_bounds__(THREADS, HD <= 64 ? 2 : 1)
    prefill_mma_kernel(const struct prefill_launch a, const struct row_places places) {
    using shape = mma_shape<HD>;
    constexpr int TILES = shape::TILES, KEYS = shape::KEYS;
    extern __shared__ __align__(16) __half shared[];
    struct prefill_share share = share_of<shape::ROWS, KEYS>(a, blockIdx.x);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t q = shared_address(shared) + warp * 16 * TILES * shape::PITCH * 2,
             k = shared_address(shared + shape::ROWS * shape::PITCH), v = k + KEYS * shape::PITCH * 2;
    uint32_t last_row = min(share.first_row + shape::ROWS, a.rows) - 1;
    uint32_t end = min(a.first_query + last_row / a.group + 1, a.end);         /* rows of keys that any query of the tile reads */
    uint32_t open = min(a.first_query + share.first_row / a.group + 1, a.end); /* that all of them read */

    if (share.first < share.end) load_rows<HD>(k, a.k, a.kv_heads, share.head, a.begin + share.first * KEYS, end);
    load_queries<HD>(shared, a, share.head, share.first_row);

    /* The thread's rows are lane / 4 and lane / 4 + 8 of each tile. Each reads rows of keys up to its `reach`, has a slope and stands at a
     * position. */
    uint32_t reach[TILES][2], position[TILES][2], last_span = PLACED ? places.n - 1 : 0;
    float slope[TILES][2];
    struct row_state state[TILES][2];
    float o[TILES][HD / 8][4] = {};
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = min(share.first_row + (warp * TILES + t) * 16 + lane / 4 + h * 8, a.rows - 1);
            reach[t][h] = min(a.first_query + row / a.group, a.end - 1);
            position[t][h] = PLACED ? token_of_row(&places, a.first_query + row / a.group, &last_span) : reach[t][h];
            slope[t][h] = ALTERED && a.slopes ? a.slopes[share.head * a.group + row % a.group] * LOG2_E : 0;
            state[t][h] = {-INFINITY, 0};
        }

    for (uint32_t block = share.first; block < share.end; block++) {
        uint32_t first = a.begin + block * KEYS;
        float s[TILES][KEYS / 8][4];
        wait_copies<0>();
        __syncthreads(); /* keys are there; the values before are done with */
        load_rows<HD>(v, a.v, a.kv_heads, share.head, first, end);
        logits<HD>(s, q, k);
        wait_copies<0>();
        __syncthreads(); /* values are there; the keys are done with */
        if (block + 1 < share.end) load_rows<HD>(k, a.k, a.kv_heads, share.head, first + KEYS, end);
        const uint32_t first_span = PLACED ? span_of_row(&places, first) : 0;
        bool masked = first + KEYS > open || (ALTERED && end - 1 - first >= a.window);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float largest = -INFINITY, shift;
                uint32_t span = first_span;
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[t][j][2 * h + e];
                        uint32_t row = first + j * 8 + lane % 4 * 2 + e;
                        if (ALTERED && a.cap > 0) x = soft_cap(x, a.cap);
                        if (ALTERED && a.slopes)
                            x += slope[t][h] * (float)(int)((PLACED ? token_of_row(&places, row, &span) : row) - position[t][h]);
                        if (masked && (ALTERED ? reach[t][h] - row >= a.window : row > reach[t][h])) x = -INFINITY;
                        largest = fmaxf(largest, x);
                    }
                float factor = renew(state[t][h], largest_of_row(largest), &shift);
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[t][j][2 * h + e];
                        x = exp2_fast(x - shift);
                        state[t][h].sum += x;
                    }
#pragma unroll
                for (int c = 0; c < HD / 8; c++) {
                    o[t][c][2 * h] *= factor;
                    o[t][c][2 * h + 1] *= factor;
                }
            }
        sum_values<HD>(o, s, v);
    }

#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = share.first_row + (warp * TILES + t) * 16 + lane / 4 + h * 8;
            float sum = sum_of_row(state[t][h].sum);
            if (row >= a.rows) continue;
            float factor = a.splits > 1 ? 1 : row_factor(a, share.head, row, state[t][h].largest, sum);
            size_t part = ((size_t)share.head * a.rows + row) * a.splits + share.split;
            float *to = a.splits > 1 ? a.part_sums + part * HD : a.out + query_offset(a, share.head, row, HD);
            if (a.splits > 1 && lane % 4 == 0) a.part_scales[part] = make_float2(state[t][h].largest, sum);
            if (a.splits == 1 && lane % 4 == 0) leave_log_sum(a, share.head, row, state[t][h].largest, factor);
#pragma unroll
            for (int c = 0; c < HD / 8; c++)
                *(float2 *)(to + c * 8 + lane % 4 * 2) = make_float2(o[t][c][2 * h] * factor, o[t][c][2 * h + 1] * factor);
        }
}

template <int HD, bool ALTERED, bool PLACED = false>
static cudaError_t launch_shape(const struct prefill_launch &a, const struct row_places &places, cudaStream_t stream) {
    cudaError_t result = cudaFuncSetAttribute(prefill_mma_kernel<HD, ALTERED, PLACED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              mma_shape<HD>::BYTES);
    if (result != cudaSuccess) return result;
    prefill_mma_kernel<HD, ALTERED, PLACED><<<a.tiles * a.splits * a.kv_heads, THREADS, mma_shape<HD>::BYTES, stream>>>(a, places);
    return cudaGetLastError();
}

template <int HD>
static cudaError_t launch_heads(const struct prefill_launch &a, const struct row_places &places, cudaStream_t stream) {
    if (a.slopes && places.spans) return launch_shape<HD, true, true>(a, places, stream);
    return a.slopes || a.cap > 0 || a.window != NO_WINDOW ? launch_shape<HD, true>(a, places, stream)
                                                          : launch_shape<HD, false>(a, places, stream);
}

uint32_t prefill_mma_rows(uint32_t head_dim) { return head_dim == 256 ? mma_shape<256>::ROWS : mma_shape<128>::ROWS; }

cudaError_t prefill_mma(const struct prefill_launch &launch, const struct row_places &places, uint32_t head_dim,
                        cudaStream_t stream) {
    switch (head_dim) {
    case 64: return launch_heads<64>(launch, places, stream);
    case 96: return launch_heads<96>(launch, places, stream);
    case 128: return launch_heads<128>(launch, places, stream);
    case 256: return launch_heads<256>(launch, places, stream);
    }
    return cudaErrorInvalidValue;
}
