/* Computes linear layers. It chooses between reading weights as stored and multiplying dequantized tiles. */
#include "backend/cpu/linear.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "base/memory.h"
#include "base/parallel.h"

#include <math.h>
#include <omp.h>
#include <stdatomic.h>

/* A product with few rows of x has these work items: some per thread to balance, of at most so many rows of weights, as memory
 * reads long ranges fastest; a multiple of the rows that the kernels read together. */
#define EACH_ITEMS 4
#define EACH_ITEM_ROWS 512
#define EACH_TOGETHER 16
#define EACH_ROWS 16 /* rows of x that come to an item, at most */
/* So many rows of weights are dequantized at a time: a tile of them and the result stay in the second-level cache, and they are a
 * multiple of the 48 rows that the GEMM library takes together with AVX-512. */
#define TILE_ROWS 96

size_t linear_tile_stride(const struct matrix *w) { return (size_t)w->columns + 16; }

static bool takes_fixed(const struct matrix *w) { return weights_ops()->fix[w->type] != NULL; }

/* Returns the floats from a row of x as fixed point to the next. They are the same for all types, since products of several types
 * share an input: those of the type with the largest form. */
static size_t fixed_floats(uint32_t columns) {
    size_t most = 0;
    for (int type = 0; type < TENSOR_TYPES; type++) {
        size_t bytes = weights_ops()->fix[type] ? weights_ops()->fixed_bytes[type](columns) : 0;
        if (bytes > most) most = bytes;
    }
    return memory_round_up(most, MEMORY_ALIGN) / sizeof(float);
}

size_t linear_scratch(const struct matrix *w, uint32_t threads) {
    size_t tiles = threads * TILE_ROWS * linear_tile_stride(w), fixed = LINEAR_OPS_MOST * EACH_ROWS * fixed_floats(w->columns);
    return tiles > fixed ? tiles : fixed;
}

static uint32_t tiles(const struct matrix *w, uint32_t rows) { return (w->rows + rows - 1) / rows; }

static const char *weight_row(const struct matrix *w, uint32_t row) { return (const char *)w->data + (size_t)row * w->row_bytes; }

/* Computes the item-th range of `per_item` weight rows, counted through all operations. */
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

static void add_bias(const struct linear_op *p, uint32_t first, uint32_t count, size_t n) {
    const float *bias = p->w->bias;
    for (size_t t = 0; bias && t < n; t++)
        for (uint32_t r = first; r < first + count; r++) p->out[t * p->w->rows + r] += bias[r];
}

/* ---- Each row of x by itself */

/* A vectors holds up to EACH_ROWS rows of x, in the form in which each operation reads them. */
struct vectors {
    const struct linear_op *ops;
    size_t n_ops, n;
    const void *of[LINEAR_OPS_MOST][EACH_ROWS];
};

/* Returns the operation whose form of x is the i-th operation's too: the first of its type. */
static size_t form_of(const struct vectors *v, size_t i) {
    size_t first = 0;
    while (v->ops[first].w->type != v->ops[i].w->type) first++;
    return first;
}

static struct vectors vectors_at(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch) {
    struct vectors v = {.ops = ops, .n_ops = n_ops, .n = n};
    size_t floats = fixed_floats(ops->w->columns);
    for (size_t i = 0; i < n_ops; i++) {
        bool fixed = takes_fixed(ops[i].w);
        for (size_t t = 0; t < n; t++)
            v.of[i][t] = fixed ? scratch + (form_of(&v, i) * EACH_ROWS + t) * floats : x + t * ops[i].w->columns;
    }
    return v;
}

/* Writes the fixed point of row t for the i-th operation, unless another operation does so. */
static void fix_row(const struct vectors *v, size_t i, const float *x, size_t t) {
    const struct matrix *w = v->ops[i].w;
    if (takes_fixed(w) && form_of(v, i) == i)
        weights_ops()->fix[w->type](x + t * w->columns, w->columns, (void *)(uintptr_t)v->of[i][t]);
}

static uint32_t each_item_rows(const struct linear_op *ops, size_t n_ops) {
    uint32_t rows = 0, items = EACH_ITEMS * (uint32_t)omp_get_max_threads();
    for (size_t i = 0; i < n_ops; i++) rows += ops[i].w->rows;
    rows = (rows / items + EACH_TOGETHER) / EACH_TOGETHER * EACH_TOGETHER;
    return rows < EACH_ITEM_ROWS ? rows : EACH_ITEM_ROWS;
}

/* Rows of x that are multiplied together form an item; items are taken one by one. */
struct each {
    struct vectors vectors;
    const float *x;
    size_t first_x; /* of them in the operations' outputs */
    uint32_t per_item, items;
    _Atomic uint32_t next;
};

static void multiply_item(const struct each *each, uint32_t item) {
    const struct vectors *v = &each->vectors;
    uint32_t first, count;
    const struct linear_op *p = find_item(v->ops, item, each->per_item, &first, &count);
    struct linear_op own = {p->w, p->out + each->first_x * p->w->rows};
    weights_ops()->matmul[p->w->type](weight_row(p->w, first), p->w->row_bytes, count, p->w->columns, v->of[p - v->ops], v->n,
                                      own.out + first, p->w->rows);
    add_bias(&own, first, count, v->n);
}

static void multiply_share(void *user) {
    struct each *each = user;
    const struct vectors *v = &each->vectors;
    if (v->n > 1) {
        struct parallel_part part = parallel_part_of(v->n_ops * v->n);
        for (size_t i = part.begin; i < part.end; i++) fix_row(v, i / v->n, each->x, i % v->n);
        parallel_barrier();
    }
    for (uint32_t item; (item = atomic_fetch_add_explicit(&each->next, 1, memory_order_relaxed)) < each->items;)
        multiply_item(each, item);
}

/* Multiplies rows [first, first + n) of x, n <= EACH_ROWS. */
static void multiply_each(const struct linear_op *ops, size_t n_ops, const float *x, size_t first_x, size_t n, float *scratch) {
    struct each each = {.x = x + first_x * ops->w->columns, .first_x = first_x, .per_item = each_item_rows(ops, n_ops)};
    each.vectors = vectors_at(ops, n_ops, each.x, n, scratch);
    each.items = count_items(ops, n_ops, each.per_item);
    for (size_t i = 0; i < n_ops && n == 1; i++) fix_row(&each.vectors, i, each.x, 0);
    parallel_run((uint32_t)omp_get_max_threads(), multiply_share, &each);
}

void linear_each(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch) {
    for (size_t first = 0; first < n; first += EACH_ROWS)
        multiply_each(ops, n_ops, x, first, n - first < EACH_ROWS ? n - first : EACH_ROWS, scratch);
}

/* ---- Rows of x together */

size_t linear_few(const struct matrix *w) { return weights_ops()->gemm_rows[w->type] - 1; }

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

/* Returns whether the GEMM library is the faster way for one of the products. */
static bool many_rows(const struct linear_op *ops, size_t n_ops, size_t n) {
    for (size_t i = 0; i < n_ops; i++)
        if (n > linear_few(ops[i].w)) return true;
    return false;
}

/* Returns the end of the items from `first` on that have about so many multiplications, as many for each thread. */
static uint32_t items_end(const struct linear_op *ops, uint32_t first, uint32_t items, size_t n, double multiplications) {
    double each = (double)n * TILE_ROWS * ops->w->columns, threads = omp_get_max_threads();
    double rounds = ceil(multiplications / (each * threads));
    return rounds * threads < items - first ? first + (uint32_t)(rounds * threads) : items;
}

bool linear_some(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch, uint32_t *item,
                 double *left) {
    uint32_t begin = *item, items = count_items(ops, n_ops, TILE_ROWS), end = items;
    bool many = many_rows(ops, n_ops, n);
    if (many)
        end = items_end(ops, begin, items, n, *left);
    else
        linear_each(ops, n_ops, x, n, scratch);
    *item = end;
    *left -= (double)n * TILE_ROWS * ops->w->columns * (end - begin);
    if (!many) return true;
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t i = begin; i < end; i++) {
        uint32_t first, count;
        const struct linear_op *p = find_item(ops, i, TILE_ROWS, &first, &count);
        gemm_item(p, first, count, x, n, scratch + (size_t)omp_get_thread_num() * TILE_ROWS * linear_tile_stride(p->w));
        add_bias(p, first, count, n);
    }
    return end == items;
}

void linear(const struct linear_op *ops, size_t n_ops, const float *x, size_t n, float *scratch) {
    linear_some(ops, n_ops, x, n, scratch, &(uint32_t){0}, &(double){INFINITY});
}
