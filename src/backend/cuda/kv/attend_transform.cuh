/* Decoding over pages of the codec transform (format/transform.h), on their codes.
 *
 * A plane's levels come out of tables of 16 bytes by byte permutations: four codes of a word are the selectors of one that looks into the
 * table's first half and, complemented, of one that looks into its second half. A selector with its highest bit set yields the sign of a byte:
 * levels stand LEVEL_ZERO higher in tables, so that this is 0, and a level is the sum of both. Both enter m16n8k32's integer products as
 * they are; what LEVEL_ZERO adds to a sum is known and taken off. The pipe of bitwise instructions bounds this: products add what could be
 * or-ed, and complements are made by multiplying (struct complement).
 *
 * Queries are turned back to a run's position, taken times the basis, times the sizes and the scales of planes, as integers of 16 bits with a
 * unit for each query, by the warp that reads the run's pages; weights of values, times their gains, with a unit for each page. Upper
 * and lower bytes are columns 2 j and 2 j + 1 of a product for query j: a lane has both of a sum, for query lane % 4 of a tile of four.
 * Sums of products are exact. Values are summed up by component; the basis is applied once for a CTA's part.
 *
 * Keys: rows of products are words of a plane's nibble, tokens T and T + 16 of which each has a product of its own (the other's bytes meet zeros),
 * k is 4 components of 4 planes. Values: rows are components of 8 planes, k is 32 tokens.
 *
 * A warp reads pages by itself, through a ring of slots of one side of a page each. NQ: tiles of four queries.
 */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH

#include "backend/cuda/kv/attend_common.cuh"

constexpr int LEVEL_ZERO = TRANSFORM_LEVEL_MAX;
constexpr float BYTES_MOST = 32512; /* of an integer whose upper and lower part are bytes with signs */

/* ---- A side's planes, ready to be read */

struct plane_entry {
    uint32_t from; /* where a slot has the nibble, and << 16 the one before it; bit 31: of that one, components are one further */
    uint32_t mask; /* bits that are the nibble's own */
};

/* Up to a multiple of 8 planes; those that the layout has not have levels of 0. */
template <int HD> struct side_program {
    static constexpr int most = HD / 2;
    uint4 table[most]; /* levels of nibbles 0 to 7, then of 15 down to 8 */
    plane_entry entry[most];
    float4 scale[most]; /* times size: of the quad's components */
    uint8_t quad[most];
    uint32_t planes, nibbles, wraps; /* wraps: bit n: planes of group n have one with bit 31 */
    float gain_least, gain_step;
};

/* Which 16 bytes of a nibble lie where in a slot, so that those that lanes read together lie in different banks. */
template <int SIDE> ATTEND_INLINE uint32_t nibble_place(uint32_t nibble) {
    return nibble * PAGE_TRANSFORM_NIBBLE + (SIDE ? nibble % 2 * 64 : nibble % 4 * 32);
}

template <int HD> struct transform_side {
    const struct transform_view *view;
    const float *mean, *size;
    float gain_least, gain_step;
};

template <int HD> ATTEND_INLINE transform_side<HD> side_of(const struct attend_decode &a, const struct share &s, int side) {
    const size_t at = ((size_t)a.layer * a.heads.kv_heads + s.head) * 2 + side;
    const struct transform_view *view = a.transforms + at;
    if (!s.sequence->fitted) return {view, view->mean, view->size, view->gain_least, view->gain_step};
    const float *own = s.sequence->fitted + at * (2 * HD + 2); /* as transform_fitted_at */
    return {view, own, own + HD, own[2 * HD], (own[2 * HD + 1] - own[2 * HD]) / 255};
}

/* All threads of a CTA; levels: transform_levels. */
template <int HD, int SIDE, int THREADS>
ATTEND_INLINE void make_program(const transform_side<HD> &side, const int8_t *levels, side_program<HD> &to) {
    constexpr int group = SIDE ? 8 : 4;
    const struct transform_layout &layout = side.view->layout;
    const unsigned planes = layout.planes, stream = layout.stream, nibbles = layout.nibbles;
    for (unsigned p = threadIdx.x; p < (planes + 7) / 8 * 8; p += THREADS) {
        uint8_t bytes[16];
        if (p >= planes) {
            to.table[p] =
                make_uint4(LEVEL_ZERO * 0x01010101u, LEVEL_ZERO * 0x01010101u, LEVEL_ZERO * 0x01010101u, LEVEL_ZERO * 0x01010101u);
            to.entry[p] = {0, ALL_LANES};
            to.scale[p] = make_float4(0, 0, 0, 0);
            to.quad[p] = 0;
            continue;
        }
        const struct transform_plane plane = layout.plane[p];
        const unsigned written = plane.table % 4 + 1, last = nibbles - stream > 1 ? stream + 1 : stream;
        const bool wraps = written < 4 && plane.nibble == last;
        const unsigned before = written == 4             ? plane.nibble
                                : wraps                  ? stream
                                : plane.nibble == stream ? nibbles - 1
                                                         : plane.nibble - 1;
#pragma unroll
        for (unsigned v = 0; v < 16; v++) {
            unsigned window = (v << written | v >> (4 - written)) & 15;
            bytes[v < 8 ? v : 23 - v] = (uint8_t)(levels[plane.table / 4 * 16 + window] + LEVEL_ZERO);
        }
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; w++)
            words[w] = bytes[4 * w] | bytes[4 * w + 1] << 8 | bytes[4 * w + 2] << 16 | (uint32_t)bytes[4 * w + 3] << 24;
        to.table[p] = make_uint4(words[0], words[1], words[2], words[3]);
        to.entry[p] = {nibble_place<SIDE>(plane.nibble) | nibble_place<SIDE>(before) << 16 | (wraps ? 1u << 31 : 0),
                       (16 - (16u >> written)) * 0x11111111u};
        const float *size = side.size + 4 * plane.quad; /* aligned as floats only, if it is fitted */
        to.scale[p] = make_float4(plane.scale * size[0], plane.scale * size[1], plane.scale * size[2], plane.scale * size[3]);
        to.quad[p] = plane.quad;
        if (wraps) atomicOr(&to.wraps, 1u << p / group);
    }
    if (threadIdx.x == 0) to.planes = planes, to.nibbles = nibbles, to.gain_least = side.gain_least, to.gain_step = side.gain_step;
}

/* A window's four bits of each component or token of a word. */
ATTEND_INLINE uint32_t window_of(uint32_t nibble, uint32_t before, uint32_t mask) { return (nibble & mask) | (before & ~mask); }

/* ~x is x * ones + ones where `ones` is -1, which the compiler must not know: else it takes the bitwise pipe. */
struct complement {
    uint32_t ones;
    ATTEND_INLINE uint32_t of(uint32_t x) const { return x * ones + ones; }
};

/* Levels of 4 words of a plane, of codes 0 to 7 and of 8 to 15, of the other codes 0: fragments a of products whose rows are two words each. */
struct word_levels {
    uint32_t a[2][2][4]; /* [words 0 and 1, 2 and 3][half of the table][register] */
};

ATTEND_INLINE void look_up(const uint32_t (&windows)[4], const uint4 &table, complement complement, word_levels &to) {
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const uint32_t lower = windows[w], upper = lower >> 16;
        to.a[w / 2][0][w % 2] = permute(table.x, table.y, lower), to.a[w / 2][0][w % 2 + 2] = permute(table.x, table.y, upper);
        to.a[w / 2][1][w % 2] = permute(table.z, table.w, complement.of(lower));
        to.a[w / 2][1][w % 2 + 2] = permute(table.z, table.w, complement.of(upper));
    }
}

/* d += levels of two words times b. */
ATTEND_INLINE void add_products(int32_t (&d)[4], const uint32_t (&a)[2][4], uint32_t b0, uint32_t b1) {
    mma_s8(d, a[0][0], a[0][1], a[0][2], a[0][3], b0, b1);
    mma_s8(d, a[1][0], a[1][1], a[1][2], a[1][3], b0, b1);
}

/* Windows of 4 words of a plane. `lane`: the lane's place in a nibble. */
ATTEND_INLINE void load_windows(uint32_t slot, const plane_entry &e, uint32_t lane, bool wraps, uint32_t (&w)[4]) {
    const uint4 own = load_shared_quad(slot + ((e.from & 0xffff) ^ lane));
    uint4 before = load_shared_quad(slot + ((e.from >> 16 & 0x7fff) ^ lane));
    if (wraps) {
        const uint32_t turn = e.from >> 31 ? 0x2103 : 0x3210;
        before = make_uint4(permute(before.x, 0, turn), permute(before.y, 0, turn), permute(before.z, 0, turn),
                            permute(before.w, 0, turn));
    }
    w[0] = window_of(own.x, before.x, e.mask), w[1] = window_of(own.y, before.y, e.mask);
    w[2] = window_of(own.z, before.z, e.mask), w[3] = window_of(own.w, before.w, e.mask);
}
/* A value's components lie in the words of four, not in the bytes of one. */
ATTEND_INLINE void load_value_windows(uint32_t slot, const plane_entry &e, uint32_t lane, bool wraps, uint32_t (&w)[4]) {
    const uint4 own = load_shared_quad(slot + ((e.from & 0xffff) ^ lane));
    uint4 before = load_shared_quad(slot + ((e.from >> 16 & 0x7fff) ^ lane));
    if (wraps && e.from >> 31) before = make_uint4(before.w, before.x, before.y, before.z);
    w[0] = window_of(own.x, before.x, e.mask), w[1] = window_of(own.y, before.y, e.mask);
    w[2] = window_of(own.z, before.z, e.mask), w[3] = window_of(own.w, before.w, e.mask);
}

/* ---- Queries */

/* What a CTA knows of its queries. */
template <int HD, int NQ> struct transform_queries {
    float q[4 * NQ][HD];  /* largest channel in [1, 2); zeros from G on */
    float factor[4 * NQ]; /* product times factor = logit */
    float mean[HD];       /* of keys */
};

template <int HD, int NQ, int THREADS>
ATTEND_INLINE void stage_queries(const float *q, uint32_t group, float scale, const float *mean, transform_queries<HD, NQ> &to) {
    const unsigned lane = lane_id();
    for (unsigned n = threadIdx.x / 32; n < 4 * NQ; n += THREADS / 32) {
        float x[HD / 32], largest = 0;
#pragma unroll
        for (int i = 0; i < HD / 32; i++) {
            x[i] = n < group ? q[n * HD + lane + 32 * i] : 0;
            largest = fmaxf(largest, fabsf(x[i]));
        }
        for (int o = 16; o; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 64u), 253u);
        const float up = __uint_as_float((254 - exponent) << 23), down = __uint_as_float(exponent << 23);
#pragma unroll
        for (int i = 0; i < HD / 32; i++) to.q[n][lane + 32 * i] = x[i] * up;
        if (lane == 0) to.factor[n] = n < group ? down * scale * LOG2_E : 0;
    }
    for (unsigned c = threadIdx.x; c < HD; c += THREADS) to.mean[c] = mean[c];
}

/* A warp's: first the queries turned to a run, in halves, then their products with the basis. */
template <int HD, int NQ> struct query_scratch {
    union {
        __half turned[4 * NQ][HD + 8];
        float products[4 * NQ][HD + 4];
    };
};

/* Of the lane's query of each tile: logit = gain * unit * (sum of products - zero) + mean. */
template <int NQ> struct run_queries {
    float unit[NQ], mean[NQ];
    int32_t zero[NQ];
};

/* The basis as fragments a of its products with queries: of tile i of 16 components and channels 32 k to 32 k + 31, lane (g, t) has 8 channels
 * from 32 k + 8 t on of components g and g + 8; k of the products is permuted. */
template <int HD> struct basis_fragments { uint4 of[HD / 16][HD / 32][2][32]; };

template <int HD> ATTEND_INLINE const uint4 *basis_at(const device_half *basis, unsigned tile, unsigned k, unsigned upper) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    return reinterpret_cast<const uint4 *>(basis + (16 * tile + 8 * upper + g) * HD + 32 * k + 8 * t);
}

/* Turns channel c of all queries back by the run's position. */
template <int HD, int NQ>
ATTEND_INLINE void turn_channel(const struct head_view &heads, const float *angles, const transform_queries<HD, NQ> &from,
                                unsigned c, float (&x)[4 * NQ]) {
    float cosine = 1, sine = 0;
    unsigned partner = c;
    if (c < heads.n_rot) {
        const unsigned half = heads.n_rot / 2, pair = heads.pairing == ROPE_ADJACENT ? c / 2 : c < half ? c : c - half;
        const bool first = heads.pairing == ROPE_ADJACENT ? c % 2 == 0 : c < half;
        const float2 angle = *reinterpret_cast<const float2 *>(angles + 2 * pair);
        partner = heads.pairing == ROPE_ADJACENT ? c ^ 1 : first ? c + half : c - half;
        cosine = angle.x, sine = first ? angle.y : -angle.y;
    }
#pragma unroll
    for (int n = 0; n < 4 * NQ; n++) x[n] = from.q[n][c] * cosine + from.q[n][partner] * sine;
}

/* A warp makes the queries of the run that begins at position `run`: bytes [tile][plane][column] of 4 components each. */
template <int HD, int NQ, bool SHARED>
__device__ __noinline__ run_queries<NQ> prepare_run(const struct head_view &heads, const float *angles, const device_half *basis,
                                                    const basis_fragments<HD> *fragments, const transform_queries<HD, NQ> &from,
                                                    const side_program<HD> &program, query_scratch<HD, NQ> &scratch,
                                                    uint32_t *bytes) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    run_queries<NQ> to;
    float with_mean[4 * NQ] = {};
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < HD / 32; i++) {
        const unsigned c = lane + 32 * i;
        float x[4 * NQ];
        turn_channel(heads, angles, from, c, x);
#pragma unroll
        for (int n = 0; n < 4 * NQ; n++) with_mean[n] += x[n] * from.mean[c], scratch.turned[n][c] = __float2half_rn(x[n]);
    }
#pragma unroll
    for (int n = 0; n < 4 * NQ; n++)
        for (int o = 16; o; o /= 2) with_mean[n] += __shfl_xor_sync(ALL_LANES, with_mean[n], o);
    __syncwarp();
    uint4 b[HD / 32];
#pragma unroll
    for (int k = 0; k < HD / 32; k++)
        b[k] = g < 4 * NQ ? *reinterpret_cast<const uint4 *>(&scratch.turned[g][32 * k + 8 * t]) : make_uint4(0, 0, 0, 0);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < HD / 16; i++) {
        float d[4] = {};
#pragma unroll
        for (int k = 0; k < HD / 32; k++) {
            const uint4 low = SHARED ? fragments->of[i][k][0][lane] : *basis_at<HD>(basis, i, k, 0);
            const uint4 high = SHARED ? fragments->of[i][k][1][lane] : *basis_at<HD>(basis, i, k, 1);
            mma(d, low.x, high.x, low.y, high.y, b[k].x, b[k].y);
            mma(d, low.z, high.z, low.w, high.w, b[k].z, b[k].w);
        }
        if (2 * t < 4 * NQ) {
            scratch.products[2 * t][16 * i + g] = d[0], scratch.products[2 * t + 1][16 * i + g] = d[1];
            scratch.products[2 * t][16 * i + g + 8] = d[2], scratch.products[2 * t + 1][16 * i + g + 8] = d[3];
        }
    }
    __syncwarp();
    const unsigned planes = (program.planes + 3) / 4 * 4;
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        float largest = 0;
        int32_t sum = 0;
        for (unsigned p = g; p < planes; p += 8) {
            const float4 y = *reinterpret_cast<const float4 *>(&scratch.products[4 * n + t][4 * program.quad[p]]),
                         s = program.scale[p];
            largest = fmaxf(largest, fmaxf(fmaxf(fabsf(y.x * s.x), fabsf(y.y * s.y)), fmaxf(fabsf(y.z * s.z), fabsf(y.w * s.w))));
        }
        for (int o = 4; o < 32; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        largest = fmaxf(largest, 1e-30f);
        const float steps = BYTES_MOST / largest;
        for (unsigned p = g; p < planes; p += 8) {
            const float4 y = *reinterpret_cast<const float4 *>(&scratch.products[4 * n + t][4 * program.quad[p]]),
                         s = program.scale[p];
            const int32_t x[4] = {__float2int_rn(y.x * s.x * steps), __float2int_rn(y.y * s.y * steps),
                                  __float2int_rn(y.z * s.z * steps), __float2int_rn(y.w * s.w * steps)};
            uint32_t high = 0, low = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum += x[i];
                high |= (uint32_t)((x[i] + 128) >> 8 & 255) << 8 * i;
                low |= (uint32_t)(x[i] & 255) << 8 * i;
            }
            *reinterpret_cast<uint2 *>(bytes + ((size_t)n * side_program<HD>::most + p) * 8 + 2 * t) = make_uint2(high, low);
        }
        for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        to.unit[n] = largest / BYTES_MOST * from.factor[4 * n + t];
        to.zero[n] = sum * LEVEL_ZERO;
        float own = with_mean[4 * n];
#pragma unroll
        for (int i = 1; i < 4; i++) own = t == i ? with_mean[4 * n + i] : own;
        to.mean[n] = own * from.factor[4 * n + t];
    }
    __syncwarp();
    return to;
}

/* ---- Keys */

/* The first of the 8 tokens whose logits a lane has: 4 that follow one another, then those 16 later. */
ATTEND_INLINE uint32_t lane_token() { return lane_id() / 16 * 32 + lane_id() / 4 % 4 * 4; }
ATTEND_INLINE uint32_t token_of(int i) { return i % 4 + i / 4 * 16; }

ATTEND_INLINE float gain_of(uint32_t codes, int i, float least, float step) {
    return fmaf((float)(codes >> 8 * i & 255), step, least);
}

/* Logits x[tile][i] of a page's token lane_token() + token_of(i). */
template <int HD, int NQ>
ATTEND_INLINE void score_page(uint32_t slot, const side_program<HD> &program, const uint32_t *bytes, const run_queries<NQ> &queries,
                              complement complement, float (&x)[NQ][8]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    int32_t d[2][2][NQ][4] = {}; /* [words 4g, 4g+1 or 4g+2, 4g+3][tokens T or T + 16] */
    uint32_t entry_at = shared_address(program.entry + t), table_at = shared_address(program.table + t);
    uint32_t bytes_at = shared_address(bytes + 8 * t + g), wraps = program.wraps;
    const unsigned planes = program.planes;
#pragma unroll 2
    for (unsigned p = 0; p < planes; p += 4) {
        const uint2 entry = load_shared_pair(entry_at);
        const uint4 table = load_shared_quad(table_at);
        uint32_t w[4];
        word_levels levels;
        load_windows(slot, {entry.x, entry.y}, 16 * g, wraps & 1, w);
        look_up(w, table, complement, levels);
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t b = load_shared(bytes_at + n * (side_program<HD>::most * 8 * 4));
            const uint32_t b0 = permute(b, 0, 0x4140), b1 = permute(b, 0, 0x4342), c0 = b0 * 256, c1 = b1 * 256;
#pragma unroll
            for (int f = 0; f < 2; f++)
                add_products(d[f][0][n], levels.a[f], b0, b1), add_products(d[f][1][n], levels.a[f], c0, c1);
        }
        entry_at += 4 * sizeof(plane_entry), table_at += 4 * sizeof(uint4), bytes_at += 4 * 8 * 4, wraps >>= 1;
    }
    const uint32_t gains = slot + program.nibbles * PAGE_TRANSFORM_NIBBLE + lane_token();
    const uint32_t codes[2] = {load_shared(gains), load_shared(gains + 16)};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float gain = gain_of(codes[i / 4], i % 4, program.gain_least, program.gain_step);
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const int32_t(&own)[4] = d[i % 4 / 2][i / 4][n];
            const int32_t sum = own[i % 2 * 2] * 256 + own[i % 2 * 2 + 1] - queries.zero[n];
            x[n][i] = fmaf((float)sum * queries.unit[n], gain, queries.mean[n]);
        }
    }
}

/* ---- Values */

/* A lane's running state of its query of each tile: maximum for all lanes of the query, sums of its own tokens. */
template <int NQ> struct transform_running { float max[NQ], sum[NQ], gained[NQ]; };

/* What a plane group's component i of the lane's plane sums up to: [group][tile][i]. */
template <int HD, int NQ> using transform_sums = float[HD / 16][NQ][4];

/* Weights of a page as fragments b, [tokens 0 to 31, 32 to 63][tile][2], and their units. */
template <int NQ> struct page_weights {
    uint32_t b[2][NQ][2];
    float unit[NQ];
};

template <int HD, int NQ>
ATTEND_INLINE void weigh_page(uint32_t slot, const side_program<HD> &program, const float (&x)[NQ][8], transform_running<NQ> &r,
                              transform_sums<HD, NQ> &acc, page_weights<NQ> &to) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    float most[NQ];
    bool rises = false;
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        most[n] = x[n][0];
#pragma unroll
        for (int i = 1; i < 8; i++) most[n] = fmaxf(most[n], x[n][i]);
        rises = rises || most[n] > r.max[n] + LAZY_MAXIMUM;
    }
    if (__any_sync(ALL_LANES, rises)) {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            float m = most[n];
            for (int o = 4; o < 32; o *= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
            m = fmaxf(m, r.max[n]);
            const float factor = m == -INFINITY ? 1 : exp2_fast(r.max[n] - m);
            r.max[n] = m, r.sum[n] *= factor, r.gained[n] *= factor;
#pragma unroll
            for (int p = 0; p < HD / 16; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[p][n][i] *= factor;
        }
    }
    const uint32_t gains = slot + program.nibbles * PAGE_TRANSFORM_NIBBLE + lane_token();
    const uint32_t codes[2] = {load_shared(gains), load_shared(gains + 16)};
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float m = r.max[n] == -INFINITY ? 0 : r.max[n];
        float w[8], largest = 1e-30f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float weight = exp2_fast(x[n][i] - m);
            r.sum[n] += weight;
            w[i] = weight * gain_of(codes[i / 4], i % 4, program.gain_least, program.gain_step);
            largest = fmaxf(largest, w[i]);
        }
        for (int o = 4; o < 32; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const float steps = BYTES_MOST / largest;
        to.unit[n] = largest * (1 / BYTES_MOST);
        uint32_t v[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __float2uint_rn(w[i] * steps), sum += v[i];
        r.gained[n] += (float)sum * to.unit[n];
        /* Bytes k of a fragment: tokens T, T + 16, T + 1, T + 17, then T + 2, ... */
        uint32_t packed[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t first = v[2 * h] | v[2 * h + 4] << 16, second = v[2 * h + 1] | v[2 * h + 5] << 16;
            packed[0][h] = permute(first + 0x00800080u, second + 0x00800080u, 0x7531),
            packed[1][h] = permute(first, second, 0x6420);
        }
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const unsigned from = 4 * (t + 4 * s) + g / 2;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t upper = __shfl_sync(ALL_LANES, packed[0][h], from),
                               lower = __shfl_sync(ALL_LANES, packed[1][h], from);
                to.b[s][n][h] = g % 2 ? lower : upper;
            }
        }
    }
}

template <int HD, int NQ>
ATTEND_INLINE void accumulate_page(uint32_t slot, const side_program<HD> &program, const page_weights<NQ> &weights,
                                   complement complement, transform_sums<HD, NQ> &acc) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    const unsigned groups = (program.planes + 7) / 8, wraps = program.wraps;
    const uint32_t entry_at = shared_address(program.entry + g), table_at = shared_address(program.table + g);
#pragma unroll
    for (int p = 0; p < HD / 16; p++) {
        if (p < groups) {
            const uint2 entry = load_shared_pair(entry_at + 8 * p * sizeof(plane_entry));
            const uint4 table = load_shared_quad(table_at + 8 * p * sizeof(uint4));
            int32_t d[2][NQ][4] = {}; /* components 0 and 1, 2 and 3 */
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t w[4];
                word_levels levels;
                load_value_windows(slot, {entry.x, entry.y}, 16 * t + 64 * s, wraps >> p & 1, w);
                look_up(w, table, complement, levels);
#pragma unroll
                for (int n = 0; n < NQ; n++)
#pragma unroll
                    for (int f = 0; f < 2; f++) add_products(d[f][n], levels.a[f], weights.b[s][n][0], weights.b[s][n][1]);
            }
#pragma unroll
            for (int n = 0; n < NQ; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[p][n][i] =
                        fmaf((float)(d[i / 2][n][i % 2 * 2] * 256 + d[i / 2][n][i % 2 * 2 + 1]), weights.unit[n], acc[p][n][i]);
        }
    }
}

#endif
