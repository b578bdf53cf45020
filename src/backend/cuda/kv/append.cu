/* Moves rows. A block takes a token and a warp of it a head; none of this takes a thousandth of a step. */
#include "backend/cuda/kv/append.h"

#include "backend/cuda/kv/rotary.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#define WARP 32
#define HEADS_OF_BLOCK 4 /* warps */

/* Calls put(channel, value) for all channels of row[hd] rotated by `position`, times the magnitude; a warp's work. */
template <class Put>
static __device__ void rotate_row(const struct rotary_view &r, uint32_t hd, uint32_t position, const float *row, Put put) {
    for (uint32_t i = threadIdx.x; i < r.n_rot / 2; i += WARP) {
        uint2 at = pair_at(r, i);
        float2 x = rotate(make_float2(row[at.x], row[at.y]), angle_at(r, position, i));
        put(at.x, x.x * r.magnitude);
        put(at.y, x.y * r.magnitude);
    }
    for (uint32_t c = r.n_rot + threadIdx.x; c < hd; c += WARP) put(c, row[c]);
}

/* ---- Decoding */

/* Returns where token `position` of a sequence is kept. */
static __device__ __half *place_of(const struct sequence_view &s, const struct head_view &h, uint32_t layer, uint32_t head,
                                   int side, uint32_t position) {
    if (position < s.first_exact) return (__half *)exact_rows_at(&s, &h, layer, head, side) + (size_t)position * h.head_dim;
    return window_rows_at(&s, &h, layer, head, side) + (size_t)window_row(&s, position) * h.head_dim;
}

/* Notes numbers that are not finite. `zeros` is the sum of a thread's numbers, each times 0. */
static __device__ void note(const struct append_decode &a, float zeros) {
    if (a.not_finite && zeros != 0) atomicMin(a.not_finite, a.place);
}

/* A first_key is the key of a sequence's token 0, for the queries of a row: an exact row, or, while token 0 is appended in the same
 * launch, its row of `k`, which another block of threads rounds and keeps. */
struct first_key {
    const float *row;
    const __half *exact;
    const struct rotary_view *rotary;

    __device__ float operator[](uint32_t c) const {
        return row ? __half2float(__float2half_rn(c < rotary->n_rot ? row[c] * rotary->magnitude : row[c]))
                   : __half2float(exact[c]);
    }
};

static __device__ struct first_key first_key_of(const struct append_decode &a, const struct sequence_view &s, uint32_t row,
                                                uint32_t head) {
    const struct query_row_view query = a.rows[row], *const first = row >= query.position ? &a.rows[row - query.position] : nullptr;
    const bool appended = a.k && first && first->sequence == query.sequence && first->position == 0;
    const size_t at = ((size_t)(row - query.position) * a.heads.kv_heads + head) * a.heads.head_dim;
    return {appended ? a.k + at : nullptr, (const __half *)exact_rows_at(&s, &a.heads, a.layer, head, 0), &a.rotary};
}

/* Rotates a query by its position among the kept tokens, and leaves its logit to token 0 where exact rows may be replaced. */
static __device__ void rotate_exact(const struct append_decode &a, const struct sequence_view &s, uint32_t row, uint32_t head,
                                    const float *q) {
    const struct query_row_view query = a.rows[row];
    const uint32_t hd = a.heads.head_dim, query_heads = a.heads.query_heads;
    float *exact = a.q_exact + ((size_t)row * query_heads + head) * hd, sum = 0;
    const struct first_key key = first_key_of(a, s, row, head / (query_heads / a.heads.kv_heads));
    rotate_row(a.rotary, hd, query.position - (uint32_t)s.list.moved, q, [&](uint32_t c, float x) {
        exact[c] = x;
        if (s.first_logits) sum += x * key[c];
    });
    if (!s.first_logits) return;
    for (int lanes = WARP / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x == 0)
        s.first_logits[((size_t)a.layer * query_heads + head) * FRESH_LOGITS + query.position % FRESH_LOGITS] = sum * a.heads.scale;
}

/* Keeps an exact key as it is before rotation, where exact rows may be replaced. */
static __device__ void keep_unrotated(const struct sequence_view &s, const struct head_view &h, uint32_t layer, uint32_t head,
                                      uint32_t position, const float *row) {
    if (!s.unrotated || position >= s.first_exact) return;
    __half *to = (__half *)s.unrotated + (((size_t)layer * h.kv_heads + head) * s.first_exact + position) * h.head_dim;
    for (uint32_t c = threadIdx.x; c < h.head_dim; c += WARP) to[c] = __float2half_rn(row[c]);
}

static __global__ void append_decode_kernel(struct append_decode a) {
    uint32_t row = blockIdx.x, head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = a.heads.head_dim;
    uint32_t query_heads = a.q ? a.heads.query_heads : 0, kv_heads = a.k ? a.heads.kv_heads : 0;
    struct query_row_view query = a.rows[row];
    const struct sequence_view &s = a.sequences[query.sequence];
    float zeros = 0; /* NaN once a number is not finite */
    let_next_kernel_begin();
    wait_for_kernels();
    if (head < query_heads) {
        float *q = a.q + ((size_t)row * query_heads + head) * hd;
        if (a.q_exact) rotate_exact(a, s, row, head, q);
        rotate_row(a.rotary, hd, query.position, q, [&](uint32_t c, float x) {
            q[c] = x;
            zeros += x * 0;
        });
    } else if (head < query_heads + kv_heads) {
        head -= query_heads;
        __half *to = place_of(s, a.heads, a.layer, head, 0, query.position);
        const float *k = a.k + ((size_t)row * kv_heads + head) * hd;
        keep_unrotated(s, a.heads, a.layer, head, query.position, k);
        rotate_row(a.rotary, hd, query.position, k, [&](uint32_t c, float x) {
            to[c] = __float2half_rn(x);
            zeros += x * 0;
        });
    } else if (head < query_heads + 2 * kv_heads) {
        head -= query_heads + kv_heads;
        __half *to = place_of(s, a.heads, a.layer, head, 1, query.position);
        const float *v = a.v + ((size_t)row * kv_heads + head) * hd;
        for (uint32_t c = threadIdx.x; c < hd; c += WARP) {
            to[c] = __float2half_rn(v[c]);
            zeros += v[c] * 0;
        }
    }
    note(a, zeros);
}

static dim3 block_of_heads(void) { return dim3(WARP, HEADS_OF_BLOCK); }
static dim3 grid_of(size_t tokens, uint32_t heads) { return dim3((unsigned)tokens, (heads + HEADS_OF_BLOCK - 1) / HEADS_OF_BLOCK); }

cudaError_t append_decode(const struct append_decode *append, cudaStream_t stream) {
    uint32_t heads = (append->q ? append->heads.query_heads : 0) + (append->k ? 2 * append->heads.kv_heads : 0);
    return launch_early(append_decode_kernel, grid_of(append->n_rows, heads), block_of_heads(), 0, stream, *append);
}

/* ---- Prompts */

static __global__ void rotate_rows_kernel(struct rotary_view rotary, uint32_t hd, uint32_t heads, float *q, uint32_t position) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y;
    if (head >= heads) return;
    float *row = q + ((size_t)blockIdx.x * heads + head) * hd;
    rotate_row(rotary, hd, position + blockIdx.x, row, [&](uint32_t c, float x) { row[c] = x; });
}

cudaError_t rotate_rows(const struct head_view *heads, const struct rotary_view *rotary, uint32_t n_heads, float *q, size_t count,
                        uint64_t position, cudaStream_t stream) {
    if (!rotary->n_rot || !count) return cudaSuccess;
    rotate_rows_kernel<<<grid_of(count, n_heads), block_of_heads(), 0, stream>>>(*rotary, heads->head_dim, n_heads, q,
                                                                                 (uint32_t)position);
    return cudaGetLastError();
}

static __global__ void append_rows_kernel(struct layer_rows r, const float *k, const float *v, uint32_t position, size_t row) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    const float *from = (side ? v : k) + ((size_t)blockIdx.x * kv_heads + head) * hd;
    __half *to = (side ? r.v : r.k) + ((row + blockIdx.x) * kv_heads + head) * hd;
    uint32_t token = position + blockIdx.x;
    if (side)
        for (uint32_t c = threadIdx.x; c < hd; c += WARP) to[c] = __float2half_rn(from[c]);
    else
        rotate_row(r.rotary, hd, token, from, [&](uint32_t c, float x) { to[c] = __float2half_rn(x); });
    if (token >= r.sequence->first_exact) return;
    if (!side) keep_unrotated(*r.sequence, r.heads, r.layer, head, token, from);
    __syncwarp();
    __half *exact = place_of(*r.sequence, r.heads, r.layer, head, side, token);
    for (uint32_t c = threadIdx.x; c < hd; c += WARP) exact[c] = to[c];
}

cudaError_t append_rows(const struct layer_rows *rows, const float *k, const float *v, size_t count, uint64_t position, size_t row,
                        cudaStream_t stream) {
    if (!count) return cudaSuccess;
    append_rows_kernel<<<grid_of(count, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, k, v, (uint32_t)position,
                                                                                                  row);
    return cudaGetLastError();
}

/* ---- Rows that are halves already */

/* Rotates row[hd] further, without the magnitude, which the row has already. */
static __device__ void advance_row(const struct rotary_view &r, uint32_t position, const __half *from, __half *to, uint32_t hd) {
    for (uint32_t i = threadIdx.x; i < r.n_rot / 2; i += WARP) {
        uint2 at = pair_at(r, i);
        float2 angle = angle_at(r, position, i);
        float2 x = rotate(make_float2(__half2float(from[at.x]), __half2float(from[at.y])), angle);
        to[at.x] = __float2half_rn(x.x);
        to[at.y] = __float2half_rn(x.y);
    }
    for (uint32_t c = r.n_rot + threadIdx.x; c < hd; c += WARP) to[c] = from[c];
}

static __global__ void rows_from_exact_kernel(struct layer_rows r, uint32_t evicted) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    const __half *from = exact_rows_at(r.sequence, &r.heads, r.layer, head, side) + (size_t)blockIdx.x * hd;
    __half *to = (side ? r.v : r.k) + ((size_t)blockIdx.x * kv_heads + head) * hd;
    if (!side && evicted)
        advance_row(r.rotary, evicted, from, to, hd);
    else
        for (uint32_t c = threadIdx.x; c < hd; c += WARP) to[c] = from[c];
}

cudaError_t rows_from_exact(const struct layer_rows *rows, size_t n, uint64_t evicted, cudaStream_t stream) {
    if (!n) return cudaSuccess;
    rows_from_exact_kernel<<<grid_of(n, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, (uint32_t)evicted);
    return cudaGetLastError();
}

static __global__ void window_kernel(struct layer_rows r, uint32_t first, int64_t row, bool back) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    uint32_t slot = window_row(r.sequence, first + blockIdx.x);
    __half *window = window_rows_at(r.sequence, &r.heads, r.layer, head, side) + (size_t)slot * hd;
    __half *rows = (side ? r.v : r.k) + ((row + (int64_t)blockIdx.x) * (int64_t)kv_heads + (int64_t)head) * (int64_t)hd;
    for (uint32_t c = threadIdx.x; c < hd; c += WARP)
        if (back)
            window[c] = rows[c];
        else
            rows[c] = window[c];
}

static cudaError_t move_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, bool back,
                               cudaStream_t stream) {
    if (!count) return cudaSuccess;
    window_kernel<<<grid_of(count, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, (uint32_t)first, row, back);
    return cudaGetLastError();
}

cudaError_t rows_from_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream) {
    return move_window(rows, first, count, row, false, stream);
}

cudaError_t rows_to_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream) {
    return move_window(rows, first, count, row, true, stream);
}

/* ---- Random rows */

/* Returns random bits of a place, by splitmix64. */
static __device__ uint64_t random_bits(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Writes pairs of normally distributed numbers by the Box-Muller transform. */
static __global__ void random_rows_kernel(float2 *numbers, size_t pairs, uint32_t hd, float octaves, uint64_t seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    uint64_t bits = random_bits(seed * 0xD1342543DE82EF95ull + i);
    float u = ((uint32_t)(bits >> 40) + 1) * 0x1p-24f, turn = (uint32_t)(bits & 0xFFFFFF) * 0x1p-23f, s, c;
    float radius = sqrtf(-2 * logf(u));
    sincospif(turn, &s, &c);
    radius *= exp2f(-octaves * (float)(2 * i % hd) / (float)hd);
    numbers[i] = make_float2(radius * c, radius * s);
}

cudaError_t random_rows(float *numbers, size_t n, uint32_t hd, float octaves, uint64_t seed, cudaStream_t stream) {
    random_rows_kernel<<<(unsigned)((n / 2 + 255) / 256), 256, 0, stream>>>((float2 *)numbers, n / 2, hd, octaves, seed);
    return cudaGetLastError();
}
