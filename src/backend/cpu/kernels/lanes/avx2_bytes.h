/* Defines registers of bytes and of 16-bit integers, 256 bits wide, which commvq/template.h needs besides the lanes of floats.
 * AVX-512 uses them too: with byte planes it reads no rows, and the 32 pairs of a row are the bytes of such a register. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_BYTES_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_BYTES_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256i i16s;
#define I16_LANES 16

static inline i16s i16s_zero(void) { return _mm256_setzero_si256(); }
static inline i16s i16s_load(const int16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline void i16s_store(int16_t *to, i16s x) { _mm256_storeu_si256((__m256i *)to, x); }
static inline i16s i16s_add(i16s a, i16s b) { return _mm256_add_epi16(a, b); }
static inline i16s i16s_even(i16s x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static inline i16s i16s_odd(i16s x) { return _mm256_srai_epi16(x, 8); }
static inline i16s bytes_load(const int8_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline i16s bytes_add(i16s a, i16s b) { return _mm256_add_epi8(a, b); }
static inline i16s bytes_sub(i16s a, i16s b) { return _mm256_sub_epi8(a, b); }

#endif
