/* Template: score and accumulate of f16, for any vector instruction set. Included once by each avx2.c, avx512.c and neon.c of this
 * folder after the instruction set's lanes; scaled_init_ISA comes out. */
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/scaled/init.h"

/* ---- f16 ----------------------------------------------------------------------------------------------------------------- */

/* W vectors of each of K rows; `ahead` is the part of the page that these rows would fill if it were not read in stripes. */
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

/* ---- One specialisation for each number of queries ----------------------------------------------------------------------- */

/* clang-format off */
/* A function of its own for each number, or clang keeps the sums in memory. Those past MOST_QUERIES are never called. */
#define SPECIAL(name, number) \
    static __attribute__((noinline)) void PASTE(name##_##number, ISA)(const float *in, size_t hd, const void *page, float *out) { \
        name(SMALLER(number, MOST_QUERIES), in, hd, page, out); \
    }
#define SLOT(name, in_row, out_row) \
    SPECIAL(name, 1) SPECIAL(name, 2) SPECIAL(name, 3) SPECIAL(name, 4) \
    SPECIAL(name, 5) SPECIAL(name, 6) SPECIAL(name, 7) SPECIAL(name, 8) \
    static void PASTE(name, ISA)(const float *in, size_t G, size_t hd, const void *page, float *out) { \
        static special *const of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA), \
                                      PASTE(name##_5, ISA), PASTE(name##_6, ISA), PASTE(name##_7, ISA), PASTE(name##_8, ISA)}; \
        serve(of, MOST_QUERIES, in, in_row, G, hd, page, out, out_row); \
    }
/* clang-format on */

SLOT(score_f16, hd, PAGE_TOKENS)
SLOT(accumulate_f16, PAGE_TOKENS, hd)

void PASTE(scaled_init, ISA)(struct scaled_ops *ops) {
    ops->score_f16 = PASTE(score_f16, ISA);
    ops->accumulate_f16 = PASTE(accumulate_f16, ISA);
}
