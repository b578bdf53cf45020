/* Defines the parameters of weights/tiles_template.h that AVX2 and AVX-VNNI share: two registers of eight rows. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_TILES_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_TILES_H

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 8
#define PARTS 2        /* a load of a vector serves both */
#define VECTORS_MOST 4 /* sums and codes fill the registers */
#define VECTORS_MOST_OF_PLANES 2
typedef __m256i ints;
typedef __m256 floats;
#define MM(operation) _mm256_##operation
#define REGISTER(x) "+x"(x)
INLINE ints ints_and(ints a, ints b) { return _mm256_and_si256(a, b); }
INLINE ints ints_or(ints a, ints b) { return _mm256_or_si256(a, b); }
INLINE ints ints_andnot(ints a, ints b) { return _mm256_andnot_si256(a, b); }
INLINE ints repeat(__m128i x) { return _mm256_broadcastsi128_si256(x); }
INLINE floats halves_of_dwords(ints x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0xd8);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(words));
}

INLINE __m256i two_pieces(const uint8_t *at, size_t apart) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)),
                                   _mm_loadu_si128((const __m128i *)(at + apart)), 1);
}

INLINE void load_pieces(const uint8_t *at, size_t apart, ints to[4]) {
    __m256i pieces[4];
    UNROLL for (size_t i = 0; i < 4; i++) pieces[i] = two_pieces(at + i * apart, 4 * apart);
    __m256i low[2] = {_mm256_unpacklo_epi32(pieces[0], pieces[1]), _mm256_unpacklo_epi32(pieces[2], pieces[3])};
    __m256i high[2] = {_mm256_unpackhi_epi32(pieces[0], pieces[1]), _mm256_unpackhi_epi32(pieces[2], pieces[3])};
    to[0] = _mm256_unpacklo_epi64(low[0], low[1]);
    to[1] = _mm256_unpackhi_epi64(low[0], low[1]);
    to[2] = _mm256_unpacklo_epi64(high[0], high[1]);
    to[3] = _mm256_unpackhi_epi64(high[0], high[1]);
}

/* A codes has 32 codes as words, and what their products are multiplied by: weights/avx2_rows.h. */
struct codes {
    ints words[2];
    floats scale;
};

#endif
