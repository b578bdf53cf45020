/* Has functions that the AVX2 and AVX-512 files of this folder share. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_SCALES_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_SCALES_H

#include "backend/cpu/kernels/compiler.h"
#include "format/weight_blocks.h"

#include <immintrin.h>

/* Returns, of a block of Q4_K or Q5_K, the s of its eight groups, then their m, a byte each: weight_group_scales in registers. */
INLINE __m128i group_scale_bytes(const void *block) {
    const __m128i first_bits = _mm_setr_epi32(0x3f3f3f3f, 0x30303030, 0x3f3f3f3f, 0x30303030);
    const __m128i second_bits = _mm_setr_epi32(0, 0x0f0f0f0f, 0, 0x0f0f0f0f);
    __m128i words = _mm_loadu_si128(block); /* the two halves, then `scales` */
    __m128i first = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xa5), _mm_setr_epi32(0, 2, 0, 2));
    __m128i second = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xff), _mm_setr_epi32(0, 0, 0, 4));
    return _mm_or_si128(_mm_and_si128(first, first_bits), _mm_and_si128(second, second_bits));
}

/* Returns s - 32 of the eight groups of a block of IQ4_XS. */
INLINE __m256 iq4_xs_scales(const struct weight_iq4_xs *block) {
    uint32_t low;
    memcpy(&low, block->low, sizeof low);
    __m256i four = _mm256_srlv_epi32(_mm256_set1_epi32((int)low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i two = _mm256_srlv_epi32(_mm256_set1_epi32(block->high), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    four = _mm256_and_si256(four, _mm256_set1_epi32(15));
    two = _mm256_slli_epi32(_mm256_and_si256(two, _mm256_set1_epi32(3)), 4);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_or_si256(four, two), _mm256_set1_epi32(32)));
}

/* Returns s - 32 of the sixteen groups of 16 weights of a block of Q3_K, a byte each. */
INLINE __m128i q3_k_scale_bytes(const uint8_t scales[12]) {
    uint32_t words[4];
    weight_q3_k_scales(scales, words);
    return _mm_sub_epi8(_mm_loadu_si128((const void *)words), _mm_set1_epi8(32));
}

#endif
