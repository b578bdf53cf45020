/* Reads weights as stored, 128 bits at a time: the SIMD that every 64-bit ARM processor has. One function per format turns 32
 * weights into eight registers holding the very floats of the scalar reference; weights/template.h makes dequantize[] and matmul[]
 * of them. format/weight_blocks.h has the formats. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/weights/init.h"
#include "format/weight_blocks.h"

#include <arm_neon.h>

INLINE float32x4_t spread_half(uint16_t half) { return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))); }

/* Converts 16 signed bytes to floats. */
INLINE void floats_of_bytes(int8x16_t bytes, float32x4_t w[4]) {
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    w[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    w[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    w[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    w[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}
INLINE void floats_of_codes(uint8x16_t codes, int zero, float32x4_t w[4]) {
    floats_of_bytes(vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8((int8_t)zero)), w);
}
/* Return the low and the high four bits of bytes. */
INLINE uint8x16_t low_bits(uint8x16_t both) { return vandq_u8(both, vdupq_n_u8(15)); }
INLINE uint8x16_t high_bits(uint8x16_t both) { return vshrq_n_u8(both, 4); }

INLINE void scale_all(float32x4_t w[8], float32x4_t scale) {
    for (int i = 0; i < 8; i++) w[i] = vmulq_f32(scale, w[i]);
}
INLINE void scale_and_add_all(float32x4_t w[8], float32x4_t scale, float32x4_t min) {
    for (int i = 0; i < 8; i++) w[i] = vfmaq_f32(min, scale, w[i]);
}

#define NO_SCALES(type) \
    INLINE void scales_##type(const struct weight_##type *block, float *scales) { (void)block, (void)scales; }

NO_SCALES(f32)
INLINE void unpack_f32(const struct weight_f32 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    for (int i = 0; i < 8; i++) w[i] = vld1q_f32(block[g].values + 4 * i);
}

NO_SCALES(f16)
INLINE void unpack_f16(const struct weight_f16 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    for (int i = 0; i < 8; i++) w[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(block[g].values + 4 * i)));
}

NO_SCALES(bf16)
INLINE void unpack_bf16(const struct weight_bf16 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    for (int i = 0; i < 8; i++) w[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(block[g].values + 4 * i), 16));
}

NO_SCALES(q8_0)
INLINE void unpack_q8_0(const struct weight_q8_0 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    floats_of_bytes(vld1q_s8(block[g].codes), w);
    floats_of_bytes(vld1q_s8(block[g].codes + 16), w + 4);
    scale_all(w, spread_half(block[g].scale));
}

NO_SCALES(q4_0)
INLINE void unpack_q4_0(const struct weight_q4_0 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    uint8x16_t both = vld1q_u8(block[g].codes);
    floats_of_codes(low_bits(both), 8, w);
    floats_of_codes(high_bits(both), 8, w + 4);
    scale_all(w, spread_half(block[g].scale));
}

NO_SCALES(q4_1)
INLINE void unpack_q4_1(const struct weight_q4_1 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    uint8x16_t both = vld1q_u8(block[g].codes);
    floats_of_codes(low_bits(both), 0, w);
    floats_of_codes(high_bits(both), 0, w + 4);
    scale_and_add_all(w, spread_half(block[g].scale), spread_half(block[g].min));
}

/* Puts the fifth bits, of two bytes of `high`, above the four low bits of 16 codes. */
INLINE uint8x16_t with_fifth_bits(uint8x16_t low, const uint8_t high[2]) {
    const uint8x16_t own_bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    uint8x16_t set = vtstq_u8(vcombine_u8(vdup_n_u8(high[0]), vdup_n_u8(high[1])), own_bit);
    return vorrq_u8(low, vandq_u8(set, vdupq_n_u8(16)));
}

NO_SCALES(q5_0)
INLINE void unpack_q5_0(const struct weight_q5_0 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    uint8x16_t both = vld1q_u8(block[g].codes);
    floats_of_codes(with_fifth_bits(low_bits(both), block[g].high), 16, w);
    floats_of_codes(with_fifth_bits(high_bits(both), block[g].high + 2), 16, w + 4);
    scale_all(w, spread_half(block[g].scale));
}

NO_SCALES(q5_1)
INLINE void unpack_q5_1(const struct weight_q5_1 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    uint8x16_t both = vld1q_u8(block[g].codes);
    floats_of_codes(with_fifth_bits(low_bits(both), block[g].high), 0, w);
    floats_of_codes(with_fifth_bits(high_bits(both), block[g].high + 2), 0, w + 4);
    scale_and_add_all(w, spread_half(block[g].scale), spread_half(block[g].min));
}

/* Writes scale s of the eight groups, then -min m. */
INLINE void group_scales(uint16_t scale, uint16_t min, const uint8_t packed[12], float *scales) {
    uint32_t words[4];
    float32x4_t bytes[4];
    weight_group_scales(packed, words);
    floats_of_codes(vreinterpretq_u8_u32(vld1q_u32(words)), 0, bytes);
    for (int i = 0; i < 2; i++) vst1q_f32(scales + 4 * i, vmulq_f32(spread_half(scale), bytes[i]));
    for (int i = 2; i < 4; i++) vst1q_f32(scales + 4 * i, vnegq_f32(vmulq_f32(spread_half(min), bytes[i])));
}

INLINE void scales_q4_k(const struct weight_q4_k *block, float *scales) {
    group_scales(block->scale, block->min, block->scales, scales);
}
INLINE void unpack_q4_k(const struct weight_q4_k *block, const float *scales, int g, float32x4_t w[8]) {
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(block->codes + 32 * (g / 2) + 16 * i);
        floats_of_codes(g % 2 ? high_bits(both) : low_bits(both), 0, w + 4 * i);
    }
    scale_and_add_all(w, vdupq_n_f32(scales[g]), vdupq_n_f32(scales[8 + g]));
}

INLINE void scales_q5_k(const struct weight_q5_k *block, float *scales) {
    group_scales(block->scale, block->min, block->scales, scales);
}
INLINE void unpack_q5_k(const struct weight_q5_k *block, const float *scales, int g, float32x4_t w[8]) {
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(block->codes + 32 * (g / 2) + 16 * i), high = vld1q_u8(block->high + 16 * i);
        uint8x16_t fifth = vandq_u8(vtstq_u8(high, vdupq_n_u8((uint8_t)(1 << g))), vdupq_n_u8(16));
        floats_of_codes(vorrq_u8(g % 2 ? high_bits(both) : low_bits(both), fifth), 0, w + 4 * i);
    }
    scale_and_add_all(w, vdupq_n_f32(scales[g]), vdupq_n_f32(scales[8 + g]));
}

INLINE void scales_q6_k(const struct weight_q6_k *block, float *scales) {
    float32x4_t s[4];
    floats_of_bytes(vld1q_s8(block->scales), s);
    for (int i = 0; i < 4; i++) vst1q_f32(scales + 4 * i, vmulq_f32(spread_half(block->scale), s[i]));
}
INLINE void unpack_q6_k(const struct weight_q6_k *block, const float *scales, int g, float32x4_t w[8]) {
    const int half = g / 4, quarter = g % 4;
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(block->codes + 64 * half + 32 * (quarter % 2) + 16 * i);
        uint8x16_t high = vld1q_u8(block->high + 32 * half + 16 * i);
        high = vandq_u8(vshlq_u8(high, vdupq_n_s8((int8_t)(4 - 2 * quarter))), vdupq_n_u8(48));
        floats_of_codes(vorrq_u8(quarter < 2 ? low_bits(both) : high_bits(both), high), 32, w + 4 * i);
        for (int j = 4 * i; j < 4 * i + 4; j++) w[j] = vmulq_f32(vdupq_n_f32(scales[2 * g + i]), w[j]);
    }
}

/* Looks up four-bit codes as the signed bytes that a table has for them, times a unit. */
INLINE void look_up_codes(const uint8_t codes[16], const int8_t values[16], float32x4_t unit, float32x4_t w[8]) {
    uint8x16_t both = vld1q_u8(codes);
    int8x16_t table = vld1q_s8(values);
    floats_of_bytes(vqtbl1q_s8(table, low_bits(both)), w);
    floats_of_bytes(vqtbl1q_s8(table, high_bits(both)), w + 4);
    scale_all(w, unit);
}

NO_SCALES(iq4_nl)
INLINE void unpack_iq4_nl(const struct weight_iq4_nl *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    look_up_codes(block[g].codes, weight_iq4_values, spread_half(block[g].scale), w);
}

NO_SCALES(mxfp4)
INLINE void unpack_mxfp4(const struct weight_mxfp4 *block, const float *scales, int g, float32x4_t w[8]) {
    (void)scales;
    look_up_codes(block[g].codes, weight_fp4_values, vdupq_n_f32(weight_mxfp4_unit(block[g].exponent)), w);
}

INLINE void scales_iq4_xs(const struct weight_iq4_xs *block, float *scales) {
    float scale = vgetq_lane_f32(spread_half(block->scale), 0);
    for (int g = 0; g < 8; g++) scales[g] = scale * (float)(weight_iq4_xs_scale(block, g) - 32);
}
INLINE void unpack_iq4_xs(const struct weight_iq4_xs *block, const float *scales, int g, float32x4_t w[8]) {
    look_up_codes(block->codes + 16 * g, weight_iq4_values, vdupq_n_f32(scales[g]), w);
}

/* Returns the two bits of weights 16 i .. 16 i + 15 of group g of Q2_K or Q3_K. */
INLINE uint8x16_t two_bits(const uint8_t codes[64], int g, int i) {
    uint8x16_t four = vld1q_u8(codes + g / 4 * 32 + 16 * i);
    return vandq_u8(vshlq_u8(four, vdupq_n_s8((int8_t)(-2 * (g % 4)))), vdupq_n_u8(3));
}

/* Writes scale s of the 16 groups, then -min m. */
INLINE void scales_q2_k(const struct weight_q2_k *block, float *scales) {
    uint8x16_t both = vld1q_u8(block->scales);
    float32x4_t s[4], m[4];
    floats_of_codes(low_bits(both), 0, s);
    floats_of_codes(high_bits(both), 0, m);
    for (int i = 0; i < 4; i++) {
        vst1q_f32(scales + 4 * i, vmulq_f32(spread_half(block->scale), s[i]));
        vst1q_f32(scales + 16 + 4 * i, vnegq_f32(vmulq_f32(spread_half(block->min), m[i])));
    }
}
INLINE void unpack_q2_k(const struct weight_q2_k *block, const float *scales, int g, float32x4_t w[8]) {
    for (int i = 0; i < 2; i++) {
        floats_of_codes(two_bits(block->codes, g, i), 0, w + 4 * i);
        for (int j = 4 * i; j < 4 * i + 4; j++)
            w[j] = vfmaq_f32(vdupq_n_f32(scales[16 + 2 * g + i]), vdupq_n_f32(scales[2 * g + i]), w[j]);
    }
}

INLINE void scales_q3_k(const struct weight_q3_k *block, float *scales) {
    uint32_t words[4];
    float32x4_t s[4];
    weight_q3_k_scales(block->scales, words);
    floats_of_codes(vreinterpretq_u8_u32(vld1q_u32(words)), 32, s);
    for (int i = 0; i < 4; i++) vst1q_f32(scales + 4 * i, vmulq_f32(spread_half(block->scale), s[i]));
}
INLINE void unpack_q3_k(const struct weight_q3_k *block, const float *scales, int g, float32x4_t w[8]) {
    for (int i = 0; i < 2; i++) {
        uint8x16_t set = vtstq_u8(vld1q_u8(block->high + 16 * i), vdupq_n_u8((uint8_t)(1 << g)));
        floats_of_codes(vorrq_u8(two_bits(block->codes, g, i), vandq_u8(set, vdupq_n_u8(4))), 4, w + 4 * i);
        for (int j = 4 * i; j < 4 * i + 4; j++) w[j] = vmulq_f32(vdupq_n_f32(scales[2 * g + i]), w[j]);
    }
}

#define VECTOR float32x4_t
#define LANES 4
INLINE float32x4_t vector_zero(void) { return vdupq_n_f32(0); }
INLINE float32x4_t vector_load(const float *p) { return vld1q_f32(p); }
INLINE void vector_store(float *p, float32x4_t v) { vst1q_f32(p, v); }
INLINE float32x4_t vector_fma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }

INLINE void store_sums(float32x4_t sums[4][2], float *y, size_t rows) {
    float32x4_t q[4];
    float total[4];
    for (int j = 0; j < 4; j++) q[j] = vaddq_f32(sums[j][0], sums[j][1]);
    vst1q_f32(total, vpaddq_f32(vpaddq_f32(q[0], q[1]), vpaddq_f32(q[2], q[3])));
    memcpy(y, total, (rows < 4 ? rows : 4) * sizeof *y);
}

#include "backend/cpu/kernels/weights/template.h"

ALL_WEIGHT_KERNELS(neon)

void weights_init_neon(struct weights_ops *ops) { FILL_ALL_WEIGHTS(ops, neon); }
