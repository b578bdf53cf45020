/* Defines registers of floats with NEON (AArch64): the lanes in which sums_template.h and the templates on it are written. Each
 * neon*.c that includes one of these includes this first. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_NEON_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ISA neon
#define LANES 4
#define MOST_QUERIES 8
#define MOST_SUMS 24
#define TILE(G) ((G) <= 6 ? 4 : 2)
#define TILE_Q4(G) ((G) <= 4 ? 4 : 2) /* twice the operands */

typedef float32x4_t vec;

static inline vec vec_zero(void) { return vdupq_n_f32(0); }
static inline vec vec_set(float x) { return vdupq_n_f32(x); }
static inline vec vec_load(const float *x) { return vld1q_f32(x); }
static inline void vec_store(float *to, vec x) { vst1q_f32(to, x); }
static inline vec vec_add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec vec_sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec vec_mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec vec_fnma(vec a, vec b, vec c) { return vfmsq_f32(c, a, b); }
static inline vec vec_halves(const uint16_t *x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }

/* Loads four bytes into the lower half of a register. */
static inline uint8x8_t four_bytes(const void *x) {
    uint32_t bytes;
    memcpy(&bytes, x, sizeof bytes);
    return vreinterpret_u8_u32(vdup_n_u32(bytes));
}

static inline vec floats_of_codes(int8x8_t codes) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(codes)))); }

static inline vec vec_bytes(const int8_t *x) { return floats_of_codes(vreinterpret_s8_u8(four_bytes(x))); }

static inline void vec_nibbles(const uint8_t *x, vec *low, vec *high) {
    uint8x8_t codes = four_bytes(x);
    *low = floats_of_codes(vsub_s8(vreinterpret_s8_u8(vand_u8(codes, vdup_n_u8(15))), vdup_n_s8(8)));
    *high = floats_of_codes(vsub_s8(vreinterpret_s8_u8(vshr_n_u8(codes, 4)), vdup_n_s8(8)));
}

#endif
