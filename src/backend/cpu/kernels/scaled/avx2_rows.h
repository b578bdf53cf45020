/* Reads packed rows of tokens with AVX2, sixteen bytes of eight tokens at a time, for sign's keys and kivi's values. It is included
 * after lanes/avx2_i16.h. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SCALED_AVX2_ROWS_H
#define TERSE_BACKEND_CPU_KERNELS_SCALED_AVX2_ROWS_H

#include "backend/cpu/kernels/scaled/rows.h"

INLINE __m256i two_parts(const uint8_t *first, const uint8_t *second) {
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)second), 1);
}

/* Transposes dwords [0, 4) of eight tokens' rows: to[d] has dword d of all. */
INLINE void transpose_four(const uint8_t *from, size_t length, __m256i *to) {
    __m256i a = two_parts(from, from + 4 * length), b = two_parts(from + length, from + 5 * length);
    __m256i c = two_parts(from + 2 * length, from + 6 * length), d = two_parts(from + 3 * length, from + 7 * length);
    __m256i e = _mm256_unpacklo_epi32(a, b), f = _mm256_unpackhi_epi32(a, b);
    __m256i g = _mm256_unpacklo_epi32(c, d), h = _mm256_unpackhi_epi32(c, d);
    to[0] = _mm256_unpacklo_epi64(e, g);
    to[1] = _mm256_unpackhi_epi64(e, g);
    to[2] = _mm256_unpacklo_epi64(f, h);
    to[3] = _mm256_unpackhi_epi64(f, h);
}

/* Transposes the pairs of eight tokens from the t-th on, to[4 + b] being the b-th. The last sixteen bytes of a row may begin within
 * its codes. */
INLINE void transpose_pairs(const struct rows *rows, size_t t, __m256i *to) {
    for (size_t from = rows->codes; from < rows->length; from += 16) {
        size_t at = SMALLER(from, rows->length - 16);
        transpose_four(rows->at + t * rows->length + at, rows->length, to + (at + 16 - rows->codes) / 4);
    }
}

/* Converts the low halves of dwords to floats. */
INLINE __m256 low_halves(__m256i x) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13, -1,
                                           -1, -1, -1, -1, -1, -1, -1);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0x08)));
}

#endif
