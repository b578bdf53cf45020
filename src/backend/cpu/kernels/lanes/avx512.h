/* Defines registers of floats with AVX-512: the lanes in which sums_template.h and the templates on it are written. Each avx512*.c
 * that includes one of these includes this first. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ISA avx512
#define LANES 16
#define MOST_QUERIES 8
#define MOST_SUMS 24
#define TILE(G) ((G) <= 6 ? 4 : 2)
#define TILE_Q4(G) ((G) <= 4 ? 4 : 2) /* twice the operands */

typedef __m512 vec;

static inline vec vec_zero(void) { return _mm512_setzero_ps(); }
static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *x) { return _mm512_loadu_ps(x); }
static inline void vec_store(float *to, vec x) { _mm512_storeu_ps(to, x); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vec vec_halves(const uint16_t *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }

static inline vec vec_bytes(const int8_t *x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x)));
}

/* Converts nibbles: a permutation looks at the low four bits of each lane only, so it masks, subtracts 8 and converts in one
 * instruction. */
static inline void vec_nibbles(const uint8_t *x, vec *low, vec *high) {
    const vec numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
    *low = _mm512_permutexvar_ps(codes, numbers);
    *high = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), numbers);
}

#endif
