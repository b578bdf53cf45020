/* Finds nearest centroids with AVX-512: has the parameters of pq/nearest_template.h. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ISA avx512
#define LANES 16
#define ROWS 8

typedef __m512 vec;
typedef __m512i ivec;

static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *x) { return _mm512_loadu_ps(x); }
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }
static inline ivec ivec_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline ivec ivec_add(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
static inline ivec ivec_load(const uint32_t *x) { return _mm512_loadu_si512(x); }

static inline void vec_lower(vec s, ivec j, vec *best, ivec *at) {
    __mmask16 less = _mm512_cmp_ps_mask(s, *best, _CMP_LT_OQ);
    *best = _mm512_mask_mov_ps(*best, less, s);
    *at = _mm512_mask_mov_epi32(*at, less, j);
}

static inline float vec_least(vec v) { return _mm512_reduce_min_ps(v); }

static inline uint32_t ivec_least_where(vec v, float x, ivec at) {
    return _mm512_mask_reduce_min_epu32(_mm512_cmp_ps_mask(v, vec_set(x), _CMP_EQ_OQ), at);
}

#include "backend/cpu/kernels/pq/nearest_template.h"
