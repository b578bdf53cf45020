/* Finds nearest centroids with AVX2 and FMA: has the parameters of pq/nearest_template.h. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ISA avx2
#define LANES 8
#define ROWS 4

typedef __m256 vec;
typedef __m256i ivec;

static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline ivec ivec_set(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline ivec ivec_add(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
static inline ivec ivec_load(const uint32_t *x) { return _mm256_loadu_si256((const __m256i *)x); }

static inline void vec_lower(vec s, ivec j, vec *best, ivec *at) {
    vec less = _mm256_cmp_ps(s, *best, _CMP_LT_OQ);
    *best = _mm256_blendv_ps(*best, s, less);
    *at = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(*at), _mm256_castsi256_ps(j), less));
}

static inline float vec_least(vec v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

static inline uint32_t ivec_least_where(vec v, float x, ivec at) {
    __m256i other = _mm256_castps_si256(_mm256_cmp_ps(v, vec_set(x), _CMP_NEQ_UQ)); /* all ones: the largest */
    at = _mm256_or_si256(at, other);
    __m128i m = _mm_min_epu32(_mm256_castsi256_si128(at), _mm256_extracti128_si256(at, 1));
    m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_min_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
}

#include "backend/cpu/kernels/pq/nearest_template.h"
