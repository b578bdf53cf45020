/* This template scores and accumulates f16 for any vector instruction set. Each avx2.c, avx512.c and neon.c of this folder includes
 * it once after the instruction set's lanes; it defines scaled_init_ISA. */
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/scaled/init.h"

/* ---- f16 ----------------------------------------------------------------------------------------------------------------- */

/* Multiplies W vectors of each of K rows; `ahead` is the part of the page that these rows would fill if it were not read in
 * stripes. */
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

INLINE void score_f16(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    const uint16_t *k = page;
    for (size_t t = 0; t < PAGE_TOKENS; t += TILE(G) * LANES) {
        stripe_f16(G, TILE(G), q, hd, k + t, PAGE_TOKENS, k + t * hd, false, logits + t, PAGE_TOKENS);
    }
}

INLINE void accumulate_f16(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    const uint16_t *v = page;
    size_t c = 0;
    for (; c + TILE(G) * LANES <= hd; c += TILE(G) * LANES) {
        stripe_f16(G, TILE(G), weights, PAGE_TOKENS, v + c, hd, v + c * PAGE_TOKENS, true, acc + c, hd);
    }
    for (; c < hd; c += LANES) stripe_f16(G, 1, weights, PAGE_TOKENS, v + c, hd, v + c * PAGE_TOKENS, true, acc + c, hd);
}

PAGE_KERNELS_8(score_f16)
static void PASTE(score_f16, ISA)(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_f16_of, MOST_QUERIES, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_8(accumulate_f16)
static void PASTE(accumulate_f16, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_f16_of, MOST_QUERIES, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void PASTE(scaled_init, ISA)(struct scaled_ops *ops) {
    ops->score_f16 = PASTE(score_f16, ISA);
    ops->accumulate_f16 = PASTE(accumulate_f16, ISA);
}
