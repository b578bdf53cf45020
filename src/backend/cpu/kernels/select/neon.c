/* Selects tokens with NEON (AArch64): scores of indexes and top-k. Packing is the scalar tier's. */
#include "backend/cpu/kernels/select/init.h"
#include "format/page_layout.h"

#include <arm_neon.h>

/* ---- Scores */

/* Scores sixteen tokens at a time; 64 planes of two entries sum to no more than 128 * 255. */
static void scores_sign_neon(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores) {
    for (size_t t = 0; t < PAGE_TOKENS; t += 16) {
        uint16x8_t first = vdupq_n_u16(0), second = vdupq_n_u16(0);
        for (size_t j = 0; j < n; j++) {
            uint8x16_t codes = vld1q_u8(planes + j * PAGE_TOKENS + t);
            uint8x16_t low = vqtbl1q_u8(vld1q_u8(tables + 32 * j), vandq_u8(codes, vdupq_n_u8(15)));
            uint8x16_t high = vqtbl1q_u8(vld1q_u8(tables + 32 * j + 16), vshrq_n_u8(codes, 4));
            first = vaddq_u16(first, vaddl_u8(vget_low_u8(low), vget_low_u8(high)));
            second = vaddq_u16(second, vaddl_high_u8(low, high));
        }
        vst1q_u16(scores + t, first);
        vst1q_u16(scores + t + 8, second);
    }
}

static inline float32x4_t halves(const uint16_t *x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }

static void scores_quest_neon(const float *q, size_t hd, const void *page, float *bounds) {
    const uint16_t *least = page;
    for (size_t p = 0; p < PAGE_TOKENS / QUEST_PAGE_TOKENS; p++, least += 2 * hd) {
        float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
        for (size_t c = 0; c < hd; c += 8) {
            for (size_t i = 0; i < 2; i++) {
                size_t at = c + 4 * i;
                float32x4_t x = vld1q_f32(q + at), a = vmulq_f32(x, halves(least + at)), b = vmulq_f32(x, halves(least + hd + at));
                sum[i] = vaddq_f32(sum[i], vbslq_f32(vcgtq_f32(a, b), a, b));
            }
        }
        bounds[p] = vaddvq_f32(vaddq_f32(sum[0], sum[1]));
    }
}

/* ---- Counting and listing */

#define MOST_COUNTED 65535 /* by a counter of 16 bits */

static size_t count_scores_neon(const uint16_t *scores, size_t n, uint16_t least) {
    const uint16x8_t limit = vdupq_n_u16(least);
    size_t count = 0, i = 0;
    while (i + 16 <= n) {
        size_t steps = (n - i) / 16;
        uint16x8_t a = vdupq_n_u16(0), b = a;
        for (steps = steps < MOST_COUNTED ? steps : MOST_COUNTED; steps; steps--, i += 16) {
            a = vsubq_u16(a, vcgeq_u16(vld1q_u16(scores + i), limit)); /* minus all ones */
            b = vsubq_u16(b, vcgeq_u16(vld1q_u16(scores + i + 8), limit));
        }
        count += (size_t)vaddlvq_u16(a) + vaddlvq_u16(b);
    }
    for (; i < n; i++) count += scores[i] >= least;
    return count;
}

/* Returns the lowest of four bits for each of sixteen tokens, which narrowing the result of a comparison gives with the least
 * work. */
static inline uint64_t flags(uint16x8_t first, uint16x8_t second) {
    uint8x16_t bytes = vcombine_u8(vmovn_u16(first), vmovn_u16(second));
    uint8x8_t nibbles = vand_u8(vshrn_n_u16(vreinterpretq_u16_u8(bytes), 4), vdup_n_u8(0x11));
    return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
}

static size_t list_scores_neon(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens) {
    const uint16x8_t limit = vdupq_n_u16(threshold);
    size_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        uint16x8_t a = vld1q_u16(scores + i), b = vld1q_u16(scores + i + 8);
        uint64_t found = flags(vcgeq_u16(a, limit), vcgeq_u16(b, limit));
        if (skip && found) {
            uint64_t equal = flags(vceqq_u16(a, limit), vceqq_u16(b, limit));
            found &= ~equal;
            for (; skip && equal; skip--) equal &= equal - 1;
            found |= equal;
        }
        for (; found; found &= found - 1) tokens[count++] = (uint32_t)i + (uint32_t)__builtin_ctzll(found) / 4;
    }
    for (; i < n; i++) {
        if (scores[i] < threshold) continue;
        if (scores[i] == threshold && skip)
            skip--;
        else
            tokens[count++] = (uint32_t)i;
    }
    return count;
}

void select_init_neon(struct select_ops *ops) {
    ops->scores_sign = scores_sign_neon;
    ops->scores_quest = scores_quest_neon;
    ops->count_scores = count_scores_neon;
    ops->list_scores = list_scores_neon;
}
