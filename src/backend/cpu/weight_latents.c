/* Owns the order of the work: head by head, each of whose matrices is dequantized once. */
#include "backend/cpu/weight_latents.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/vector.h"
#include "backend/cpu/weight_moments.h"
#include "base/memory.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

/* This is the memory of a layer's work. A head's channels are those of its queries that do not turn, or of its values. */
struct work {
    const struct terse_model *model;
    const struct layer *layer;
    size_t width, slices, rank, channels; /* of a slice; of a head, at most, padded */
    float *matrix, *product;              /* [channels][rank] of a head */
    float *square, *slice, *block;        /* [channels][channels], [width][channels], [width][width] */
    float *scratch;
    double *outputs; /* [query heads][WEIGHT_PADDED(value)][...], O^T O */
    double *queries; /* [channels][channels] */
    double *own;     /* [slices - 1][width][width], of a head */
};

static size_t own_channels(const struct terse_model *m) { return m->latent.plain + m->rope.n_rot; }

static const struct norm *norm_of_queries(const struct work *w) {
    return w->model->latent.query_rank ? &w->layer->latents.query_norm : &w->layer->attention_norm;
}

static size_t scratch_floats(const struct terse_model *m, const struct layer *l) {
    const size_t keys = weight_rows_scratch(m->rope.n_rot, l->k.columns),
                 queries = weight_rows_scratch(own_channels(m), l->q.columns);
    return size_max(size_max(keys, queries), weight_rows_scratch(m->latent.value, l->o.columns));
}

static enum terse_status work_new(const struct terse_model *m, uint32_t layer, struct work *w, struct terse_error *error) {
    const struct latent_shape *s = &m->latent;
    *w = (struct work){.model = m,
                       .layer = &m->layer[layer],
                       .width = m->rope.n_rot,
                       .slices = m->head_dim / m->rope.n_rot,
                       .rank = s->rank,
                       .channels = WEIGHT_PADDED(size_max(own_channels(m), s->value))};
    const size_t matrix = w->channels * w->rank, square = w->channels * w->channels, slice = w->width * w->channels,
                 block = w->width * w->width, value = WEIGHT_PADDED(s->value);
    const size_t floats = 2 * matrix + square + slice + block + scratch_floats(m, w->layer),
                 doubles = m->query_heads * value * value + square + w->slices * block;
    w->matrix = memory_array(floats, sizeof *w->matrix);
    w->outputs = memory_array(doubles, sizeof *w->outputs);
    w->product = w->matrix + matrix;
    w->square = w->product + matrix;
    w->slice = w->square + square;
    w->block = w->slice + slice;
    w->scratch = w->block + block;
    w->queries = w->outputs + m->query_heads * value * value;
    w->own = w->queries + square;
    if (w->matrix && w->outputs) return TERSE_OK;
    return status_no_memory(error, floats * sizeof(float) + doubles * sizeof(double), "the profile of a model's weights");
}

static void work_free(struct work *w) {
    memory_free(w->matrix);
    memory_free(w->outputs);
}

/* ---- Rows */

/* Computes the covariances of all slices: latents leave a norm. */
static void find_covariances(const struct work *w, double *covariance) {
    const size_t block = w->width * w->width;
    const float *gain = w->layer->latents.norm.gain;
    double trace = 0;
    weight_row_covariance(&w->layer->k, &w->layer->attention_norm, w->rank, w->width, w->scratch, covariance);
    for (size_t p = 1; p < w->slices; p++) {
        double *own = covariance + p * block;
        weight_row_covariance(&w->layer->k, &w->layer->attention_norm, (p - 1) * w->width, w->width, w->scratch, own);
        for (size_t c = 0; c < w->width; c++) trace += own[c * w->width + c];
    }
    for (size_t p = 1; p < w->slices && trace > 0; p++) {
        const float *of_slice = gain + (p - 1) * w->width;
        for (size_t i = 0; i < block; i++)
            covariance[p * block + i] *= (double)w->rank / trace * (double)of_slice[i / w->width] * (double)of_slice[i % w->width];
    }
}

/* ---- Heads */

/* Loads rows[n][rank], the first-th row of a matrix and those after it. */
static void load_rows(const struct matrix *from, size_t first, size_t n, float *rows) {
    for (size_t i = 0; i < n; i++)
        vector_dequantize(from->type, (const char *)from->data + (first + i) * from->row_bytes, rows + i * from->columns,
                          from->columns);
}

static bool is_apart(const struct latents *l) { return l->key.data && l->value.data; }

/* Loads the value matrix of a head, [value][rank]. */
static void load_values(const struct work *w, uint32_t head) {
    const struct latent_shape *s = &w->model->latent;
    const struct latents *l = &w->layer->latents;
    if (is_apart(l))
        load_rows(&l->value, (size_t)head * s->value, s->value, w->matrix);
    else
        load_rows(&l->both, (size_t)head * (s->plain + s->value) + s->plain, s->value, w->matrix);
}

/* Loads the key matrix of a head, [plain][rank]. Where it lies apart, it is transposed. */
static void load_keys(const struct work *w, uint32_t head) {
    const struct latent_shape *s = &w->model->latent;
    const struct latents *l = &w->layer->latents;
    if (!is_apart(l)) {
        load_rows(&l->both, (size_t)head * (s->plain + s->value), s->plain, w->matrix);
        return;
    }
    load_rows(&l->key, (size_t)head * s->rank, s->rank, w->product);
    for (size_t i = 0; i < s->rank; i++)
        for (size_t c = 0; c < s->plain; c++) w->matrix[c * s->rank + i] = w->product[i * s->plain + c];
}

/* Adds factor M^T S M, block by block, to own[slices - 1][width][width], of the loaded matrix M[n][rank] and S[n][n], whose rows are
 * `stride` apart. */
static void add_blocks(const struct work *w, size_t n, const double *square, size_t stride, double factor, double *own) {
    for (size_t i = 0; i < n * n; i++) w->square[i] = (float)square[i / n * stride + i % n];
    vector_ops()->multiply(w->square, n, n, n, w->matrix, w->rank, w->rank, w->product, w->rank);
    for (size_t p = 0; p + 1 < w->slices; p++) {
        for (size_t c = 0; c < w->width; c++)
            for (size_t i = 0; i < n; i++) w->slice[c * n + i] = w->matrix[i * w->rank + p * w->width + c];
        vector_ops()->multiply(w->slice, w->width, n, n, w->product + p * w->width, w->width, w->rank, w->block, w->width);
        for (size_t i = 0; i < w->width * w->width; i++) own[p * w->width * w->width + i] += factor * (double)w->block[i];
    }
}

/* Adds what errors in a head's values cost, and returns the mean square of its values. */
static double add_values(const struct work *w, uint32_t head, const double *covariance, double *metric) {
    const size_t n = w->model->latent.value, stride = WEIGHT_PADDED(n), blocks = (w->slices - 1) * w->width * w->width;
    double values = 0;
    load_values(w, head);
    memset(w->own, 0, blocks * sizeof *w->own);
    add_blocks(w, n, w->outputs + head * stride * stride, stride, 1, w->own);
    for (size_t i = 0; i < blocks; i++) {
        values += w->own[i] * covariance[i];
        metric[i] += w->own[i];
    }
    return values;
}

/* Adds what errors in a head's keys cost, of the rotated slice to metric, of the latent's to those behind it. A pair's queries count
 * alike, as both turn. */
static void add_keys(const struct work *w, uint32_t head, double factor, double *metric) {
    const size_t plain = w->model->latent.plain, own = own_channels(w->model), stride = WEIGHT_PADDED(own);
    const bool adjacent = w->model->rope.pairing == ROPE_ADJACENT;
    weight_row_covariance(&w->layer->q, norm_of_queries(w), head * own, own, w->scratch, w->queries);
    load_keys(w, head);
    add_blocks(w, plain, w->queries, stride, factor, metric + w->width * w->width);
    for (size_t i = 0; i < w->width / 2; i++) {
        const size_t a = adjacent ? 2 * i : i, b = adjacent ? a + 1 : a + w->width / 2;
        const double power = w->queries[(plain + a) * (stride + 1)] + w->queries[(plain + b) * (stride + 1)];
        metric[a * (w->width + 1)] += factor * power / 2;
        metric[b * (w->width + 1)] += factor * power / 2;
    }
}

enum terse_status weight_latents_new(const struct terse_model *model, uint32_t layer, struct weight_latents *own,
                                     struct terse_error *error) {
    struct work w;
    const double scale = (double)model->attention_scale;
    *own = (struct weight_latents){0};
    enum terse_status status = work_new(model, layer, &w, error);
    const size_t block = w.width * w.width, doubles = 2 * w.slices * block;
    if (!status && !(own->covariance = memory_zeros(doubles, sizeof *own->covariance)))
        status = status_no_memory(error, doubles * sizeof *own->covariance, "the profile of a model's weights");
    if (!status) {
        own->metric = own->covariance + w.slices * block;
        find_covariances(&w, own->covariance);
        weight_output_metrics(&w.layer->o, model->latent.value, 0, model->query_heads, 1, w.scratch, w.outputs);
        for (uint32_t head = 0; head < model->query_heads; head++) {
            const double values = add_values(&w, head, own->covariance + block, own->metric + block);
            add_keys(&w, head, values * scale * scale * exp2(KEYS_IMPORTANCE), own->metric);
            own->values += values;
        }
    }
    work_free(&w);
    return status;
}

void weight_latents_free(struct weight_latents *own) { memory_free(own->covariance); }
