/* This template scores and accumulates q8_0, q4_0 and kivi by sums of floats, for instruction sets that have no integer products
 * for them. neon.c includes it once after f16_template.h, whose parameters are its own; it defines scaled_init_ISA_q. Queries are
 * read as they are: the tables are the scalar tier's. */
#include "backend/cpu/kernels/lanes/bytes_template.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#include <string.h>

/* ---- Scales, for q8_0 and q4_0 ------------------------------------------------------------------------------------------- */

/* Computes logits (+)= sum times the scales of 32 channels. */
INLINE void score_scaled(size_t G, size_t W, sums sum, const uint16_t *scale, bool add, float *logits) {
    UNROLL for (size_t w = 0; w < W; w++) {
        vec s = vec_halves(scale + w * LANES);
        UNROLL for (size_t g = 0; g < G; g++) sum[g][w] = vec_mul(sum[g][w], s);
    }
    sums_store(G, W, sum, add, logits, PAGE_TOKENS, LANES);
}

/* Computes scaled[G][64] = weights times the scales of 32 channels, after which bare codes are accumulated. */
INLINE void scale_weights(size_t G, const float *weights, const uint16_t *scale, float *scaled) {
    prefetch_step(scale, 0, PAGE_TOKENS * 2);
    for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        vec s = vec_halves(scale + t);
        UNROLL for (size_t g = 0; g < G; g++) {
            size_t at = g * PAGE_TOKENS + t;
            vec_store(scaled + at, vec_mul(vec_load(weights + at), s));
        }
    }
}

/* ---- q8_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q8_0(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    const size_t W = TILE(G);
    const uint16_t *scale = page;
    const int8_t *k = (const int8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS);
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS, q += SCALE_GROUP, k += SCALE_GROUP * PAGE_TOKENS) {
        prefetch_step(scale, 0, PAGE_TOKENS * 2);
        for (size_t t = 0; t < PAGE_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < SCALE_GROUP; c++) {
                vec x[4];
                prefetch_step(k + t * SCALE_GROUP, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(k + c * PAGE_TOKENS + t + w * LANES);
                sums_add(G, W, q + c, hd, x, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

INLINE void accumulate_q8_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    const size_t W = SMALLER(TILE(G), SCALE_GROUP / LANES);
    const bool two_sets = 2 * G * W <= MOST_SUMS; /* with few queries, so that they do not wait for their own last sum */
    const uint16_t *scale = page;
    const int8_t *v = (const int8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * PAGE_TOKENS];
    for (size_t c = 0; c < hd; c += W * LANES, ahead += PAGE_TOKENS * W * LANES) {
        if (c % SCALE_GROUP == 0) scale_weights(G, weights, scale + c / SCALE_GROUP * PAGE_TOKENS, scaled);
        sums even, odd;
        sums_clear(G, W, even);
        sums_clear(G, W, odd);
        for (size_t t = 0; t < PAGE_TOKENS; t += 2) {
            const int8_t *row = v + t * hd + c;
            vec x[4], y[4];
            prefetch_step(ahead, t / 2, 2 * W * LANES);
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(row + w * LANES);
            sums_add(G, W, scaled + t, PAGE_TOKENS, x, even);
            UNROLL for (size_t w = 0; w < W; w++) y[w] = vec_bytes(row + hd + w * LANES);
            sums_add(G, W, scaled + t + 1, PAGE_TOKENS, y, two_sets ? odd : even);
        }
        sums_store(G, W, even, true, acc + c, hd, LANES);
        if (two_sets) sums_store(G, W, odd, true, acc + c, hd, LANES);
    }
}

/* ---- q4_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q4_0(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    const size_t W = TILE_Q4(G);
    const uint16_t *scale = page;
    const uint8_t *k = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS);
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS, q += SCALE_GROUP, k += SCALE_GROUP / 2 * PAGE_TOKENS) {
        prefetch_step(scale, 0, PAGE_TOKENS * 2);
        for (size_t t = 0; t < PAGE_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < SCALE_GROUP / 2; c++) {
                vec low[4], high[4];
                prefetch_step(k + t * SCALE_GROUP / 2, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) vec_nibbles(k + c * PAGE_TOKENS + t + w * LANES, &low[w], &high[w]);
                sums_add(G, W, q + c, hd, low, sum);
                sums_add(G, W, q + c + SCALE_GROUP / 2, hd, high, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

/* Accumulates q4_0: LANES bytes of a value are LANES channels and the LANES channels 16 further on, two sums for each query. */
INLINE void accumulate_q4_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    const bool two_sets = 4 * G <= MOST_SUMS;
    const uint16_t *scale = page;
    const uint8_t *v = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * PAGE_TOKENS];
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS, acc += SCALE_GROUP, v += SCALE_GROUP / 2) {
        scale_weights(G, weights, scale, scaled);
        for (size_t c = 0; c < SCALE_GROUP / 2; c += LANES, ahead += PAGE_TOKENS * LANES) {
            sums even, odd;
            sums_clear(G, 2, even);
            sums_clear(G, 2, odd);
            for (size_t t = 0; t < PAGE_TOKENS; t += 2) {
                const uint8_t *row = v + t * (hd / 2) + c;
                vec x[2], y[2];
                prefetch_step(ahead, t / 2, 2 * LANES);
                vec_nibbles(row, &x[0], &x[1]);
                sums_add(G, 2, scaled + t, PAGE_TOKENS, x, even);
                vec_nibbles(row + hd / 2, &y[0], &y[1]);
                sums_add(G, 2, scaled + t + 1, PAGE_TOKENS, y, two_sets ? odd : even);
            }
            sums_store(G, 2, even, true, acc + c, hd, SCALE_GROUP / 2);
            if (two_sets) sums_store(G, 2, odd, true, acc + c, hd, SCALE_GROUP / 2);
        }
    }
}

/* ---- kivi ---------------------------------------------------------------------------------------------------------------- */

#define HALVES (PAGE_TOKENS / SCALE_GROUP) /* groups of tokens of a key's channel that share scales */
#define MOST_NUMBERS (PAGE_TOKENS * KERNELS_MOST_ROW)
#define MOST_SCALES (MOST_NUMBERS / SCALE_GROUP)

/* Unpacks n codes of a packed row, eight bytes of it at a time. */
INLINE void unpack_row(unsigned bits, const uint8_t *packed, size_t n, uint8_t *codes) {
    const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1);
    const size_t bytes = n * bits / 8;
    for (size_t i = 0; i < bytes; i += sizeof mask) {
        uint64_t word;
        memcpy(&word, packed + i, sizeof word);
        for (size_t k = 0; k < 8 / bits; k++, word >>= bits) {
            const uint64_t some = word & mask;
            memcpy(codes + k * bytes + i, &some, sizeof some);
        }
    }
}

/* Computes scaled[n] = in times scales; returns in times zeros. */
INLINE float scale_row(const float *in, const float *scale, const float *zero, size_t n, float *scaled) {
    float lanes[LANES], base = 0;
    vec sum = vec_zero();
    for (size_t i = 0; i < n; i += LANES) {
        vec x = vec_load(in + i);
        vec_store(scaled + i, vec_mul(x, vec_load(scale + i)));
        sum = vec_fma(x, vec_load(zero + i), sum);
    }
    vec_store(lanes, sum);
    for (size_t i = 0; i < LANES; i++) base += lanes[i];
    return base;
}

INLINE void score_kivi(size_t G, unsigned bits, const float *q, size_t hd, const void *page, float *logits) {
    uint8_t codes[MOST_NUMBERS];
    float scale[2 * MOST_SCALES], *zero = scale + HALVES * hd;
    const uint16_t *halves = page;
    const uint8_t *packed = (const uint8_t *)(halves + 2 * HALVES * hd);
    float scaled[MOST_QUERIES * KERNELS_MOST_ROW];
    for (size_t i = 0; i < 2 * HALVES * hd; i += LANES) vec_store(scale + i, vec_halves(halves + i));
    for (size_t c = 0; c < hd; c++) {
        prefetch_step(packed, c, 8 * bits);
        unpack_row(bits, packed + c * 8 * bits, PAGE_TOKENS, codes + c * PAGE_TOKENS);
    }
    for (size_t h = 0; h < HALVES; h++) {
        const struct bytes columns = {codes + h * SCALE_GROUP, hd, PAGE_TOKENS, PAGE_TOKENS};
        float *to = logits + h * SCALE_GROUP;
        for (size_t g = 0; g < G; g++) {
            float base = scale_row(q + g * hd, scale + h * hd, zero + h * hd, hd, scaled + g * hd);
            for (size_t t = 0; t < SCALE_GROUP; t++) to[g * PAGE_TOKENS + t] = base;
        }
        add_bytes(G, scaled, &columns, to);
    }
}

INLINE void accumulate_kivi(size_t G, unsigned bits, const float *weights, size_t hd, const void *page, float *acc) {
    uint8_t codes[MOST_NUMBERS];
    uint16_t halves[2 * MOST_SCALES];
    float scale[2 * MOST_SCALES], *zero = scale + hd / SCALE_GROUP * PAGE_TOKENS;
    const size_t bytes = hd * bits / 8, groups = hd / SCALE_GROUP;
    const uint8_t *row = page;
    float scaled[MOST_QUERIES * PAGE_TOKENS];
    for (size_t t = 0; t < PAGE_TOKENS; t++, row += bytes + 4 * groups) {
        const uint16_t *pairs = (const uint16_t *)(row + bytes);
        prefetch_step(row, 0, bytes + 4 * groups);
        unpack_row(bits, row, hd, codes + t * hd);
        for (size_t b = 0; b < groups; b++) {
            halves[b * PAGE_TOKENS + t] = pairs[2 * b];
            halves[(groups + b) * PAGE_TOKENS + t] = pairs[2 * b + 1];
        }
    }
    for (size_t i = 0; i < 2 * groups * PAGE_TOKENS; i += LANES) vec_store(scale + i, vec_halves(halves + i));
    for (size_t b = 0; b < groups; b++) {
        const struct bytes columns = {codes + b * SCALE_GROUP, PAGE_TOKENS, hd, hd};
        float *to = acc + b * SCALE_GROUP;
        for (size_t g = 0; g < G; g++) {
            float base = scale_row(weights + g * PAGE_TOKENS, scale + b * PAGE_TOKENS, zero + b * PAGE_TOKENS, PAGE_TOKENS,
                                   scaled + g * PAGE_TOKENS);
            for (size_t c = 0; c < SCALE_GROUP; c++) to[g * hd + c] += base;
        }
        add_bytes(G, scaled, &columns, to);
    }
}

INLINE void score_kivi_4(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 4, q, hd, page, logits);
}
INLINE void score_kivi_2(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 2, q, hd, page, logits);
}

INLINE void accumulate_kivi_4(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 4, weights, hd, page, acc);
}
INLINE void accumulate_kivi_2(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 2, weights, hd, page, acc);
}

PAGE_KERNELS_8(score_q8_0)
static void PASTE(score_q8_0, ISA)(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q8_0_of, MOST_QUERIES, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_8(accumulate_q8_0)
static void PASTE(accumulate_q8_0, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q8_0_of, MOST_QUERIES, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_8(score_q4_0)
static void PASTE(score_q4_0, ISA)(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q4_0_of, MOST_QUERIES, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_8(accumulate_q4_0)
static void PASTE(accumulate_q4_0, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q4_0_of, MOST_QUERIES, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_8(score_kivi_4)
static void PASTE(score_kivi_4, ISA)(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_4_of, MOST_QUERIES, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_8(accumulate_kivi_4)
static void PASTE(accumulate_kivi_4, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_4_of, MOST_QUERIES, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_8(score_kivi_2)
static void PASTE(score_kivi_2, ISA)(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_2_of, MOST_QUERIES, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_8(accumulate_kivi_2)
static void PASTE(accumulate_kivi_2, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_2_of, MOST_QUERIES, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void PASTE(PASTE(scaled_init, ISA), q)(struct scaled_ops *ops) {
    ops->score_q8_0 = PASTE(score_q8_0, ISA);
    ops->accumulate_q8_0 = PASTE(accumulate_q8_0, ISA);
    ops->score_q4_0 = PASTE(score_q4_0, ISA);
    ops->accumulate_q4_0 = PASTE(accumulate_q4_0, ISA);
    ops->score_kivi_4 = PASTE(score_kivi_4, ISA);
    ops->accumulate_kivi_4 = PASTE(accumulate_kivi_4, ISA);
    ops->score_kivi_2 = PASTE(score_kivi_2, ISA);
    ops->accumulate_kivi_2 = PASTE(accumulate_kivi_2, ISA);
    ops->accumulate_int8_q4_0 = PASTE(accumulate_q4_0, ISA);
    ops->accumulate_int8_kivi_4 = PASTE(accumulate_kivi_4, ISA);
    ops->accumulate_int8_kivi_2 = PASTE(accumulate_kivi_2, ISA);
}
