/* Implements CommVQ's keys with AVX2, FMA and F16C: has the parameters of commvq/template.h. */
#include "backend/cpu/kernels/lanes/avx2.h"
#include "backend/cpu/kernels/commvq/init.h"
#include "backend/cpu/kernels/lanes/avx2_bytes.h"

#include <stdbool.h>

static inline vec vec_i16(const int16_t *x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)x)));
}

static inline void vec_lower(vec s, vec j, vec *best, vec *at) {
    vec less = _mm256_cmp_ps(s, *best, _CMP_LT_OQ);
    *best = _mm256_blendv_ps(*best, s, less);
    *at = _mm256_blendv_ps(*at, j, less);
}

static inline bool vec_any_less(vec a, vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0; }

#include "backend/cpu/kernels/commvq/template.h"

void commvq_init_avx2(struct commvq_ops *ops) { fill_commvq(ops); }
