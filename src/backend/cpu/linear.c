/* Linear layers. Owns the choice between reading weights as stored and multiplying dequantized tiles. */
#include "backend/cpu/linear.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/weights/ops.h"

#include <omp.h>

/* Work items of a matrix-vector product: a few per thread to balance, of at most these many rows of weights, as long runs are what
 * the memory reads fastest; a multiple of the 4 rows that the kernels read together. */
#define MATVEC_ITEMS 4
#define MATVEC_ROWS 512
/* Rows of weights dequantized at a time: a tile of them and the result stay in the second-level cache, and they are a multiple of
 * the 48 rows that the GEMM library takes together with AVX-512. */
#define TILE_ROWS 96

size_t linear_tile_stride(const struct matrix *w) { return (size_t)w->columns + 16; }

size_t linear_scratch(const struct matrix *w, uint32_t threads) { return threads * TILE_ROWS * linear_tile_stride(w); }

static uint32_t tiles(const struct matrix *w, uint32_t rows) { return (w->rows + rows - 1) / rows; }

static const char *weight_row(const struct matrix *w, uint32_t row) { return (const char *)w->data + (size_t)row * w->row_bytes; }

/* The item-th run of `per_item` weight rows, counted through all operations. */
static const struct linear_op *find_item(const struct linear_op *ops, uint32_t item, uint32_t per_item, uint32_t *first,
                                         uint32_t *count) {
    const struct linear_op *p = ops;
    for (uint32_t n; item >= (n = tiles(p->w, per_item)); p++) item -= n;
    *first = item * per_item;
    *count = p->w->rows - *first < per_item ? p->w->rows - *first : per_item;
    return p;
}

static uint32_t count_items(const struct linear_op *ops, size_t n_ops, uint32_t per_item) {
    uint32_t items = 0;
    for (size_t i = 0; i < n_ops; i++) items += tiles(ops[i].w, per_item);
    return items;
}

static void matvec_item(const struct linear_op *p, uint32_t first, uint32_t count, const float *x, size_t n) {
    const struct matrix *w = p->w;
    for (size_t t = 0; t < n; t++)
        weights_ops()->matvec[w->type](weight_row(w, first), w->row_bytes, count, w->columns, x + t * w->columns,
                                       p->out + t * w->rows + first);
}

static void gemm_item(const struct linear_op *p, uint32_t first, uint32_t count, const float *x, size_t n, float *tile) {
    const struct matrix *w = p->w;
    const float *weights = tile;
    size_t stride = linear_tile_stride(w);
    if (w->type == TENSOR_F32) {
        weights = (const float *)weight_row(w, first);
        stride = w->columns;
    } else {
        for (uint32_t r = 0; r < count; r++)
            weights_ops()->dequantize[w->type](weight_row(w, first + r), tile + r * stride, w->columns);
    }
    gemm(true, n, count, w->columns, x, w->columns, weights, stride, false, p->out + first, w->rows);
}

static void add_bias(const struct linear_op *p, uint32_t first, uint32_t count, size_t n) {
    const float *bias = p->w->bias;
    for (size_t t = 0; bias && t < n; t++)
        for (uint32_t r = first; r < first + count; r++) p->out[t * p->w->rows + r] += bias[r];
}

static uint32_t matvec_rows(const struct linear_op *ops, size_t n_ops) {
    uint32_t rows = 0, items = MATVEC_ITEMS * (uint32_t)omp_get_max_threads();
    for (size_t i = 0; i < n_ops; i++) rows += ops[i].w->rows;
    rows = (rows / items + 4) / 4 * 4;
    return rows < MATVEC_ROWS ? rows : MATVEC_ROWS;
}

size_t linear_few(const struct matrix *w) { return weights_ops()->gemm_rows[w->type] - 1; }

void linear_each(const struct linear_op *ops, size_t n_ops, const float *x, size_t n) {
    uint32_t per_item = matvec_rows(ops, n_ops), items = count_items(ops, n_ops, per_item);
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t item = 0; item < items; item++) {
        uint32_t first, count;
        const struct linear_op *p = find_item(ops, item, per_item, &first, &count);
        matvec_item(p, first, count, x, n);
        add_bias(p, first, count, n);
    }
}

/* Whether the GEMM library is the faster way for one of the products. */
static bool many_rows(const struct linear_op *ops, size_t n_ops, size_t n) {
    for (size_t i = 0; i < n_ops; i++)
        if (n > linear_few(ops[i].w)) return true;
    return false;
}

void linear(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch) {
    if (!many_rows(ops, n_ops, n)) {
        linear_each(ops, n_ops, x, n);
        return;
    }
    uint32_t items = count_items(ops, n_ops, TILE_ROWS);
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t item = 0; item < items; item++) {
        uint32_t first, count;
        const struct linear_op *p = find_item(ops, item, TILE_ROWS, &first, &count);
        gemm_item(p, first, count, x, n, scratch + (size_t)omp_get_thread_num() * TILE_ROWS * linear_tile_stride(p->w));
        add_bias(p, first, count, n);
    }
}
