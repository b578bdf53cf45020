/* Computes linear layers: weights as stored times activations, and their biases. */
#ifndef TERSE_BACKEND_CPU_LINEAR_H
#define TERSE_BACKEND_CPU_LINEAR_H

#include "backend/learning.h"

#define LINEAR_OPS_MOST 4 /* products that share their input */

/* Writes the one or two products with which a feed-forward layer begins, and returns their number. The activation function is
 * applied to inner[n][feed_forward], and the result is multiplied by factor (of the same shape, SwiGLU alone). */
static inline size_t feed_forward_ops(const struct layer *layer, float *inner, float *factor, struct linear_op ops[2]) {
    ops[0] = (struct linear_op){layer->gate.data ? &layer->gate : &layer->up, inner};
    ops[1] = (struct linear_op){&layer->up, factor};
    return layer->gate.data ? 2 : 1;
}

/* Returns the floats between dequantized rows of a matrix. They are more than a row has: rows a power of two apart would fall into
 * the same few sets of the caches, which costs a product with them up to a quarter of its speed. */
size_t linear_tile_stride(const struct matrix *w);

/* Returns how many floats of scratch linear() needs for this matrix and `threads` threads. */
size_t linear_scratch(const struct matrix *w, uint32_t threads);

/* Computes out[n][rows] = x[n][columns] w^T + the matrix's bias for each product. With few rows of x it does so as linear_each();
 * with more than linear_few() for one of the products, tiles of weights are dequantized and multiplied by the GEMM library. It uses
 * the calling thread's OpenMP threads; scratch[linear_scratch] is of the largest matrix. */
void linear(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch);
/* Does the same a part at a time: goes on at *item, 0 at first, until about *left multiplications are done, which it subtracts from *left. Returns
 * true when all is done. The choice of parts changes no result. */
bool linear_some(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch, uint32_t *item, double *left);
size_t linear_few(const struct matrix *w);

/* Does the same by kernels that read the weights as they are, once for 16 rows of x. The result for a row does not depend on the others, bit for
 * bit. */
void linear_each(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch);

#endif
