/* Has what a decoding step's append does with a head, which is a warp's work: append.cu launches it by itself, and a kernel of
 * attention may do it, too (attend_launch.h). A lane is threadIdx.x % 32. */
#ifndef TERSE_BACKEND_CUDA_KV_APPEND_DECODE_CUH
#define TERSE_BACKEND_CUDA_KV_APPEND_DECODE_CUH

#include "backend/cuda/kv/append_decode.h"
#include "backend/cuda/kv/rotary.cuh"

#define WARP 32

/* Calls put(channel, value) for all channels of row[hd] rotated by `position`, times the magnitude; a warp's work. */
template <class Put>
static __device__ void rotate_row(const struct rotary_view &r, uint32_t hd, uint32_t position, const float *row, Put put) {
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = lane; i < r.n_rot / 2; i += WARP) {
        uint2 at = pair_at(r, i);
        float2 x = rotate(make_float2(row[at.x], row[at.y]), angle_at(r, position, i));
        put(at.x, x.x * r.magnitude);
        put(at.y, x.y * r.magnitude);
    }
    for (uint32_t c = r.n_rot + lane; c < hd; c += WARP) put(c, row[c]);
}

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
    if (threadIdx.x % WARP == 0)
        s.first_logits[((size_t)a.layer * query_heads + head) * FRESH_LOGITS + query.position % FRESH_LOGITS] = sum * a.heads.scale;
}

/* Keeps an exact key as it is before rotation, where exact rows may be replaced. */
static __device__ void keep_unrotated(const struct sequence_view &s, const struct head_view &h, uint32_t layer, uint32_t head,
                                      uint32_t position, const float *row) {
    if (!s.unrotated || position >= s.first_exact) return;
    __half *to = (__half *)s.unrotated + (((size_t)layer * h.kv_heads + head) * s.first_exact + position) * h.head_dim;
    for (uint32_t c = threadIdx.x % WARP; c < h.head_dim; c += WARP) to[c] = __float2half_rn(row[c]);
}

/* Appends a head of a row, `query`, of sequence `s`: a query head, or, behind these, a KV head's key, or, behind all keys, its value. */
static __device__ void append_head(const struct append_decode &a, const struct query_row_view &query, const struct sequence_view &s,
                                   uint32_t row, uint32_t head) {
    const uint32_t hd = a.heads.head_dim, query_heads = a.q ? a.heads.query_heads : 0, kv_heads = a.k ? a.heads.kv_heads : 0;
    float zeros = 0; /* NaN once a number is not finite */
    if (head < query_heads) {
        const size_t at = ((size_t)row * query_heads + head) * hd;
        const float *q = a.q + at;
        float *rotated = a.rotated + at;
        if (a.q_exact) rotate_exact(a, s, row, head, q);
        rotate_row(a.rotary, hd, query.position, q, [&](uint32_t c, float x) {
            rotated[c] = x;
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
        for (uint32_t c = threadIdx.x % WARP; c < hd; c += WARP) {
            to[c] = __float2half_rn(v[c]);
            zeros += v[c] * 0;
        }
    }
    note(a, zeros);
}

#endif
