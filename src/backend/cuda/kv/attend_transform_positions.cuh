/* Adds keys' mean before rotation (kv/pre_rope.h): to the logit of a query q and the key at position p it adds the sum over pairs
 * of channels, as complex numbers, of the real part of conj(q) m e^(i theta p).
 *
 * A CTA has conj(q) m of its queries. A warp turns them to the first token of a page, and to the 16th behind it: columns 2 j and 2
 * j + 1 of a product for query j. Rows are the 32 tokens that lanes have without those 16 later, k the cosine and sine of a pair.
 * Since the mean may be large, a factor is a half and its rest, another half: only the products of two rests are left out, which
 * leaves an error of some 2^-22 of a sum. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_POSITIONS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_POSITIONS_CUH

#include "backend/cuda/kv/attend_common.cuh"
#include "backend/cuda/kv/rotary.cuh"

/* Functions that a CTA calls once, before or after it reads pages, are not inlined into the kernel: its registers are all for
 * reading. */
#define ATTEND_APART __device__ __noinline__

/* Returns the steps of a product, each of which takes 8 pairs. */
__host__ __device__ constexpr uint32_t position_steps(uint32_t pairs) { return (pairs + 7) / 8; }

/* A CTA's shared memory has its queries' products float4 [tile][step][4 queries][t], of pairs 8 step + t and 4 further; factors [4
 * tiles], product times factor = logit; the rows of products (pre_rope_fragments); then each warp's angles float4 [step][the page's
 * first token, the 16th behind it][t] of the same pairs. */
__host__ __device__ constexpr uint32_t position_query_bytes(uint32_t tiles, uint32_t pairs) {
    return tiles * (position_steps(pairs) * 256 + 16);
}
__host__ __device__ constexpr uint32_t position_row_bytes(uint32_t pairs) { return position_steps(pairs) * 4 * 32 * 16; }
__host__ __device__ constexpr uint32_t position_angle_bytes(uint32_t pairs) { return position_steps(pairs) * 128; }
__host__ __device__ constexpr uint32_t position_bytes(uint32_t tiles, uint32_t warps, uint32_t pairs) {
    return pairs ? position_query_bytes(tiles, pairs) + position_row_bytes(pairs) + warps * position_angle_bytes(pairs) : 0;
}

/* Returns the channels of a pair. */
ATTEND_INLINE uint2 pair_channels(const struct head_view &heads, unsigned pair) {
    return heads.pairing == ROPE_ADJACENT ? make_uint2(2 * pair, 2 * pair + 1) : make_uint2(pair, pair + heads.n_rot / 2);
}

/* A step_queries has the queries of a row and KV head, where a launch prepares them: it rotates those of rows that it appends. */
struct step_queries {
    const float *q;
    uint32_t position;
    bool rotates;

    /* Returns a pair's channels x rotated, magnitude included. */
    ATTEND_INLINE float2 rotated(const struct attend_decode &a, unsigned pair, float2 x) const {
        const float2 rotated = rotate(x, angle_at(a.append.rotary, position, pair));
        return make_float2(rotated.x * a.heads.magnitude, rotated.y * a.heads.magnitude);
    }
};

template <int HD> ATTEND_INLINE step_queries step_queries_of(const struct attend_decode &a, const struct share &s) {
    return {(a.append.q ? a.append.q : a.q) + queries_at<HD>(a, s), s.position, a.append.q != nullptr};
}

/* Computes conj(q) m of a pair of query `query` of those. */
template <int HD>
ATTEND_INLINE float2 pair_product(const struct attend_decode &a, const step_queries &queries, unsigned query, unsigned pair,
                                  const float *m) {
    const uint2 at = pair_channels(a.heads, pair);
    const float *const own = queries.q + query * HD;
    float2 q = make_float2(__ldcg(own + at.x), __ldcg(own + at.y));
    if (queries.rotates) q = queries.rotated(a, pair, q);
    return make_float2(q.x * m[at.x] + q.y * m[at.y], q.x * m[at.y] - q.y * m[at.x]);
}

/* All warps of a CTA copy the rows of products to `memory`. */
template <int THREADS> ATTEND_INLINE void copy_position_rows(const struct pre_rope_view &pre_rope, uint32_t memory) {
    for (unsigned i = threadIdx.x; i < position_row_bytes(pre_rope.pairs) / 16; i += THREADS)
        copy_async<16>(memory + 16 * i, pre_rope.fragments + 4 * i);
}

/* All warps of a CTA make its queries and write them to `to`, as they lie in shared memory. */
template <int HD, int NQ, int WARPS>
ATTEND_INLINE void stage_positions(const struct attend_decode &a, const struct share &s, const float *mean, uint32_t *to) {
    const unsigned lane = lane_id(), pairs = a.pre_rope.pairs, steps = position_steps(pairs);
    if (!pairs) return;
    float2 *const products = reinterpret_cast<float2 *>(to);
    float *const factors = reinterpret_cast<float *>(to + NQ * steps * 64);
    const step_queries queries = step_queries_of<HD>(a, s);
    for (unsigned query = threadIdx.x / 32; query < 4 * NQ; query += WARPS) {
        float2 x[(HD + 63) / 64];
        float largest = 0;
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            const unsigned pair = lane + 32 * i;
            x[i] = make_float2(0, 0);
            if (query < s.group && pair < pairs) x[i] = pair_product<HD>(a, queries, query, pair, mean);
            largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
        }
        for (int o = 16; o; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const power_of_two power = power_of(largest);
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            const unsigned pair = lane + 32 * i;
            if (pair < 8 * steps)
                products[(((query / 4 * steps + pair / 8) * 4 + query % 4) * 4 + pair % 4) * 2 + pair / 4 % 2] =
                    make_float2(x[i].x * power.up, x[i].y * power.up);
        }
        if (lane == 0) factors[query] = query < s.group ? power.down * a.heads.scale * LOG2_E : 0;
    }
}

/* All warps of a CTA copy units [first, end) of 16 bytes of what stage_positions wrote to shared memory; a __syncthreads makes them
 * readable. */
template <int THREADS> ATTEND_APART void fetch_positions(const uint32_t *from, uint32_t first, uint32_t end, uint32_t to) {
    for (unsigned i = first + threadIdx.x; i < end; i += THREADS)
        store_shared_quad(to + 16 * i, __ldcg(reinterpret_cast<const uint4 *>(from) + i));
}

ATTEND_INLINE float2 multiply_complex(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

ATTEND_INLINE float2 complex_of(uint32_t x, uint32_t y) { return make_float2(__uint_as_float(x), __uint_as_float(y)); }

/* A split_number has the real and the negated imaginary part as halves, and their rests. */
struct split_number {
    uint32_t upper, rest;
};

ATTEND_INLINE split_number split(float2 x) {
    const uint32_t upper = pack_halves(x.x, -x.y);
    return {upper, pack_halves(x.x - low_half(upper), -x.y - high_half(upper))};
}

/* A lane_angles has the angles of a page's first token, of which a lane has every 32nd, as products of its run's angle and that of
 * its offset in the run. They are loaded long before they are needed, as far as registers suffice: for 4 steps. */
struct lane_angles {
    float2 run[2], offset[2];
};

struct page_angles {
    const float2 *runs, *offsets;
    uint32_t run, offset; /* where those of the page's run begin, and of its first token in it; those behind it follow */
    unsigned pairs, all;

    ATTEND_INLINE page_angles(const struct attend_decode &a, uint32_t first) {
        pairs = a.pre_rope.pairs, all = a.heads.n_rot / 2;
        runs = reinterpret_cast<const float2 *>(a.run_angles), run = first / ROPE_RUN_TOKENS * all;
        offsets = reinterpret_cast<const float2 *>(a.pre_rope.offsets), offset = first % ROPE_RUN_TOKENS * all;
    }
    ATTEND_INLINE unsigned pair(unsigned i) const { return min(i / 16 * 8 + i % 2 * 4 + i / 2 % 4, pairs - 1); }
    ATTEND_INLINE float2 run_of(unsigned i) const { return __ldg(runs + (run + pair(i))); }
    ATTEND_INLINE float2 offset_of(unsigned i) const { return __ldg(offsets + (offset + i / 8 % 2 * 16 * all + pair(i))); }
    ATTEND_INLINE unsigned count() const { return 16 * position_steps(pairs); } /* behind the last pair products are zeros */

    ATTEND_INLINE void load(lane_angles &to) const {
#pragma unroll
        for (unsigned k = 0; k < 2; k++)
            if (lane_id() + 32 * k < count()) to.run[k] = run_of(lane_id() + 32 * k), to.offset[k] = offset_of(lane_id() + 32 * k);
    }
    /* Writes the page's angles, to be read after a __syncwarp. */
    ATTEND_INLINE void place(const lane_angles &own, float2 *angles) const {
#pragma unroll
        for (unsigned k = 0; k < 2; k++)
            if (lane_id() + 32 * k < count()) angles[lane_id() + 32 * k] = multiply_complex(own.run[k], own.offset[k]);
#pragma unroll 1
        for (unsigned i = lane_id() + 64; i < count(); i += 32) angles[i] = multiply_complex(run_of(i), offset_of(i));
    }
};

/* Adds to the logits x[tile][i] of tokens lane_token() + token_of(i) of a page. stage_positions, copy_position_rows and page_angles
 * wrote `queries`, `rows` and `angles`, in shared memory. */
template <int NQ>
ATTEND_INLINE void add_positions(const struct pre_rope_view &pre_rope, uint32_t queries, uint32_t rows, uint32_t angles,
                                 float (&x)[NQ][8]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4, steps = position_steps(pre_rope.pairs);
    const uint32_t row = rows + 16 * lane;
    const uint32_t products = queries + 16 * (g / 2 * 4 + t), turns = angles + 16 * (g % 2 * 4 + t);
    if (!steps) return;
    float d[NQ][2][4] = {};
#pragma unroll 2
    for (unsigned step = 0; step < steps; step++) {
        const uint4 turn = load_shared_quad(turns + step * 128);
        split_number b[NQ][2];
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint4 own = load_shared_quad(products + (n * steps + step) * 256);
            b[n][0] = split(multiply_complex(complex_of(own.x, own.y), complex_of(turn.x, turn.y)));
            b[n][1] = split(multiply_complex(complex_of(own.z, own.w), complex_of(turn.z, turn.w)));
        }
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            const uint4 upper = load_shared_quad(row + (4 * step + 2 * tile) * 512),
                        rest = load_shared_quad(row + (4 * step + 2 * tile + 1) * 512);
#pragma unroll
            for (int n = 0; n < NQ; n++) {
                mma(d[n][tile], upper.x, upper.y, upper.z, upper.w, b[n][0].upper, b[n][1].upper);
                mma(d[n][tile], upper.x, upper.y, upper.z, upper.w, b[n][0].rest, b[n][1].rest);
                mma(d[n][tile], rest.x, rest.y, rest.z, rest.w, b[n][0].upper, b[n][1].upper);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float factor = __uint_as_float(load_shared(queries + NQ * steps * 256 + 4 * (4 * n + t)));
#pragma unroll
        for (int i = 0; i < 8; i++) x[n][i] = fmaf(d[n][i % 4 / 2][i % 2 * 2 + i / 4], factor, x[n][i]);
    }
}

#endif
