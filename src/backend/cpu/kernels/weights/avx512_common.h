/* Has functions that the AVX-512 files of this folder share. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX512_COMMON_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX512_COMMON_H

#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/weights/avx2_scales.h"
#include "format/weight_blocks.h"

#include <immintrin.h>

/* Repeats the halves at words `words` of 64 bytes. */
INLINE __m512 spread_halves(const void *at, __m512i words) {
    return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(words, _mm512_loadu_si512(at))));
}

/* Returns, of a block that begins with `scale` and `min`, scale s of the eight groups, then min m. */
INLINE __m512 group_scales(const void *block) {
    const __m512i of = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return _mm512_mul_ps(spread_halves(block, of), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(group_scale_bytes(block))));
}

#endif
