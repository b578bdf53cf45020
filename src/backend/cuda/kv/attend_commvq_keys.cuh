/* Has the scores of a page of CommVQ's keys.
 *
 * Codewords are summed in registers, once for all queries of a KV head: they are bytes, and four of them are added as one integer.
 * Sums are exact in a span of rounds (format/commvq.h), and spans are summed as halves, exactly up to 2048. The sums, rotated by
 * their tokens' offsets in the page as halves, meet queries that are rotated back to the page's first position and multiplied by
 * the pairs' steps; with the gain, that is the part of the shape. The part of the mean m is the product of cosines and sines of the
 * offsets with conj(q) m, for
 *
 *     <q, R(o) (m + gain shape)> = Re(conj(q) m e^(i o)) + gain <q, R(o) shape>
 *
 * Both are products of tensor cores. Tokens are their rows: a lane has tokens 8 g + 2 i and the next of tile i and, of a sub-vector,
 * units of 8 pairs, t and t + 4 (of 32 pairs, t alone). A lane whose g is odd reads its units in the other order, so that the eight
 * lanes that are served together read from eight groups of banks. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_KEYS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_KEYS_CUH

#include "backend/cuda/kv/attend_ring.cuh"

template <int HD> struct commvq_shape {
    static constexpr int pairs = HD == 64 ? 32 : 64, subvectors = HD / 2 / pairs; /* of a sub-vector, of a head */
    static constexpr int units = pairs / 32;                                      /* of a lane in a sub-vector */
    static constexpr int steps = HD / 16;                                         /* of 16 numbers in products with queries */
    static constexpr int angle_words = 2 * pairs / 2;                             /* of a token and sub-vector: cosines, sines */
    static constexpr int angle_bytes = PAGE_TOKENS * subvectors * angle_words * 4;
};

/* Returns the first pair of word w of a unit; the second is two further. */
ATTEND_INLINE uint32_t pair_of_word(uint32_t w) { return w % 2 + w / 2 * 4; }

/* ---- Angles of the offsets in a page, in shared memory */

/* Returns the byte at which the cosines (part 0) or sines of a unit lie. */
template <int HD> ATTEND_INLINE uint32_t angle_at(uint32_t token, uint32_t subvector, uint32_t part, uint32_t unit) {
    using shape = commvq_shape<HD>;
    const uint32_t place = (part * (4 * shape::units) + unit) ^ (token / 8 % 2 * 4);
    return (token * shape::subvectors + subvector) * shape::angle_words * 4 + place * 16;
}

/* Writes, by all threads of a CTA, the angles; channels that are not rotated have none. */
template <int HD> ATTEND_INLINE void prepare_angles(const struct attend_decode &a, uint8_t *angles) {
    using shape = commvq_shape<HD>;
    const uint32_t rotated_pairs = a.heads.n_rot / 2;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * HD / 4; i += blockDim.x) {
        const uint32_t token = i / (HD / 4), w = i % 4, unit = i / 4 % (4 * shape::units),
                       subvector = i % (HD / 4) / (16 * shape::units), pair = subvector * shape::pairs + 8 * unit + pair_of_word(w);
        const float2 *const from = reinterpret_cast<const float2 *>(a.pre_rope.offsets) + (size_t)token * rotated_pairs;
        const float2 first = pair < rotated_pairs ? from[pair] : make_float2(1, 0),
                     second = pair + 2 < rotated_pairs ? from[pair + 2] : make_float2(1, 0);
        *reinterpret_cast<uint32_t *>(angles + angle_at<HD>(token, subvector, 0, unit) + 4 * w) = pack_halves(first.x, second.x);
        *reinterpret_cast<uint32_t *>(angles + angle_at<HD>(token, subvector, 1, unit) + 4 * w) = pack_halves(first.y, second.y);
    }
}

/* ---- Queries */

/* A query_powers brings a query's products with steps, and with the mean, to [1, 2); there are eight. */
struct query_powers {
    float up[8], mean_up[8], factor[8], mean_factor[8]; /* a product times factor is a part of a logit */
};

/* Returns a pair of a query, by the numbering of struct commvq_view, times rope's magnitude. */
ATTEND_INLINE float2 query_pair(const float *q, const struct head_view &heads, uint32_t pair) {
    const uint32_t rotated_pairs = heads.n_rot / 2;
    const bool split = heads.pairing != ROPE_ADJACENT && pair < rotated_pairs;
    const uint32_t first = split ? pair : 2 * pair, second = first + (split ? rotated_pairs : 1);
    const float magnitude = pair < rotated_pairs ? heads.magnitude : 1;
    return make_float2(q[first] * magnitude, q[second] * magnitude);
}

ATTEND_INLINE float2 mean_pair(const float *mean, const struct head_view &heads, uint32_t pair) {
    const uint32_t rotated_pairs = heads.n_rot / 2;
    const bool split = heads.pairing != ROPE_ADJACENT && pair < rotated_pairs;
    const uint32_t first = split ? pair : 2 * pair;
    return make_float2(mean[first], mean[first + (split ? rotated_pairs : 1)]);
}

/* Writes, by eight warps, the powers of q[group][HD]. */
template <int HD>
ATTEND_INLINE void prepare_powers(const struct attend_decode &a, const struct share &s, const struct commvq_view &view,
                                  query_powers &to) {
    const unsigned query = threadIdx.x / 32, lane = lane_id();
    const float *const q = a.q + queries_at<HD>(a, s) + query * HD;
    float most = 0, mean_most = 0;
    for (uint32_t pair = lane; pair < HD / 2 && query < s.group; pair += 32) {
        const float2 x = query_pair(q, a.heads, pair), m = mean_pair(view.mean, a.heads, pair);
        const float size = sqrtf(x.x * x.x + x.y * x.y);
        most = fmaxf(most, size * view.steps[pair]), mean_most = fmaxf(mean_most, size * sqrtf(m.x * m.x + m.y * m.y));
    }
    for (int o = 16; o; o /= 2) {
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, o));
        mean_most = fmaxf(mean_most, __shfl_xor_sync(ALL_LANES, mean_most, o));
    }
    if (lane) return;
    const power_of_two power = power_of(most), mean = power_of(mean_most);
    const float scale = query < s.group ? a.heads.scale * LOG2_E : 0;
    to.up[query] = power.up, to.mean_up[query] = mean.up;
    to.factor[query] = power.down * scale * view.gain_scale, to.mean_factor[query] = mean.down * scale;
}

/* These are the queries of a page as fragments b of both products. */
template <int HD> struct page_queries { uint2 shape[commvq_shape<HD>::steps], mean[commvq_shape<HD>::steps]; };

/* Rotates query g of a lane back to position `from`. */
template <int HD>
ATTEND_INLINE void rotate_to_page(const struct attend_decode &a, const struct share &s, const struct commvq_view &view,
                                  const query_powers &powers, uint32_t from, page_queries<HD> &to) {
    using shape = commvq_shape<HD>;
    const unsigned g = lane_id() / 4, t = lane_id() % 4, rotated_pairs = a.heads.n_rot / 2;
    const bool there = g < s.group;
    const float *const q = a.q + queries_at<HD>(a, s) + (there ? g : 0) * HD;
    const float2 *const run = reinterpret_cast<const float2 *>(a.run_angles) + (size_t)(from / ROPE_RUN_TOKENS) * rotated_pairs,
                        *const offset =
                            reinterpret_cast<const float2 *>(a.pre_rope.offsets) + (size_t)(from % ROPE_RUN_TOKENS) * rotated_pairs;
    const float up = there ? powers.up[g] : 0, mean_up = there ? powers.mean_up[g] : 0;
#pragma unroll
    for (int step = 0; step < shape::steps; step++) {
        const uint32_t subvector = step / (4 * shape::units), unit = t + step / 4 % shape::units * 4;
        float re[2], im[2], mean_re[2], mean_im[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t pair = subvector * shape::pairs + 8 * unit + pair_of_word(step % 4) + 2 * e;
            float2 x = query_pair(q, a.heads, pair);
            if (pair < rotated_pairs) {
                const float2 r = run[pair], o = offset[pair];
                const float cosine = r.x * o.x - r.y * o.y, sine = r.x * o.y + r.y * o.x;
                x = make_float2(x.x * cosine + x.y * sine, x.y * cosine - x.x * sine);
            }
            const float2 m = mean_pair(view.mean, a.heads, pair);
            const float unit_up = up * view.steps[pair];
            re[e] = x.x * unit_up, im[e] = x.y * unit_up;
            mean_re[e] = (x.x * m.x + x.y * m.y) * mean_up, mean_im[e] = (x.y * m.x - x.x * m.y) * mean_up;
        }
        to.shape[step] = make_uint2(pack_halves(re[0], re[1]), pack_halves(im[0], im[1]));
        to.mean[step] = make_uint2(pack_halves(mean_re[0], mean_re[1]), pack_halves(mean_im[0], mean_im[1]));
    }
}

/* ---- Sums of codewords */

/* A table_rows is where the tables lie: in shared memory, where TABLES, else in global memory, read through its caches. */
struct table_rows {
    uint32_t shared;
    const uint8_t *global;
};

template <bool TABLES> ATTEND_INLINE uint4 load_row(const table_rows &rows, uint32_t offset) {
    return TABLES ? load_shared_quad(rows.shared + offset) : __ldg(reinterpret_cast<const uint4 *>(rows.global + offset));
}

ATTEND_INLINE void add_quad(uint4 &to, const uint4 &x) { to.x += x.x, to.y += x.y, to.z += x.z, to.w += x.w; }

/* These are the sums of a lane's units of a token, in halves: words of pairs w and w + 2 as pair_of_word says. */
template <int UNITS> struct word_sums { uint32_t re[UNITS][4], im[UNITS][4]; };

ATTEND_INLINE uint32_t add_halves(uint32_t a, uint32_t b) { return half2_bits(__hadd2(bits_half2(a), bits_half2(b))); }

/* Adds four numbers, a word of bytes each 128 more than the number, to the words of pairs 0 and 2, and 1 and 3. Behind the byte 0x64
 * a byte is the half 1024 more than it. */
ATTEND_INLINE void add_bytes(uint32_t bytes, uint32_t &even, uint32_t &odd) {
    const uint32_t less = 0xe480e480; /* -1152 */
    even = add_halves(even, add_halves(permute(bytes, 0x64646464, 0x4240), less));
    odd = add_halves(odd, add_halves(permute(bytes, 0x64646464, 0x4341), less));
}

/* Adds a span of n rounds: real parts a - i b's, imaginary parts a + b's real ones. Numbers in rows are COMMVQ_MIDDLE too large. */
ATTEND_INLINE void add_span(const uint4 &a, const uint4 &b, uint32_t n, uint32_t (&re)[4], uint32_t (&im)[4]) {
    constexpr uint32_t middle = 2 * COMMVQ_MIDDLE * 0x01010101u;
    add_bytes(a.x - b.z + middle, re[0], re[1]);
    add_bytes(a.y - b.w + middle, re[2], re[3]);
    add_bytes(a.z + b.x + middle * (1 - n), im[0], im[1]);
    add_bytes(a.w + b.y + middle * (1 - n), im[2], im[3]);
}

ATTEND_INLINE void exchange(bool really, uint32_t &x, uint32_t &y) {
    const uint32_t old = x;
    x = really ? y : x, y = really ? old : y;
}

/* Computes the sums of tokens 8 g + 2 i and the next. `codes` is the address of the sub-vector's codes, `first` the offset of its
 * rows. */
template <int UNITS, bool TABLES>
ATTEND_INLINE void sum_codewords(const struct commvq_view &view, const table_rows &rows, uint32_t codes, uint32_t first, int i,
                                 word_sums<UNITS> (&sums)[2]) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4, odd = g % 2;
    const uint32_t low_at = codes + 8 * g + 2 * i, high_at = codes + PAGE_TOKENS + 4 * g, shift = 8 * i;
#pragma unroll
    for (int token = 0; token < 2; token++)
#pragma unroll
        for (int u = 0; u < UNITS; u++)
#pragma unroll
            for (int w = 0; w < 4; w++) sums[token].re[u][w] = sums[token].im[u][w] = 0;
    uint32_t round = 0, table = first + 16 * (t + 4 * odd);
#pragma unroll 1
    for (uint32_t span = 0; span < view.spans; span++) {
        const uint32_t n = view.span[span];
        uint4 a[2][UNITS], b[2][UNITS];
#pragma unroll
        for (int token = 0; token < 2; token++)
#pragma unroll
            for (int u = 0; u < UNITS; u++) a[token][u] = b[token][u] = make_uint4(0, 0, 0, 0);
#pragma unroll 2
        for (uint32_t r = 0; r < n; r++, round++, table += COMMVQ_ENTRIES * COMMVQ_ROW) {
            const uint32_t low = load_shared_half(low_at + round * COMMVQ_PART),
                           high = load_shared(high_at + round * COMMVQ_PART) >> shift;
#pragma unroll
            for (int token = 0; token < 2; token++) {
                const uint32_t code = (low >> 8 * token & 0xff) | (high >> 4 * token & 15) << 8;
                const uint32_t at = table + (code & 63) * COMMVQ_ROW, bt = table + (code >> 6) * COMMVQ_ROW;
#pragma unroll
                for (int u = 0; u < UNITS; u++) {
                    add_quad(a[token][u], load_row<TABLES>(rows, at ^ 64 * u));
                    add_quad(b[token][u], load_row<TABLES>(rows, bt ^ 64 * u));
                }
            }
        }
#pragma unroll
        for (int token = 0; token < 2; token++)
#pragma unroll
            for (int u = 0; u < UNITS; u++) add_span(a[token][u], b[token][u], n, sums[token].re[u], sums[token].im[u]);
    }
#pragma unroll
    for (int w = 0; w < 8 * (UNITS - 1); w++) { /* where there are two units */
        exchange(odd, sums[w / 4].re[0][w % 4], sums[w / 4].re[UNITS - 1][w % 4]);
        exchange(odd, sums[w / 4].im[0][w % 4], sums[w / 4].im[UNITS - 1][w % 4]);
    }
}

/* ---- Scores */

struct rotated_word {
    uint32_t re, im;
};

ATTEND_INLINE rotated_word rotate_word(uint32_t re, uint32_t im, uint32_t cosine, uint32_t sine) {
    const __half2 x = bits_half2(re), y = bits_half2(im), c = bits_half2(cosine), s = bits_half2(sine);
    return {half2_bits(__hfma2(x, c, __hneg2(__hmul2(y, s)))), half2_bits(__hfma2(x, s, __hmul2(y, c)))};
}

/* Computes the products of tokens 8 g + 2 i and the next with the queries: of shapes to x, of the mean to y. */
template <int HD, bool TABLES>
ATTEND_INLINE void score_tokens(const struct commvq_view &view, const table_rows &rows, uint32_t slot, uint32_t angles, int i,
                                const page_queries<HD> &queries, float (&x)[4], float (&y)[4]) {
    using shape = commvq_shape<HD>;
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int c = 0; c < 4; c++) x[c] = y[c] = 0;
#pragma unroll
    for (int k = 0; k < shape::subvectors; k++) {
        word_sums<shape::units> sums[2];
        sum_codewords<shape::units, TABLES>(view, rows, slot + PAGE_TOKENS + k * view.rounds * COMMVQ_PART,
                                            k * view.rounds * COMMVQ_ENTRIES * COMMVQ_ROW, i, sums);
#pragma unroll
        for (int u = 0; u < shape::units; u++) {
            uint4 angle[2][2]; /* [token][cosines, sines] */
#pragma unroll
            for (int token = 0; token < 2; token++)
#pragma unroll
                for (int part = 0; part < 2; part++)
                    angle[token][part] = load_shared_quad(angles + angle_at<HD>(8 * g + 2 * i + token, k, part, t + 4 * u));
#pragma unroll
            for (int w = 0; w < 4; w++) {
                uint32_t cosine[2], sine[2];
                rotated_word word[2];
#pragma unroll
                for (int token = 0; token < 2; token++) {
                    const uint4 c = angle[token][0], s = angle[token][1];
                    cosine[token] = w == 0 ? c.x : w == 1 ? c.y : w == 2 ? c.z : c.w;
                    sine[token] = w == 0 ? s.x : w == 1 ? s.y : w == 2 ? s.z : s.w;
                    word[token] = rotate_word(sums[token].re[u][w], sums[token].im[u][w], cosine[token], sine[token]);
                }
                const int step = (k * shape::units + u) * 4 + w;
                mma(x, word[0].re, word[1].re, word[0].im, word[1].im, queries.shape[step].x, queries.shape[step].y);
                mma(y, cosine[0], cosine[1], sine[0], sine[1], queries.mean[step].x, queries.mean[step].y);
            }
        }
    }
}

/* Computes the logits x[64 tokens][queries] of a page's keys, which lie at `slot` in shared memory, before slopes and masks. */
template <int HD, bool TABLES>
ATTEND_INLINE void score_page(const struct commvq_view &view, const table_rows &rows, uint32_t slot, uint32_t angles,
                              const query_powers &powers, const page_queries<HD> &queries, float (&x)[4][1][4]) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float products[4], means[4];
        score_tokens<HD, TABLES>(view, rows, slot, angles, i, queries, products, means);
        const uint32_t codes = load_shared_half(slot + 8 * g + 2 * i);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t query = 2 * t + c % 2;
            const float gain = relative_gain(codes >> (c / 2 * 8) & 0xff);
            const float logit = gain * powers.factor[query] * products[c] + powers.mean_factor[query] * means[c];
#pragma unroll
            for (int tile = 0; tile < 4; tile++) x[tile][0][c] = tile == i ? logit : x[tile][0][c];
        }
    }
}

#endif
