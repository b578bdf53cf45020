/* Keeps a model's matrices on the device, and multiplies by them. Plain C. Few rows of x go through kernels that read the weights
 * as they are stored, once for up to 64 rows (weights_each); the result of a row does not depend on the others, bit for bit. Many
 * rows go through weights converted to halves and cuBLASLt (gemm.h).
 *
 * x comes in a form that rows.h makes of it. The kernels see numbers at least as exact as those of the CPU
 * (backend/cpu/kernels/weights/ops.h): with Q4_0 and Q4_K a half of each number times a power of two of the row's, off by 2^-12 of
 * the number at most; with the others two halves, 2^-22; with F32 and BF16 all of it, as three numbers of eight bits. */
#ifndef TERSE_BACKEND_CUDA_WEIGHTS_H
#define TERSE_BACKEND_CUDA_WEIGHTS_H

#include "backend/cuda/matrix.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of a matrix on the device; 0: its type is not one of those that the CPU reads. */
size_t weights_bytes(enum tensor_type type, uint32_t rows, uint32_t columns);
enum vector_form weights_form(enum tensor_type type);

/* Packs rows [first, first + count) into tiles, from the file's bytes on the device; first is a multiple of 16, and count too but
 * at the end. */
cudaError_t weights_pack(const struct device_matrix *w, const void *source, size_t row_bytes, uint32_t first, uint32_t count,
                         cudaStream_t stream);

/* Computes out = x w^T + bias for n rows of x, at most EACH_MOST; with `add`, adds that to out. */
cudaError_t weights_each(const struct device_product *products, size_t n_products, const struct device_vectors *x, uint32_t n,
                         bool add, cudaStream_t stream);

/* Writes rows [first, first + count) as halves [count][columns rounded up to 32], padded with 0; first is a multiple of 16. Weights
 * too large for a half become the largest half; what is not finite stays so. */
cudaError_t weights_halves(const struct device_matrix *w, uint32_t first, uint32_t count, void *halves, cudaStream_t stream);

/* Writes out[n][columns] = row ids[i] of w (device memory), or with `add` adds it to out. */
cudaError_t weights_gather(const struct device_matrix *w, const int32_t *ids, uint32_t n, float *out, bool add,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
