/* Sixteen integers of 16 bits, or 32 of 8, with AVX2: what backend/cpu/kernels/commvq/template.h needs besides lanes. AVX-512 uses them too:
 * with planes it reads no rows, and 32 pairs are bytes of such a register. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_I16_VECTOR_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_I16_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256i shorts;
#define SHORTS 16

static inline shorts shorts_zero(void) { return _mm256_setzero_si256(); }
static inline shorts shorts_load(const int16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline void shorts_store(int16_t *to, shorts x) { _mm256_storeu_si256((__m256i *)to, x); }
static inline shorts shorts_add(shorts a, shorts b) { return _mm256_add_epi16(a, b); }
static inline shorts shorts_even(shorts x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static inline shorts shorts_odd(shorts x) { return _mm256_srai_epi16(x, 8); }
static inline shorts bytes_load(const int8_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline shorts bytes_add(shorts a, shorts b) { return _mm256_add_epi8(a, b); }
static inline shorts bytes_sub(shorts a, shorts b) { return _mm256_sub_epi8(a, b); }

#endif
