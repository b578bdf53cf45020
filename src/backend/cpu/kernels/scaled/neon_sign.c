/* Reads keys of codec sign with NEON (AArch64), eight channels of a token at a time; the queries' tables are the scalar ones. */
#include "backend/cpu/kernels/lanes/neon.h"
#include "backend/cpu/kernels/scaled/init.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#define TOGETHER 4 /* queries that are scored together */

/* A token points to the bits of one token: of its signs a byte for each eight channels, PAGE_TOKENS apart; of its row the codes,
 * then halves {scale, zero} for each 32 channels. */
struct token {
    const uint8_t *signs, *row;
};

INLINE vec scale_and_zero(const struct token *token, size_t hd, size_t b) {
    uint32_t halves;
    memcpy(&halves, token->row + hd / 4 + 4 * b, sizeof halves);
    return vcvt_f32_f16(vreinterpret_f16_u32(vdup_n_u32(halves)));
}

/* Reads channels c to c + 7, which lie at the same bits of their bytes: plus or minus (zero + scale code). */
INLINE void eight_channels(const struct token *token, size_t c, size_t hd, vec pair, vec x[2]) {
    const uint8x8_t own_bit = vcreate_u8(0x8040201008040201);
    int8x8_t down = vdup_n_s8((int8_t)(-2 * (int)(c / (hd / 4))));
    uint8x8_t codes = vand_u8(vshl_u8(vld1_u8(token->row + c % (hd / 4)), down), vdup_n_u8(3));
    uint8x8_t plus = vtst_u8(vdup_n_u8(token->signs[c / 8 * PAGE_TOKENS]), own_bit);
    uint16x8_t code = vmovl_u8(codes), minus = vshll_n_u8(vmvn_u8(plus), 8);
    uint32x4_t code_of[2] = {vmovl_u16(vget_low_u16(code)), vmovl_high_u16(code)};
    uint32x4_t minus_of[2] = {vshll_n_u16(vget_low_u16(minus), 16), vshll_high_n_u16(minus, 16)};
    UNROLL for (size_t i = 0; i < 2; i++) {
        vec size = vfmaq_laneq_f32(vdupq_laneq_f32(pair, 1), vcvtq_f32_u32(code_of[i]), pair, 0);
        uint32x4_t sign = vandq_u32(minus_of[i], vdupq_n_u32(0x80000000));
        x[i] = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(size), sign));
    }
}

INLINE void score_some(size_t G, const float *tables, size_t hd, const uint8_t *page, float *logits) {
    const size_t stride = sign_table_floats(hd);
    struct token token = {page, page + PAGE_BYTES_SIGNS(hd)};
    for (size_t t = 0; t < PAGE_TOKENS; t++, token.signs++, token.row += hd / 4 + hd / 8) {
        vec pair = vec_zero(), sum[TOGETHER][2];
        UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = vec_zero();
        for (size_t c = 0; c < hd; c += 8) {
            vec x[2];
            if (c % SCALE_GROUP == 0) pair = scale_and_zero(&token, hd, c / SCALE_GROUP);
            eight_channels(&token, c, hd, pair, x);
            UNROLL for (size_t g = 0; g < G; g++) {
                const float *q = tables + g * stride + c;
                sum[g][0] = vec_fma(vec_load(q), x[0], sum[g][0]);
                sum[g][1] = vec_fma(vec_load(q + 4), x[1], sum[g][1]);
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) logits[g * PAGE_TOKENS + t] =
            vaddvq_f32(vec_add(sum[g][0], sum[g][1])) + tables[g * stride + hd];
    }
}

static void score_sign_neon(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    for (size_t left = G, some; left > 0; left -= some) {
        some = SMALLER(left, TOGETHER);
        if (some == 4) score_some(4, tables, hd, page, logits);
        if (some == 3) score_some(3, tables, hd, page, logits);
        if (some == 2) score_some(2, tables, hd, page, logits);
        if (some == 1) score_some(1, tables, hd, page, logits);
        tables += some * sign_table_floats(hd);
        logits += some * PAGE_TOKENS;
    }
}

void scaled_init_neon_sign(struct scaled_ops *ops) { ops->score_sign = score_sign_neon; }
