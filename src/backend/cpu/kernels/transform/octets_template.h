/* This template reads pages of the codec transform in registers of 32 bytes: an octet's codes, which are multiplied as they are. The
 * dwords are tokens of keys, components of values. avx2.c and avxvnni.c include it once, after lanes/avx2.h and
 * lanes/sums_template.h, and define
 *
 *     first_products(a, b)      products of bytes, of `a` without sign and of `b` with one, of four in a dword in some form
 *     more_products(sum, a, b)  the same added to a sum: of keys those of a step, of values those of OCTETS_TOGETHER octets
 *     whole_sums(sum)           the dwords' sums
 *     upper_codes(both, mask)   a key's codes from bit 4 of each byte on, or 16 times as much
 *     twice_sums(sum)           twice the dwords' sums of products with codes
 *     twice_upper_sums(sum)     the same of upper_codes
 *     OCTETS_TOGETHER           octets whose products of values are added up before they are whole, 4 or 8
 *
 * An octet is 8 tokens of a plane, 32 bytes of codes.
 *
 * It defines score_ISA, accumulate_ISA and whatever else fill_octets() fills. */
#include "backend/cpu/kernels/transform/init.h"
#include "backend/cpu/kernels/transform/places_template.h"
#include "backend/cpu/kernels/vector/exp_constants.h"

#include <math.h>
#include <string.h>

#define TOGETHER 4      /* queries that a kernel reads a page for */
#define OCTETS 8        /* of a plane: 8 tokens each */
#define OCTET 32        /* bytes */
#define ROWS 4          /* of 32 bytes in a nibble: two octets each */
#define PLANES_BESIDE 2 /* planes of values that are read together */

INLINE __m256i load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* Loads what is used twice, for which compilers load it twice. */
INLINE __m256i load_once(const uint8_t *at) {
    __m256i x = load(at);
    __asm__("" : "+x"(x));
    return x;
}

/* Row i of a nibble is octet octet_of(i) and, in the upper halves of its bytes, the second after it. */
INLINE size_t octet_of(size_t i) { return i / 2 * 4 + i % 2; }

/* ---- Gains --------------------------------------------------------------------------------------------------------------- */

INLINE void read_gains(const uint8_t *codes, float least, float step, float *gains) {
    UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) {
        __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(codes + v * LANES)));
        vec_store(gains + v * LANES, vec_fma(vec_set(step), _mm256_cvtepi32_ps(code), vec_set(least)));
    }
}

static void PASTE(gains, ISA)(const uint8_t codes[64], float least, float step, float gains[64]) {
    prefetch_step(codes, 0, 64);
    read_gains(codes, least, step, gains);
}

/* ---- Keys: the lanes are tokens ------------------------------------------------------------------------------------------ */

/* Quantizes 8 planes. A plane is two dwords: its bits are the highest byte of the first, its scale is the second. */
INLINE void quantize_step(const struct transform_plane *plane, const float *products, float *step, int32_t *bias, int8_t *weights) {
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), second = _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const vec magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    vec x[4], most = vec_zero();
    __m256i integers[4], largest_codes[4];
    UNROLL for (size_t j = 0; j < 4; j++) {
        __m256i two = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(plane + 2 * j)));
        vec scale = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(two, second));
        __m256i bits = _mm256_srli_epi32(_mm256_permutevar8x32_epi32(two, first), 24);
        largest_codes[j] = _mm256_sub_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(1), bits), _mm256_set1_epi32(1));
        x[j] = vec_mul(scale, _mm256_loadu2_m128(products + plane[2 * j + 1].quad * TRANSFORM_QUAD,
                                                 products + plane[2 * j].quad * TRANSFORM_QUAD));
        most = _mm256_max_ps(most, _mm256_and_ps(x[j], magnitude));
    }
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    float largest = _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
    vec inverse = vec_set(largest > 0 && 127 / largest < INFINITY ? 127 / largest : 0);
    UNROLL for (size_t j = 0; j < 4; j++) integers[j] = _mm256_cvtps_epi32(vec_mul(x[j], inverse));
    __m256i words[2], sum = _mm256_setzero_si256();
    UNROLL for (size_t j = 0; j < 2; j++) {
        words[j] = _mm256_packs_epi32(integers[2 * j], integers[2 * j + 1]);
        sum =
            _mm256_sub_epi32(sum, _mm256_madd_epi16(words[j], _mm256_packs_epi32(largest_codes[2 * j], largest_codes[2 * j + 1])));
    }
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    *step = largest / 127;
    *bias = _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
    _mm256_storeu_si256((__m256i *)weights, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), in_order));
}

static void PASTE(quantize_query, ISA)(const struct transform_layout *layout, const float *products, float *steps, int32_t *bias,
                                       int8_t *weights) {
    for (size_t first = 0; first < layout->planes; first += TRANSFORM_STEP_PLANES)
        quantize_step(layout->plane + first, products, steps++, bias++, weights + first * TRANSFORM_QUAD);
}

INLINE __m256i four_weights(const int8_t *weights) {
    int32_t four;
    memcpy(&four, weights, sizeof four);
    return _mm256_set1_epi32(four);
}

#define BESIDE 2 /* octets that a row has */

/* Returns how many rows have sums that stay in registers together. */
INLINE size_t rows_together(size_t R) { return R == 1 ? 4 : R == 2 ? 2 : 1; }

typedef __m256i sums_of_rows[TOGETHER][ROWS][BESIDE];

/* Adds the products of rows of a plane's codes with four weights of each query, which lie at `weights`. */
INLINE void add_keys(size_t R, bool whole, struct place place, const int8_t *const *weights, size_t p, sums_of_rows sum) {
    const __m256i mask = _mm256_set1_epi32(whole ? 0x0f0f0f0f : (int)place.cut->mask);
    UNROLL for (size_t i = 0; i < rows_together(R); i++) {
        __m256i both = load_once(place.at + i * OCTET);
        if (!whole) both = _mm256_srlv_epi32(both, _mm256_set1_epi32((int)place.cut->shift));
        const __m256i x[BESIDE] = {_mm256_and_si256(both, mask), upper_codes(both, mask)};
        UNROLL for (size_t m = 0; m < R; m++) {
            __m256i own = four_weights(weights[m] + p * TRANSFORM_QUAD);
            UNROLL for (size_t j = 0; j < BESIDE; j++) sum[m][i][j] = more_products(sum[m][i][j], x[j], own);
        }
    }
}

/* Scores rows of a page, from the first plane to the last. codes, gains and logits are those of the rows. */
INLINE void score_rows(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                       const struct transform_query *queries, const float *biases, bool ahead, float *logits) {
    const struct transform_plane *plane = layout->plane;
    const size_t planes = layout->planes, rows = rows_together(R);
    const int8_t *weights[TOGETHER];
    vec all[TOGETHER][ROWS][BESIDE];
    UNROLL for (size_t m = 0; m < R; m++) {
        weights[m] = queries[m].weights;
        UNROLL for (size_t i = 0; i < rows; i++) { UNROLL for (size_t j = 0; j < BESIDE; j++) all[m][i][j] = vec_set(biases[m]); }
    }
    for (size_t p = 0, step = 0; p < planes; step++) {
        const size_t end = SMALLER(p + TRANSFORM_STEP_PLANES, planes);
        sums_of_rows sum;
        UNROLL for (size_t m = 0; m < R; m++) {
            UNROLL for (size_t i = 0; i < rows; i++) {
                UNROLL for (size_t j = 0; j < BESIDE; j++) sum[m][i][j] = _mm256_setzero_si256();
            }
        }
        for (size_t nibble = p; ahead && nibble < SMALLER(end, layout->nibbles); nibble++)
            prefetch_step(codes + nibble * PAGE_TRANSFORM_NIBBLE, 0, rows * OCTET);
        for (; p < end && is_whole(&plane[p]); p++) add_keys(R, true, place_of(&plane[p], codes), weights, p, sum);
        for (; p < end; p++) add_keys(R, false, place_of(&plane[p], codes), weights, p, sum);
        UNROLL for (size_t m = 0; m < R; m++) {
            const vec by = vec_set(queries[m].steps[step]);
            UNROLL for (size_t i = 0; i < rows; i++) {
                UNROLL for (size_t j = 0; j < BESIDE; j++) {
                    __m256i twice = j ? twice_upper_sums(sum[m][i][j]) : twice_sums(sum[m][i][j]);
                    all[m][i][j] = vec_fma(by, _mm256_cvtepi32_ps(twice), all[m][i][j]);
                }
            }
        }
    }
    UNROLL for (size_t i = 0; i < rows; i++) {
        UNROLL for (size_t j = 0; j < BESIDE; j++) {
            const size_t t = (octet_of(i) + 2 * j) * LANES;
            const vec gain = vec_load(gains + t);
            UNROLL for (size_t m = 0; m < R; m++)
                vec_store(logits + m * PAGE_TOKENS + t, vec_fma(gain, all[m][i][j], vec_set(queries[m].offset)));
        }
    }
}

/* Two rows are a line of the cache, which the first of them prefetches. */
INLINE void score_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                          const struct transform_query *queries, bool ahead, float *logits) {
    float biases[TOGETHER] = {0};
    UNROLL for (size_t m = 0; m < R; m++) {
        for (size_t p = 0; p < layout->planes; p += TRANSFORM_STEP_PLANES)
            biases[m] += queries[m].steps[p / TRANSFORM_STEP_PLANES] * (float)queries[m].bias[p / TRANSFORM_STEP_PLANES];
    }
    for (size_t row = 0; row < ROWS; row += rows_together(R)) {
        const size_t t = octet_of(row) * LANES;
        score_rows(R, layout, codes + row * OCTET, gains + t, queries, biases, ahead && row % 2 == 0, logits + t);
    }
}

static uint16_t PASTE(rank, ISA)(const struct transform_layout *layout, const void *page, float least, float step,
                                 const struct transform_query *query, const float *added, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    read_gains(page, least, step, gains);
    score_queries(1, layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, false, logits);
    __m256i most = _mm256_setzero_si256();
    UNROLL for (size_t v = 0; v < OCTETS; v += 2) {
        __m256i rank[2];
        UNROLL for (size_t i = 0; i < 2; i++) {
            const vec logit = vec_add(vec_load(logits + (v + i) * LANES), vec_load(added + (v + i) * LANES));
            rank[i] = _mm256_cvtps_epi32(vec_fma(logit, vec_set(256), vec_set(32768)));
        }
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(rank[0], rank[1]), 0xd8);
        both = _mm256_min_epu16(both, _mm256_set1_epi16((short)TRANSFORM_RANK_MOST));
        most = _mm256_max_epu16(most, both);
        _mm256_storeu_si256((__m256i *)(ranks + v * LANES), both);
    }
    __m128i largest = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1))), 0);
}

/* ---- Values: the lanes of each 128 bits are components, the bytes of a dword four tokens ------------------------------------- */

INLINE __m128 add_halves(vec x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
INLINE __m128 most_of_halves(vec x) { return _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }

/* Return the sums of four registers, and the largest of each. */
INLINE __m128 four_sums(const vec *x) { return add_halves(_mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]))); }

INLINE __m128 four_largest(const vec *x) {
    vec a = _mm256_max_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    vec b = _mm256_max_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    return most_of_halves(_mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee)));
}

/* Writes one row's integers of 8 bits, or their lower 8 bits and, unless that is NULL, the upper ones. */
INLINE void write_integers(const float *products, float inverse, uint8_t *upper, uint8_t *lower) {
    const __m256i byte = _mm256_set1_epi32(255), in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    UNROLL for (size_t v = 0; v < OCTETS; v += 4) {
        __m256i i[4], high[4];
        UNROLL for (size_t j = 0; j < 4; j++) {
            i[j] = _mm256_cvtps_epi32(vec_mul(vec_load(products + (v + j) * LANES), vec_set(inverse)));
            high[j] = _mm256_srli_epi32(i[j], 8);
            if (upper) i[j] = _mm256_and_si256(i[j], byte);
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(i[0], i[1]), _mm256_packus_epi32(i[2], i[3]));
        _mm256_storeu_si256((__m256i *)(lower + v * LANES), _mm256_permutevar8x32_epi32(bytes, in_order));
        if (!upper) continue;
        bytes = _mm256_packus_epi16(_mm256_packus_epi32(high[0], high[1]), _mm256_packus_epi32(high[2], high[3]));
        _mm256_storeu_si256((__m256i *)(upper + v * LANES), _mm256_permutevar8x32_epi32(bytes, in_order));
    }
}

/* Returns the number that is subtracted from a row's logits. */
INLINE vec base_of(float largest) { return vec_set(largest == -INFINITY ? INFINITY : largest); }

/* Does what exp_lanes_down of vector/avx2.c does, with fewer bits. */
INLINE vec weights_of(vec logits, vec base) {
    const vec rounder = vec_set(12582912);
    vec t = _mm256_max_ps(vec_set(EXP2_LOWEST), vec_mul(vec_set(EXP_LOG2_E), _mm256_sub_ps(logits, base))),
        bits = vec_add(t, rounder);
    vec r = _mm256_sub_ps(t, _mm256_sub_ps(bits, rounder));
    vec p = vec_fma(vec_set(EXP2_SHORT_C3), r, vec_set(EXP2_SHORT_C2));
    p = vec_fma(vec_fma(p, r, vec_set(EXP2_SHORT_C1)), r, vec_set(EXP2_SHORT_C0));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(bits), 23)));
}

/* Quantizes R queries together, which then wait together for sums and the largest of a row. `largest_logit`: of the logits that
 * `weights` then are, or NULL. */
INLINE void quantize_queries(size_t R, const float *weights, const float *largest_logit, const float *gains, size_t G,
                             size_t planes, uint8_t *bytes, float *scales, float *sums_of_weights) {
    const __m128 whole = _mm_set1_ps(planes == 1 ? 255 : 65535);
    vec sum[TOGETHER], most[TOGETHER];
    float scale[TOGETHER], inverse[TOGETHER], total[TOGETHER], products[TOGETHER][PAGE_TOKENS];
    UNROLL for (size_t m = 0; m < TOGETHER; m++) sum[m] = most[m] = vec_zero();
    UNROLL for (size_t m = 0; m < R; m++) {
        const vec base = base_of(largest_logit ? largest_logit[m] : 0);
        UNROLL for (size_t v = 0; v < OCTETS; v++) {
            vec w = vec_load(weights + m * PAGE_TOKENS + v * LANES);
            if (largest_logit) w = weights_of(w, base);
            vec x = vec_mul(w, vec_load(gains + v * LANES));
            sum[m] = vec_add(sum[m], w);
            most[m] = _mm256_max_ps(most[m], x);
            vec_store(products[m] + v * LANES, x);
        }
    }
    __m128 largest = four_largest(most), any = _mm_cmp_ps(largest, _mm_set1_ps(TRANSFORM_LEAST_WEIGHT), _CMP_GT_OQ);
    _mm_storeu_ps(scale, _mm_and_ps(any, _mm_div_ps(largest, whole)));
    _mm_storeu_ps(inverse, _mm_and_ps(any, _mm_div_ps(whole, largest)));
    _mm_storeu_ps(total, four_sums(sum));
    UNROLL for (size_t m = 0; m < R; m++) {
        uint8_t *first = bytes + m * PAGE_TOKENS, *second = first + G * PAGE_TOKENS;
        sums_of_weights[m] += largest_logit && largest_logit[m] == -INFINITY ? 0 : total[m];
        scales[m] = planes == 1 ? scale[m] : 256 * scale[m];
        if (planes == 2) scales[G + m] = scale[m];
        if (planes == 1)
            write_integers(products[m], inverse[m], NULL, first);
        else
            write_integers(products[m], inverse[m], first, second);
    }
}

static void PASTE(quantize_weights, ISA)(const float *weights, const float *gains, size_t G, size_t planes, uint8_t *bytes,
                                         float *scales, float *sums_of_weights) {
    for (size_t m = 0, n; m < G; m += n, weights += n * PAGE_TOKENS, bytes += n * PAGE_TOKENS, scales += n, sums_of_weights += n) {
        n = planes == 1 ? SMALLER(G - m, TOGETHER) : 1;
        if (planes == 2)
            quantize_queries(1, weights, NULL, gains, G, 2, bytes, scales, sums_of_weights);
        else if (n == 4)
            quantize_queries(4, weights, NULL, gains, G, 1, bytes, scales, sums_of_weights);
        else if (n == 3)
            quantize_queries(3, weights, NULL, gains, G, 1, bytes, scales, sums_of_weights);
        else if (n == 2)
            quantize_queries(2, weights, NULL, gains, G, 1, bytes, scales, sums_of_weights);
        else
            quantize_queries(1, weights, NULL, gains, G, 1, bytes, scales, sums_of_weights);
    }
}

static void PASTE(weigh, ISA)(const float *logits, const float *largest, const float *gains, size_t G, uint8_t *bytes,
                              float *scales, float *sums_of_weights) {
    for (; G >= 4; G -= 4, logits += 4 * PAGE_TOKENS, largest += 4, bytes += 4 * PAGE_TOKENS, scales += 4, sums_of_weights += 4)
        quantize_queries(4, logits, largest, gains, 4, 1, bytes, scales, sums_of_weights);
    if (G == 3) quantize_queries(3, logits, largest, gains, 3, 1, bytes, scales, sums_of_weights);
    if (G == 2) quantize_queries(2, logits, largest, gains, 2, 1, bytes, scales, sums_of_weights);
    if (G == 1) quantize_queries(1, logits, largest, gains, 1, 1, bytes, scales, sums_of_weights);
}

/* Spreads four tokens' weights in each dword of 128 bits. */
INLINE void spread_weights(const uint8_t *weights, __m256i *to) {
    const __m256i part = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    UNROLL for (size_t v = 0; v < OCTETS; v++) {
        int64_t eight;
        memcpy(&eight, weights + v * sizeof eight, sizeof eight);
        to[v] = _mm256_permutevar8x32_epi32(_mm256_set1_epi64x(eight), part);
    }
}

/* Returns half the sum of the weights that are multiplied in each lane. */
INLINE vec half_sums(const __m256i *spread) {
    __m256i sum = first_products(spread[0], _mm256_set1_epi8(1));
    UNROLL for (size_t v = 1; v < OCTETS; v++) sum = more_products(sum, spread[v], _mm256_set1_epi8(1));
    return vec_mul(_mm256_cvtepi32_ps(whole_sums(sum)), vec_set(0.5f));
}

/* The weights of R queries. A level is twice its code less half the largest code. */
struct spread {
    __m256i weights[TOGETHER][OCTETS];
    vec half[TOGETHER];
    float twice[TRANSFORM_NIBBLE_BITS][TOGETHER]; /* the scale of a code that is 2^shift times as large, twice */
};

/* Adds the sums of P planes for R queries, whose weights are loaded once for all these planes. Codes are multiplied at the bit where
 * they lie in their half of a byte. Queries and planes take turns, since each waits for its own sum. */
INLINE void add_planes(size_t R, size_t P, bool whole, const struct spread *spread, const struct transform_plane *plane,
                       const uint8_t *codes, size_t row, float *out) {
    struct place place[PLANES_BESIDE];
    __m256i mask[PLANES_BESIDE], sum[PLANES_BESIDE][TOGETHER], all[PLANES_BESIDE][TOGETHER];
    UNROLL for (size_t p = 0; p < P; p++) {
        place[p] = place_of(&plane[p], codes);
        mask[p] = _mm256_set1_epi32(whole ? 0x0f0f0f0f : (int)place[p].cut->mask_in_place);
    }
    UNROLL for (size_t n = 0; n < OCTETS; n += 2) {
        __m256i x[PLANES_BESIDE][2];
        UNROLL for (size_t p = 0; p < P; p++) {
            const __m256i both = load_once(place[p].at + n / 2 * OCTET);
            x[p][0] = _mm256_and_si256(both, mask[p]);
            x[p][1] = _mm256_and_si256(_mm256_srli_epi32(both, 4), mask[p]);
        }
        UNROLL for (size_t j = 0; j < 2; j++) {
            const size_t v = octet_of(n / 2) + 2 * j, last = n + j + 1;
            UNROLL for (size_t m = 0; m < R; m++) {
                const __m256i weights = spread->weights[m][v];
                UNROLL for (size_t p = 0; p < P; p++) {
                    __m256i *own = &sum[p][m];
                    *own = (n + j) % OCTETS_TOGETHER ? more_products(*own, weights, x[p][j]) : first_products(weights, x[p][j]);
                    if (last % OCTETS_TOGETHER) continue;
                    all[p][m] = last > OCTETS_TOGETHER ? _mm256_add_epi32(all[p][m], whole_sums(*own)) : whole_sums(*own);
                }
            }
        }
    }
    UNROLL for (size_t p = 0; p < P; p++) {
        const vec most = vec_set(whole ? 15 : place[p].cut->most_in_place);
        const float *twice = spread->twice[whole ? 0 : place[p].cut->shift];
        UNROLL for (size_t m = 0; m < R; m++) {
            float *to = out + m * row + p * TRANSFORM_SUM_LANES;
            vec x = vec_fnma(most, spread->half[m], _mm256_cvtepi32_ps(all[p][m]));
            vec_store(to, vec_fma(vec_set(twice[m]), x, vec_load(to)));
        }
    }
}

/* Adds the planes from the first on that are whole, or those that are not; returns where these end. */
INLINE size_t add_kind(size_t R, bool whole, const struct spread *spread, const struct transform_layout *layout, size_t first,
                       const uint8_t *codes, float *out) {
    const size_t planes = layout->planes, row = planes * TRANSFORM_SUM_LANES;
    size_t p = first;
    for (; p + 1 < planes && is_whole(&layout->plane[p + 1]) == whole; p += 2) {
        prefetch_plane(layout, p, codes);
        prefetch_plane(layout, p + 1, codes);
        add_planes(R, 2, whole, spread, &layout->plane[p], codes, row, out + p * TRANSFORM_SUM_LANES);
    }
    if (p < planes && is_whole(&layout->plane[p]) == whole) {
        prefetch_plane(layout, p, codes);
        add_planes(R, 1, whole, spread, &layout->plane[p], codes, row, out + p * TRANSFORM_SUM_LANES);
        p++;
    }
    return p;
}

INLINE void accumulate_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const uint8_t *weights,
                               const float *scales, float *out) {
    struct spread own;
    const struct spread *spread = &own;
    UNROLL for (size_t m = 0; m < R; m++) {
        spread_weights(weights + m * PAGE_TOKENS, own.weights[m]);
        own.half[m] = half_sums(own.weights[m]);
        UNROLL for (unsigned shift = 0; shift < TRANSFORM_NIBBLE_BITS; shift++) own.twice[shift][m] =
            2 * scales[m] / (float)(1u << shift);
    }
    __asm__("" : "+r"(spread) : : "memory"); /* or gcc 12 copies them from one place of the stack to another */
    add_kind(R, false, spread, layout, add_kind(R, true, spread, layout, 0, codes, out), codes, out);
}

#include "backend/cpu/kernels/transform/queries_template.h"

#include "backend/cpu/kernels/transform/gather_octets_template.h"

static void fill_octets(struct transform_ops *ops) {
    ops->gains = PASTE(gains, ISA);
    ops->quantize_query = PASTE(quantize_query, ISA);
    ops->score = PASTE(score, ISA);
    ops->rank = PASTE(rank, ISA);
    ops->quantize_weights = PASTE(quantize_weights, ISA);
    ops->weigh = PASTE(weigh, ISA);
    ops->accumulate = PASTE(accumulate, ISA);
    ops->gather = PASTE(gather, ISA);
}
