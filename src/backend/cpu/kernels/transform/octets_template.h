/* Template: pages of the codec transform in registers of 32 bytes: an octet's codes, which a byte shuffle makes levels. The dwords are
 * tokens of keys, components of values. Included once by avx2.c and avxvnni.c, after lanes/avx2.h and lanes/sums_template.h, which
 * define
 *
 *     first_products(a, b)      products of bytes, of `a` without sign and of `b` with one, of four in a dword in some form
 *     more_products(sum, a, b)  the same added to a sum
 *     whole_sums(sum)           the dwords' sums
 *     SUM_RANGE                 keys' products are added up in that form as long as their planes' largest levels, from 0 on, are no
 *                               more together
 *     SUM_OCTETS                of values' products, where a level may have any size; all 8 octets where none exceeds SMALL_LEVEL
 *
 * score_ISA, accumulate_ISA and what else fill_octets() fills come out. */
#include "backend/cpu/kernels/transform/init.h"
#include "backend/cpu/kernels/transform/nibble_tables_template.h"

#include <math.h>
#include <string.h>

#define SMALL_LEVEL 8
#define TOGETHER 4 /* rows of a pass */
#define OCTETS 8   /* of a plane: 8 tokens each */
#define OCTET 32   /* bytes */

/* ---- A plane's levels ---------------------------------------------------------------------------------------------------- */

INLINE __m256i load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

INLINE __m256i look_up(const struct plane_tables *table, size_t s, __m256i nibbles) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table->at[s])), nibbles);
}

INLINE void one_bit(const struct plane_tables *table, const uint8_t *at, __m256i *x) {
    __m256i codes = load(at), low = low_nibbles(codes), high = high_nibbles(codes);
    UNROLL for (size_t v = 0; v < 4; v++) {
        x[v] = look_up(table, v, low);
        x[v + 4] = look_up(table, v, high);
    }
}

INLINE void two_bits(const struct plane_tables *table, const uint8_t *at, __m256i *x) {
    UNROLL for (size_t v = 0; v < 2; v++) {
        __m256i codes = load(at + v * OCTET), low = low_nibbles(codes), high = high_nibbles(codes);
        x[v] = look_up(table, 0, low);
        x[v + 2] = look_up(table, 2, low);
        x[v + 4] = look_up(table, 0, high);
        x[v + 6] = look_up(table, 2, high);
    }
}

/* In each nibble the upper two bits of a code, then its lowest: octets v and v + 4. */
INLINE void three_bits_at(const struct plane_tables *table, size_t v, __m256i two, __m256i one, __m256i *x) {
    __m256i both = _mm256_or_si256(_mm256_and_si256(two, _mm256_set1_epi8(0x33)), _mm256_and_si256(one, _mm256_set1_epi8(0x44)));
    x[v] = look_up(table, 0, low_nibbles(both));
    x[v + 4] = look_up(table, 0, high_nibbles(both));
}

INLINE void three_bits(const struct plane_tables *table, const uint8_t *at, __m256i *x) {
    __m256i even = load(at), odd = load(at + OCTET), one = load(at + PAGE_TRANSFORM_PLANE(2));
    three_bits_at(table, 0, even, _mm256_slli_epi16(one, 2), x);
    three_bits_at(table, 1, odd, _mm256_slli_epi16(one, 1), x);
    three_bits_at(table, 2, _mm256_srli_epi16(even, 2), one, x);
    three_bits_at(table, 3, _mm256_srli_epi16(odd, 2), _mm256_srli_epi16(one, 1), x);
}

INLINE void four_bits(const struct plane_tables *table, const uint8_t *at, __m256i *x) {
    UNROLL for (size_t i = 0; i < 4; i++) {
        size_t v = i / 2 * 4 + i % 2;
        __m256i codes = load(at + i * OCTET);
        x[v] = look_up(table, 0, low_nibbles(codes));
        x[v + 2] = look_up(table, 0, high_nibbles(codes));
    }
}

/* Levels of a plane, octet by octet. */
INLINE void read_levels(const struct plane_tables *tables, const struct transform_plane *plane, const uint8_t *at, bool ahead,
                        __m256i *x) {
    const struct plane_tables *table = &tables[plane->table];
    if (ahead) prefetch_step(at, 0, plane->bits > 2 ? 128 : 64);
    switch (plane->bits) {
    case 1: one_bit(table, at, x); break;
    case 2: two_bits(table, at, x); break;
    case 3: three_bits(table, at, x); break;
    default: four_bits(table, at, x); break;
    }
}

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

/* 8 planes. A plane is two dwords: its table is in the second half of the first, its scale is the second. */
INLINE void quantize_step(const struct transform_plane *plane, const float *products, float *step, int32_t *bias, int8_t *weights) {
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), second = _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7),
                  last_levels = _mm256_load_si256((const __m256i *)last_level);
    const vec magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    vec x[4], most = vec_zero();
    __m256i integers[4], levels[4];
    UNROLL for (size_t j = 0; j < 4; j++) {
        __m256i two = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(plane + 2 * j)));
        vec scale = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(two, second));
        levels[j] = _mm256_permutevar8x32_epi32(last_levels, _mm256_srli_epi32(_mm256_permutevar8x32_epi32(two, first), 16));
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
        sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(words[j], _mm256_packs_epi32(levels[2 * j], levels[2 * j + 1])));
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

#define BESIDE 2 /* octets that are multiplied together: with four rows their sums are half the registers */

/* logits += the products of some planes of a group from `first` on, of which levels[planes][OCTETS]. */
INLINE void score_planes(size_t R, size_t planes, size_t first, const __m256i (*levels)[OCTETS],
                         const struct transform_query *queries, float *logits) {
    for (size_t v = 0; v < OCTETS; v += BESIDE) {
        __m256i sum[TOGETHER][BESIDE];
        UNROLL for (size_t m = 0; m < R; m++) {
            __m256i weights = four_weights(queries[m].weights + first * TRANSFORM_QUAD);
            UNROLL for (size_t i = 0; i < BESIDE; i++) sum[m][i] = first_products(levels[0][v + i], weights);
        }
        for (size_t p = 1; p < planes; p++) {
            __m256i x[BESIDE];
            UNROLL for (size_t i = 0; i < BESIDE; i++) x[i] = levels[p][v + i];
            UNROLL for (size_t m = 0; m < R; m++) {
                __m256i weights = four_weights(queries[m].weights + (first + p) * TRANSFORM_QUAD);
                UNROLL for (size_t i = 0; i < BESIDE; i++) sum[m][i] = more_products(sum[m][i], x[i], weights);
            }
        }
        UNROLL for (size_t m = 0; m < R; m++) {
            vec step = vec_set(queries[m].steps[first / TRANSFORM_STEP_PLANES]);
            UNROLL for (size_t i = 0; i < BESIDE; i++) {
                float *to = logits + m * PAGE_TOKENS + (v + i) * LANES;
                vec_store(to, vec_fma(step, _mm256_cvtepi32_ps(whole_sums(sum[m][i])), vec_load(to)));
            }
        }
    }
}

static int range_of(const struct transform_plane *plane) { return 2 * transform_levels[plane->table][LAST_LEVEL]; }

/* What all sums have too much because levels are read from 0 on. */
static float bias_of(const struct transform_query *query, size_t planes) {
    float sum = 0;
    for (size_t group = 0; group * TRANSFORM_STEP_PLANES < planes; group++) sum += query->steps[group] * (float)query->bias[group];
    return sum;
}

INLINE void score_rows(size_t R, const struct transform_layout *layout, const uint8_t *at, const float *gains,
                       const struct transform_query *queries, bool ahead, float *logits) {
    const struct transform_plane *plane = layout->plane;
    UNROLL for (size_t m = 0; m < R; m++) {
        vec bias = vec_set(bias_of(&queries[m], layout->planes));
        UNROLL for (size_t v = 0; v < OCTETS; v++) vec_store(logits + m * PAGE_TOKENS + v * LANES, bias);
    }
    for (size_t first = 0, n; first < layout->planes; first += n) {
        __m256i levels[TRANSFORM_STEP_PLANES][OCTETS];
        const size_t most = SMALLER(TRANSFORM_STEP_PLANES - first % TRANSFORM_STEP_PLANES, layout->planes - first);
        int range = 0;
        for (n = 0; n < most && (range += range_of(&plane[first + n])) <= SUM_RANGE; n++) {
            read_levels(levels_from_zero, &plane[first + n], at, ahead, levels[n]);
            at += PAGE_TRANSFORM_PLANE(plane[first + n].bits);
        }
        score_planes(R, n, first, (const __m256i(*)[OCTETS])levels, queries, logits);
    }
    UNROLL for (size_t m = 0; m < R; m++) {
        UNROLL for (size_t v = 0; v < OCTETS; v++) {
            float *to = logits + m * PAGE_TOKENS + v * LANES;
            vec_store(to, vec_fma(vec_load(gains + v * LANES), vec_load(to), vec_set(queries[m].offset)));
        }
    }
}

static uint16_t PASTE(rank, ISA)(const struct transform_layout *layout, const void *page, float least, float step,
                                 const struct transform_query *query, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    read_gains(page, least, step, gains);
    score_rows(1, layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, false, logits);
    __m256i most = _mm256_setzero_si256();
    UNROLL for (size_t v = 0; v < OCTETS; v += 2) {
        __m256i rank[2];
        UNROLL for (size_t i = 0; i < 2; i++) rank[i] =
            _mm256_cvtps_epi32(vec_fma(vec_load(logits + (v + i) * LANES), vec_set(256), vec_set(32768)));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(rank[0], rank[1]), 0xd8);
        both = _mm256_min_epu16(both, _mm256_set1_epi16((short)TRANSFORM_RANK_MOST));
        most = _mm256_max_epu16(most, both);
        _mm256_storeu_si256((__m256i *)(ranks + v * LANES), both);
    }
    __m128i largest = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1))), 0);
}

/* ---- Values: the lanes of each 128 bits are components, the bytes of a dword four tokens ------------------------------------- */

/* One row; `upper` is NULL where its integers have 8 bits. */
INLINE float quantize_row(const float *weights, const float *gains, float whole, uint8_t *upper, uint8_t *lower, float *scale) {
    const __m256i byte = _mm256_set1_epi32(255), in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    vec x[OCTETS], sum = vec_zero(), most = vec_zero();
    UNROLL for (size_t v = 0; v < OCTETS; v++) {
        vec w = vec_load(weights + v * LANES);
        sum = vec_add(sum, w);
        x[v] = vec_mul(w, vec_load(gains + v * LANES));
        most = _mm256_max_ps(most, x[v]);
    }
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    float largest = _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
    *scale = largest > TRANSFORM_LEAST_WEIGHT ? largest / whole : 0;
    vec inverse = vec_set(largest > TRANSFORM_LEAST_WEIGHT ? whole / largest : 0);
    UNROLL for (size_t v = 0; v < OCTETS; v += 4) {
        __m256i i[4], high[4];
        UNROLL for (size_t j = 0; j < 4; j++) {
            i[j] = _mm256_cvtps_epi32(vec_mul(x[v + j], inverse));
            high[j] = _mm256_srli_epi32(i[j], 8);
            i[j] = _mm256_and_si256(i[j], byte);
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(i[0], i[1]), _mm256_packus_epi32(i[2], i[3]));
        _mm256_storeu_si256((__m256i *)(lower + v * LANES), _mm256_permutevar8x32_epi32(bytes, in_order));
        if (!upper) continue;
        bytes = _mm256_packus_epi16(_mm256_packus_epi32(high[0], high[1]), _mm256_packus_epi32(high[2], high[3]));
        _mm256_storeu_si256((__m256i *)(upper + v * LANES), _mm256_permutevar8x32_epi32(bytes, in_order));
    }
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static void PASTE(quantize_weights, ISA)(const float *weights, const float *gains, size_t rows, size_t planes, uint8_t *bytes,
                                         float *scales, float *sums_of_rows) {
    if (planes == 1) {
        for (size_t m = 0; m < rows; m++)
            sums_of_rows[m] += quantize_row(weights + m * PAGE_TOKENS, gains, 255, NULL, bytes + m * PAGE_TOKENS, &scales[m]);
        return;
    }
    for (size_t m = 0; m < rows; m++) {
        uint8_t *upper = bytes + m * PAGE_TOKENS;
        float *scale = &scales[rows + m];
        sums_of_rows[m] += quantize_row(weights + m * PAGE_TOKENS, gains, 65535, upper, upper + rows * PAGE_TOKENS, scale);
        scales[m] = 256 * *scale;
    }
}

/* Four tokens' weights in each dword of 128 bits. */
INLINE void spread_weights(const uint8_t *weights, __m256i *to) {
    const __m256i part = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    UNROLL for (size_t v = 0; v < OCTETS; v++) {
        int64_t eight;
        memcpy(&eight, weights + v * sizeof eight, sizeof eight);
        to[v] = _mm256_permutevar8x32_epi32(_mm256_set1_epi64x(eight), part);
    }
}

/* A plane's sums for R rows, `octets` of which are added up before they are whole. */
INLINE void add_plane(size_t R, size_t octets, const __m256i (*spread)[OCTETS], const __m256i *x, const float *scales, size_t row,
                      float *out) {
    UNROLL for (size_t m = 0; m < R; m++) {
        __m256i all = _mm256_setzero_si256();
        UNROLL for (size_t first = 0; first < OCTETS; first += octets) {
            __m256i sum = first_products(spread[m][first], x[first]);
            UNROLL for (size_t v = first + 1; v < SMALLER(first + octets, OCTETS); v++) sum =
                more_products(sum, spread[m][v], x[v]);
            all = first ? _mm256_add_epi32(all, whole_sums(sum)) : whole_sums(sum);
        }
        vec_store(out + m * row, vec_fma(vec_set(scales[m]), _mm256_cvtepi32_ps(all), vec_load(out + m * row)));
    }
}

INLINE void accumulate_rows(size_t R, const struct transform_layout *layout, const uint8_t *at, const uint8_t *weights,
                            const float *scales, float *out) {
    const size_t row = (size_t)layout->planes * TRANSFORM_SUM_LANES;
    __m256i spread[TOGETHER][OCTETS];
    UNROLL for (size_t m = 0; m < R; m++) spread_weights(weights + m * PAGE_TOKENS, spread[m]);
    for (size_t p = 0; p < layout->planes; p++, out += TRANSFORM_SUM_LANES) {
        const struct transform_plane *plane = &layout->plane[p];
        __m256i x[OCTETS];
        read_levels(signed_levels, plane, at, true, x);
        at += PAGE_TRANSFORM_PLANE(plane->bits);
        if (SUM_OCTETS == OCTETS || range_of(plane) <= 2 * SMALL_LEVEL)
            add_plane(R, OCTETS, (const __m256i(*)[OCTETS])spread, x, scales, row, out);
        else
            add_plane(R, SUM_OCTETS, (const __m256i(*)[OCTETS])spread, x, scales, row, out);
    }
}

#include "backend/cpu/kernels/transform/rows_template.h"

#include "backend/cpu/kernels/transform/gather_octets_template.h"

static void fill_octets(struct transform_ops *ops) {
    fill_tables();
    ops->gains = PASTE(gains, ISA);
    ops->quantize_query = PASTE(quantize_query, ISA);
    ops->score = PASTE(score, ISA);
    ops->rank = PASTE(rank, ISA);
    ops->quantize_weights = PASTE(quantize_weights, ISA);
    ops->accumulate = PASTE(accumulate, ISA);
    ops->gather = PASTE(gather, ISA);
}
