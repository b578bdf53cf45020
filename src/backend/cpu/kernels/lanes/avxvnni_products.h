/* Implements the functions of lanes/avx2_products.h with AVX-VNNI: products of four bytes add themselves to a dword. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVXVNNI_PRODUCTS_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVXVNNI_PRODUCTS_H

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>

/* Adds more products to sums. From an intrinsic, gcc 12 keeps sums in memory. */
INLINE __m256i more_products(__m256i sum, __m256i a, __m256i b) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

INLINE __m256i first_products(__m256i a, __m256i b) { return more_products(_mm256_setzero_si256(), a, b); }
INLINE __m256i add_sums(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
INLINE __m256i minus_sums(__m256i a) { return _mm256_sub_epi32(_mm256_setzero_si256(), a); }
INLINE __m256i whole_sums(__m256i sum) { return sum; }

#endif
