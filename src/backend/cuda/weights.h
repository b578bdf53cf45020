/* A model's matrices on the device, and products with them. Plain C. Few rows of x: kernels that read the weights as they are stored, once for
 * up to 16 rows (weights_each), where what becomes of a row does not depend on the others, bit for bit. Many: weights turned to halves and
 * cuBLASLt (gemm.h).
 *
 * x comes in a form that rows.h makes of it. To the kernels it is what the CPU takes it for or better (backend/cpu/kernels/weights/ops.h): with Q4_0
 * and Q4_K a half of each number times a power of two of the row's, off by 2^-12 of the number at most; with the others two halves, 2^-22;
 * with F32 and BF16 all of it, as three numbers of eight bits. */
#ifndef TERSE_BACKEND_CUDA_WEIGHTS_H
#define TERSE_BACKEND_CUDA_WEIGHTS_H

#include "model/model.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EACH_ROWS 16 /* rows of x in one pass */
#define GROUP_SUMS 4
#define WIDTH_STEP 256 /* columns are rounded up to this many where x is laid out for weights_each */

/* Device memory but for the numbers. */
struct device_matrix {
    enum tensor_type type;
    uint32_t rows, columns;
    uint8_t *data; /* tiles: weight_tiles.cuh */
    size_t bytes;
    float *bias; /* [rows], or NULL */
    bool shared; /* data is another matrix's */
};

/* Rows of x for weights_each, and for GEMM; device memory, NULL: not wanted. padded: columns rounded up to WIDTH_STEP; what lies beyond the
 * columns is 0. A row times `sizes` of it, a power of two, is what x was. */
struct device_vectors {
    void *high, *low; /* halves [padded / 32][EACH_ROWS][32], a group's in the order of weight_tiles.cuh; low: what high leaves */
    float *
        sums; /* [padded / 32][GROUP_SUMS][EACH_ROWS], times 2^-24: of a group's first half, its second, all of it, and all of `high` alone */
    void *thirds; /* bfloat16 [3][padded / 32][EACH_ROWS][32], whose sum is x; a group's in the order of `high` */
    void *halves; /* [n][columns rounded up to 32] */
    float *sizes; /* [n]; of the halves */
};

/* One product of several that share their input. */
struct device_product {
    const struct device_matrix *w;
    float *out; /* [n][rows] */
};
#define PRODUCTS_MOST 3

/* Bytes of a matrix on the device. */
size_t weights_bytes(enum tensor_type type, uint32_t rows, uint32_t columns);
bool weights_supported(enum tensor_type type);
/* What weights_each reads of vectors for a type: `high`, `high` and `low`, with either `sums` and `sizes`; or `thirds`. */
enum vector_form { ONE_HALF, TWO_HALVES, THIRDS };
enum vector_form weights_form(enum tensor_type type);

/* Puts rows [first, first + count) where they belong, from the file's bytes on the device; first is a multiple of 16, and count too but at the end. */
cudaError_t weights_pack(const struct device_matrix *w, const void *source, size_t row_bytes, uint32_t first, uint32_t count,
                         cudaStream_t stream);

/* out = x w^T + bias for n rows of x, at most EACH_ROWS; with `add`, out += that. */
cudaError_t weights_each(const struct device_product *products, size_t n_products, const struct device_vectors *x, uint32_t n,
                         bool add, cudaStream_t stream);

/* Rows [first, first + count) as halves [count][columns rounded up to 32], padded with 0; first is a multiple of 16. Weights too large for a half
 * become the largest. */
cudaError_t weights_halves(const struct device_matrix *w, uint32_t first, uint32_t count, void *halves, cudaStream_t stream);

/* out[n][columns] = row ids[i] of w (device memory), or with `add` += that. */
cudaError_t weights_gather(const struct device_matrix *w, const int32_t *ids, uint32_t n, float *out, bool add,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
