/* CommVQ's keys with AVX2, FMA and F16C. */
#include "kernels/avx2_lanes.h"

#include <stdbool.h>

typedef __m256i shorts;
#define SHORTS 16

static inline shorts shorts_zero(void) { return _mm256_setzero_si256(); }
static inline void shorts_store(int16_t *to, shorts x) { _mm256_storeu_si256((__m256i *)to, x); }
static inline shorts shorts_add(shorts a, shorts b) { return _mm256_add_epi16(a, b); }
static inline shorts shorts_even(shorts x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static inline shorts shorts_odd(shorts x) { return _mm256_srai_epi16(x, 8); }
static inline shorts bytes_load(const int8_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline shorts bytes_add(shorts a, shorts b) { return _mm256_add_epi8(a, b); }
static inline shorts bytes_sub(shorts a, shorts b) { return _mm256_sub_epi8(a, b); }

static inline vec vec_shorts(const int16_t *x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)x)));
}

static inline void vec_lower(vec s, vec j, vec *best, vec *at) {
    vec less = _mm256_cmp_ps(s, *best, _CMP_LT_OQ);
    *best = _mm256_blendv_ps(*best, s, less);
    *at = _mm256_blendv_ps(*at, j, less);
}

static inline bool vec_any_less(vec a, vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0; }

#include "kernels/comm_template.h"
