/* Computes products of bytes with AVX2, of an unsigned and a signed one, four to a dword: they are added in pairs to sums of 16
 * bits, which wrap around. lanes/avxvnni_products.h has the same functions. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_PRODUCTS_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX2_PRODUCTS_H

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>

/* Returns the sums of two products of bytes each, which must be less than 2^15 in size. */
INLINE __m256i first_products(__m256i a, __m256i b) { return _mm256_maddubs_epi16(a, b); }

/* Adds more products to sums. From an intrinsic, gcc 12 keeps sums in memory. */
INLINE __m256i more_products(__m256i sum, __m256i a, __m256i b) {
    __m256i products = _mm256_maddubs_epi16(a, b);
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
}

/* These take sums in this form: they add two, negate one, and return one as whole numbers of 32 bits. */
INLINE __m256i add_sums(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
INLINE __m256i minus_sums(__m256i a) { return _mm256_sub_epi16(_mm256_setzero_si256(), a); }
INLINE __m256i whole_sums(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

#endif
