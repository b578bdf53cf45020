/* Implements CommVQ's keys with NEON (AArch64): has the parameters of commvq/template.h. */
#include "backend/cpu/kernels/lanes/neon.h"
#include "backend/cpu/kernels/commvq/init.h"

#include <stdbool.h>

typedef int16x8_t i16s;
#define I16_LANES 8

static inline i16s i16s_zero(void) { return vdupq_n_s16(0); }
static inline i16s i16s_load(const int16_t *x) { return vld1q_s16(x); }
static inline void i16s_store(int16_t *to, i16s x) { vst1q_s16(to, x); }
static inline i16s i16s_add(i16s a, i16s b) { return vaddq_s16(a, b); }
static inline i16s i16s_even(i16s x) { return vshrq_n_s16(vshlq_n_s16(x, 8), 8); }
static inline i16s i16s_odd(i16s x) { return vshrq_n_s16(x, 8); }
static inline i16s bytes_load(const int8_t *x) { return vreinterpretq_s16_s8(vld1q_s8(x)); }

static inline i16s bytes_add(i16s a, i16s b) {
    return vreinterpretq_s16_s8(vaddq_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b)));
}

static inline i16s bytes_sub(i16s a, i16s b) {
    return vreinterpretq_s16_s8(vsubq_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b)));
}

static inline vec vec_i16(const int16_t *x) { return vcvtq_f32_s32(vmovl_s16(vld1_s16(x))); }

static inline void vec_lower(vec s, vec j, vec *best, vec *at) {
    uint32x4_t less = vcltq_f32(s, *best);
    *best = vbslq_f32(less, s, *best);
    *at = vbslq_f32(less, j, *at);
}

static inline bool vec_any_less(vec a, vec b) { return vmaxvq_u32(vcltq_f32(a, b)) != 0; }

#include "backend/cpu/kernels/commvq/template.h"

void commvq_init_neon(struct commvq_ops *ops) { fill_commvq(ops); }
