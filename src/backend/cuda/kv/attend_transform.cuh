/* Implements decoding over pages of the codec transform (format/transform.h), on their codes.
 *
 * A plane's codes are integers, of four components of a key, or of four tokens' values, in the low halves of a word's four bytes, and of
 * tokens 16 further on in the high halves. They enter m16n8k32's integer products masked where they lie, 2^shift times as large, and those
 * of high halves 16 times as large as that; those of values in low halves are moved up beside the high ones. Queries' integers are as
 * much smaller, and sums of values are divided by it when a part is made. A level is 2 code - most: what `most` adds to a sum is known
 * and subtracted.
 *
 * Queries come as records of runs (attend_transform_runs.cuh); weights of values, times their gains, become integers of 16 bits
 * with a unit for each page. Upper and lower bytes are columns 2 j and 2 j + 1 of a product for query j: a lane has both of a sum,
 * for query lane % 4 of a tile of four. Sums of products are exact. Values are summed up by plane; scales, sizes and the basis are
 * applied once, when parts are merged.
 *
 * In products with keys the rows are words of a plane's nibble, and k is 4 components of 8 planes. In products with values the rows are
 * components of 8 planes, and k is 32 tokens.
 *
 * NQ is the number of tiles of four queries. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_CUH

#include "backend/cuda/kv/attend_transform_positions.cuh"
#include "backend/cuda/kv/attend_transform_runs.cuh"

/* ---- A side's planes, as transform_readers describes them, in shared memory */

struct plane_readers {
    uint32_t entries; /* address: 8 bytes a plane */
    uint32_t planes;
    uint32_t gains; /* where a slot has them: behind its nibbles */
    float gain_zero, gain_step, gain;
};

/* Returns the largest code of a plane, where it lies in its nibble. */
ATTEND_INLINE uint32_t largest_code(uint32_t entries, uint32_t plane) { return load_shared(entries + 8 * plane + 4) & 255; }

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

/* A key_words has a lane's words of a plane in each of two groups of 4, and the masks of their codes in the lower halves of bytes. */
struct key_words {
    uint4 of[2];
    uint32_t mask[2];

    /* Loads them by the entry of the plane in the first group. Behind a layout's last plane, entries are zeros up to a multiple of 8. */
    ATTEND_INLINE void load(uint32_t slot, uint32_t entry) {
        const uint32_t row = lane_id() / 4 * 16;
        const uint2 first = load_shared_pair(entry), second = load_shared_pair(entry + 4 * 8);
        of[0] = load_shared_quad(slot + (first.x ^ row)), mask[0] = first.y;
        of[1] = load_shared_quad(slot + (second.x ^ row)), mask[1] = second.y;
    }
};

/* Adds the products of two groups of planes. The lane reads queries' integers for the first from `bytes` on, for the second `more` bytes
 * behind them. */
template <int NQ>
ATTEND_INLINE void score_planes(const key_words &words, uint32_t bytes, uint32_t more, uint32_t tile_bytes, key_sums<NQ> &d) {
    const uint32_t first[4] = {words.of[0].x, words.of[0].y, words.of[0].z, words.of[0].w},
                   second[4] = {words.of[1].x, words.of[1].y, words.of[1].z, words.of[1].w};
    uint32_t b[NQ][2];
#pragma unroll
    for (int n = 0; n < NQ; n++)
        b[n][0] = load_shared(bytes + n * tile_bytes), b[n][1] = load_shared(bytes + more + n * tile_bytes);
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t low = words.mask[0] << 4 * h, high = words.mask[1] << 4 * h;
            const uint32_t a[4] = {first[2 * f] & low, first[2 * f + 1] & low, second[2 * f] & high, second[2 * f + 1] & high};
#pragma unroll
            for (int n = 0; n < NQ; n++) mma_u8_s8(d[f][h][n], a[0], a[1], a[2], a[3], b[n][0], b[n][1]);
        }
}

/* Computes logits x[tile][i] of a page's token lane_token() + token_of(i). `record` is that of the page's run, in shared memory. */
template <int HD, int NQ>
ATTEND_INLINE void score_page(uint32_t slot, uint32_t record, const plane_readers &readers, float (&x)[NQ][8]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    key_sums<NQ> d = {};
    const uint32_t groups = (readers.planes + 3) / 4, tile_bytes = groups * 128;
    uint32_t entry = readers.entries + 8 * t, bytes = record + 48 * NQ + 4 * (8 * t + g);
    key_words next = {};
    if (groups) next.load(slot, entry);
        /* The words of two groups are asked for before those of the two before them are multiplied. */
#pragma unroll 2
    for (uint32_t after = 2; after < groups; after += 2) {
        const key_words own = next;
        entry += 2 * 4 * 8, next.load(slot, entry);
        score_planes<NQ>(own, bytes, 128, tile_bytes, d);
        bytes += 256;
    }
    if (groups) score_planes<NQ>(next, bytes, groups % 2 ? 0 : 128, tile_bytes, d);
    const uint32_t gains = slot + readers.gains + lane_token(), numbers = record + 4 * t;
    const uint32_t codes[2] = {load_shared(gains), load_shared(gains + 16)};
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float unit = __uint_as_float(load_shared(numbers + 16 * n)),
                    mean = __uint_as_float(load_shared(numbers + 16 * (NQ + n)));
        const float least = readers.gain_zero * unit, step = readers.gain_step * unit;
        const int32_t zero = (int32_t)load_shared(numbers + 16 * (2 * NQ + n));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float gain = gain_of(codes[i / 4], i % 4, least, step);
            const int32_t upper = d[i % 4 / 2][i / 4][n][i % 2 * 2], lower = d[i % 4 / 2][i / 4][n][i % 2 * 2 + 1];
            /* Twice the product, whose upper and lower part are 16 times as large for the last tokens. */
            const int32_t twice = i < 4 ? upper * 512 + lower * 2 : upper * 32 + (lower >> 3);
            x[n][i] = fmaf((float)(twice - zero), gain, mean);
        }
    }
}

/* ---- Values */

/* A running state is a lane's, of its query of each tile: the maximum is the same in all lanes of the query, the sums are of the
 * lane's own tokens, `no_mean` those of weights of rows that are coded less no mean. */
template <int NQ> struct transform_running { float max[NQ], sum[NQ], gained[NQ], no_mean[NQ]; };

/* These are sums of component i of the lane's plane in each group of planes: [group][tile][i]. */
template <int HD, int NQ> using transform_sums = float[HD / 16][NQ][4];

/* A page_weights has a page's weights as fragments b, [tokens 0 to 31, 32 to 63][tile][tokens whose codes are low, high], and their units
 * for sums of codes 16 times as large. */
template <int NQ> struct page_weights {
    uint32_t b[2][NQ][2];
    float unit[NQ];
};

/* The last bits of WHOLE and a number below it are the number rounded; WHOLE_BITS are its own. */
constexpr float WHOLE = 8388608;
constexpr uint32_t WHOLE_BITS = 0x4b000000;

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
        const float steps = __fdividef(BYTES_MOST, largest);
        to.unit[n] = largest * (1 / (16 * BYTES_MOST));
        uint32_t v[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __float_as_uint(fmaf(w[i], steps, WHOLE)), sum += v[i];
        r.gained[n] += (float)(16 * (sum - 8 * WHOLE_BITS)) * to.unit[n];
        /* Bytes k of a fragment are of tokens T, T + 1, ... */
        uint32_t packed[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t first = permute(v[4 * h], v[4 * h + 1], 0x5410), second = permute(v[4 * h + 2], v[4 * h + 3], 0x5410);
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

/* A plane_words has a lane's words of a plane, of tokens 0 to 31 and 32 to 63, and the mask of its codes in the upper halves of bytes. */
struct plane_words {
    uint4 of[2];
    uint32_t mask;

    ATTEND_INLINE void load(uint32_t slot, uint2 entry) {
        const uint32_t place = entry.x ^ lane_id() % 4 * 16;
        of[0] = load_shared_quad(slot + place), of[1] = load_shared_quad(slot + (place ^ 64)), mask = entry.y << 4;
    }
};

/* Adds the sums of a plane's codes times weights. Codes in the low halves of bytes are multiplied where those of the high ones lie. */
template <int NQ>
ATTEND_INLINE void accumulate_plane(const plane_words &plane, const page_weights<NQ> &weights, float (&acc)[NQ][4]) {
    int32_t d[2][NQ][4] = {}; /* [components 0 and 1, 2 and 3] */
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint32_t words[4] = {plane.of[s].x, plane.of[s].y, plane.of[s].z, plane.of[s].w};
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const uint32_t a[4] = {words[2 * f] * 16 & plane.mask, words[2 * f + 1] * 16 & plane.mask, words[2 * f] & plane.mask,
                                   words[2 * f + 1] & plane.mask};
#pragma unroll
            for (int n = 0; n < NQ; n++) mma_u8_s8(d[f][n], a[0], a[1], a[2], a[3], weights.b[s][n][0], weights.b[s][n][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < NQ; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = fmaf((float)(d[i / 2][n][i % 2 * 2] * 256 + d[i / 2][n][i % 2 * 2 + 1]), weights.unit[n], acc[n][i]);
}

/* The words of a group of planes are asked for before those of the group before it are multiplied. */
template <int HD, int NQ>
ATTEND_INLINE void accumulate_page(uint32_t slot, const plane_readers &readers, const page_weights<NQ> &weights,
                                   transform_sums<HD, NQ> &acc) {
    const unsigned groups = (readers.planes + 7) / 8;
    const uint32_t entry_at = readers.entries + 8 * (lane_id() / 4);
    if (!groups) return;
    plane_words next;
    next.load(slot, load_shared_pair(entry_at));
#pragma unroll
    for (unsigned p = 0; p < HD / 16; p++) {
        if (p < groups) {
            const plane_words own = next;
            if (p + 1 < HD / 16) next.load(slot, load_shared_pair(entry_at + 8 * 8 * min(p + 1, groups - 1)));
            accumulate_plane<NQ>(own, weights, acc[p]);
        }
    }
}

#endif
