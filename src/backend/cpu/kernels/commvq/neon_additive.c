/* Implements CommVQ's values with NEON (AArch64). */
#include "backend/cpu/kernels/commvq/additive.h"
#include "backend/cpu/kernels/lanes/neon.h"

static inline vec vec_minus_size(vec a, vec b) { return vsubq_f32(a, vabsq_f32(b)); }

static inline vec vec_tag(vec x, const uint32_t *places) {
    uint32x4_t keep = vdupq_n_u32(~(uint32_t)(ADDITIVE_MOST_CODES - 1));
    return vreinterpretq_f32_u32(vorrq_u32(vandq_u32(vreinterpretq_u32_f32(x), keep), vld1q_u32(places)));
}

static inline vec vec_least(vec a, vec b) { return vminnmq_f32(a, b); }
static inline float vec_least_lane(vec a) { return vminnmvq_f32(a); }

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums);
#define ACCUMULATE_BY_CODE accumulate_by_code_additive

#include "backend/cpu/kernels/commvq/additive_template.h"

/* ---- Code sums: as avx2_additive.c, sixteen codes at a time. */

#define TOGETHER 2 /* queries whose sums lie in registers together */
#define QUADS (PAGE_TOKENS / 4)

struct quad {
    uint8_t low[16], high[16];
};

/* Makes quads[QUADS] of one query: all sums of four tokens' weights as integers; returns the step of the integers, 0 where there is
 * nothing to add. */
static float make_tables(const float *weights, struct quad *quads) {
    const uint16_t counting[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t whole[PAGE_TOKENS];
    vec size = vec_zero();
    for (size_t i = 0; i < PAGE_TOKENS; i += LANES) size = vec_add(size, vabsq_f32(vec_load(weights + i)));
    float sum = vaddvq_f32(size), scale = sum > ADDITIVE_NOTHING ? ADDITIVE_WEIGHTS / sum : 0;
    if (!(scale > 0)) return 0;
    for (size_t i = 0; i < PAGE_TOKENS; i += LANES)
        vst1q_s32(whole + i, vcvtnq_s32_f32(vec_mul(vec_load(weights + i), vec_set(scale))));
    for (size_t q = 0; q < QUADS; q++) {
        for (size_t half = 0; half < 2; half++) {
            uint16x8_t entries = vld1q_u16(counting + 8 * half), entry = vdupq_n_u16(0);
            UNROLL for (size_t i = 0; i < 4; i++) {
                uint16x8_t set = vtstq_u16(entries, vdupq_n_u16((uint16_t)(1 << i)));
                entry = vaddq_u16(entry, vandq_u16(set, vdupq_n_u16((uint16_t)whole[4 * q + i])));
            }
            vst1_u8(quads[q].low + 8 * half, vmovn_u16(entry));
            vst1_u8(quads[q].high + 8 * half, vshrn_n_u16(entry, 8));
        }
    }
    return 1 / scale;
}

struct bytes_sum {
    uint16x8_t first, second; /* of low bytes */
    uint8x16_t high;          /* of high bytes, modulo 256 */
};

INLINE void look_up(uint8x16_t index, const struct quad *quad, struct bytes_sum *sum) {
    uint8x16_t low = vqtbl1q_u8(vld1q_u8(quad->low), index);
    sum->first = vaddw_u8(sum->first, vget_low_u8(low));
    sum->second = vaddw_high_u8(sum->second, low);
    sum->high = vaddq_u8(sum->high, vqtbl1q_u8(vld1q_u8(quad->high), index));
}

/* Computes code_sums[8] += step * (low + 256 high), modulo 2^16 and signed. */
INLINE void add_eight(uint16x8_t low, uint8x8_t high, float step, float *code_sums) {
    int16x8_t whole = vreinterpretq_s16_u16(vaddq_u16(low, vshll_n_u8(high, 8)));
    vec parts[2] = {vcvtq_f32_s32(vmovl_s16(vget_low_s16(whole))), vcvtq_f32_s32(vmovl_high_s16(whole))};
    for (size_t i = 0; i < 2; i++)
        vec_store(code_sums + i * LANES, vec_fma(parts[i], vec_set(step), vec_load(code_sums + i * LANES)));
}

INLINE void accumulate_by_code_some(size_t G, const float *weights, size_t n, const uint8_t *codes, float *code_sums) {
    struct quad quads[TOGETHER][QUADS];
    float steps[TOGETHER];
    for (size_t g = 0; g < G; g++) {
        steps[g] = make_tables(weights + g * PAGE_TOKENS, quads[g]);
        if (steps[g] == 0) memset(quads[g], 0, sizeof quads[g]);
    }
    for (size_t i = 0; i < n; i += 16) {
        struct bytes_sum sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) sum[g] = (struct bytes_sum){vdupq_n_u16(0), vdupq_n_u16(0), vdupq_n_u8(0)};
        UNROLL for (size_t o = 0; o < 8; o++) {
            uint8x16_t byte = vld1q_u8(codes + o * n + i), low = vandq_u8(byte, vdupq_n_u8(15)), high = vshrq_n_u8(byte, 4);
            UNROLL for (size_t g = 0; g < G; g++) {
                look_up(low, &quads[g][2 * o], &sum[g]);
                look_up(high, &quads[g][2 * o + 1], &sum[g]);
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            add_eight(sum[g].first, vget_low_u8(sum[g].high), steps[g], code_sums + g * n + i);
            add_eight(sum[g].second, vget_high_u8(sum[g].high), steps[g], code_sums + g * n + i + 8);
        }
    }
}

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums) {
    for (size_t left = G, some; left > 0; left -= some, weights += some * PAGE_TOKENS, code_sums += some * n) {
        some = SMALLER(left, TOGETHER);
        if (some == 2) accumulate_by_code_some(2, weights, n, codes, code_sums);
        if (some == 1) accumulate_by_code_some(1, weights, n, codes, code_sums);
    }
}
