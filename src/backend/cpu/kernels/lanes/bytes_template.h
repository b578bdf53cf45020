/* This template sums floats times bytes, 32 columns at a time. Its parameters are those of lanes/sums_template.h. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_BYTES_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_BYTES_TEMPLATE_H

#include "backend/cpu/kernels/lanes/sums_template.h"

/* A `bytes` is b[K][32], rows ldb apart, bytes of at most 127; rows of the result lie ldo apart. */
struct bytes {
    const uint8_t *b;
    size_t K, ldb, ldo;
};

/* Computes out[G][32] += a[G][K] b. */
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

#endif
