/* Makes fixed point of a vector for weights/tiles_template.h, which includes this: whole multiples of a step, with one step for
 * each group of numbers.
 *
 * Formats with codes of four bits get bytes, 32 numbers to a group, whose step is a 127th of the largest of them. Formats with
 * finer codes get words, 16 to a group, whose step is a power of two. With weights of four bits the rounding to bytes adds 1.4 % to
 * the KL divergence that these weights cause by themselves, and nothing that perplexity would show; with Q8_0 it would triple it
 * (docs/reports/batches.md). */
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
    int32_t numbers[8]; /* four bytes, or two words, each */
    float step;
    int32_t zero; /* less what the code that means zero adds to the products */
    float sum;    /* of the numbers as they are now */
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

INLINE int32_t sum_of_dwords(__m256i x) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
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
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    _mm256_storeu_si256((__m256i *)f->numbers, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    const int32_t sum = sum_of_dwords(_mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3])));
    f->step = bits >= 0x7f800000 ? largest - largest : largest > LEAST_NUMBER ? largest / 127 : 0; /* infinity less itself is NaN */
    f->zero = (int32_t)(-(uint32_t)zero * (uint32_t)sum); /* a number that is not finite makes any sum */
    f->sum = f->step * (float)sum;
}

/* Writes x[16]: of each four numbers the even ones, then the odd ones, as bytes of codes become words. A number is at most 2^15
 * steps; those that round to 2^15 become 2^15 - 1. */
INLINE void group_of_words(const float *x, struct fixed_group *f) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const __m256i even_odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __m256 in[2] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    __m256i largest = _mm256_and_si256(largest_of(in, 2), exponent);
    __m256i step = _mm256_sub_epi32(largest, _mm256_set1_epi32(14 << 23));
    __m256i some = _mm256_cmpgt_epi32(step, _mm256_set1_epi32((127 + LEAST_EXPONENT - 1) << 23));
    __m256i infinite = _mm256_cmpeq_epi32(largest, exponent);
    __m256 inverse = _mm256_castsi256_ps(_mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(254 << 23), step), some));
    __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(in[0], inverse)), second = _mm256_cvtps_epi32(_mm256_mul_ps(in[1], inverse));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
    _mm256_storeu_si256((__m256i *)f->numbers, _mm256_shuffle_epi8(words, even_odd));
    _mm_store_ss(&f->step, _mm256_castps256_ps128(_mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(step, some), infinite))));
    f->zero = 0;
    f->sum = 0;
}

#endif
