/* Makes fixed point of a vector for weights/tiles_template.h, which includes this: whole multiples of a step, with one step for
 * each group of numbers.
 *
 * Formats with codes of four bits get bytes, 32 numbers to a group, whose step is a 127th of the largest of them. Formats with
 * finer codes get sixteen bits, with a step that is mostly a power of two: as words where codes have eight bits, as planes of bytes,
 * 16 to a group, where they have fewer. With weights of four bits the rounding to bytes adds 1.4 % to the KL divergence that these
 * weights cause by themselves, and nothing that perplexity would show; with Q8_0 it would triple it, and with Q6_K add 13 to 26 %
 * (docs/reports/batches.md).
 *
 * The including file says with ZERO_IN_WORDS whether products of bytes are added up as words. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TILES_FIXED_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TILES_FIXED_H

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BYTES_OF_GROUP 32 /* numbers */
#define WORDS_OF_GROUP 16
#define LEAST_NUMBER 1e-25f /* groups of smaller ones are zeros, so that inverses of steps are finite */
#define LEAST_EXPONENT (-100)

struct fixed_group {
    int32_t numbers[8]; /* four bytes, or two words, each; of planes, 16 high bytes, then 16 low ones */
    float step;
    int32_t zero[2]; /* less what the code that means zero adds to the products; of planes, to those of high and of low bytes */
    float sum;       /* of the numbers as they are now */
};

/* Returns the largest of 8 n absolute values, in all lanes, as integers, so that NaN are the largest of all. */
INLINE __m256i largest_of(const __m256 *x, int n) {
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < n; i++)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7fffffff)));
    most = _mm256_max_epi32(most, _mm256_permute2x128_si256(most, most, 1));
    most = _mm256_max_epi32(most, _mm256_shuffle_epi32(most, 0x4e));
    return _mm256_max_epi32(most, _mm256_shuffle_epi32(most, 0xb1));
}

/* Stores 32 whole numbers of -127 to 127 as bytes, in order; returns, in each half, the sums of the even and of the odd pairs of its
 * sixteen bytes, as two words. */
INLINE __m256i store_bytes(const __m256i whole[4], struct fixed_group *f) {
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)f->numbers, bytes);
    __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4e));
    return _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1));
}

INLINE int32_t low_word(int32_t x) { return (int16_t)(x & 0xffff); }
INLINE int32_t high_word(int32_t x) { return low_word(x >> 16); }

/* Returns what a sum begins with where the code `zero` means zero, for numbers with these two sums. Sums of words wrap, which does no harm:
 * what they come to in the end fits. */
INLINE int32_t less_zero(int zero, int32_t sums) {
    const int32_t even = -zero * low_word(sums), odd = -zero * high_word(sums);
    return ZERO_IN_WORDS ? (int32_t)((uint32_t)even & 0xffff) | (int32_t)((uint32_t)odd << 16) : even + odd;
}

/* Writes x[32] in order. The step is NaN where a number is not finite. */
INLINE void group_of_bytes(const float *x, int zero, struct fixed_group *f) {
    __m256 in[4];
    for (int i = 0; i < 4; i++) in[i] = _mm256_loadu_ps(x + 8 * i);
    int32_t bits = _mm_cvtsi128_si32(_mm256_castsi256_si128(largest_of(in, 4)));
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    const float inverse = largest > LEAST_NUMBER ? 127 / largest : 0;
    __m256i whole[4];
    for (int i = 0; i < 4; i++) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], _mm256_set1_ps(inverse)));
    const __m256i halves = store_bytes(whole, f);
    const int32_t sums = _mm256_cvtsi256_si32(_mm256_add_epi16(halves, _mm256_permute2x128_si256(halves, halves, 1)));
    f->step = bits >= 0x7f800000 ? largest - largest : largest > LEAST_NUMBER ? largest / 127 : 0; /* infinity less itself is NaN */
    f->zero[0] = less_zero(zero, sums);
    f->zero[1] = 0;
    f->sum = f->step * (float)(low_word(sums) + high_word(sums));
}

/* Writes x[16] as 255 high + low, both of -127 to 127. The step is the power of two with which the largest number is 2^14 to 2^15,
 * and a 64th more where it would be above the 127 * 255 + 127 that these bytes can be. */
INLINE void group_of_planes(const float *x, int zero, struct fixed_group *f) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256 in[2] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    __m256i most = largest_of(in, 2), largest = _mm256_and_si256(most, exponent);
    __m256i step = _mm256_sub_epi32(largest, _mm256_set1_epi32(14 << 23));
    __m256i some = _mm256_cmpgt_epi32(step, _mm256_set1_epi32((127 + LEAST_EXPONENT - 1) << 23));
    __m256i infinite = _mm256_cmpeq_epi32(largest, exponent);
    __m256i above =
        _mm256_cmpgt_epi32(_mm256_andnot_si256(exponent, most), _mm256_set1_epi32(0x7e0000 - 1)); /* of 2^23, as 32512 of 2^14 is */
    __m256 inverse = _mm256_castsi256_ps(_mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(254 << 23), step), some));
    inverse = _mm256_mul_ps(inverse, _mm256_blendv_ps(_mm256_set1_ps(1), _mm256_set1_ps(64.0f / 65), _mm256_castsi256_ps(above)));
    __m256i planes[4];
    for (int i = 0; i < 2; i++) {
        __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], inverse));
        __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(1.0f / 255)));
        planes[i] = high;
        planes[2 + i] = _mm256_sub_epi32(_mm256_add_epi32(whole, high), _mm256_slli_epi32(high, 8));
    }
    const __m256i halves = store_bytes(planes, f);
    const int32_t high = _mm256_cvtsi256_si32(halves), low = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1));
    step = _mm256_and_si256(step, some);
    __m256 wider = _mm256_mul_ps(_mm256_castsi256_ps(step), _mm256_set1_ps(65.0f / 64));
    step = _mm256_blendv_epi8(step, _mm256_castps_si256(wider), above);
    _mm_store_ss(&f->step, _mm256_castps256_ps128(_mm256_castsi256_ps(_mm256_or_si256(step, infinite))));
    f->zero[0] = less_zero(zero, high);
    f->zero[1] = less_zero(zero, low);
    f->sum = f->step * (float)(255 * (low_word(high) + high_word(high)) + low_word(low) + high_word(low));
}

#endif
