/* Declares the layout on the device of a model's matrices, and of the vectors that they are multiplied by. Plain C. weights.h has
 * the products. */
#ifndef TERSE_BACKEND_CUDA_MATRIX_H
#define TERSE_BACKEND_CUDA_MATRIX_H

#include "model/model.h"

#define EACH_ROWS 16 /* rows of x in one weights_each where they are few, and in an item of experts */
#define EACH_MOST 64 /* rows of x in one weights_each */
#define GROUP_SUMS 4
#define WIDTH_STEP 256 /* columns are rounded up to this many where x is laid out for weights_each */

/* All but the numbers lies in device memory. */
struct device_matrix {
    enum tensor_type type;
    uint32_t rows, columns;
    uint32_t count; /* of experts: so many matrices, one after the other */
    uint8_t *data;  /* tiles: weight_tiles.cuh */
    size_t bytes;   /* of all of them */
    float *bias;    /* [count][rows], or NULL */
    bool shared;    /* data is another matrix's */
};

/* A group of 32 columns has room for so many rows where n rows of x are laid out. Where that is EACH_MOST, rows behind the n-th are
 * zeros, up to a multiple of EACH_FILLED. */
#define ROWS_APART(n) ((n) > EACH_ROWS ? EACH_MOST : EACH_ROWS)
#define EACH_FILLED 32

/* A device_vectors has n rows of x for weights_each, and for GEMM, in device memory; NULL: not wanted. `padded` is the columns
 * rounded up to WIDTH_STEP, and `apart` ROWS_APART(n); numbers beyond the columns are 0. The original x is a row times its number of
 * `sizes`, a power of two. */
struct device_vectors {
    void *high, *low; /* halves [padded / 32][apart][32], a group's in the order of weight_tiles.cuh; low: what high leaves */
    float *
        sums; /* [padded / 32][GROUP_SUMS][apart], times 2^-24: of a group's first half, its second, all of it, and all of `high` alone */
    void *thirds; /* bfloat16 [3][padded / 32][apart][32], whose sum is x; a group's in the order of `high` */
    void *halves; /* [n][columns rounded up to 32] */
    float *sizes; /* [n]; of the halves */
};

/* The type of the weights says which parts of vectors weights_each reads: `high`, or `high` and `low`, either with `sums` and
 * `sizes`; or `thirds`. */
enum vector_form { ONE_HALF, TWO_HALVES, THIRDS };

/* A device_product is one of several products that share their input. */
struct device_product {
    const struct device_matrix *w;
    float *out; /* [n][rows] */
};
#define PRODUCTS_MOST 3

#endif
