/* Has the reference of the functions of codec sign, one number at a time in the layouts of format/page_layout.h. */
#include "backend/cpu/kernels/scaled/init.h"
#include "base/half.h"
#include "format/page_layout.h"

/* Returns number c of token t of a page of kivi-2's values: of a row's hd / 4 bytes of codes the j-th holds numbers j, j + hd / 4,
 * ... */
static float number_of(const uint8_t *page, size_t hd, size_t c, size_t t) {
    const uint8_t *row = page + t * PAGE_BYTES_KIVI(hd, 2) / PAGE_TOKENS;
    const uint16_t *pairs = (const uint16_t *)(row + hd / 4);
    int code = row[c % (hd / 4)] >> c / (hd / 4) * 2 & 3;
    return half_to_float(pairs[c / SCALE_GROUP * 2 + 1]) + half_to_float(pairs[c / SCALE_GROUP * 2]) * (float)code;
}

/* Writes for each query q alpha [hd], <q, mean>. */
static void prepare_sign_scalar(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += sign_table_floats(hd)) {
        float sum = 0;
        for (size_t c = 0; c < hd; c++) {
            sum += q[c] * mean[c];
            tables[c] = q[c] * alpha[c];
        }
        tables[hd] = sum;
        tables[hd + 1] = 0;
    }
}

static void score_sign_scalar(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    const uint8_t *planes = page;
    for (size_t g = 0; g < G; g++, tables += sign_table_floats(hd), logits += PAGE_TOKENS) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float sum = 0;
            for (size_t c = 0; c < hd; c++) {
                float x = number_of(planes + PAGE_BYTES_SIGNS(hd), hd, c, t);
                sum += tables[c] * (planes[c / 8 * PAGE_TOKENS + t] >> c % 8 & 1 ? x : -x);
            }
            logits[t] = sum + tables[hd];
        }
    }
}

void scaled_init_scalar_sign(struct scaled_ops *ops) {
    ops->prepare_sign = prepare_sign_scalar;
    ops->score_sign = score_sign_scalar;
}
