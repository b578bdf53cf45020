/* Reads packed rows of tokens with AVX-512, sixteen bytes of sixteen tokens at a time, for sign's keys and kivi's values. It is
 * included after lanes/avx512_i8.h. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SCALED_AVX512_ROWS_H
#define TERSE_BACKEND_CPU_KERNELS_SCALED_AVX512_ROWS_H

#include "backend/cpu/kernels/scaled/rows.h"

/* Transposes dwords [0, 4) of 16 tokens' rows: to[d] has dword d of all. */
INLINE void transpose_four(const uint8_t *rows, size_t length, __m512i *to) {
    __m512i x[4];
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = four_pieces(rows + i * length, 4 * length); /* tokens i, i + 4, ... */
    transpose_fours(x, to);
}

/* Transposes the pairs of 16 tokens from the t-th on, to[4 + b] being the b-th. The last sixteen bytes of a row may begin within
 * its codes. */
INLINE void transpose_pairs(const struct rows *rows, size_t t, __m512i *to) {
    for (size_t from = rows->codes; from < rows->length; from += 16) {
        size_t at = SMALLER(from, rows->length - 16);
        transpose_four(rows->at + t * rows->length + at, rows->length, to + (at + 16 - rows->codes) / 4);
    }
}

INLINE __m512 scale_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair)); }
INLINE __m512 zero_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16))); }

#endif
