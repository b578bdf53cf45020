/* Reads pages of the codec transform with AVX-512 (VBMI, VNNI): 64 bytes are 16 tokens' codes, and one instruction multiplies four of
 * each dword by four bytes. The dwords are tokens of keys, components of values. */
#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

#include "backend/cpu/kernels/transform/init.h"
#include "backend/cpu/kernels/transform/places_template.h"
#include "backend/cpu/kernels/vector/exp_constants.h"

#include <math.h>
#include <string.h>

#define TOGETHER 4 /* queries that a kernel reads a page for */
#define VECTORS 4  /* of a plane: 16 tokens each */
#define HALF 64    /* bytes of a nibble: two vectors' */

INLINE __m512i read_half(const uint8_t *at, size_t half) { return _mm512_loadu_si512(at + half * HALF); }

/* ---- Gains --------------------------------------------------------------------------------------------------------------- */

INLINE void read_gains(const uint8_t *codes, float least, float step, float *gains) {
    UNROLL for (size_t v = 0; v < VECTORS; v++) {
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + v * LANES)));
        vec_store(gains + v * LANES, vec_fma(vec_set(step), _mm512_cvtepi32_ps(code), vec_set(least)));
    }
}

static void gains_avx512(const uint8_t codes[64], float least, float step, float gains[64]) {
    prefetch_step(codes, 0, 64);
    read_gains(codes, least, step, gains);
}

/* ---- Keys: the lanes are tokens ------------------------------------------------------------------------------------------ */

/* Loads a quad's products for each of four planes. */
INLINE vec four_quads(const struct transform_plane *plane, const float *products) {
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(products + plane[0].quad * TRANSFORM_QUAD));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(products + plane[1].quad * TRANSFORM_QUAD), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(products + plane[2].quad * TRANSFORM_QUAD), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(products + plane[3].quad * TRANSFORM_QUAD), 3);
}

/* Quantizes 8 planes. A plane is two dwords: its bits are the highest byte of the first, its scale is the second. */
INLINE void quantize_step(const struct transform_plane *plane, const float *products, float *step, int32_t *bias, int8_t *weights) {
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    vec x[2];
    __m512i largest_codes[2], integers[2];
    UNROLL for (size_t j = 0; j < 2; j++) {
        __m512i four = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(plane + 4 * j)));
        vec scale = _mm512_castsi512_ps(_mm512_permutexvar_epi32(second, four));
        __m512i bits = _mm512_srli_epi32(_mm512_permutexvar_epi32(first, four), 24);
        largest_codes[j] = _mm512_sub_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(1), bits), _mm512_set1_epi32(1));
        x[j] = vec_mul(scale, four_quads(plane + 4 * j, products));
    }
    float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])));
    vec inverse = vec_set(largest > 0 && 127 / largest < INFINITY ? 127 / largest : 0);
    __m512i sum = _mm512_setzero_si512();
    UNROLL for (size_t j = 0; j < 2; j++) {
        integers[j] = _mm512_cvtps_epi32(vec_mul(x[j], inverse));
        sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(largest_codes[j], integers[j]));
    }
    *step = largest / 127;
    *bias = _mm512_reduce_add_epi32(sum);
    _mm_storeu_si128((__m128i *)weights, _mm512_cvtepi32_epi8(integers[0]));
    _mm_storeu_si128((__m128i *)(weights + 16), _mm512_cvtepi32_epi8(integers[1]));
}

static void quantize_query_avx512(const struct transform_layout *layout, const float *products, float *steps, int32_t *bias,
                                  int8_t *weights) {
    for (size_t first = 0; first < layout->planes; first += TRANSFORM_STEP_PLANES)
        quantize_step(layout->plane + first, products, steps++, bias++, weights + first * TRANSFORM_QUAD);
}

INLINE __m512i four_weights(const int8_t *weights) {
    int32_t four;
    memcpy(&four, weights, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Adds the products of a plane's codes, of which those in the upper halves of bytes stay there, 16 times as large. */
INLINE void add_keys(size_t R, bool whole, struct place place, const struct transform_query *queries, size_t p,
                     __m512i (*sum)[VECTORS]) {
    const __m512i mask = _mm512_set1_epi32(whole ? 0x0f0f0f0f : (int)place.cut->mask), upper = _mm512_slli_epi32(mask, 4);
    __m512i x[VECTORS];
    UNROLL for (size_t h = 0; h < 2; h++) {
        __m512i both = read_half(place.at, h);
        if (!whole) both = _mm512_srlv_epi32(both, _mm512_set1_epi32((int)place.cut->shift));
        x[2 * h] = _mm512_and_si512(both, mask);
        x[2 * h + 1] = _mm512_and_si512(both, upper);
    }
    UNROLL for (size_t m = 0; m < R; m++) {
        __m512i weights = four_weights(queries[m].weights + p * TRANSFORM_QUAD);
        UNROLL for (size_t v = 0; v < VECTORS; v++) sum[m][v] = add_products(sum[m][v], x[v], weights);
    }
}

INLINE void score_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                          const struct transform_query *queries, bool ahead, float *logits) {
    const struct transform_plane *plane = layout->plane;
    const size_t planes = layout->planes;
    vec all[TOGETHER][VECTORS];
    UNROLL for (size_t m = 0; m < R; m++) { UNROLL for (size_t v = 0; v < VECTORS; v++) all[m][v] = vec_zero(); }
    for (size_t p = 0, step = 0; p < planes; step++) {
        const size_t end = SMALLER(p + TRANSFORM_STEP_PLANES, planes);
        __m512i sum[TOGETHER][VECTORS];
        UNROLL for (size_t m = 0; m < R; m++) { UNROLL for (size_t v = 0; v < VECTORS; v++) sum[m][v] = _mm512_setzero_si512(); }
        for (size_t each = p; each < end && ahead; each++) prefetch_plane(layout, each, codes);
        for (; p < end && is_whole(&plane[p]); p++) add_keys(R, true, place_of(&plane[p], codes), queries, p, sum);
        for (; p < end; p++) add_keys(R, false, place_of(&plane[p], codes), queries, p, sum);
        UNROLL for (size_t m = 0; m < R; m++) {
            const vec by = vec_set(queries[m].steps[step]);
            const __m512i bias = _mm512_set1_epi32(queries[m].bias[step]);
            UNROLL for (size_t v = 0; v < VECTORS; v++) {
                __m512i twice = v % 2 ? _mm512_srai_epi32(sum[m][v], 3) : _mm512_slli_epi32(sum[m][v], 1);
                all[m][v] = vec_fma(by, _mm512_cvtepi32_ps(_mm512_add_epi32(twice, bias)), all[m][v]);
            }
        }
    }
    UNROLL for (size_t v = 0; v < VECTORS; v++) {
        vec gain = vec_load(gains + v * LANES);
        UNROLL for (size_t m = 0; m < R; m++)
            vec_store(logits + m * PAGE_TOKENS + v * LANES, vec_fma(gain, all[m][v], vec_set(queries[m].offset)));
    }
}

static uint16_t rank_avx512(const struct transform_layout *layout, const void *page, float least, float step,
                            const struct transform_query *query, const float *added, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    read_gains(page, least, step, gains);
    score_queries(1, layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, false, logits);
    __m512i most = _mm512_setzero_si512();
    UNROLL for (size_t v = 0; v < VECTORS; v++) {
        const vec logit = vec_add(vec_load(logits + v * LANES), vec_load(added + v * LANES));
        __m512i rank = _mm512_cvtps_epi32(vec_fma(logit, vec_set(256), vec_set(32768)));
        rank = _mm512_min_epi32(_mm512_max_epi32(rank, _mm512_setzero_si512()), _mm512_set1_epi32(TRANSFORM_RANK_MOST));
        most = _mm512_max_epi32(most, rank);
        _mm256_storeu_si256((__m256i *)(ranks + v * LANES), _mm512_cvtepi32_epi16(rank));
    }
    return (uint16_t)_mm512_reduce_max_epi32(most);
}

/* ---- Values: the lanes of each 128 bits are components, the bytes of a dword four tokens -------------------------------------- */

INLINE __m256 upper_half(vec x) { return _mm512_extractf32x8_ps(x, 1); }

/* Return the sums of four registers, and the largest of each. */
INLINE __m128 four_sums(const vec *x) {
    __m256 half[TOGETHER];
    UNROLL for (size_t m = 0; m < TOGETHER; m++) half[m] = _mm256_add_ps(_mm512_castps512_ps256(x[m]), upper_half(x[m]));
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

INLINE __m128 four_largest(const vec *x) {
    __m256 half[TOGETHER];
    UNROLL for (size_t m = 0; m < TOGETHER; m++) half[m] = _mm256_max_ps(_mm512_castps512_ps256(x[m]), upper_half(x[m]));
    __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(half[0], half[1]), _mm256_unpackhi_ps(half[0], half[1]));
    __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(half[2], half[3]), _mm256_unpackhi_ps(half[2], half[3]));
    __m256 all = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/* Writes whole numbers up to 255, in their order. */
INLINE void write_bytes(const __m512i *x, uint8_t *to) {
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(x[0], x[1]), _mm512_packus_epi32(x[2], x[3]));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(in_order, bytes));
}

/* Returns the number that is subtracted from a row's logits. */
INLINE vec base_of(float largest) { return vec_set(largest == -INFINITY ? INFINITY : largest); }

INLINE vec weights_of(vec logits, vec base) {
    vec t = _mm512_max_ps(vec_set(EXP2_LOWEST), vec_mul(vec_set(EXP_LOG2_E), _mm512_sub_ps(logits, base))); /* NaN stays */
    vec whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(t, whole);
    vec p = vec_fma(vec_set(EXP2_SHORT_C3), r, vec_set(EXP2_SHORT_C2));
    p = vec_fma(vec_fma(p, r, vec_set(EXP2_SHORT_C1)), r, vec_set(EXP2_SHORT_C0));
    return _mm512_scalef_ps(p, whole);
}

/* Quantizes R queries together, which then wait together for sums and the largest of a row. `largest_logit`: of the logits that
 * `weights` then are, or NULL. */
INLINE void quantize_queries(size_t R, const float *weights, const float *largest_logit, const float *gains, size_t G,
                             size_t planes, uint8_t *bytes, float *scales, float *sums_of_weights) {
    const __m128 whole = _mm_set1_ps(planes == 1 ? 255 : 65535);
    vec x[TOGETHER][VECTORS], sum[TOGETHER], most[TOGETHER], base[TOGETHER];
    float scale[TOGETHER], inverse[TOGETHER], total[TOGETHER];
    UNROLL for (size_t m = 0; m < TOGETHER; m++) sum[m] = most[m] = vec_zero();
    UNROLL for (size_t m = 0; m < R && largest_logit; m++) base[m] = base_of(largest_logit[m]);
    UNROLL for (size_t v = 0; v < VECTORS; v++) {
        vec gain = vec_load(gains + v * LANES);
        UNROLL for (size_t m = 0; m < R; m++) {
            vec w = vec_load(weights + m * PAGE_TOKENS + v * LANES);
            __asm__("" : "+v"(w)); /* or gcc 12 loads it twice */
            if (largest_logit) w = weights_of(w, base[m]);
            sum[m] = vec_add(sum[m], w);
            x[m][v] = vec_mul(w, gain);
            most[m] = _mm512_max_ps(most[m], x[m][v]);
        }
    }
    __m128 largest = four_largest(most), any = _mm_cmp_ps(largest, _mm_set1_ps(TRANSFORM_LEAST_WEIGHT), _CMP_GT_OQ);
    _mm_storeu_ps(scale, _mm_and_ps(any, _mm_div_ps(largest, whole)));
    _mm_storeu_ps(inverse, _mm_and_ps(any, _mm_div_ps(whole, largest)));
    _mm_storeu_ps(total, four_sums(sum));
    UNROLL for (size_t m = 0; m < R; m++) {
        uint8_t *first = bytes + m * PAGE_TOKENS;
        __m512i integers[VECTORS];
        UNROLL for (size_t v = 0; v < VECTORS; v++) integers[v] = _mm512_cvtps_epi32(vec_mul(x[m][v], vec_set(inverse[m])));
        sums_of_weights[m] += largest_logit && largest_logit[m] == -INFINITY ? 0 : total[m];
        scales[m] = planes == 1 ? scale[m] : 256 * scale[m];
        if (planes == 2) {
            __m512i lower[VECTORS];
            UNROLL for (size_t v = 0; v < VECTORS; v++) {
                lower[v] = _mm512_and_si512(integers[v], _mm512_set1_epi32(255));
                integers[v] = _mm512_srli_epi32(integers[v], 8);
            }
            scales[G + m] = scale[m];
            write_bytes(lower, first + G * PAGE_TOKENS);
        }
        write_bytes(integers, first);
    }
}

static void quantize_weights_avx512(const float *weights, const float *gains, size_t G, size_t planes, uint8_t *bytes,
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

static void weigh_avx512(const float *logits, const float *largest, const float *gains, size_t G, uint8_t *bytes, float *scales,
                         float *sums_of_weights) {
    for (; G >= 4; G -= 4, logits += 4 * PAGE_TOKENS, largest += 4, bytes += 4 * PAGE_TOKENS, scales += 4, sums_of_weights += 4)
        quantize_queries(4, logits, largest, gains, 4, 1, bytes, scales, sums_of_weights);
    if (G == 3) quantize_queries(3, logits, largest, gains, 3, 1, bytes, scales, sums_of_weights);
    if (G == 2) quantize_queries(2, logits, largest, gains, 2, 1, bytes, scales, sums_of_weights);
    if (G == 1) quantize_queries(1, logits, largest, gains, 1, 1, bytes, scales, sums_of_weights);
}

/* Spreads four tokens' weights in each dword of 128 bits. */
INLINE void spread_weights(const uint8_t *weights, __m512i *to) {
    __m512i all = _mm512_loadu_si512(weights), part = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    UNROLL for (size_t v = 0; v < VECTORS; v++) to[v] =
        _mm512_permutexvar_epi32(_mm512_add_epi32(part, _mm512_set1_epi32(4 * (int)v)), all);
}

/* Returns half the sum of the weights that are multiplied in each lane. */
INLINE vec half_sums(const __m512i *spread) {
    __m512i sum = _mm512_setzero_si512();
    UNROLL for (size_t v = 0; v < VECTORS; v++) sum = add_products(sum, spread[v], _mm512_set1_epi8(1));
    return vec_mul(_mm512_cvtepi32_ps(sum), vec_set(0.5f));
}

/* The weights of R queries. A level is twice its code less half the largest code. */
struct spread {
    __m512i weights[TOGETHER][VECTORS];
    vec half[TOGETHER];
    float twice[TRANSFORM_NIBBLE_BITS][TOGETHER]; /* the scale of a code that is 2^shift times as large, twice */
};

/* Adds a plane's sums for R queries. Codes are multiplied at the bit where they lie in their half of a byte. The queries take turns,
 * since each waits for its own sum. */
INLINE void add_plane(size_t R, bool whole, const struct spread *spread, struct place place, size_t row, float *out) {
    const __m512i mask = _mm512_set1_epi32(whole ? 0x0f0f0f0f : (int)place.cut->mask_in_place);
    const vec most = vec_set(whole ? 15 : place.cut->most_in_place);
    const float *twice = spread->twice[whole ? 0 : place.cut->shift];
    __m512i x[VECTORS], sum[TOGETHER];
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m512i both = read_half(place.at, half);
        x[2 * half] = _mm512_and_si512(both, mask);
        x[2 * half + 1] = _mm512_and_si512(_mm512_srli_epi32(both, 4), mask);
    }
    UNROLL for (size_t m = 0; m < R; m++) sum[m] = _mm512_setzero_si512();
    UNROLL for (size_t v = 0; v < VECTORS; v++) {
        UNROLL for (size_t m = 0; m < R; m++) sum[m] = add_products(sum[m], spread->weights[m][v], x[v]);
    }
    UNROLL for (size_t m = 0; m < R; m++) {
        float *to = out + m * row;
        vec y = vec_fnma(most, spread->half[m], _mm512_cvtepi32_ps(sum[m]));
        vec_store(to, vec_fma(vec_set(twice[m]), y, vec_load(to)));
    }
}

INLINE void accumulate_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const uint8_t *weights,
                               const float *scales, float *out) {
    const size_t planes = layout->planes, row = planes * TRANSFORM_SUM_LANES;
    struct spread spread;
    UNROLL for (size_t m = 0; m < R; m++) {
        spread_weights(weights + m * PAGE_TOKENS, spread.weights[m]);
        spread.half[m] = half_sums(spread.weights[m]);
        UNROLL for (unsigned shift = 0; shift < TRANSFORM_NIBBLE_BITS; shift++) spread.twice[shift][m] =
            2 * scales[m] / (float)(1u << shift);
    }
    size_t p = 0;
    for (; p < planes && is_whole(&layout->plane[p]); p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, true, &spread, place_of(&layout->plane[p], codes), row, out);
    }
    for (; p < planes; p++, out += TRANSFORM_SUM_LANES) {
        prefetch_plane(layout, p, codes);
        add_plane(R, false, &spread, place_of(&layout->plane[p], codes), row, out);
    }
}

#include "backend/cpu/kernels/transform/queries_template.h"

/* ---- Gathering: 16 consecutive slots of the page that is written are the 64 bytes of a register, each of which fetches its byte,
 * then its bits, for all planes alike
 * ------------------------------------------------------------------------------------------------------ */

/* These hold, for each byte of 16 consecutive slots, its slot, and the number that its component adds to the place where the slot
 * begins. */
static uint8_t slot_of_byte[2][64], component_of_byte[2][64];
/* This is the place where a slot begins among its 16. */
static uint8_t begin_of_slot[2][64];

static void fill_places(void) {
    for (size_t b = 0; b < 64; b++) {
        slot_of_byte[CODEC_KEYS][b] = (uint8_t)(b / 4);
        component_of_byte[CODEC_KEYS][b] = (uint8_t)(b % 4);
        begin_of_slot[CODEC_KEYS][b] = (uint8_t)(4 * (b % 16));
        slot_of_byte[CODEC_VALUES][b] = (uint8_t)(b / 16 * 4 + b % 4);
        component_of_byte[CODEC_VALUES][b] = (uint8_t)(b % 16 / 4 * 4);
        begin_of_slot[CODEC_VALUES][b] = (uint8_t)(b % 16 / 4 * 16 + b % 4);
    }
}

/* A byte_moves says from which places the bytes of 16 slots come. */
struct byte_moves {
    __mmask64 bytes; /* that come at all */
    __m512i from;    /* the nibble's second 64 bytes from 64 on */
    __m512i shift;   /* the bit of eight bytes at which a byte's begin */
    size_t row;      /* 16 times this is the first slot */
};

/* Makes the moves of slots[n] to slots first, first + 1, ... of 16 consecutive ones. */
INLINE struct byte_moves byte_moves_of(enum codec_side side, const uint8_t *slots, size_t n, size_t first, size_t row) {
    const __m512i eighth = _mm512_set1_epi64(0x3830282018100800);
    struct byte_moves moves = {.row = row};
    __m512i number = _mm512_sub_epi8(_mm512_loadu_si512(slot_of_byte[side]), _mm512_set1_epi8((char)first));
    __m128i few = _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1), slots);
    __m512i slot = _mm512_permutexvar_epi8(number, _mm512_castsi128_si512(few));
    moves.bytes = _mm512_cmplt_epu8_mask(number, _mm512_set1_epi8((char)n));
    moves.from = _mm512_add_epi8(_mm512_permutexvar_epi8(slot, _mm512_loadu_si512(begin_of_slot[side])),
                                 _mm512_loadu_si512(component_of_byte[side]));
    /* The place is slot / 32 * 64, slot / 8 % 2 * 32, slot / 16 % 2 * 4. */
    moves.from = _mm512_or_si512(moves.from, _mm512_and_si512(_mm512_slli_epi16(slot, 1), _mm512_set1_epi8(64)));
    __m512i four = _mm512_and_si512(_mm512_srli_epi16(slot, 2), _mm512_set1_epi8(4));
    moves.shift = _mm512_add_epi8(eighth, _mm512_sub_epi8(four, _mm512_set1_epi8((char)(row % 2 * 4))));
    return moves;
}

INLINE void move_nibbles(const struct transform_layout *layout, const struct byte_moves *moves, const uint8_t *from, uint8_t *to) {
    const __m512i mask = _mm512_maskz_set1_epi8(moves->bytes, (char)(15u << moves->row % 2 * 4));
    to += moves->row / 2 * 64;
    for (size_t nibble = 0; nibble < layout->nibbles; nibble++, from += PAGE_TRANSFORM_NIBBLE, to += PAGE_TRANSFORM_NIBBLE) {
        __m512i x = _mm512_permutex2var_epi8(_mm512_loadu_si512(from), moves->from, _mm512_loadu_si512(from + 64));
        x = _mm512_multishift_epi64_epi8(moves->shift, x);
        _mm512_storeu_si512(to, _mm512_ternarylogic_epi64(mask, x, _mm512_loadu_si512(to), 0xca));
    }
}

static void gather_avx512(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots,
                          size_t n, void *to, size_t at) {
    for (size_t k = 0, some; k < n; k += some, at += some) {
        some = SMALLER(LANES - at % LANES, n - k);
        struct byte_moves moves = byte_moves_of(side, slots + k, some, at % LANES, at / LANES);
        move_nibbles(layout, &moves, from, to);
    }
}

void transform_init_avx512(struct transform_ops *ops) {
    fill_places();
    ops->gains = gains_avx512;
    ops->quantize_query = quantize_query_avx512;
    ops->score = score_avx512;
    ops->rank = rank_avx512;
    ops->quantize_weights = quantize_weights_avx512;
    ops->weigh = weigh_avx512;
    ops->accumulate = accumulate_avx512;
    ops->gather = gather_avx512;
}
