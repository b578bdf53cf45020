/* Score and mix of f16, and sums of bytes, for any vector instruction set: included once by avx2_cache.c, avx512_cache.c and
 * neon_cache.c after their lanes; kernels_init_ISA_cache comes out. */
#include "backend/cpu/kernels/lanes/sums_template.h"

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

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

struct bytes {
    const uint8_t *b;
    size_t K, ldb, ldo;
};

INLINE void add_bytes(size_t G, const float *a, const struct bytes *bytes, float *out) {
    const size_t W = SMALLER(TILE(G), SCALE_GROUP / LANES);
    for (size_t n = 0; n < SCALE_GROUP; n += W * LANES) {
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

#define TOGETHER 4 /* vectors of tokens */

static void PASTE(add_anchors, ISA)(const float *weights, size_t stride, const float *factors, const float *norms, size_t rows,
                                    float *keys, float *values) {
    for (size_t j = 0; j < PAGE_TOKENS; j += TOGETHER * LANES) {
        vec key[TOGETHER], value[TOGETHER];
        UNROLL for (size_t i = 0; i < TOGETHER; i++) {
            key[i] = vec_load(keys + j + i * LANES);
            value[i] = vec_load(values + j + i * LANES);
        }
        for (size_t r = 0; r < rows; r++) {
            vec factor = vec_set(factors[r]), norm = vec_set(norms[r]);
            UNROLL for (size_t i = 0; i < TOGETHER; i++) {
                vec a = vec_mul(vec_load(weights + r * stride + j + i * LANES), factor), b = vec_mul(a, norm);
                key[i] = vec_fnma(a, b, vec_add(key[i], b));
                value[i] = vec_add(value[i], a);
            }
        }
        UNROLL for (size_t i = 0; i < TOGETHER; i++) {
            vec_store(keys + j + i * LANES, key[i]);
            vec_store(values + j + i * LANES, value[i]);
        }
    }
}

static float PASTE(scale_weights, ISA)(const float *weights, const float *gains, float *scaled) {
    float parts[LANES];
    vec sum = vec_zero();
    for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        vec weight = vec_load(weights + t);
        sum = vec_add(sum, weight);
        vec_store(scaled + t, vec_mul(weight, vec_load(gains + t)));
    }
    vec_store(parts, sum);
    for (size_t n = LANES / 2; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++) parts[i] += parts[n + i];
    return parts[0];
}

void PASTE(PASTE(kernels_init, ISA), cache)(struct kernels *k) {
    k->scale_weights = PASTE(scale_weights, ISA);
    k->add_bytes = PASTE(add_bytes, ISA);
    k->add_anchors = PASTE(add_anchors, ISA);
    k->score_f16 = PASTE(score_f16, ISA);
    k->accumulate_f16 = PASTE(accumulate_f16, ISA);
}
