/* Defines registers of floats with AVX2, FMA and F16C: the lanes in which sums_template.h and the templates on it are written. Each
 * avx2*.c that includes one of these includes this first. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ISA avx2
#define LANES 8
#define MOST_QUERIES 6
#define MOST_SUMS 12
#define TILE(G) ((G) <= 2 ? 4 : 2)

typedef __m256 vec;

static inline vec vec_zero(void) { return _mm256_setzero_ps(); }
static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
static inline void vec_store(float *to, vec x) { _mm256_storeu_ps(to, x); }
static inline vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vec vec_halves(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }

static inline vec vec_bytes(const int8_t *x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x)));
}

#endif
