/* Owns the order of the work: head by head, whose rows are gathered for a product and spread again after it. */
#include "backend/cpu/latents.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"

#include <string.h>

#define ROWS_TOGETHER 96 /* of a transposed matrix: linear_scratch() has room for as many */

/* ---- Keys */

void latents_finish_keys(const struct latents_job *job, float *keys) {
    const size_t rank = job->model->latent.rank, rotated = job->model->rope.n_rot, hd = rank + rotated;
#pragma omp parallel for if (job->n >= PARALLEL_ROWS)
    for (size_t t = 0; t < job->n; t++) {
        float latent[MODEL_HEAD_MAX], *key = keys + t * hd;
        memcpy(latent, key, rank * sizeof *latent);
        memmove(key, key + rank, rotated * sizeof *key);
        norm_rows(&job->layer->norm, latent, key + rotated, 1, rank);
    }
}

/* ---- Rows of a head */

/* Copies n rows of `width` floats, which lie `from_stride` and `to_stride` apart. */
static void copy_rows(const float *from, size_t from_stride, float *to, size_t to_stride, size_t n, size_t width) {
    for (size_t t = 0; t < n; t++) memcpy(to + t * to_stride, from + t * from_stride, width * sizeof *to);
}

static void multiply(const struct latents_job *job, const struct matrix *w) {
    (job->each ? linear_each : linear)(&(struct linear_op){w, job->rows->out}, 1, job->rows->in, job->n, job->tile);
}

/* Multiplies the rows by the transposed matrix, whose rows are dequantized some at a time. A product is the sum of these rows, each times a
 * number, which does not depend on other products where they go each by itself. */
static void multiply_transposed(const struct latents_job *job, const struct matrix *w) {
    const size_t columns = w->columns, stride = linear_tile_stride(w);
    float *out = job->rows->out;
    if (job->each) memset(out, 0, job->n * columns * sizeof *out);
    for (uint32_t first = 0, n; first < w->rows; first += n) {
        const float *in = job->rows->in + first;
        n = w->rows - first < ROWS_TOGETHER ? w->rows - first : ROWS_TOGETHER;
        for (uint32_t r = 0; r < n; r++) {
            const struct matrix one = matrix_rows(w, first + r, 1);
            weights_ops()->dequantize[w->type](one.data, job->tile + r * stride, columns);
        }
        if (!job->each) gemm(false, job->n, columns, n, in, w->rows, job->tile, stride, first > 0, out, columns);
        for (size_t t = 0; job->each && t < job->n; t++)
            for (uint32_t r = 0; r < n; r++)
                vector_ops()->axpy(in[t * w->rows + r], job->tile + r * stride, out + t * columns, columns);
    }
}

/* ---- Products */

static bool is_apart(const struct latents *layer) { return layer->key.data && layer->value.data; }

static void absorb(const struct latents_job *job, uint32_t head, float *q) {
    const struct terse_model *m = job->model;
    const struct latent_shape *s = &m->latent;
    const size_t rotated = m->rope.n_rot, own = s->plain + rotated, hd = m->head_dim, heads = m->query_heads;
    const float *from = job->rows->heads + head * own;
    float *to = q + head * hd;
    copy_rows(from, heads * own, job->rows->in, s->plain, job->n, s->plain);
    copy_rows(from + s->plain, heads * own, to, heads * hd, job->n, rotated);
    if (is_apart(job->layer)) {
        const struct matrix key = matrix_rows(&job->layer->key, head * s->rank, s->rank);
        multiply(job, &key);
    } else {
        const struct matrix key = matrix_rows(&job->layer->both, head * (s->plain + s->value), s->plain);
        multiply_transposed(job, &key);
    }
    copy_rows(job->rows->out, s->rank, to + rotated, heads * hd, job->n, s->rank);
}

static void expand(const struct latents_job *job, uint32_t head, const float *out) {
    const struct terse_model *m = job->model;
    const struct latent_shape *s = &m->latent;
    const size_t hd = m->head_dim, heads = m->query_heads;
    const struct matrix value = is_apart(job->layer)
                                    ? matrix_rows(&job->layer->value, head * s->value, s->value)
                                    : matrix_rows(&job->layer->both, head * (s->plain + s->value) + s->plain, s->value);
    copy_rows(out + head * hd + m->rope.n_rot, heads * hd, job->rows->in, s->rank, job->n, s->rank);
    multiply(job, &value);
    copy_rows(job->rows->out, s->value, job->rows->heads + head * s->value, heads * s->value, job->n, s->value);
}

bool latents_absorb_some(const struct latents_job *job, float *q, uint32_t *item, double *left) {
    const struct latent_shape *s = &job->model->latent;
    for (; *item<job->model->query_heads && * left> 0; ++*item) {
        absorb(job, *item, q);
        *left -= (double)job->n * s->plain * s->rank;
    }
    return *item == job->model->query_heads;
}

bool latents_expand_some(const struct latents_job *job, const float *out, uint32_t *item, double *left) {
    const struct latent_shape *s = &job->model->latent;
    for (; *item<job->model->query_heads && * left> 0; ++*item) {
        expand(job, *item, out);
        *left -= (double)job->n * s->value * s->rank;
    }
    return *item == job->model->query_heads;
}
