/* Implements CommVQ's keys with AVX-512 (VBMI, VNNI). */
#include "backend/cpu/kernels/lanes/avx512.h"
#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/commvq/init.h"
#include "backend/cpu/kernels/lanes/avx2_bytes.h"

#include <stdbool.h>

static inline vec vec_i16(const int16_t *x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)x)));
}

static inline void vec_lower(vec s, vec j, vec *best, vec *at) {
    __mmask16 less = _mm512_cmp_ps_mask(s, *best, _CMP_LT_OQ);
    *best = _mm512_mask_mov_ps(*best, less, s);
    *at = _mm512_mask_mov_ps(*at, less, j);
}

static inline bool vec_any_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }

static void channels_commvq(const struct commvq_code *c, const float *gains, const void *codes, float *channels);
#define CHANNELS channels_commvq

#include "backend/cpu/kernels/commvq/template.h"

#include "backend/cpu/kernels/lanes/avx512_rotate.h"

/* ---- Tables looked up in registers: a permutation of bytes is 64 look-ups in a table of 64. A round has two of these for each
 * number; the indices come from the code planes. The sum of a span of rounds is still a byte. */

#define PLANES (2 * COMMVQ_ENTRIES) /* bytes of a pair's round */

struct indices {
    __m512i a[COMMVQ_MOST_ROUNDS], b[COMMVQ_MOST_ROUNDS]; /* permutations look at six bits and ignore the others */
};

/* Reads indices in such an order that unpacking bytes to int16 gives tokens in order: eight bytes of the first half, eight of the
 * second, and so on. */
static void read_indices(const struct commvq_code *c, const void *codes, size_t subvector, struct indices *indices) {
    const uint8_t *plane = (const uint8_t *)codes + subvector * c->rounds * COMMVQ_PART;
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t r = 0; r < c->rounds; r++, plane += COMMVQ_PART) {
        __m512i low = _mm512_loadu_si512(plane); /* eight bits of each code; its other four are in nibbles */
        __m512i high = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(plane + PAGE_TOKENS)));
        high = _mm512_and_si512(_mm512_or_si512(_mm512_slli_epi16(high, 2), _mm512_slli_epi16(high, 6)), _mm512_set1_epi8(0x3c));
        __m512i b = _mm512_or_si512(high, _mm512_and_si512(_mm512_srli_epi16(low, 6), _mm512_set1_epi8(3)));
        indices->a[r] = _mm512_permutexvar_epi64(order, low);
        indices->b[r] = _mm512_permutexvar_epi64(order, b);
    }
}

#define BESIDE 2 /* pairs that are summed side by side: they share indices */

struct run_sum {
    __m512i re[BESIDE], im[BESIDE];
};

/* Keeps a number that is looked up twice in a register: compilers would load it twice. */
INLINE __m512i load_once(const void *from) {
    __m512i x = _mm512_loadu_si512(from);
    __asm__("" : "+v"(x));
    return x;
}

/* Sums a span of rounds: planes[rounds][2][64] of one pair, with those of the next pair `apart` bytes on. Every sum fits a byte;
 * saturating additions run on another port than permutations, which plain ones may take, and both ports are full here. */
INLINE struct run_sum sum_run(const __m512i *a, const __m512i *b, size_t rounds, const int8_t *planes, size_t apart) {
    struct run_sum sum;
    UNROLL for (size_t i = 0; i < BESIDE; i++) sum.re[i] = sum.im[i] = _mm512_setzero_si512();
    for (size_t r = 0; r < rounds; r++, planes += PLANES) {
        __m512i first = load_once(&a[r]), second = load_once(&b[r]);
        UNROLL for (size_t i = 0; i < BESIDE; i++) {
            __m512i re = load_once(planes + i * apart), im = load_once(planes + i * apart + COMMVQ_ENTRIES);
            __m512i x = _mm512_subs_epi8(_mm512_permutexvar_epi8(first, re), _mm512_permutexvar_epi8(second, im));
            __m512i y = _mm512_adds_epi8(_mm512_permutexvar_epi8(first, im), _mm512_permutexvar_epi8(second, re));
            sum.re[i] = _mm512_adds_epi8(sum.re[i], x);
            sum.im[i] = _mm512_adds_epi8(sum.im[i], y);
        }
    }
    return sum;
}

/* Adds to i16[2] the weights times the sums of two spans, 64 tokens in order. */
INLINE void widen(__m512i first, __m512i second, __m512i weights, __m512i *i16) {
    i16[0] = _mm512_add_epi16(i16[0], _mm512_maddubs_epi16(weights, _mm512_unpacklo_epi8(first, second)));
    i16[1] = _mm512_add_epi16(i16[1], _mm512_maddubs_epi16(weights, _mm512_unpackhi_epi8(first, second)));
}

/* Computes the sums of pairs i, i + 1, ..., times bytes weights[BESIDE]: re[2] and im[2] of each, int16. */
INLINE void sum_pairs(const struct commvq_code *c, const struct indices *indices, size_t i, const __m512i *weights,
                      __m512i (*re)[2], __m512i (*im)[2]) {
    const size_t apart = c->rounds * PLANES;
    const int8_t *planes = c->planes + i * apart;
    const __m512i *a = indices->a, *b = indices->b;
    UNROLL for (size_t p = 0; p < BESIDE; p++) re[p][0] = re[p][1] = im[p][0] = im[p][1] = _mm512_setzero_si512();
    for (size_t span = 0; span < c->spans; span += 2) {
        size_t n = c->span[span], m = span + 1 < c->spans ? c->span[span + 1] : 0;
        struct run_sum first = sum_run(a, b, n, planes, apart), second = sum_run(a + n, b + n, m, planes + n * PLANES, apart);
        UNROLL for (size_t p = 0; p < BESIDE; p++) {
            widen(first.re[p], second.re[p], weights[p], re[p]);
            widen(first.im[p], second.im[p], weights[p], im[p]);
        }
        planes += (n + m) * PLANES;
        a += n + m;
        b += n + m;
    }
}

INLINE void pair_channel(const __m512i *sum, float step, float mean, const float *gains, float *channel) {
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m256i half = i % 2 ? _mm512_extracti64x4_epi64(sum[i / 2], 1) : _mm512_castsi512_si256(sum[i / 2]);
        vec gain = vec_mul(vec_load(gains + i * LANES), vec_set(step)), x = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half));
        vec_store(channel + i * LANES, vec_fma(gain, x, vec_set(mean)));
    }
}

static void channels_commvq(const struct commvq_code *c, const float *gains, const void *codes, float *channels) {
    struct indices indices;
    if (!c->planes) {
        channels_by_rows(c, gains, codes, channels);
        return;
    }
    for (size_t k = 0; k < c->subvectors; k++) {
        const uint8_t *at = c->channels + k * 2 * c->pairs;
        read_indices(c, codes, k, &indices);
        for (size_t j = 0; j < c->pairs; j += BESIDE) {
            __m512i weights[BESIDE], re[BESIDE][2], im[BESIDE][2];
            UNROLL for (size_t p = 0; p < BESIDE; p++) weights[p] = _mm512_set1_epi8(1);
            sum_pairs(c, &indices, k * c->pairs + j, weights, re, im);
            UNROLL for (size_t p = 0; p < BESIDE; p++) {
                float step = c->steps[k * c->stride + j + p];
                size_t first = at[j + p], second = at[c->pairs + j + p];
                pair_channel(re[p], step, c->mean[first], gains, channels + first * PAGE_TOKENS);
                pair_channel(im[p], step, c->mean[second], gains, channels + second * PAGE_TOKENS);
            }
        }
    }
}

/* ---- Rotated and scored in 16 bits (lanes/avx512_rotate.h): a pair's unit is its step times the page's largest gain, divided by a
 * whole number, the weight, such that no number of a key is more than ROTATED_LARGEST units. */

struct pair_scales {
    int32_t weights[ROTATED_MOST_PAIRS];                    /* four bytes each */
    int32_t re[ROTATED_MOST_PAIRS], im[ROTATED_MOST_PAIRS]; /* the mean, int16 twice */
    float units[ROTATED_MOST_PAIRS];
};

/* Returns 1 / x, about as exact as a division, which takes several times as long. */
INLINE vec reciprocal(vec x) {
    vec r = _mm512_rcp14_ps(x);
    return vec_mul(r, vec_fnma(x, r, vec_set(2)));
}

/* Sets the scales of 16 pairs from the i-th on. Returns false if the mean is so large that keys about it would be less than a
 * unit. */
INLINE bool set_scales(const struct commvq_code *c, const struct key_rotation *rotation, float gain, float inverse_gain, size_t i,
                       struct pair_scales *scales) {
    size_t at = i / c->pairs * c->stride + i % c->pairs;
    vec re, im, deviation = vec_mul(vec_load(c->steps + at), vec_set(gain));
    rotated_load(rotation, c->mean, i, &re, &im);
    vec mean = _mm512_max_ps(_mm512_abs_ps(re), _mm512_abs_ps(im));
    __mmask16 moves = _mm512_cmp_ps_mask(deviation, vec_set(1e-30f), _CMP_GT_OQ);
    vec inverse = _mm512_maskz_mul_ps(moves, vec_load(c->inverses + at), vec_set(inverse_gain));
    vec most = vec_mul(vec_set(ROTATED_LARGEST), reciprocal(vec_fma(mean, inverse, vec_load(c->largest + at))));
    vec weight = _mm512_min_ps(_mm512_maskz_roundscale_ps(moves, most, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), vec_set(255));
    if (_mm512_mask_cmp_ps_mask(moves, weight, vec_set(1), _CMP_NGE_UQ)) return false;
    vec unit = _mm512_maskz_mul_ps(moves, deviation, reciprocal(weight));
    inverse = vec_mul(inverse, weight);
    __mmask16 stands = _mm512_mask_cmp_ps_mask((__mmask16)~moves, mean, vec_set(1e-30f), _CMP_GT_OQ);
    if (stands) {
        unit = _mm512_mask_div_ps(unit, stands, mean, vec_set(ROTATED_LARGEST));
        inverse = _mm512_mask_div_ps(inverse, stands, vec_set(ROTATED_LARGEST), mean);
    }
    _mm512_storeu_si512(scales->weights + i, _mm512_mullo_epi32(_mm512_cvtps_epi32(weight), _mm512_set1_epi32(0x01010101)));
    rotated_twice(vec_mul(re, inverse), scales->re + i);
    rotated_twice(vec_mul(im, inverse), scales->im + i);
    vec_store(scales->units + i, unit);
    return true;
}

/* Rotates sixteen pairs of a sub-vector, from its j-th and the head's i-th on. */
INLINE void rotate_pairs(const struct commvq_code *c, const struct key_rotation *rotation, const struct indices *indices,
                         const struct pair_scales *scales, const __m512i *gains, size_t i, __m512i (*keys)[4]) {
    for (size_t j = 0; j < ROTATED_PAIRS; j += BESIDE) {
        __m512i weights[BESIDE], re[BESIDE][2], im[BESIDE][2];
        UNROLL for (size_t p = 0; p < BESIDE; p++) weights[p] = _mm512_set1_epi32(scales->weights[i + j + p]);
        sum_pairs(c, indices, i + j, weights, re, im);
        UNROLL for (size_t p = 0; p < BESIDE; p++) {
            size_t at = i + j + p;
            UNROLL for (size_t h = 0; h < 2; h++) {
                re[p][h] = _mm512_add_epi16(_mm512_mulhrs_epi16(re[p][h], gains[h]), _mm512_set1_epi32(scales->re[at]));
                im[p][h] = _mm512_add_epi16(_mm512_mulhrs_epi16(im[p][h], gains[h]), _mm512_set1_epi32(scales->im[at]));
            }
            rotated_pair(re[p], im[p], i < rotation->pairs ? rotation->i16 + at * 2 * PAGE_TOKENS : NULL, keys[j + p]);
        }
    }
}

#define SCORE_QUERIES 8 /* queries that are scored together */

INLINE void score_keys(const struct commvq_code *c, const struct key_rotation *rotation, const struct pair_scales *scales,
                       const __m512i *gains, const float *q, size_t G, const void *codes, float *logits) {
    const size_t pairs = c->subvectors * c->pairs;
    struct rotated_query queries[SCORE_QUERIES];
    struct indices indices;
    __m512i sum[SCORE_QUERIES][4];
    for (size_t g = 0; g < G; g++) {
        rotated_query_set(rotation, q + g * 2 * pairs, pairs, scales->units, &queries[g]);
        UNROLL for (size_t v = 0; v < 4; v++) sum[g][v] = _mm512_setzero_si512();
    }
    for (size_t i = 0; i < pairs; i += ROTATED_PAIRS) {
        __m512i keys[ROTATED_PAIRS][4];
        if (i % c->pairs == 0) read_indices(c, codes, i / c->pairs, &indices);
        rotate_pairs(c, rotation, &indices, scales, gains, i, keys);
        rotated_score_all(G, (const __m512i(*)[4])keys, queries, i, sum);
    }
    for (size_t g = 0; g < G; g++) rotated_logits(sum[g], queries[g].step, logits + g * PAGE_TOKENS);
}

static bool score_rotated_commvq(const struct commvq_code *c, const struct key_rotation *rotation, const float *gains,
                                 const float *q, size_t G, const void *codes, float *logits) {
    const size_t pairs = c->subvectors * c->pairs;
    struct pair_scales scales;
    __m512i gain[2];
    if (!c->planes || !rotated_serves(rotation) || c->pairs % ROTATED_PAIRS || c->rotated != rotation->pairs ||
        c->adjacent != rotation->adjacent)
        return false;
    float largest = rotated_gains(gains, gain), inverse = largest > 0 ? 1 / largest : 0;
    for (size_t i = 0; i < pairs; i += ROTATED_PAIRS)
        if (!set_scales(c, rotation, largest, inverse, i, &scales)) return false;
    for (size_t n; G > 0; G -= n, q += n * 2 * pairs, logits += n * PAGE_TOKENS) {
        n = G < SCORE_QUERIES ? G : SCORE_QUERIES;
        score_keys(c, rotation, &scales, gain, q, n, codes, logits);
    }
    return true;
}

void commvq_init_avx512(struct commvq_ops *ops) {
    fill_commvq(ops);
    ops->score_rotated = score_rotated_commvq;
}
