/* Multiplies many rows by a matrix: weights are converted to halves, and cuBLASLt multiplies them with sums in fp32. Plain C. */
#ifndef TERSE_BACKEND_CUDA_GEMM_H
#define TERSE_BACKEND_CUDA_GEMM_H

#include "backend/cuda/weights.h"
#include "base/status.h"

#include <stdbool.h>

struct gemm; /* the library's handle, its plans and memory for weights as halves */

enum terse_status gemm_new(struct gemm **gemm, struct terse_error *error);
void gemm_free(struct gemm *gemm); /* accepts NULL */

/* Returns the bytes of device memory that products take besides their operands. */
size_t gemm_bytes(void);

/* Computes out[n][rows] = x w^T + bias, or with `add` adds that to out, from x->halves and x->sizes. scratch[n][rows] is used for
 * `add` alone and then must be other memory than out. */
enum terse_status gemm_multiply(struct gemm *gemm, const struct device_matrix *w, const struct device_vectors *x, uint32_t n,
                                float *out, bool add, float *scratch, cudaStream_t stream, struct terse_error *error);

/* Computes dx[n][columns] = dy w, or with `add` adds that to dx, from dy->halves and dy->sizes. scratch[n][columns] is used for
 * `add` alone and then must be other memory than dx. */
enum terse_status gemm_multiply_back(struct gemm *gemm, const struct device_matrix *w, const struct device_vectors *dy, uint32_t n,
                                     float *dx, bool add, float *scratch, cudaStream_t stream, struct terse_error *error);

/* A float_product is out[m][n] = factor a b, plus out with `add`, for `batch` such products whose operands are so many floats apart.
 * a is [m][k] or, transposed, [k][m]; b is [k][n] or, transposed, [n][k]; strides are floats from row to row. Operands are rounded to
 * TF32 (11 bits) and summed in fp32. All are aligned to 16 bytes, strides too. */
struct float_product {
    uint32_t m, n, k, batch;
    const float *a, *b;
    float *out;
    bool a_transposed, b_transposed, add;
    float factor;
    size_t a_stride, b_stride, out_stride, a_apart, b_apart, out_apart;
};
enum terse_status gemm_floats(struct gemm *gemm, const struct float_product *product, cudaStream_t stream,
                              struct terse_error *error);

#endif
