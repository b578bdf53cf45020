/* This template reads pages of the codec transform in registers of 32 bytes: an octet's codes, which a byte shuffle makes levels.
 * The dwords are tokens of keys, components of values. avx2.c and avxvnni.c include it once, after lanes/avx2.h and
 * lanes/sums_template.h, and define
 *
 *     first_products(a, b)      products of bytes, of `a` without sign and of `b` with one, of four in a dword in some form
 *     more_products(sum, a, b)  the same added to a sum
 *     whole_sums(sum)           the dwords' sums
 *     SUM_RANGE                 keys' products are added up in that form as long as their planes' largest levels are no more together
 *     LARGE_OCTETS              octets of which values' products are, where a level may have any size
 *     MIDDLE_OCTETS             the same where none exceeds MIDDLE_LEVEL
 *     SMALL_OCTETS              the same of the stream, whose levels do not exceed 8
 *
 * An octet is 8 tokens of a plane, 32 bytes of levels.
 *
 * It defines score_ISA, accumulate_ISA and whatever else fill_octets() fills. */
#include "backend/cpu/kernels/transform/init.h"
#include "backend/cpu/kernels/transform/nibble_tables_template.h"
#include "backend/cpu/kernels/vector/exp_constants.h"

#include <math.h>
#include <string.h>

#define TOGETHER 4 /* queries that a kernel reads a page for */
#define OCTETS 8   /* of a plane: 8 tokens each */
#define OCTET 32   /* bytes */

/* ---- Levels -------------------------------------------------------------------------------------------------------------- */

INLINE __m256i load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

/* The i-th 32 bytes of a nibble are octet octet_of(i) and, in their upper bits, the second after it. */
INLINE size_t octet_of(size_t i) { return i / 2 * 4 + i % 2; }

/* Moves component i - 1's bits to component i's place. */
INLINE __m256i previous_component(bool keys, __m256i x) {
    const __m256i by_one = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14));
    return keys ? _mm256_shuffle_epi8(x, by_one) : _mm256_shuffle_epi32(x, 0x93);
}

/* A plane's levels are looked up by these bits. WHOLE: the plane's own nibble. WRAPPING: bits of it and of the stream's last nibble
 * of the component before. RUNNING: bits of it and of the nibble before. */
enum windows { WHOLE, WRAPPING, RUNNING };

struct place {
    const uint8_t *at, *old; /* the plane's nibble and the one before, where any of its bits count */
    __m256i own;             /* bits of `at` that do */
    __m256i table;           /* levels */
};

INLINE struct place place_of(enum windows windows, uint8_t (*tables)[16], const struct transform_layout *layout, size_t p,
                             const uint8_t *codes) {
    const struct transform_plane *plane = &layout->plane[p];
    struct place place = {.at = nibble_of(plane, codes)};
    place.table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)tables[plane->table]));
    if (windows != WHOLE) place.own = _mm256_set1_epi32((int)own_bits(plane));
    if (windows == WRAPPING) place.old = codes + (size_t)layout->stream * PAGE_TRANSFORM_NIBBLE;
    if (windows == RUNNING) place.old = nibble_before(layout, plane, codes);
    return place;
}

/* Looks up the levels of octet octet_of(i) and of the second after it. */
INLINE void look_up(enum windows windows, bool keys, const struct place *place, size_t i, __m256i *x) {
    __m256i both = load(place->at + i * OCTET);
    if (windows != WHOLE) {
        __m256i old = load(place->old + i * OCTET);
        if (windows == WRAPPING) old = previous_component(keys, old);
        both = _mm256_or_si256(_mm256_and_si256(place->own, both), _mm256_andnot_si256(place->own, old));
    }
    x[0] = _mm256_shuffle_epi8(place->table, low_nibbles(both));
    x[1] = _mm256_shuffle_epi8(place->table, high_nibbles(both));
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

/* Quantizes 8 planes. A plane is two dwords: its largest level is the highest byte of the first, its scale is the second. */
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

#define BESIDE 2 /* octets that are multiplied together: with four queries their sums are half the registers */

/* A chunk is the planes of a step whose products are added up without a pause: those from `first` on to `end`. */
struct chunk {
    size_t first, end;
    __m256i largest; /* levels, in four bytes for each plane of the step; 0 of planes that are not of the chunk */
};

INLINE __m256i largest_of_step(const struct transform_plane *plane) {
    const char no = -128;
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 3, 3, 3, 11, 11, 11, 11, no, no, no, no, no, no, no, no));
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(no, no, no, no, no, no, no, no, 3, 3, 3, 3, 11, 11, 11, 11));
    __m256i all = _mm256_or_si256(_mm256_shuffle_epi8(load((const uint8_t *)plane), lower),
                                  _mm256_shuffle_epi8(load((const uint8_t *)(plane + 4)), upper));
    return _mm256_permute4x64_epi64(all, 0xd8);
}

/* Returns whether the planes of a step are too many for one chunk; half of them are not. */
INLINE bool exceeds_range(__m256i largest) {
    __m256i four = _mm256_sad_epu8(largest, _mm256_setzero_si256());
    __m128i sum = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    return _mm_cvtsi128_si32(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum))) > TRANSFORM_QUAD * SUM_RANGE;
}

/* Writes the numbers that the sums of R queries begin with, since levels are read from 0 on: minus the weights times the largest levels. */
INLINE void begin_sums(size_t R, __m256i largest, const struct transform_query *queries, size_t step, __m256i *bias) {
    __m256i x[TOGETHER];
    UNROLL for (size_t m = 0; m < TOGETHER; m++) {
        const int8_t *weights = queries[m < R ? m : 0].weights + step * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD;
        x[m] = first_products(largest, load((const uint8_t *)weights));
    }
    x[0] = add_sums(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
    x[1] = add_sums(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
    x[0] = add_sums(_mm256_unpacklo_epi64(x[0], x[1]), _mm256_unpackhi_epi64(x[0], x[1]));
    x[0] = minus_sums(add_sums(x[0], _mm256_permute2x128_si256(x[0], x[0], 1)));
    bias[0] = _mm256_shuffle_epi32(x[0], 0x00);
    if (R > 1) bias[1] = _mm256_shuffle_epi32(x[0], 0x55);
    if (R > 2) bias[2] = _mm256_shuffle_epi32(x[0], 0xaa);
    if (R > 3) bias[3] = _mm256_shuffle_epi32(x[0], 0xff);
}

/* Computes sum[m][] += weights times x[BESIDE]. */
INLINE void add_to_rows(size_t R, const __m256i *x, const struct transform_query *queries, size_t p, __m256i (*sum)[BESIDE]) {
    UNROLL for (size_t m = 0; m < R; m++) {
        __m256i weights = four_weights(queries[m].weights + p * TRANSFORM_QUAD);
        UNROLL for (size_t j = 0; j < BESIDE; j++) sum[m][j] = more_products(sum[m][j], x[j], weights);
    }
}

/* Reads the levels of a chunk's planes of the stream, octets as they are read. */
INLINE void read_chunk(const struct transform_layout *layout, size_t wrapping, const struct chunk *chunk, const uint8_t *codes,
                       __m256i (*levels)[4][BESIDE]) {
    size_t p = LARGER(chunk->first, planes_alone(layout));
    for (; p < SMALLER(chunk->end, wrapping); p++) {
        const struct place place = place_of(WRAPPING, levels_from_zero, layout, p, codes);
        UNROLL for (size_t i = 0; i < 4; i++) look_up(WRAPPING, true, &place, i, levels[p - chunk->first][i]);
    }
    for (; p < chunk->end; p++) {
        const struct place place = place_of(RUNNING, levels_from_zero, layout, p, codes);
        UNROLL for (size_t i = 0; i < 4; i++) look_up(RUNNING, true, &place, i, levels[p - chunk->first][i]);
    }
}

/* Adds a chunk's sums of BESIDE octets to the logits. Unless the chunk is the first, `logits` holds the result of the planes before; after the
 * last chunk, gains and offsets are applied. */
INLINE void finish_chunk(size_t R, bool first, bool last, size_t step, const __m256i (*sum)[BESIDE], const float *gains,
                         const struct transform_query *queries, float *logits) {
    UNROLL for (size_t m = 0; m < R; m++) {
        const vec by = vec_set(queries[m].steps[step]);
        UNROLL for (size_t j = 0; j < BESIDE; j++) {
            float *to = logits + m * PAGE_TOKENS + 2 * j * LANES;
            vec y = _mm256_cvtepi32_ps(whole_sums(sum[m][j]));
            y = first ? vec_mul(by, y) : vec_fma(by, y, vec_load(to));
            vec_store(to, last ? vec_fma(vec_load(gains + 2 * j * LANES), y, vec_set(queries[m].offset)) : y);
        }
    }
}

INLINE void score_chunk(size_t R, const struct transform_layout *layout, const struct chunk *chunk, const uint8_t *codes,
                        const __m256i (*levels)[4][BESIDE], const float *gains, const struct transform_query *queries,
                        float *logits) {
    const size_t step = chunk->first / TRANSFORM_STEP_PLANES, end_alone = SMALLER(chunk->end, planes_alone(layout));
    const bool first = chunk->first == 0, last = chunk->end == layout->planes;
    __m256i bias[TOGETHER];
    begin_sums(R, chunk->largest, queries, step, bias);
    for (size_t i = 0; i < 4; i++) {
        const size_t t = octet_of(i) * LANES;
        __m256i sum[TOGETHER][BESIDE], x[BESIDE];
        const __m256i(*whole)[BESIDE] = (const __m256i(*)[BESIDE])sum;
        size_t p = chunk->first;
        UNROLL for (size_t m = 0; m < R; m++) { UNROLL for (size_t j = 0; j < BESIDE; j++) sum[m][j] = bias[m]; }
        for (; p < end_alone; p++) {
            const struct place place = place_of(WHOLE, levels_from_zero, layout, p, codes);
            look_up(WHOLE, true, &place, i, x);
            add_to_rows(R, x, queries, p, sum);
        }
        for (; p < chunk->end; p++) add_to_rows(R, levels[p - chunk->first][i], queries, p, sum);
        if (first && last)
            finish_chunk(R, true, true, step, whole, gains + t, queries, logits + t);
        else if (first)
            finish_chunk(R, true, false, step, whole, gains + t, queries, logits + t);
        else if (last)
            finish_chunk(R, false, true, step, whole, gains + t, queries, logits + t);
        else
            finish_chunk(R, false, false, step, whole, gains + t, queries, logits + t);
    }
}

INLINE void score_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                          const struct transform_query *queries, bool ahead, float *logits) {
    const size_t planes = layout->planes, wrapping = planes_wrapping(layout);
    for (size_t p = 0, n; p < planes; p += n) {
        const size_t begin = p - p % TRANSFORM_STEP_PLANES;
        struct chunk chunk = {.first = p, .largest = largest_of_step(layout->plane + begin)};
        __m256i levels[TRANSFORM_STEP_PLANES][4][BESIDE];
        n = TRANSFORM_STEP_PLANES;
        if (exceeds_range(chunk.largest)) {
            const __m256i lower = _mm256_setr_epi32(-1, -1, -1, -1, 0, 0, 0, 0);
            n = TRANSFORM_STEP_PLANES / 2;
            chunk.largest = p > begin ? _mm256_andnot_si256(lower, chunk.largest) : _mm256_and_si256(lower, chunk.largest);
        }
        chunk.end = SMALLER(p + n, planes);
        for (size_t each = p; each < chunk.end && ahead; each++) prefetch_plane(layout, each, codes);
        read_chunk(layout, wrapping, &chunk, codes, levels);
        score_chunk(R, layout, &chunk, codes, (const __m256i(*)[4][BESIDE])levels, gains, queries, logits);
    }
    for (size_t i = 0; i < R * PAGE_TOKENS && !planes; i++) logits[i] = queries[i / PAGE_TOKENS].offset;
}

static uint16_t PASTE(rank, ISA)(const struct transform_layout *layout, const void *page, float least, float step,
                                 const struct transform_query *query, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    read_gains(page, least, step, gains);
    score_queries(1, layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, false, logits);
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

/* Adds a plane's sums for R queries, `octets` of which are added up before they are whole. The queries take turns, since each waits
 * for its own sum. */
INLINE void add_plane(size_t R, enum windows windows, size_t octets, const __m256i (*spread)[OCTETS], struct place place,
                      const float *scales, size_t row, float *out) {
    __m256i sum[TOGETHER], all[TOGETHER];
    UNROLL for (size_t n = 0; n < OCTETS; n += 2) {
        __m256i x[2];
        look_up(windows, false, &place, n / 2, x);
        UNROLL for (size_t j = 0; j < 2; j++) {
            const size_t v = octet_of(n / 2) + 2 * j, last = n + j + 1;
            UNROLL for (size_t m = 0; m < R; m++) {
                sum[m] = (n + j) % octets ? more_products(sum[m], spread[m][v], x[j]) : first_products(spread[m][v], x[j]);
                if (last % octets && last < OCTETS) continue;
                all[m] = last > octets ? _mm256_add_epi32(all[m], whole_sums(sum[m])) : whole_sums(sum[m]);
            }
        }
    }
    UNROLL for (size_t m = 0; m < R; m++) {
        float *to = out + m * row;
        vec_store(to, vec_fma(vec_set(scales[m]), _mm256_cvtepi32_ps(all[m]), vec_load(to)));
    }
}

INLINE void accumulate_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const uint8_t *weights,
                               const float *scales, float *out) {
    const size_t planes = layout->planes, alone = planes_alone(layout), wrapping = planes_wrapping(layout);
    const size_t row = planes * TRANSFORM_SUM_LANES;
    __m256i own[TOGETHER][OCTETS];
    const __m256i(*spread)[OCTETS] = (const __m256i(*)[OCTETS])own;
    UNROLL for (size_t m = 0; m < R; m++) spread_weights(weights + m * PAGE_TOKENS, own[m]);
    __asm__("" : "+r"(spread) : : "memory"); /* or gcc 12 copies them from one place of the stack to another */
    size_t p = 0;
    for (; p < alone && layout->plane[p].largest <= MIDDLE_LEVEL; p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, WHOLE, MIDDLE_OCTETS, spread, place_of(WHOLE, signed_levels, layout, p, codes), scales, row, out);
    }
    for (; p < alone; p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, WHOLE, LARGE_OCTETS, spread, place_of(WHOLE, signed_levels, layout, p, codes), scales, row, out);
    }
    for (; p < wrapping; p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, WRAPPING, SMALL_OCTETS, spread, place_of(WRAPPING, signed_levels, layout, p, codes), scales, row, out);
    }
    for (; p < planes; p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, RUNNING, SMALL_OCTETS, spread, place_of(RUNNING, signed_levels, layout, p, codes), scales, row, out);
    }
}

#include "backend/cpu/kernels/transform/queries_template.h"

#include "backend/cpu/kernels/transform/gather_octets_template.h"

static void fill_octets(struct transform_ops *ops) {
    fill_tables();
    ops->gains = PASTE(gains, ISA);
    ops->quantize_query = PASTE(quantize_query, ISA);
    ops->score = PASTE(score, ISA);
    ops->rank = PASTE(rank, ISA);
    ops->quantize_weights = PASTE(quantize_weights, ISA);
    ops->weigh = PASTE(weigh, ISA);
    ops->accumulate = PASTE(accumulate, ISA);
    ops->gather = PASTE(gather, ISA);
}
