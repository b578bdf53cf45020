/* Has the code that the kernels of a prompt's attention share: the arguments of a block, the places of its rows, the softmax's
 * steps. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_TILE_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_TILE_CUH

#include "backend/cuda/kv/soft_cap.cuh"
#include "backend/cuda/kv/view.h"
#include "backend/cuda/ptx.cuh"

#define LOG2_E 1.4426950408889634f
/* Weights are held 2^BIAS times too large, so that a weight of 2^-14 of the largest is still a half of full precision. */
#define BIAS 8.f

/* Kernels take a prefill_launch by value. Rows of a tile are those of struct attend_prefill's comment, `rows` = n G of a KV
 * head. */
struct prefill_launch {
    const float *q;
    float *out;
    const __half *k, *v;
    const float *slopes, *sinks; /* of query heads; sinks are the layer's; NULL: none */
    float *part_sums;            /* [Hk][rows][splits][hd], or NULL where splits is 1 */
    float2 *part_scales;         /* [Hk][rows][splits]: of a part, its largest logit and its sum of weights */
    float *log_sums;             /* as in struct attend_prefill */
    size_t log_stride;
    uint32_t rows, group, kv_heads, first_query, begin, end, tiles, splits;
    uint32_t window; /* a query sees so many rows, its own the last; NO_WINDOW: all of them */
    float scale;     /* of logits, times log2 e */
    float cap;       /* of logits, times log2 e; 0: none */
};
#define NO_WINDOW (1u << 31) /* more than rows are apart; of the difference to a later row, which is negative, less */

/* A share is the work of block b of a launch: blocks of keys [first, end) of `keys` rows each, counted from `begin`, for one tile.
 * Tiles that read most come first, so that short ones fill the end. */
struct prefill_share {
    uint32_t head, first_row, split, first, end;
};

template <uint32_t ROWS, uint32_t KEYS>
static __device__ __forceinline__ struct prefill_share share_of(const struct prefill_launch &a, uint32_t b) {
    struct prefill_share s;
    s.head = b % a.kv_heads;
    b /= a.kv_heads;
    s.split = b % a.splits;
    s.first_row = (a.tiles - 1 - b / a.splits) * ROWS;
    uint32_t last = min(s.first_row + ROWS, a.rows) - 1;
    uint32_t blocks = (min(a.first_query + last / a.group + 1, a.end) - a.begin + KEYS - 1) / KEYS;
    uint32_t seen = min(a.first_query + s.first_row / a.group + 1, a.end) - a.begin,
             before = seen > a.window ? (seen - a.window) / KEYS : 0;
    s.first = before + (uint32_t)((uint64_t)(blocks - before) * s.split / a.splits);
    s.end = before + (uint32_t)((uint64_t)(blocks - before) * (s.split + 1) / a.splits);
    return s;
}

/* Returns what 1 over a row's sum of weights becomes with the weight of its learned sink, if it has one. `largest` is the logit by
 * which weights are 2^BIAS. */
static __device__ __forceinline__ float row_factor(const struct prefill_launch &a, uint32_t head, uint32_t row, float largest,
                                                   float sum) {
    if (a.sinks && sum > 0) sum += exp2_fast(a.sinks[head * a.group + row % a.group] * LOG2_E - largest + BIAS);
    return sum > 0 ? 1 / sum : 0;
}

/* Leaves the logarithm of a row's sum, if it is wanted, by one of the threads that have the row's `factor`. */
static __device__ __forceinline__ void leave_log_sum(const struct prefill_launch &a, uint32_t head, uint32_t row, float largest,
                                                     float factor) {
    if (a.log_sums) a.log_sums[head * a.log_stride + row] = factor > 0 ? largest - BIAS - log2f(factor) : INFINITY;
}

/* Returns where row r's query and its result begin. Rows past the last read the last one's. */
static __device__ __forceinline__ size_t query_offset(const struct prefill_launch &a, uint32_t head, uint32_t row, uint32_t hd) {
    return ((size_t)(row / a.group) * a.kv_heads * a.group + head * a.group + row % a.group) * hd;
}

/* Returns two channels as the kernels take them. Numbers larger than a half can hold become the largest half. */
static __device__ __forceinline__ __half2 query_halves(float x, float y, float scale) {
    return __floats2half2_rn(fminf(fmaxf(x * scale, -65504.f), 65504.f), fminf(fmaxf(y * scale, -65504.f), 65504.f));
}

static __device__ __forceinline__ uint32_t pack_halves(float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}

/* Returns the largest of the four lanes that hold a row. */
static __device__ __forceinline__ float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* A row_state is one row's running softmax; each thread has its own part of `sum`. */
struct row_state {
    float largest, sum;
};

/* Takes in a block's largest logit. Returns the factor for earlier sums; *shift is to be subtracted from logits. */
static __device__ __forceinline__ float renew(struct row_state &s, float largest, float *shift) {
    float before = s.largest;
    s.largest = fmaxf(before, largest);
    *shift = s.largest == -INFINITY ? 0 : s.largest - BIAS;
    float factor = s.largest == -INFINITY ? 1 : exp2_fast(before - s.largest);
    s.sum *= factor;
    return factor;
}

static __host__ __device__ __forceinline__ uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/* These are the two kernels. prefill_wgmma runs where it was built in and the device has its instructions, and knows no places, which would
 * take registers that it lacks. */
uint32_t prefill_mma_rows(uint32_t head_dim); /* of a tile */
cudaError_t prefill_mma(const struct prefill_launch &launch, const struct row_places &places, uint32_t head_dim,
                        cudaStream_t stream);
bool prefill_wgmma_serves();
uint32_t prefill_wgmma_rows(uint32_t head_dim);
cudaError_t prefill_wgmma(const struct prefill_launch &launch, uint32_t head_dim, cudaStream_t stream);

#endif
