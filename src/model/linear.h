/* Linear layers: weights as stored times activations. */
#ifndef TERSE_MODEL_LINEAR_H
#define TERSE_MODEL_LINEAR_H

#include "model/model.h"

/* One product of several that share their input. */
struct product {
    const struct matrix *w;
    const float *bias; /* [rows], or NULL */
    float *out;        /* [n][rows] */
};

/* Floats of scratch that linear() needs for this matrix and `threads` threads. */
size_t linear_scratch(const struct matrix *w, uint32_t threads);

/* out[n][rows] = x[n][columns] w^T + bias for each product. Few rows of x: matrix-vector kernels that read the weights as they
 * are; many: tiles of weights are dequantized and multiplied by the GEMM library. Uses the calling thread's OpenMP threads;
 * scratch[linear_scratch] of the largest matrix. */
void linear(const struct product *products, size_t n_products, const float *x, size_t n, float *scratch);

#endif
