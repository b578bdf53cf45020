/* Declares the kernels that read a model's weights as the GGUF file stores them (format/weight_blocks.h). The arrays are indexed by
 * enum tensor_type; a NULL entry is a type that is not supported. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_OPS_H

#include "backend/cpu/kernels/cpu.h"
#include "gguf/gguf.h"

#include <stddef.h>

struct weights_ops {
    /* Writes out[n] of a row of n elements, n a multiple of the type's block, with the same bits in every tier. */
    void (*dequantize[TENSOR_TYPES])(const void *row, float *out, size_t n);
    /* Computes y[t * stride + r] = <row r of w, x[t]> for `rows` rows of n elements, n as above, and t < count. x[t] is a vector of
     * n floats, or its fixed point where fix[] is not NULL. A product is the same bits whatever other rows and vectors it is
     * computed with; weights are read once for each four vectors, and where fix[] is not NULL once for each sixteen.
     *
     * x is taken in full precision, except where vector tiers take it as fixed point: with Q4_0, Q4_K, IQ4_NL and IQ4_XS as bytes,
     * each number then being off by at most 1/253 of the largest of its 32, with Q5_K and (AVX2 alone) MXFP4 in sixteen bits, by at
     * most 2^-15 of the largest of its 32, with Q8_0 and Q6_K the same of the largest of its 256; a number counts as 0 where that is
     * less than 1e-25. y is not finite where x is not. */
    void (*matmul[TENSOR_TYPES])(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count,
                                 float *y, size_t stride);
    /* Writes x[n] as fixed point, fixed_bytes(n) of them, 64-byte aligned. */
    void (*fix[TENSOR_TYPES])(const float *x, size_t n, void *fixed);
    size_t (*fixed_bytes[TENSOR_TYPES])(size_t n);
    /* From this number of x on a product is left to the GEMM library, which takes weights dequantized once and x in full precision:
     * if fix[] is NULL because that costs less (measured), otherwise because a prompt is read, which should be as exact as
     * possible. */
    size_t gemm_rows[TENSOR_TYPES];
};

const struct weights_ops *weights_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct weights_ops *weights_ops_at(enum cpu_isa isa);

#endif
