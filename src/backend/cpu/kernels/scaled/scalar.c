/* Has the reference of score and accumulate, one number at a time in the layouts of format/page_layout.h. The other tiers are
 * tested against this file, and this file against double precision. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/scaled/init.h"
#include "base/half.h"
#include "format/page_layout.h"

#include <string.h>

/* An element_function returns one key or value as a float: channel c of token t. */
typedef float element_function(const void *page, size_t hd, size_t c, size_t t);

static float scale_of(const void *page, size_t c, size_t t) {
    const uint16_t *scale = page;
    return half_to_float(scale[c / SCALE_GROUP * PAGE_TOKENS + t]);
}

/* The codes follow the scales. */
static const void *codes_of(const void *page, size_t hd) { return (const uint16_t *)page + hd / SCALE_GROUP * PAGE_TOKENS; }

static float key_f16(const void *page, size_t hd, size_t c, size_t t) {
    (void)hd;
    return half_to_float(((const uint16_t *)page)[c * PAGE_TOKENS + t]);
}

static float value_f16(const void *page, size_t hd, size_t c, size_t t) {
    return half_to_float(((const uint16_t *)page)[t * hd + c]);
}

static float key_q8_0(const void *page, size_t hd, size_t c, size_t t) {
    const int8_t *k = codes_of(page, hd);
    return (float)k[c * PAGE_TOKENS + t] * scale_of(page, c, t);
}

static float value_q8_0(const void *page, size_t hd, size_t c, size_t t) {
    const int8_t *v = codes_of(page, hd);
    return (float)v[t * hd + c] * scale_of(page, c, t);
}

/* The byte of channel c holds c % 16 of its block of 32 below and c % 16 + 16 above. */
static float code_q4_0(uint8_t byte, size_t c) { return (float)((c % SCALE_GROUP < 16 ? byte & 15 : byte >> 4) - 8); }

static float key_q4_0(const void *page, size_t hd, size_t c, size_t t) {
    const uint8_t *k = codes_of(page, hd);
    uint8_t byte = k[(c / SCALE_GROUP * 16 + c % 16) * PAGE_TOKENS + t];
    return code_q4_0(byte, c) * scale_of(page, c, t);
}

static float value_q4_0(const void *page, size_t hd, size_t c, size_t t) {
    const uint8_t *v = codes_of(page, hd);
    uint8_t byte = v[t * hd / 2 + c / SCALE_GROUP * 16 + c % 16];
    return code_q4_0(byte, c) * scale_of(page, c, t);
}

/* Returns code i of a row of n codes of kivi. */
static float code_kivi(unsigned bits, const uint8_t *row, size_t n, size_t i) {
    size_t bytes = n * bits / 8;
    return (float)(row[i % bytes] >> i / bytes * bits & ((1u << bits) - 1));
}

static float key_kivi(unsigned bits, const void *page, size_t hd, size_t c, size_t t) {
    const uint16_t *scale = page, *zero = scale + 2 * hd;
    const uint8_t *row = (const uint8_t *)(zero + 2 * hd) + c * 8 * bits;
    size_t at = t / SCALE_GROUP * hd + c;
    return half_to_float(zero[at]) + half_to_float(scale[at]) * code_kivi(bits, row, PAGE_TOKENS, t);
}

static float value_kivi(unsigned bits, const void *page, size_t hd, size_t c, size_t t) {
    const uint8_t *row = (const uint8_t *)page + t * PAGE_BYTES_KIVI(hd, bits) / PAGE_TOKENS;
    const uint16_t *pair = (const uint16_t *)(row + hd * bits / 8) + c / SCALE_GROUP * 2;
    return half_to_float(pair[1]) + half_to_float(pair[0]) * code_kivi(bits, row, hd, c);
}

static float key_kivi_4(const void *page, size_t hd, size_t c, size_t t) { return key_kivi(4, page, hd, c, t); }
static float key_kivi_2(const void *page, size_t hd, size_t c, size_t t) { return key_kivi(2, page, hd, c, t); }
static float value_kivi_4(const void *page, size_t hd, size_t c, size_t t) { return value_kivi(4, page, hd, c, t); }
static float value_kivi_2(const void *page, size_t hd, size_t c, size_t t) { return value_kivi(2, page, hd, c, t); }

/* Each number of the page is decoded once for all G query heads. */
INLINE void score_scalar(element_function *key, const float *q, size_t G, size_t hd, const void *page, float *logits) {
    float k[PAGE_TOKENS];
    memset(logits, 0, G * PAGE_TOKENS * sizeof *logits);
    for (size_t c = 0; c < hd; c++) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) k[t] = key(page, hd, c, t);
        for (size_t g = 0; g < G; g++)
            for (size_t t = 0; t < PAGE_TOKENS; t++) logits[g * PAGE_TOKENS + t] += q[g * hd + c] * k[t];
    }
}

#define SIDE_BY_SIDE 8 /* sums of heads that grow together, so that none waits for its last product */

INLINE void accumulate_scalar(element_function *value, const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    float v[PAGE_TOKENS];
    for (size_t c = 0; c < hd; c++) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) v[t] = value(page, hd, c, t);
        for (size_t g = 0; g < G; g += SIDE_BY_SIDE) {
            const size_t heads = G - g < SIDE_BY_SIDE ? G - g : SIDE_BY_SIDE;
            float sums[SIDE_BY_SIDE] = {0};
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                for (size_t h = 0; h < heads; h++) sums[h] += weights[(g + h) * PAGE_TOKENS + t] * v[t];
            for (size_t h = 0; h < heads; h++) acc[(g + h) * hd + c] += sums[h];
        }
    }
}

static void score_f16_scalar(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    score_scalar(key_f16, q, G, hd, page, logits);
}
static void accumulate_f16_scalar(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    accumulate_scalar(value_f16, weights, G, hd, page, acc);
}
static void score_q8_0_scalar(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    score_scalar(key_q8_0, q, G, hd, page, logits);
}
static void accumulate_q8_0_scalar(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    accumulate_scalar(value_q8_0, weights, G, hd, page, acc);
}
static void score_q4_0_scalar(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    score_scalar(key_q4_0, q, G, hd, page, logits);
}
static void accumulate_q4_0_scalar(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    accumulate_scalar(value_q4_0, weights, G, hd, page, acc);
}
static void score_kivi_4_scalar(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    score_scalar(key_kivi_4, q, G, hd, page, logits);
}
static void accumulate_kivi_4_scalar(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    accumulate_scalar(value_kivi_4, weights, G, hd, page, acc);
}
static void score_kivi_2_scalar(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    score_scalar(key_kivi_2, q, G, hd, page, logits);
}
static void accumulate_kivi_2_scalar(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    accumulate_scalar(value_kivi_2, weights, G, hd, page, acc);
}

/* Copies the queries, which are their own tables. */
static void prepare_codes_scalar(const float *q, size_t G, size_t hd, float *tables) { memcpy(tables, q, G * hd * sizeof *q); }

void scaled_init_scalar(struct scaled_ops *ops) {
    ops->score_f16 = score_f16_scalar;
    ops->accumulate_f16 = accumulate_f16_scalar;
    ops->prepare_q8_0 = prepare_codes_scalar;
    ops->score_q8_0 = score_q8_0_scalar;
    ops->accumulate_q8_0 = accumulate_q8_0_scalar;
    ops->prepare_q4_0 = prepare_codes_scalar;
    ops->score_q4_0 = score_q4_0_scalar;
    ops->accumulate_q4_0 = accumulate_q4_0_scalar;
    ops->score_kivi_4 = score_kivi_4_scalar;
    ops->accumulate_kivi_4 = accumulate_kivi_4_scalar;
    ops->score_kivi_2 = score_kivi_2_scalar;
    ops->accumulate_kivi_2 = accumulate_kivi_2_scalar;
    ops->accumulate_int8_q4_0 = accumulate_q4_0_scalar;
    ops->accumulate_int8_kivi_4 = accumulate_kivi_4_scalar;
    ops->accumulate_int8_kivi_2 = accumulate_kivi_2_scalar;
}
