/* What the AVX2 and AVX-512 files of this folder share. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_SCALES_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_SCALES_H

#include "backend/cpu/kernels/compiler.h"
#include "format/weight_blocks.h"

#include <immintrin.h>

/* Of a block of Q4_K or Q5_K, the s of its eight groups, then their m, a byte each: weight_group_scales in registers. */
INLINE __m128i group_scale_bytes(const void *block) {
    const __m128i first_bits = _mm_setr_epi32(0x3f3f3f3f, 0x30303030, 0x3f3f3f3f, 0x30303030);
    const __m128i second_bits = _mm_setr_epi32(0, 0x0f0f0f0f, 0, 0x0f0f0f0f);
    __m128i words = _mm_loadu_si128(block); /* the two halves, then `scales` */
    __m128i first = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xa5), _mm_setr_epi32(0, 2, 0, 2));
    __m128i second = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xff), _mm_setr_epi32(0, 0, 0, 4));
    return _mm_or_si128(_mm_and_si128(first, first_bits), _mm_and_si128(second, second_bits));
}

#endif
