/* Products of many rows: weights converted to halves, cuBLASLt with sums in fp32. Plain C. */
#ifndef TERSE_BACKEND_CUDA_GEMM_H
#define TERSE_BACKEND_CUDA_GEMM_H

#include "backend/cuda/weights.h"
#include "base/status.h"

struct gemm; /* the library's handle, its plans and memory for weights as halves */

enum terse_status gemm_new(struct gemm **gemm, struct terse_error *error);
void gemm_free(struct gemm *gemm); /* accepts NULL */

/* Device memory that products take besides what they are given, in bytes. */
size_t gemm_bytes(void);

/* out[n][rows] = x w^T + bias, or with `add` out += that, of x->halves and x->sizes; scratch[n][rows] is read for `add` alone and then
 * must be other memory than out. */
enum terse_status gemm_multiply(struct gemm *gemm, const struct device_matrix *w, const struct device_vectors *x, uint32_t n,
                                float *out, bool add, float *scratch, cudaStream_t stream, struct terse_error *error);

#endif
