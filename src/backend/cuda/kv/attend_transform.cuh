/* Implements decoding over pages of the codec transform (format/transform.h), on their codes.
 *
 * Byte permutations look a plane's levels up in tables of 16 bytes: four codes of a word are the selectors of one that looks into
 * the table's first half and, complemented, of one that looks into its second half. A selector with its highest bit set yields the
 * sign of a byte: levels stand LEVEL_ZERO higher in tables, so that this is 0, and a level is the sum of both. Both enter
 * m16n8k32's integer products as they are; what LEVEL_ZERO adds to a sum is known and subtracted. The pipe of bitwise instructions
 * bounds the speed: therefore products add what could be or-ed, and complements are made by multiplying (struct complement).
 *
 * Queries come as records of runs (attend_transform_runs.cuh); weights of values, times their gains, become integers of 16 bits
 * with a unit for each page. Upper and lower bytes are columns 2 j and 2 j + 1 of a product for query j: a lane has both of a sum,
 * for query lane % 4 of a tile of four. Sums of products are exact. Values are summed up by plane; scales, sizes and the basis are
 * applied once, when parts are merged.
 *
 * In products with keys the rows are words of a plane's nibble, whose tokens T and T + 16 have a product each (the other's bytes
 * meet zeros), and k is 4 components of 4 planes. In products with values the rows are components of 8 planes, and k is 32 tokens.
 *
 * NQ is the number of tiles of four queries. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH

#include "backend/cuda/kv/attend_transform_positions.cuh"
#include "backend/cuda/kv/attend_transform_runs.cuh"

/* ---- A side's planes, as transform_readers describes them, in shared memory */

struct plane_readers {
    uint32_t tables, entries; /* addresses: 16 and 8 bytes a plane */
    uint32_t planes, wraps;
    uint32_t gains; /* where a slot has them: behind its nibbles */
    float gain_zero, gain_step, gain;
};

/* Returns a window: four bits of each component or token of a word. */
ATTEND_INLINE uint32_t window_of(uint32_t nibble, uint32_t before, uint32_t mask) { return (nibble & mask) | (before & ~mask); }

/* Computes ~x as x * ones + ones where `ones` is -1, which the compiler must not know: else it takes the bitwise pipe. */
struct complement {
    uint32_t ones;
    ATTEND_INLINE uint32_t of(uint32_t x) const { return x * ones + ones; }
};

/* A word_levels has the levels of 4 words of a plane, of codes 0 to 7 and of 8 to 15, where the other codes have 0: fragments a of
 * products whose rows are two words each. */
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

/* Computes d += levels of two words times b. */
ATTEND_INLINE void add_products(int32_t (&d)[4], const uint32_t (&a)[2][4], uint32_t b0, uint32_t b1) {
    mma_s8(d, a[0][0], a[0][1], a[0][2], a[0][3], b0, b1);
    mma_s8(d, a[1][0], a[1][1], a[1][2], a[1][3], b0, b1);
}

/* Loads the windows of 4 words of a plane. `slot` is that of the nibbles, `lane` the lane's place in one. WRAPS says that a plane
 * of the group may go on from one component to the next: a key's four are the bytes of a word, a value's the words of four. */
template <int SIDE, bool WRAPS> ATTEND_INLINE void load_windows(uint32_t slot, uint2 entry, uint32_t lane, uint32_t (&w)[4]) {
    const uint4 own = load_shared_quad(slot + ((entry.x & 0xffff) ^ lane));
    uint4 before = load_shared_quad(slot + ((entry.x >> 16 & 0x7fff) ^ lane));
    if (WRAPS && SIDE) {
        if (entry.x >> 31) before = make_uint4(before.w, before.x, before.y, before.z);
    } else if (WRAPS) {
        const uint32_t turn = entry.x >> 31 ? 0x2103 : 0x3210;
        before = make_uint4(permute(before.x, 0, turn), permute(before.y, 0, turn), permute(before.z, 0, turn),
                            permute(before.w, 0, turn));
    }
    w[0] = window_of(own.x, before.x, entry.y), w[1] = window_of(own.y, before.y, entry.y);
    w[2] = window_of(own.z, before.z, entry.y), w[3] = window_of(own.w, before.w, entry.y);
}

/* ---- Keys */

/* Return the first of the 8 tokens whose logits a lane has, and the i-th, counted from that: 4 that follow one another, then those
 * 16 later. */
ATTEND_INLINE uint32_t lane_token() { return lane_id() / 16 * 32 + lane_id() / 4 % 4 * 4; }
ATTEND_INLINE uint32_t token_of(int i) { return i % 4 + i / 4 * 16; }

ATTEND_INLINE float gain_of(uint32_t codes, int i, float least, float step) {
    return fmaf((float)(codes >> 8 * i & 255), step, least);
}

/* A page's products with keys have these sums: [words 4g, 4g+1 or 4g+2, 4g+3][tokens T or T + 16]. */
template <int NQ> using key_sums = int32_t[2][2][NQ][4];

/* A key_cursor has the places where a lane reads the data of its plane of the next group of 4. */
struct key_cursor {
    uint32_t entry, table, bytes;
};

/* Adds the products of GROUPS groups of planes. All their windows are loaded before the first is used. */
template <int NQ, int GROUPS, bool WRAPS>
ATTEND_INLINE void score_planes(uint32_t slot, uint32_t tile_bytes, key_cursor &at, complement complement, key_sums<NQ> &d) {
    uint32_t w[GROUPS][4];
    uint2 entry[GROUPS];
#pragma unroll
    for (int k = 0; k < GROUPS; k++) entry[k] = load_shared_pair(at.entry + 4 * 8 * k);
#pragma unroll
    for (int k = 0; k < GROUPS; k++) load_windows<0, WRAPS>(slot, entry[k], lane_id() / 4 * 16, w[k]);
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        const uint4 table = load_shared_quad(at.table + 4 * 16 * k);
        word_levels levels;
        look_up(w[k], table, complement, levels);
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t b = load_shared(at.bytes + n * tile_bytes + 4 * 8 * 4 * k);
            const uint32_t b0 = permute(b, 0, 0x4140), b1 = permute(b, 0, 0x4342), c0 = b0 * 256, c1 = b1 * 256;
#pragma unroll
            for (int f = 0; f < 2; f++)
                add_products(d[f][0][n], levels.a[f], b0, b1), add_products(d[f][1][n], levels.a[f], c0, c1);
        }
    }
    at.entry += GROUPS * 4 * 8, at.table += GROUPS * 4 * 16, at.bytes += GROUPS * 4 * 8 * 4;
}

/* Adds the products of `count` groups of planes that do not wrap. */
template <int NQ>
ATTEND_INLINE void score_groups(uint32_t slot, uint32_t tile_bytes, uint32_t count, key_cursor &at, complement complement,
                                key_sums<NQ> &d) {
#pragma unroll 1
    for (uint32_t pairs = count / 2; pairs; pairs--) score_planes<NQ, 2, false>(slot, tile_bytes, at, complement, d);
    if (count % 2) score_planes<NQ, 1, false>(slot, tile_bytes, at, complement, d);
}

/* Computes logits x[tile][i] of a page's token lane_token() + token_of(i). `record` is that of the page's run, in shared memory. */
template <int HD, int NQ>
ATTEND_INLINE void score_page(uint32_t slot, uint32_t record, const plane_readers &readers, complement complement,
                              float (&x)[NQ][8]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    key_sums<NQ> d = {};
    key_cursor at = {readers.entries + 8 * t, readers.tables + 16 * t, record + 48 * NQ + 4 * (8 * t + g)};
    const uint32_t groups = (readers.planes + 3) / 4, tile_bytes = groups * 128;
    const uint32_t wrap = readers.wraps ? __ffs((int)readers.wraps) - 1 : groups, end = 32 - __clz((int)readers.wraps);
    score_groups<NQ>(slot, tile_bytes, wrap, at, complement, d);
#pragma unroll 1
    for (uint32_t p = wrap; p < end; p++) score_planes<NQ, 1, true>(slot, tile_bytes, at, complement, d);
    score_groups<NQ>(slot, tile_bytes, groups - max(wrap, end), at, complement, d);
    const uint32_t gains = slot + readers.gains + lane_token(), numbers = record + 4 * t;
    const uint32_t codes[2] = {load_shared(gains), load_shared(gains + 16)};
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float unit = __uint_as_float(load_shared(numbers + 16 * n)),
                    mean = __uint_as_float(load_shared(numbers + 16 * (NQ + n)));
        const int32_t zero = (int32_t)load_shared(numbers + 16 * (2 * NQ + n));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float gain = gain_of(codes[i / 4], i % 4, readers.gain_zero, readers.gain_step);
            const int32_t(&own)[4] = d[i % 4 / 2][i / 4][n];
            x[n][i] = fmaf((float)(own[i % 2 * 2] * 256 + own[i % 2 * 2 + 1] - zero) * unit, gain, mean);
        }
    }
}

/* ---- Values */

/* A running state is a lane's, of its query of each tile: the maximum is the same in all lanes of the query, the sums are of the
 * lane's own tokens, `no_mean` those of weights of rows that are coded less no mean. */
template <int NQ> struct transform_running { float max[NQ], sum[NQ], gained[NQ], no_mean[NQ]; };

/* These are sums of component i of the lane's plane in each group of planes: [group][tile][i]. */
template <int HD, int NQ> using transform_sums = float[HD / 16][NQ][4];

/* A page_weights has a page's weights as fragments b, [tokens 0 to 31, 32 to 63][tile][2], and their units. */
template <int NQ> struct page_weights {
    uint32_t b[2][NQ][2];
    float unit[NQ];
};

static_assert(TRANSFORM_NO_MEAN_GAINS == 8, "the bits of gains that have_no_mean looks at");

/* Returns whether a gain of four tokens is one of a row that is coded less no mean. */
ATTEND_INLINE bool have_no_mean(uint32_t codes) {
    const uint32_t upper = codes & 0xf8f8f8f8u;
    return (upper - 0x01010101u) & ~upper & 0x80808080u;
}

/* Mends the weights times gains w[8] of rows that are coded less no mean, and adds up those rows' weights. */
ATTEND_INLINE void weigh_no_mean(const uint32_t (&codes)[2], const float (&x)[8], float max, float gain, float (&w)[8],
                                 float &sum) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t code = codes[i / 4] >> i % 4 * 8 & 255;
        if (code >= TRANSFORM_NO_MEAN_GAINS) continue;
        const float weight = exp2_fast(x[i] - max);
        w[i] = weight * TRANSFORM_NO_MEAN_GAIN(gain, code);
        sum += weight;
    }
}

template <int HD, int NQ>
ATTEND_INLINE void weigh_page(uint32_t slot, const plane_readers &readers, const float (&x)[NQ][8], transform_running<NQ> &r,
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
            r.max[n] = m, r.sum[n] *= factor, r.gained[n] *= factor, r.no_mean[n] *= factor;
#pragma unroll
            for (int p = 0; p < HD / 16; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[p][n][i] *= factor;
        }
    }
    const uint32_t gains = slot + readers.gains + lane_token();
    const uint32_t codes[2] = {load_shared(gains), load_shared(gains + 16)};
    const bool no_mean = __any_sync(ALL_LANES, have_no_mean(codes[0]) || have_no_mean(codes[1]));
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float m = r.max[n] == -INFINITY ? 0 : r.max[n];
        float w[8], largest = 1e-30f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float weight = exp2_fast(x[n][i] - m);
            r.sum[n] += weight;
            w[i] = weight * gain_of(codes[i / 4], i % 4, readers.gain_zero, readers.gain_step);
        }
        if (no_mean) weigh_no_mean(codes, x[n], m, readers.gain, w, r.no_mean[n]);
#pragma unroll
        for (int i = 0; i < 8; i++) largest = fmaxf(largest, w[i]);
        for (int o = 4; o < 32; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const float steps = BYTES_MOST / largest;
        to.unit[n] = largest * (1 / BYTES_MOST);
        uint32_t v[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __float2uint_rn(w[i] * steps), sum += v[i];
        r.gained[n] += (float)sum * to.unit[n];
        /* Bytes k of a fragment are of tokens T, T + 16, T + 1, T + 17, then T + 2, ... */
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

template <int NQ, bool WRAPS>
ATTEND_INLINE void accumulate_planes(uint32_t slot, uint2 entry, const uint4 &table, const page_weights<NQ> &weights,
                                     complement complement, float (&acc)[NQ][4]) {
    int32_t d[2][NQ][4] = {}; /* components 0 and 1, 2 and 3 */
    uint32_t w[2][4];
#pragma unroll
    for (int s = 0; s < 2; s++) load_windows<1, WRAPS>(slot, entry, lane_id() % 4 * 16 + 64 * s, w[s]);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        word_levels levels;
        look_up(w[s], table, complement, levels);
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int f = 0; f < 2; f++) add_products(d[f][n], levels.a[f], weights.b[s][n][0], weights.b[s][n][1]);
    }
#pragma unroll
    for (int n = 0; n < NQ; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = fmaf((float)(d[i / 2][n][i % 2 * 2] * 256 + d[i / 2][n][i % 2 * 2 + 1]), weights.unit[n], acc[n][i]);
}

template <int HD, int NQ>
ATTEND_INLINE void accumulate_page(uint32_t slot, const plane_readers &readers, const page_weights<NQ> &weights,
                                   complement complement, transform_sums<HD, NQ> &acc) {
    const unsigned g = lane_id() / 4, groups = (readers.planes + 7) / 8;
    const uint32_t entry_at = readers.entries + 8 * g, table_at = readers.tables + 16 * g;
    uint2 entry = load_shared_pair(entry_at);
#pragma unroll
    for (int p = 0; p < HD / 16; p++) {
        if (p < groups) {
            const uint4 table = load_shared_quad(table_at + 8 * 16 * p);
            const uint2 own = entry;
            if (p + 1 < HD / 16) entry = load_shared_pair(entry_at + 8 * 8 * (p + 1)); /* ahead of its use */
            if (readers.wraps >> p & 1)
                accumulate_planes<NQ, true>(slot, own, table, weights, complement, acc[p]);
            else
                accumulate_planes<NQ, false>(slot, own, table, weights, complement, acc[p]);
        }
    }
}

#endif
