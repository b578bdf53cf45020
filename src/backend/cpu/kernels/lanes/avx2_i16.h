/* Computes products of codes and 16-bit fixed point with AVX2, and with AVX-VNNI in files that are compiled for it. Queries, and
 * weights times scales, become whole multiples of a step as int16; an instruction multiplies sixteen of them by codes and adds the
 * products in pairs, exactly. (Products of bytes would need two bytes a number and sums of more than 16 bits: no fewer
 * instructions.) The lanes are tokens of keys or channels of values; a dword holds two channels of a key or two tokens of a
 * value. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_I16_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_I16_H

#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/limits.h"

#include <string.h>

#define FIXED_MOST 32767
#define FIXED_LEAST 1e-30f /* numbers up to this are 0, so that inverses of steps are finite */
#define TOGETHER 4         /* queries that a kernel reads a page for: two sums each are half the registers */
#define MOST_GROUPS (KERNELS_MOST_CHANNELS / SCALE_GROUP)

/* Adds two products to sum in each dword. From intrinsics, gcc 12 computes all products first, copies each sum and keeps one in
 * memory. */
INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i weights) {
#ifdef __AVXVNNI__
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(weights));
#else
    __m256i products = _mm256_madd_epi16(codes, weights);
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
#endif
    return sum;
}

INLINE __m256i two_i16(const int16_t *words) {
    int32_t two;
    memcpy(&two, words, sizeof two);
    return _mm256_set1_epi32(two);
}

INLINE __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

/* Rounds 16 numbers to whole multiples of a step; those that are not finite become some int16. */
INLINE __m256i to_i16(__m256 a, __m256 b, __m256 inverse) {
    __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), second = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
}

/* ---- Each of x[G], floats or integers, reduced to one number ------------------------------------------------------------- */

INLINE __m128 largest_of(size_t G, const __m256 *x) {
    const __m256 *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(*x, *y), _mm256_unpackhi_ps(*x, *y));
    __m256 b = G > 2 ? _mm256_max_ps(_mm256_unpacklo_ps(*z, *w), _mm256_unpackhi_ps(*z, *w)) : a;
    a = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

INLINE __m128 sum_of(size_t G, const __m256 *x) {
    const __m256 *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(*x, *y), _mm256_unpackhi_ps(*x, *y));
    __m256 b = G > 2 ? _mm256_add_ps(_mm256_unpacklo_ps(*z, *w), _mm256_unpackhi_ps(*z, *w)) : a;
    a = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

INLINE __m128i whole_sum_of(size_t G, const __m256i *x) {
    const __m256i *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m256i a = _mm256_hadd_epi32(*x, *y), b = G > 2 ? _mm256_hadd_epi32(*z, *w) : a;
    a = _mm256_hadd_epi32(a, b);
    return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

/* Computes the steps that make numbers of `largest` in size the whole number `most`, and their inverses. */
INLINE void fixed_steps(__m128 largest, float most, float *step, float *inverse) {
    const __m128 some = _mm_cmpgt_ps(largest, _mm_set1_ps(FIXED_LEAST));
    _mm_storeu_ps(step, _mm_and_ps(some, _mm_mul_ps(largest, _mm_set1_ps(1 / most))));
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(most), largest)));
}

/* ---- A query, quantized once for all pages ---------------------------------------------------------------------------------
 *
 * A table of hd numbers holds int16 [hd] and their step. */

INLINE const int16_t *table_i16(const float *table) { return (const int16_t *)table; }

INLINE float table_step(const float *table, size_t hd) { return table[hd / 2]; }

/* Writes x[hd/8] to a table. */
INLINE void fill_table(const __m256 *x, size_t hd, float *table) {
    __m256 most = _mm256_setzero_ps();
    float step[4], inverse[4];
    for (size_t v = 0; v < hd / LANES; v++) most = _mm256_max_ps(most, magnitude(x[v]));
    fixed_steps(largest_of(1, &most), FIXED_MOST, step, inverse);
    for (size_t v = 0; v < hd / LANES; v += 2)
        _mm256_storeu_si256((__m256i *)(table + LANES / 2 * v), to_i16(x[v], x[v + 1], _mm256_set1_ps(*inverse)));
    table[hd / 2] = *step;
}

/* ---- Weights times the scales of 64 tokens for 32 channels --------------------------------------------------------------- */

struct scaled_weights {
    int16_t i16[TOGETHER][PAGE_TOKENS];
    float step[TOGETHER];
    int32_t sum[TOGETHER]; /* of the int16, where it is wanted */
};

INLINE void scale_and_quantize(size_t G, bool summed, const float *weights, const __m256 *scale, struct scaled_weights *to) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256 x[TOGETHER][PAGE_TOKENS / LANES], most[TOGETHER];
    __m256i sum[TOGETHER];
    float inverse[TOGETHER];
    for (size_t g = 0; g < G; g++) {
        most[g] = _mm256_setzero_ps();
        UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) {
            x[g][v] = _mm256_mul_ps(scale[v], vec_load(weights + g * PAGE_TOKENS + v * LANES));
            most[g] = _mm256_max_ps(most[g], magnitude(x[g][v]));
        }
    }
    fixed_steps(largest_of(G, most), FIXED_MOST, to->step, inverse);
    for (size_t g = 0; g < G; g++) {
        sum[g] = _mm256_setzero_si256();
        UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v += 2) {
            __m256i whole = to_i16(x[g][v], x[g][v + 1], _mm256_set1_ps(inverse[g]));
            _mm256_storeu_si256((__m256i *)(to->i16[g] + v * LANES), whole);
            if (summed) sum[g] = add_products(sum[g], whole, one);
        }
    }
    if (summed) _mm_storeu_si128((__m128i *)to->sum, whole_sum_of(G, sum));
}

/* ---- Codes: two rows interleaved by 16 bits, so that a dword holds both rows' -------------------------------------------- */

/* Interleaves half of the 32 bytes of each of two rows: bytes 8 part to 8 part + 7 and those 16 further on. */
INLINE __m256i pair_rows_32(const uint8_t *row, const uint8_t *next, size_t part) {
    __m256i a = _mm256_loadu_si256((const __m256i *)row), b = _mm256_loadu_si256((const __m256i *)next);
    return part ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b);
}

/* Interleaves 16 bytes of each of two rows. */
INLINE __m256i pair_rows_16(const uint8_t *row, const uint8_t *next) {
    __m128i a = _mm_loadu_si128((const __m128i *)row), b = _mm_loadu_si128((const __m128i *)next);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(a, b)), _mm_unpackhi_epi16(a, b), 1);
}

/* Makes pairs[n / 2] of n rows `length` apart; `ahead` is the part of the page that these bytes would fill if they lay together
 * (for prefetching). */
INLINE void pair_rows(const uint8_t *rows, size_t length, size_t n, const uint8_t *ahead, __m256i *pairs) {
    for (size_t r = 0; r < n; r += 2, rows += 2 * length) {
        prefetch_step(ahead, r / 2, 32);
        pairs[r / 2] = pair_rows_16(rows, rows + length);
    }
}

/* Splits bytes into codes of `bits` bits from bit `shift` of each byte on, those of 8 bits signed: codes[0] of even bytes, codes[1]
 * of odd ones. */
INLINE void split(int bits, int shift, __m256i words, __m256i *codes) {
    const __m256i mask = _mm256_set1_epi16((short)((1 << bits) - 1));
    if (bits == 8) {
        codes[0] = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 8);
        codes[1] = _mm256_srai_epi16(words, 8);
    } else {
        codes[0] = _mm256_and_si256(_mm256_srli_epi16(words, shift), mask);
        codes[1] = _mm256_srli_epi16(words, 8 + shift);
        if (shift + bits < 8) codes[1] = _mm256_and_si256(codes[1], mask);
    }
}

/* A pair_sums has sums of 16 lanes, two halves of eight: the even ones of both halves, then the odd ones. */
typedef __m256i pair_sums[TOGETHER][2];

INLINE void pair_sums_clear(size_t G, pair_sums sum) {
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = _mm256_setzero_si256();
}

/* Computes sum -= zero * all: for codes that count from `zero`, multiplied by numbers whose sum is `all`. */
INLINE void pair_sums_subtract(size_t g, int32_t zero, int32_t all, pair_sums sum) {
    UNROLL for (size_t i = 0; i < 2; i++) sum[g][i] = _mm256_sub_epi32(sum[g][i], _mm256_set1_epi32(zero * all));
}

/* Adds to sum two rows of codes times two int16 of each query, at `weights`, `apart` int16 between queries. */
INLINE void pair_sums_add(size_t G, const __m256i *codes, const int16_t *weights, size_t apart, pair_sums sum) {
    UNROLL for (size_t g = 0; g < G; g++) {
        __m256i w = two_i16(weights + g * apart);
        sum[g][0] = add_products(sum[g][0], codes[0], w);
        sum[g][1] = add_products(sum[g][1], codes[1], w);
    }
}

/* Brings floats into that order: even and odd ones of 8 from x and of 8 from y. in_order is the inverse. */
INLINE void by_parity(__m256 x, __m256 y, __m256 *to) {
    __m256 a = _mm256_permute2f128_ps(x, y, 0x20), b = _mm256_permute2f128_ps(x, y, 0x31);
    to[0] = _mm256_shuffle_ps(a, b, 0x88);
    to[1] = _mm256_shuffle_ps(a, b, 0xdd);
}

INLINE void in_order(const __m256 *x, __m256 *to) {
    __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
    to[0] = _mm256_permute2f128_ps(a, b, 0x20);
    to[1] = _mm256_permute2f128_ps(a, b, 0x31);
}

/* Stores to (+)= step sum + base of 16 lanes, the second eight `apart` floats from the first. */
INLINE void pair_sums_store(const __m256i *sum, float step, float base, bool add, size_t apart, float *to) {
    __m256 x[2] = {_mm256_cvtepi32_ps(sum[0]), _mm256_cvtepi32_ps(sum[1])}, y[2];
    in_order(x, y);
    UNROLL for (size_t i = 0; i < 2; i++) {
        __m256 from = _mm256_set1_ps(base);
        if (add) from = _mm256_add_ps(from, vec_load(to + i * apart));
        vec_store(to + i * apart, _mm256_fmadd_ps(_mm256_set1_ps(step), y[i], from));
    }
}

#endif
