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

/* ---- Levels -------------------------------------------------------------------------------------------------------------- */

INLINE __m256i load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

/* Component i's place has what component i - 1's had. */
INLINE __m256i previous_component(bool keys, __m256i x) {
    const __m256i by_one = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14));
    return keys ? _mm256_shuffle_epi8(x, by_one) : _mm256_shuffle_epi32(x, 0x93);
}

/* Levels of a plane, octet by octet. `old`: the nibble before, NULL where no bits of it are in the window. What they were looked up by goes
 * to `kept`, if that is given. */
INLINE void look_up(bool keys, __m256i table, const uint8_t *at, const uint8_t *old, bool wraps, uint8_t own, __m256i *kept,
                    __m256i *x) {
    UNROLL for (size_t i = 0; i < 4; i++) {
        const size_t v = i / 2 * 4 + i % 2;
        __m256i both = load(at + i * OCTET);
        if (old) {
            const __m256i mask = _mm256_set1_epi8((char)own);
            __m256i before = wraps ? previous_component(keys, load(old + i * OCTET)) : load(old + i * OCTET);
            both = _mm256_or_si256(_mm256_and_si256(mask, both), _mm256_andnot_si256(mask, before));
        }
        __m256i low = low_nibbles(both), high = high_nibbles(both);
        if (kept) kept[v] = low, kept[v + 2] = high;
        x[v] = _mm256_shuffle_epi8(table, low);
        x[v + 2] = _mm256_shuffle_epi8(table, high);
    }
}

INLINE __m256i table_of(uint8_t (*tables)[16], const struct transform_plane *plane) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)tables[plane->table]));
}

INLINE const uint8_t *nibble_of(const struct transform_plane *plane, const uint8_t *codes) {
    return codes + (size_t)plane->nibble * PAGE_TRANSFORM_NIBBLE;
}

/* Of a plane that has a nibble of its own. */
INLINE void read_alone(uint8_t (*tables)[16], const struct transform_plane *plane, const uint8_t *codes, __m256i *x) {
    look_up(false, table_of(tables, plane), nibble_of(plane, codes), NULL, false, 0, NULL, x);
}

/* Of a plane of the stream. kept[OCTETS]: between the planes of a pair, what both are looked up by. */
INLINE void read_stream(bool keys, uint8_t (*tables)[16], const struct transform_layout *layout,
                        const struct transform_plane *plane, const uint8_t *codes, __m256i *kept, __m256i *x) {
    const __m256i table = table_of(tables, plane);
    const uint8_t *at = nibble_of(plane, codes), own = own_bits(plane);
    const bool pair = transform_table_of(plane) == TRANSFORM_PAIR_FIRST;
    bool wraps;
    const uint8_t *old = nibble_before(layout, plane, codes, &wraps);
    if (transform_table_of(plane) == TRANSFORM_PAIR_SECOND)
        UNROLL for (size_t v = 0; v < OCTETS; v++) x[v] = _mm256_shuffle_epi8(table, kept[v]);
    else if (transform_written(plane) == 4)
        look_up(keys, table, at, NULL, false, own, pair ? kept : NULL, x);
    else if (wraps)
        look_up(keys, table, at, old, true, own, kept, x);
    else
        look_up(keys, table, at, old, false, own, kept, x);
}

INLINE void prefetch_plane(const struct transform_plane *plane, size_t p, const uint8_t *codes) {
    if (p == 0 || plane[p].nibble != plane[p - 1].nibble)
        prefetch_step(codes + (size_t)plane[p].nibble * PAGE_TRANSFORM_NIBBLE, 0, PAGE_TRANSFORM_NIBBLE);
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

/* 8 planes. A plane is two dwords: its largest level is the highest byte of the first, its scale is the second. */
INLINE void quantize_step(const struct transform_plane *plane, const float *products, float *step, int32_t *bias, int8_t *weights) {
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), second = _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const vec magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    vec x[4], most = vec_zero();
    __m256i integers[4], levels[4];
    UNROLL for (size_t j = 0; j < 4; j++) {
        __m256i two = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(plane + 2 * j)));
        vec scale = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(two, second));
        levels[j] = _mm256_srli_epi32(_mm256_permutevar8x32_epi32(two, first), 24);
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

/* What all sums have too much because levels are read from 0 on. */
static float bias_of(const struct transform_query *query, size_t planes) {
    float sum = 0;
    for (size_t group = 0; group * TRANSFORM_STEP_PLANES < planes; group++) sum += query->steps[group] * (float)query->bias[group];
    return sum;
}

/* logits += the products of some planes of a group from `first` on, of which levels[planes][OCTETS]; the first of all begin with the bias,
 * the last end with gains and offset. */
INLINE void score_planes(size_t R, size_t planes, size_t first, size_t all, const __m256i (*levels)[OCTETS], const float *gains,
                         const struct transform_query *queries, float *logits) {
    const bool last = first + planes == all;
    vec bias[TOGETHER] = {0};
    UNROLL for (size_t m = 0; m < R; m++) bias[m] = first ? vec_zero() : vec_set(bias_of(&queries[m], all));
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
                vec x = vec_fma(step, _mm256_cvtepi32_ps(whole_sums(sum[m][i])), first ? vec_load(to) : bias[m]);
                vec_store(to, last ? vec_fma(vec_load(gains + (v + i) * LANES), x, vec_set(queries[m].offset)) : x);
            }
        }
    }
}

static int range_of(const struct transform_plane *plane) { return 2 * plane->largest; }

INLINE void score_rows(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                       const struct transform_query *queries, bool ahead, float *logits) {
    const struct transform_plane *plane = layout->plane;
    __m256i kept[OCTETS] = {0};
    for (size_t first = 0, n; first < layout->planes; first += n) {
        __m256i levels[TRANSFORM_STEP_PLANES][OCTETS];
        const size_t most = SMALLER(TRANSFORM_STEP_PLANES - first % TRANSFORM_STEP_PLANES, layout->planes - first);
        int range = 0;
        for (n = 0; n < most && (range += range_of(&plane[first + n])) <= SUM_RANGE; n++) {
            if (ahead) prefetch_plane(plane, first + n, codes);
            if (plane[first + n].nibble < layout->stream)
                read_alone(levels_from_zero, &plane[first + n], codes, levels[n]);
            else
                read_stream(true, levels_from_zero, layout, &plane[first + n], codes, kept, levels[n]);
        }
        score_planes(R, n, first, layout->planes, (const __m256i(*)[OCTETS])levels, gains, queries, logits);
    }
    for (size_t i = 0; i < R * PAGE_TOKENS && !layout->planes; i++) logits[i] = queries[i / PAGE_TOKENS].offset;
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

INLINE void accumulate_rows(size_t R, const struct transform_layout *layout, const uint8_t *codes, const uint8_t *weights,
                            const float *scales, float *out) {
    const size_t row = (size_t)layout->planes * TRANSFORM_SUM_LANES;
    const struct transform_plane *plane = layout->plane;
    __m256i spread[TOGETHER][OCTETS], kept[OCTETS] = {0};
    size_t p = 0;
    UNROLL for (size_t m = 0; m < R; m++) spread_weights(weights + m * PAGE_TOKENS, spread[m]);
    /* Levels of the stream are small, those of whole nibbles are not. */
    for (; p < layout->planes && plane[p].nibble < layout->stream; p++, out += TRANSFORM_SUM_LANES) {
        __m256i x[OCTETS];
        prefetch_plane(plane, p, codes);
        read_alone(signed_levels, &plane[p], codes, x);
        add_plane(R, SUM_OCTETS, (const __m256i(*)[OCTETS])spread, x, scales, row, out);
    }
    for (; p < layout->planes; p++, out += TRANSFORM_SUM_LANES) {
        __m256i x[OCTETS];
        prefetch_plane(plane, p, codes);
        read_stream(false, signed_levels, layout, &plane[p], codes, kept, x);
        add_plane(R, OCTETS, (const __m256i(*)[OCTETS])spread, x, scales, row, out);
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
