/* Finds nearest centroids with NEON (AArch64): has the parameters of pq/nearest_template.h. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define ISA neon
#define LANES 4
#define ROWS 6

typedef float32x4_t vec;
typedef uint32x4_t ivec;

static inline vec vec_set(float x) { return vdupq_n_f32(x); }
static inline vec vec_load(const float *x) { return vld1q_f32(x); }
static inline vec vec_fnma(vec a, vec b, vec c) { return vfmsq_f32(c, a, b); }
static inline ivec ivec_set(uint32_t x) { return vdupq_n_u32(x); }
static inline ivec ivec_add(ivec a, ivec b) { return vaddq_u32(a, b); }
static inline ivec ivec_load(const uint32_t *x) { return vld1q_u32(x); }

static inline void vec_lower(vec s, ivec j, vec *best, ivec *at) {
    uint32x4_t less = vcltq_f32(s, *best);
    *best = vbslq_f32(less, s, *best);
    *at = vbslq_u32(less, j, *at);
}

static inline float vec_least(vec v) { return vminvq_f32(v); }

static inline uint32_t ivec_least_where(vec v, float x, ivec at) {
    return vminvq_u32(vorrq_u32(at, vmvnq_u32(vceqq_f32(v, vec_set(x))))); /* all ones: the largest */
}

#include "backend/cpu/kernels/pq/nearest_template.h"
