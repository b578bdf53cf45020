/* Score and mix for any vector instruction set: included once by avx2_cache.c, avx512_cache.c and neon_cache.c after their lanes;
 * kernels_fill_ISA_cache comes out. */
#include "kernels/sums_template.h"

/* ---- f16 ----------------------------------------------------------------------------------------------------------------- */

/* W vectors of each of K rows; `ahead` is the part of the block that these rows would fill if it were not read in stripes. */
INLINE void stripe_f16(size_t G, size_t W, const float *a, size_t K, const uint16_t *b, size_t ldb, const uint16_t *ahead, bool add,
                       float *out, size_t ldo) {
    sums sum;
    sums_clear(G, W, sum);
    for (size_t k = 0; k < K; k++) {
        vec x[4];
        prefetch_step(ahead, k, W * LANES * 2);
        UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_halves(b + k * ldb + w * LANES);
        sums_add(G, W, a + k, K, x, sum);
    }
    sums_store(G, W, sum, add, out, ldo, LANES);
}

INLINE void score_f16(size_t G, const float *q, size_t hd, const void *block, float *logits) {
    const uint16_t *k = block;
    for (size_t t = 0; t < BLOCK_TOKENS; t += TILE(G) * LANES) {
        stripe_f16(G, TILE(G), q, hd, k + t, BLOCK_TOKENS, k + t * hd, false, logits + t, BLOCK_TOKENS);
    }
}

INLINE void mix_f16(size_t G, const float *weights, size_t hd, const void *block, float *acc) {
    const uint16_t *v = block;
    size_t c = 0;
    for (; c + TILE(G) * LANES <= hd; c += TILE(G) * LANES) {
        stripe_f16(G, TILE(G), weights, BLOCK_TOKENS, v + c, hd, v + c * BLOCK_TOKENS, true, acc + c, hd);
    }
    for (; c < hd; c += LANES) stripe_f16(G, 1, weights, BLOCK_TOKENS, v + c, hd, v + c * BLOCK_TOKENS, true, acc + c, hd);
}

/* ---- Scales, for q8_0 and q4_0 -------------------------------------------------------------------------------------------- */

/* logits (+)= sum times the scales of 32 channels. */
INLINE void score_scaled(size_t G, size_t W, sums sum, const uint16_t *scale, bool add, float *logits) {
    UNROLL for (size_t w = 0; w < W; w++) {
        vec s = vec_halves(scale + w * LANES);
        UNROLL for (size_t g = 0; g < G; g++) sum[g][w] = vec_mul(sum[g][w], s);
    }
    sums_store(G, W, sum, add, logits, BLOCK_TOKENS, LANES);
}

/* scaled[G][64] = weights times the scales of 32 channels; what is left to mix is bare codes. */
INLINE void scale_weights(size_t G, const float *weights, const uint16_t *scale, float *scaled) {
    prefetch_step(scale, 0, BLOCK_TOKENS * 2);
    for (size_t t = 0; t < BLOCK_TOKENS; t += LANES) {
        vec s = vec_halves(scale + t);
        UNROLL for (size_t g = 0; g < G; g++) {
            size_t at = g * BLOCK_TOKENS + t;
            vec_store(scaled + at, vec_mul(vec_load(weights + at), s));
        }
    }
}

/* ---- q8_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q8_0(size_t G, const float *q, size_t hd, const void *block, float *logits) {
    const size_t W = TILE(G);
    const uint16_t *scale = block;
    const int8_t *k = (const int8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, q += BLOCK_QK, k += BLOCK_QK * BLOCK_TOKENS) {
        prefetch_step(scale, 0, BLOCK_TOKENS * 2);
        for (size_t t = 0; t < BLOCK_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < BLOCK_QK; c++) {
                vec x[4];
                prefetch_step(k + t * BLOCK_QK, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(k + c * BLOCK_TOKENS + t + w * LANES);
                sums_add(G, W, q + c, hd, x, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

INLINE void mix_q8_0(size_t G, const float *weights, size_t hd, const void *block, float *acc) {
    const size_t W = SMALLER(TILE(G), BLOCK_QK / LANES);
    const bool two_sets = 2 * G * W <= MOST_SUMS; /* with few queries, so that they do not wait for their own last sum */
    const uint16_t *scale = block;
    const int8_t *v = (const int8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * BLOCK_TOKENS];
    for (size_t c = 0; c < hd; c += W * LANES, ahead += BLOCK_TOKENS * W * LANES) {
        if (c % BLOCK_QK == 0) scale_weights(G, weights, scale + c / BLOCK_QK * BLOCK_TOKENS, scaled);
        sums even, odd;
        sums_clear(G, W, even);
        sums_clear(G, W, odd);
        for (size_t t = 0; t < BLOCK_TOKENS; t += 2) {
            const int8_t *row = v + t * hd + c;
            vec x[4], y[4];
            prefetch_step(ahead, t / 2, 2 * W * LANES);
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(row + w * LANES);
            sums_add(G, W, scaled + t, BLOCK_TOKENS, x, even);
            UNROLL for (size_t w = 0; w < W; w++) y[w] = vec_bytes(row + hd + w * LANES);
            sums_add(G, W, scaled + t + 1, BLOCK_TOKENS, y, two_sets ? odd : even);
        }
        sums_store(G, W, even, true, acc + c, hd, LANES);
        if (two_sets) sums_store(G, W, odd, true, acc + c, hd, LANES);
    }
}

/* ---- q4_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q4_0(size_t G, const float *q, size_t hd, const void *block, float *logits) {
    const size_t W = TILE_Q4(G);
    const uint16_t *scale = block;
    const uint8_t *k = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, q += BLOCK_QK, k += BLOCK_QK / 2 * BLOCK_TOKENS) {
        prefetch_step(scale, 0, BLOCK_TOKENS * 2);
        for (size_t t = 0; t < BLOCK_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < BLOCK_QK / 2; c++) {
                vec low[4], high[4];
                prefetch_step(k + t * BLOCK_QK / 2, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) vec_nibbles(k + c * BLOCK_TOKENS + t + w * LANES, &low[w], &high[w]);
                sums_add(G, W, q + c, hd, low, sum);
                sums_add(G, W, q + c + BLOCK_QK / 2, hd, high, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

/* LANES bytes of a value are LANES channels and the LANES channels 16 further on: two sums for each query. */
INLINE void mix_q4_0(size_t G, const float *weights, size_t hd, const void *block, float *acc) {
    const bool two_sets = 4 * G <= MOST_SUMS;
    const uint16_t *scale = block;
    const uint8_t *v = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * BLOCK_TOKENS];
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, acc += BLOCK_QK, v += BLOCK_QK / 2) {
        scale_weights(G, weights, scale, scaled);
        for (size_t c = 0; c < BLOCK_QK / 2; c += LANES, ahead += BLOCK_TOKENS * LANES) {
            sums even, odd;
            sums_clear(G, 2, even);
            sums_clear(G, 2, odd);
            for (size_t t = 0; t < BLOCK_TOKENS; t += 2) {
                const uint8_t *row = v + t * (hd / 2) + c;
                vec x[2], y[2];
                prefetch_step(ahead, t / 2, 2 * LANES);
                vec_nibbles(row, &x[0], &x[1]);
                sums_add(G, 2, scaled + t, BLOCK_TOKENS, x, even);
                vec_nibbles(row + hd / 2, &y[0], &y[1]);
                sums_add(G, 2, scaled + t + 1, BLOCK_TOKENS, y, two_sets ? odd : even);
            }
            sums_store(G, 2, even, true, acc + c, hd, BLOCK_QK / 2);
            if (two_sets) sums_store(G, 2, odd, true, acc + c, hd, BLOCK_QK / 2);
        }
    }
}

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

struct bytes {
    const uint8_t *b;
    size_t K, ldb, ldo;
};

INLINE void add_bytes(size_t G, const float *a, const struct bytes *bytes, float *out) {
    const size_t W = SMALLER(TILE(G), BLOCK_QK / LANES);
    for (size_t n = 0; n < BLOCK_QK; n += W * LANES) {
        sums sum;
        sums_clear(G, W, sum);
        for (size_t k = 0; k < bytes->K; k++) {
            vec x[4];
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes((const int8_t *)bytes->b + k * bytes->ldb + n + w * LANES);
            sums_add(G, W, a + k, bytes->K, x, sum);
        }
        sums_store(G, W, sum, true, out + n, bytes->ldo, LANES);
    }
}

/* ---- One specialisation for each number of queries ------------------------------------------------------------------------- */

typedef void special(const float *in, size_t hd, const void *block, float *out);

/* in[G][in_row] and out[G][out_row] in passes of at most MOST_QUERIES queries, as even as they can be; of[n - 1] serves n. */
static void serve(special *const *of, const float *in, size_t in_row, size_t G, size_t hd, const void *block, float *out,
                  size_t out_row) {
    for (size_t passes = (G + MOST_QUERIES - 1) / MOST_QUERIES; passes > 0; passes--) {
        size_t share = G / passes;
        of[share - 1](in, hd, block, out);
        in += share * in_row;
        out += share * out_row;
        G -= share;
    }
}

/* clang-format off */
/* A function of its own for each number, or clang keeps the sums in memory. Those past MOST_QUERIES are never called. */
#define SPECIAL(name, number) \
    static __attribute__((noinline)) void PASTE(name##_##number, ISA)(const float *in, size_t hd, const void *block, float *out) { \
        name(SMALLER(number, MOST_QUERIES), in, hd, block, out); \
    }
#define SLOT(name, in_row, out_row) \
    SPECIAL(name, 1) SPECIAL(name, 2) SPECIAL(name, 3) SPECIAL(name, 4) \
    SPECIAL(name, 5) SPECIAL(name, 6) SPECIAL(name, 7) SPECIAL(name, 8) \
    static void PASTE(name, ISA)(const float *in, size_t G, size_t hd, const void *block, float *out) { \
        static special *const of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA), \
                                      PASTE(name##_5, ISA), PASTE(name##_6, ISA), PASTE(name##_7, ISA), PASTE(name##_8, ISA)}; \
        serve(of, in, in_row, G, hd, block, out, out_row); \
    }
/* clang-format on */

SLOT(score_f16, hd, BLOCK_TOKENS)
SLOT(mix_f16, BLOCK_TOKENS, hd)
SLOT(score_q8_0, hd, BLOCK_TOKENS)
SLOT(mix_q8_0, BLOCK_TOKENS, hd)
SLOT(score_q4_0, hd, BLOCK_TOKENS)
SLOT(mix_q4_0, BLOCK_TOKENS, hd)

static void PASTE(add_bytes, ISA)(const float *a, size_t G, size_t K, const uint8_t *b, size_t ldb, float *out, size_t ldo) {
    const struct bytes bytes = {b, K, ldb, ldo};
    for (size_t g = 0; g < G;) {
        size_t left = G - g, n = left >= 4 ? 4 : left;
        const float *from = a + g * K;
        float *to = out + g * ldo;
        if (n == 4) add_bytes(4, from, &bytes, to);
        if (n == 3) add_bytes(3, from, &bytes, to);
        if (n == 2) add_bytes(2, from, &bytes, to);
        if (n == 1) add_bytes(1, from, &bytes, to);
        g += n;
    }
}

void PASTE(PASTE(kernels_fill, ISA), cache)(struct kernels *k) {
    k->add_bytes = PASTE(add_bytes, ISA);
    k->score_f16 = PASTE(score_f16, ISA);
    k->mix_f16 = PASTE(mix_f16, ISA);
    k->score_q8_0 = PASTE(score_q8_0, ISA);
    k->mix_q8_0 = PASTE(mix_q8_0, ISA);
    k->score_q4_0 = PASTE(score_q4_0, ISA);
    k->mix_q4_0 = PASTE(mix_q4_0, ISA);
}
