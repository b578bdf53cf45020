/* Multiplies many rows by a matrix: weights are converted to halves, and cuBLASLt multiplies them with sums in fp32. Plain C. */
#ifndef TERSE_BACKEND_CUDA_GEMM_H
#define TERSE_BACKEND_CUDA_GEMM_H

#include "backend/cuda/weights.h"
#include "base/status.h"

struct gemm; /* the library's handle, its plans and memory for weights as halves */

enum terse_status gemm_new(struct gemm **gemm, struct terse_error *error);
void gemm_free(struct gemm *gemm); /* accepts NULL */

/* Returns the bytes of device memory that products take besides their operands. */
size_t gemm_bytes(void);

/* Computes out[n][rows] = x w^T + bias, or with `add` adds that to out, from x->halves and x->sizes. scratch[n][rows] is used for
 * `add` alone and then must be other memory than out. */
enum terse_status gemm_multiply(struct gemm *gemm, const struct device_matrix *w, const struct device_vectors *x, uint32_t n,
                                float *out, bool add, float *scratch, cudaStream_t stream, struct terse_error *error);

#endif
