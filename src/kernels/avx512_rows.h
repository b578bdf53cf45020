/* Packed rows of tokens with AVX-512, sixteen bytes of sixteen tokens at a time: what sign's keys and kivi's values share besides
 * bytes. Included after avx512_bytes.h. */
#include "kernels/sign_rows.h"

/* Dwords [0, 4) of 16 tokens' rows: to[d] has dword d of all. */
INLINE void turn_over_four(const uint8_t *rows, size_t length, __m512i *to) {
    __m512i x[4], y[4];
    UNROLL for (size_t i = 0; i < 4; i++) { /* tokens i, i + 4, ... */
        const uint8_t *from = rows + i * length;
        x[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 4 * length)), 1);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 8 * length)), 2);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 12 * length)), 3);
    }
    y[0] = _mm512_unpacklo_epi32(x[0], x[1]);
    y[1] = _mm512_unpackhi_epi32(x[0], x[1]);
    y[2] = _mm512_unpacklo_epi32(x[2], x[3]);
    y[3] = _mm512_unpackhi_epi32(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi64(y[0], y[2]);
    to[1] = _mm512_unpackhi_epi64(y[0], y[2]);
    to[2] = _mm512_unpacklo_epi64(y[1], y[3]);
    to[3] = _mm512_unpackhi_epi64(y[1], y[3]);
}

/* Pairs of 16 tokens from the t-th on, to[4 + b] being the b-th. The last sixteen bytes of a row may begin within its codes. */
INLINE void turn_over_pairs(const struct rows *rows, size_t t, __m512i *to) {
    for (size_t from = rows->codes; from < rows->length; from += 16) {
        size_t at = SMALLER(from, rows->length - 16);
        turn_over_four(rows->at + t * rows->length + at, rows->length, to + (at + 16 - rows->codes) / 4);
    }
}

INLINE __m512 scale_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair)); }
INLINE __m512 zero_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16))); }
