/* Computes products of codes and 8-bit fixed point with AVX-512 (VNNI), and brings codes into fours: one instruction multiplies
 * four codes by four bytes and adds the products to a dword. The lanes are tokens of keys or channels of values; a dword holds four
 * channels of a key or four tokens of a value. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_I8_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_I8_H

#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/limits.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

#include <string.h>

#define TOGETHER 4 /* queries that a kernel reads a page for */
#define MOST_GROUPS (KERNELS_MOST_CHANNELS / SCALE_GROUP)

INLINE __m512i four_bytes(const int8_t *bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Returns the larger magnitude of two, by lane. */
INLINE __m512 larger_of(__m512 a, __m512 b) { return _mm512_range_ps(a, b, 0x0b); }

/* ---- A query, quantized once for all pages ---------------------------------------------------------------------------------
 *
 * A table of hd numbers holds int8 [2][hd], the high bytes first, int32 sums [hd/32] of those whole numbers, and their step. */

INLINE const int8_t *table_bytes(const float *table) { return (const int8_t *)table; }

/* Returns the sum of channels [32 b, 32 b + 32). */
INLINE int32_t table_sum(const float *table, size_t hd, size_t b) {
    int32_t sum;
    memcpy(&sum, table + hd / 2 + b, sizeof sum);
    return sum;
}

INLINE float table_step(const float *table, size_t hd) { return table[hd / 2 + hd / SCALE_GROUP]; }

/* Clamps numbers, also those that are not finite, to the range of fixed point. */
INLINE __m512 within(__m512 multiples, float most) {
    return _mm512_min_ps(_mm512_max_ps(multiples, _mm512_set1_ps(-most)), _mm512_set1_ps(most));
}

/* Writes x[hd/16] to a table. */
INLINE void fill_table(const __m512 *x, size_t hd, float *table) {
    __m512 most = _mm512_setzero_ps();
    for (size_t v = 0; v < hd / 16; v++) most = larger_of(most, x[v]);
    float step = fixed_step(_mm512_reduce_max_ps(most));
    __m512 inverse = fixed_inverse(step);
    int8_t *high = (int8_t *)table, *low = high + hd;
    for (size_t v = 0; v < hd / 16; v += 2, high += 32, low += 32) {
        __m512i first = to_bytes(within(_mm512_mul_ps(x[v], inverse), FIXED_MOST), high, low);
        __m512i second = to_bytes(within(_mm512_mul_ps(x[v + 1], inverse), FIXED_MOST), high + 16, low + 16);
        int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        memcpy(table + hd / 2 + v / 2, &sum, sizeof sum);
    }
    table[hd / 2 + hd / SCALE_GROUP] = step;
}

/* A coarse table has one byte for each number, for codes of few bits: int8 [hd], then for each 32 channels their int32 sum and a
 * step of their own, so that large channels do not cost the others precision. */
struct coarse {
    int32_t sum;
    float step;
};

INLINE struct coarse coarse_of(const float *table, size_t hd, size_t b) {
    struct coarse c;
    memcpy(&c, table + hd / 4 + 2 * b, sizeof c);
    return c;
}

INLINE void fill_coarse_table(const __m512 *x, size_t hd, float *table) {
    int8_t *bytes = (int8_t *)table;
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, x += 2, bytes += SCALE_GROUP) {
        float largest = _mm512_reduce_max_ps(larger_of(larger_of(x[0], x[1]), _mm512_setzero_ps()));
        struct coarse c = {.step = largest > FIXED_LEAST ? largest / COARSE_MOST : 0};
        __m512i sum = _mm512_setzero_si512();
        for (size_t v = 0; v < 2; v++) {
            __m512 multiples = _mm512_mul_ps(x[v], fixed_inverse(c.step));
            __m512i whole = _mm512_cvtps_epi32(within(multiples, COARSE_MOST));
            _mm_storeu_si128((__m128i *)(bytes + 16 * v), _mm512_cvtepi32_epi8(whole));
            sum = _mm512_add_epi32(sum, whole);
        }
        c.sum = _mm512_reduce_add_epi32(sum);
        memcpy(table + hd / 4 + 2 * b, &c, sizeof c);
    }
}

/* ---- Numbers quantized for one page, for all of these queries ----------------------------------------------------------- */

/* Numbers are reduced in these ways: floats to the largest or to their sum, integers to their sum. */
enum join { LARGEST, SUM, WHOLE_SUM };

INLINE __m512 join(enum join how, __m512 a, __m512 b) {
    if (how == LARGEST) return _mm512_max_ps(a, b);
    if (how == SUM) return _mm512_add_ps(a, b);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* Reduces all lanes of each of x[G] to one number. */
INLINE __m128 join_lanes(enum join how, size_t G, const __m512 *x) {
    const __m512 *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m512 a = join(how, _mm512_unpacklo_ps(*x, *y), _mm512_unpackhi_ps(*x, *y));
    __m512 b = G > 2 ? join(how, _mm512_unpacklo_ps(*z, *w), _mm512_unpackhi_ps(*z, *w)) : a;
    a = join(how, _mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    a = join(how, a, _mm512_castps256_ps512(_mm512_extractf32x8_ps(a, 1)));
    return _mm512_castps512_ps128(join(how, a, _mm512_castps128_ps512(_mm512_extractf32x4_ps(a, 1))));
}

/* Does what fixed_step does for four rows: computes the steps that make `largest` the whole number `most`, and their inverses. */
INLINE void fixed_steps(__m128 largest, float most, float *step, float *inverse) {
    const __mmask8 some = _mm_cmp_ps_mask(largest, _mm_set1_ps(FIXED_LEAST), _CMP_GT_OQ);
    _mm_storeu_ps(step, _mm_maskz_mul_ps(some, largest, _mm_set1_ps(1 / most)));
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(some, _mm_set1_ps(most), largest));
}

/* Returns the place of the number of a token, or of a channel, among the 64 bytes of a plane. Dword 4 l + v has numbers 16 v + 4 l to 16 v + 4 l +
 * 3, the order that packing leaves. */
INLINE size_t place_of(size_t i) { return i % 16 * 4 + i / 16 * 4; }

/* Writes 64 numbers as two signed bytes each, of which the low one is the remainder that the high one, rounded, leaves. Returns the
 * sums of the whole numbers by lane, plus 4 * PLANES_BIAS each. */
#define PLANES_BIAS 128
INLINE __m512i to_planes(const __m512 *x, float inverse, int8_t (*bytes)[PAGE_TOKENS]) {
    const __m512i bias = _mm512_set1_epi8((char)PLANES_BIAS), byte = _mm512_set1_epi16(255);
    __m512i whole[4];
    UNROLL for (size_t v = 0; v < 4; v++) whole[v] =
        _mm512_cvtps_epi32(_mm512_fmadd_ps(x[v], _mm512_set1_ps(inverse), _mm512_set1_ps(PLANES_BIAS)));
    __m512i a = _mm512_packs_epi32(whole[0], whole[1]), b = _mm512_packs_epi32(whole[2], whole[3]);
    _mm512_store_si512(bytes[0], _mm512_packs_epi16(_mm512_srai_epi16(a, 8), _mm512_srai_epi16(b, 8)));
    __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    _mm512_store_si512(bytes[1], _mm512_xor_si512(low, bias));
    return _mm512_add_epi32(_mm512_add_epi32(whole[0], whole[1]), _mm512_add_epi32(whole[2], whole[3]));
}

/* Writes 64 numbers as one signed byte each; returns the whole numbers' sums by lane. */
INLINE __m512i to_plane(const __m512 *x, float inverse, int8_t *bytes) {
    __m512i whole[4];
    UNROLL for (size_t v = 0; v < 4; v++) whole[v] = _mm512_cvtps_epi32(_mm512_mul_ps(x[v], _mm512_set1_ps(inverse)));
    __m512i a = _mm512_packs_epi32(whole[0], whole[1]), b = _mm512_packs_epi32(whole[2], whole[3]);
    _mm512_store_si512(bytes, _mm512_packs_epi16(a, b));
    return _mm512_madd_epi16(_mm512_add_epi16(a, b), _mm512_set1_epi16(1));
}

/* A scaled_weights holds weights times the scales of 64 tokens for 32 channels, in one plane of bytes or two, tokens by place_of,
 * and the sums of the whole numbers. */
struct scaled_weights {
    _Alignas(64) int8_t bytes[TOGETHER][2][PAGE_TOKENS];
    float step[TOGETHER];
    int32_t sum[TOGETHER];
};

INLINE void scale_and_quantize(size_t G, size_t planes, const float *weights, const __m512 *scale, struct scaled_weights *to) {
    __m512 x[TOGETHER][4], most[TOGETHER], sum[TOGETHER];
    float inverse[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t v = 0; v < 4; v++) x[g][v] =
            _mm512_mul_ps(_mm512_loadu_ps(weights + g * PAGE_TOKENS + 16 * v), scale[v]);
        most[g] = larger_of(larger_of(x[g][0], x[g][1]), larger_of(x[g][2], x[g][3]));
    }
    fixed_steps(join_lanes(LARGEST, G, most), planes == 2 ? FIXED_MOST : COARSE_MOST, to->step, inverse);
    UNROLL for (size_t g = 0; g < G; g++) {
        __m512i whole = planes == 2 ? to_planes(x[g], inverse[g], to->bytes[g]) : to_plane(x[g], inverse[g], to->bytes[g][0]);
        sum[g] = _mm512_castsi512_ps(whole);
    }
    __m128i all = _mm_castps_si128(join_lanes(WHOLE_SUM, G, sum));
    if (planes == 2) all = _mm_sub_epi32(all, _mm_set1_epi32(PAGE_TOKENS * PLANES_BIAS));
    _mm_storeu_si128((__m128i *)to->sum, all);
}

/* Adds to sum[planes] the codes times the bytes of each plane from token t on. */
INLINE void add_planes(size_t planes, __m512i codes, const int8_t (*bytes)[PAGE_TOKENS], size_t t, __m512i *sum) {
    UNROLL for (size_t p = 0; p < planes; p++) sum[p] = add_products(sum[p], codes, four_bytes(bytes[p] + place_of(t)));
}

/* ---- Codes --------------------------------------------------------------------------------------------------------------- */

/* Interleaves sixteen bytes of each of four rows that follow one another: dword j has the j-th byte of each. */
INLINE __m512i by_fours(__m512i rows) {
    const __m512i order =
        _mm512_setr_epi32(0x30201000, 0x31211101, 0x32221202, 0x33231303, 0x34241404, 0x35251505, 0x36261606, 0x37271707,
                          0x38281808, 0x39291909, 0x3a2a1a0a, 0x3b2b1b0b, 0x3c2c1c0c, 0x3d2d1d0d, 0x3e2e1e0e, 0x3f2f1f0f);
    return _mm512_permutexvar_epi8(order, rows);
}

/* Does the same for rows that lie `length` apart. */
INLINE __m512i four_rows(const uint8_t *rows, size_t length) { return by_fours(four_pieces(rows, length)); }

#endif
