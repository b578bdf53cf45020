/* Turns moments of weights into a profile's parameters, and computes the residual stream for random hidden states. */
#include "backend/cpu/weight_profile.h"

#include "backend/cpu/experts.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/weight_latents.h"
#include "backend/cpu/weight_moments.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/size.h"
#include "format/transform_fit.h"
#include "method/method.h"
#include "model/architecture.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#define PROBES 16          /* random hidden states and embeddings */
#define VALUES_PART 0.3    /* of a value's mean square that is left where attention averages many */
#define GAIN_MOST 8        /* times the size that rows are expected to have */
#define GAIN_LIMIT 60000   /* of half precision */
#define SQUARE_LEAST 1e-30 /* of what a logarithm is taken of */

struct weight_profile {
    const struct terse_model *model;
    uint32_t heads, head_dim; /* KV heads of a layer, or with latents the slices of a row (weight_latents.h) */
    double *values;           /* [layers] with latents: the mean square of a layer's values after the output projection */
    float *parameters[2];     /* [side] */
    double *residual;         /* [layers] squared length of the residual stream before each layer, without what values add */
    /* These are [2][pairs][pairs] means over a rope run, of the angles' differences, then of their sums; those of sliding layers
     * follow where these rotate in their own way. */
    double *cosine, *sine;
    float *scratch;   /* [threads][weight_moments_scratch] */
    double *matrices; /* [threads][matrix_doubles] */
    enum terse_status status;
    struct terse_error error;
};

/* Pairs channels, those that RoPE rotates first. */
static size_t pairs_of(const struct weight_profile *w) { return w->head_dim / 2; }

static void pair_channels(const struct rope *rope, size_t pair, size_t channels[2]) {
    size_t rotated = rope->n_rot / 2;
    bool halves = pair < rotated && rope->pairing == ROPE_HALF_SPLIT;
    channels[0] = halves ? pair : 2 * pair;
    channels[1] = halves ? pair + rotated : 2 * pair + 1;
}

/* ---- The residual stream */

struct probes {
    float *hidden, *normed, *inner, *factor, *out, *tile;
    struct routes routes;
};

static double mean_square(const float *rows, size_t n, size_t width) {
    double sum = 0;
    for (size_t i = 0; i < n * width; i++) sum += (double)rows[i] * (double)rows[i];
    return sum / (double)n;
}

/* Draws normally distributed numbers (Box-Muller). */
static void fill_normals(float *numbers, size_t n, uint64_t *state) {
    for (size_t i = 0; i + 1 < n; i += 2) {
        double radius = sqrt(-2 * log(1 - random_uniform(random_next(state))));
        double angle = 2 * M_PI * random_uniform(random_next(state));
        numbers[i] = (float)(radius * cos(angle));
        numbers[i + 1] = (float)(radius * sin(angle));
    }
}

static double embedding_square(const struct terse_model *m, struct probes *p, uint64_t *state) {
    int32_t tokens[PROBES];
    for (size_t i = 0; i < PROBES; i++) tokens[i] = (int32_t)(random_next(state) % m->vocabulary);
    embed_rows(m, tokens, PROBES, 0, p->hidden);
    return mean_square(p->hidden, PROBES, m->width);
}

/* Returns the mean square of a feed-forward layer's output for random hidden states. */
static double feed_forward_square(const struct terse_model *m, const struct layer *layer, struct probes *p, uint64_t *state) {
    struct linear_op ops[2];
    fill_normals(p->hidden, PROBES * (size_t)m->width, state);
    norm_rows(&layer->feed_forward_norm, p->hidden, p->normed, PROBES, m->width);
    if (layer->experts.router.data) {
        struct experts_job job = {m, layer, p->normed, PROBES, false, p->out, p->inner, p->factor, p->tile, &p->routes};
        memset(p->out, 0, PROBES * m->width * sizeof *p->out);
        experts_some(&job, &(uint32_t){0}, &(double){INFINITY});
    } else {
        linear(ops, feed_forward_ops(layer, p->inner, p->factor, ops), p->normed, PROBES, p->tile);
        activate_rows(m->architecture->activation, p->inner, p->factor, PROBES, m->feed_forward);
        linear(&(struct linear_op){&layer->down, p->out}, 1, p->inner, PROBES, p->tile);
    }
    return mean_square(p->out, PROBES, m->width);
}

/* Computes residual[l], of embeddings and of the feed-forward layers before layer l. */
static enum terse_status find_residual(struct weight_profile *w, struct terse_error *error) {
    const struct terse_model *m = w->model;
    uint32_t threads = (uint32_t)omp_get_max_threads();
    size_t tile = 0;
    for (uint32_t l = 0; l < m->layers; l++) {
        const struct matrix *matrices[LAYER_MATRICES];
        const size_t n = layer_matrices(&m->layer[l], matrices);
        for (size_t i = 0; i < n; i++) tile = size_max(tile, linear_scratch(matrices[i], threads));
    }
    size_t inner = m->layer[0].gate.data || m->experts ? 2 * (size_t)m->feed_forward : m->feed_forward;
    size_t floats = PROBES * (3 * (size_t)m->width + inner) + tile;
    float *memory = memory_array(floats, sizeof *memory);
    uint64_t state = 1;
    if (!memory) return status_no_memory(error, floats * sizeof *memory, "random hidden states");
    struct probes p = {.hidden = memory};
    p.normed = p.hidden + PROBES * (size_t)m->width;
    p.out = p.normed + PROBES * (size_t)m->width;
    p.inner = p.out + PROBES * (size_t)m->width;
    p.factor = p.inner + PROBES * (size_t)m->feed_forward;
    p.tile = p.inner + PROBES * inner;
    enum terse_status status = m->experts ? routes_reserve(&p.routes, m, PROBES, error) : TERSE_OK;
    double sum = embedding_square(m, &p, &state);
    for (uint32_t l = 0; l < m->layers && !status; l++) {
        w->residual[l] = sum;
        if (l + 1 < m->layers) sum += feed_forward_square(m, &m->layer[l], &p, &state);
    }
    routes_free(&p.routes);
    memory_free(memory);
    return status;
}

/* ---- Keys in a run */

/* Computes the mean of exp(i t angle) over the ROPE_RUN_TOKENS offsets t of a rope run. */
static void mean_rotation(double angle, double *cosine, double *sine) {
    double c = 0, s = 0;
    for (size_t t = 0; t < ROPE_RUN_TOKENS; t++) {
        c += cos((double)t * angle);
        s += sin((double)t * angle);
    }
    *cosine = c / ROPE_RUN_TOKENS;
    *sine = s / ROPE_RUN_TOKENS;
}

static bool turns_apart(const struct terse_model *m, uint32_t layer) { return m->sliding_rope.n_rot && model_slides(m, layer); }

/* Returns how many numbers one rotation has. */
static size_t rotation_doubles(const struct weight_profile *w) { return 2 * pairs_of(w) * pairs_of(w); }

static void find_rotations(struct weight_profile *w, const struct rope *rope, double *cosine, double *sine) {
    size_t pairs = pairs_of(w), rotated = rope->n_rot / 2;
#pragma omp parallel for schedule(static)
    for (size_t a = 0; a < pairs; a++) {
        for (size_t b = 0; b < pairs; b++) {
            double x = a < rotated ? (double)rope->frequency[a] : 0, y = b < rotated ? (double)rope->frequency[b] : 0;
            size_t at = a * pairs + b, sums = pairs * pairs + at;
            mean_rotation(x - y, &cosine[at], &sine[at]);
            mean_rotation(x + y, &cosine[sums], &sine[sums]);
        }
    }
}

/* Takes covariance[hd][hd] of a layer's keys before rotation to that of keys in a run: the mean of R(t) C R(t)^T. A block of two pairs, as a map of
 * complex numbers, is z -> a z + b conj(z), of which rotation turns a by the difference of the pairs' angles and b by their sum. */
static void rotate_covariance(const struct weight_profile *w, uint32_t layer, double *covariance) {
    bool apart = turns_apart(w->model, layer);
    const struct rope *rope = apart ? &w->model->sliding_rope : &w->model->rope;
    const double *cosine = w->cosine + apart * rotation_doubles(w), *sine = w->sine + apart * rotation_doubles(w);
    size_t hd = w->head_dim, pairs = pairs_of(w);
    double square = (double)rope->magnitude * (double)rope->magnitude;
    for (size_t p = 0; p < pairs; p++) {
        for (size_t q = 0; q < pairs; q++) {
            size_t row[2], column[2], at = p * pairs + q, sums = pairs * pairs + at;
            pair_channels(rope, p, row);
            pair_channels(rope, q, column);
            double *m00 = covariance + row[0] * hd + column[0], *m01 = covariance + row[0] * hd + column[1];
            double *m10 = covariance + row[1] * hd + column[0], *m11 = covariance + row[1] * hd + column[1];
            double scale = p < rope->n_rot / 2 && q < rope->n_rot / 2   ? square
                           : p < rope->n_rot / 2 || q < rope->n_rot / 2 ? (double)rope->magnitude
                                                                        : 1;
            double a = (*m00 + *m11) / 2 * scale, ai = (*m10 - *m01) / 2 * scale;
            double b = (*m00 - *m11) / 2 * scale, bi = (*m10 + *m01) / 2 * scale;
            double c = a * cosine[at] - ai * sine[at], ci = a * sine[at] + ai * cosine[at];
            double d = b * cosine[sums] - bi * sine[sums], di = b * sine[sums] + bi * cosine[sums];
            *m00 = c + d;
            *m11 = c - d;
            *m10 = ci + di;
            *m01 = di - ci;
        }
    }
}

/* ---- Parameters */

struct matrices {
    double *metrics;                                   /* [kv_heads][hd][hd], of a layer's values */
    double *covariance, *queries, *root, *inverse, *u; /* [hd][hd] */
    double *mean, *power;                              /* [hd] */
};

static size_t matrix_doubles(const struct weight_profile *w) {
    size_t hd = w->head_dim;
    return memory_round_up((w->heads + 5) * hd * hd + 2 * hd, MEMORY_ALIGN / sizeof(double));
}

static struct matrices matrices_at(const struct weight_profile *w, double *memory) {
    size_t square = (size_t)w->head_dim * w->head_dim;
    struct matrices own = {.metrics = memory, .covariance = memory + w->heads * square};
    own.queries = own.covariance + square;
    own.root = own.queries + square;
    own.inverse = own.root + square;
    own.u = own.inverse + square;
    own.mean = own.u + square;
    own.power = own.mean + w->head_dim;
    return own;
}

/* Computes out[n][n] = a b. */
static void multiply(const double *a, const double *b, size_t n, double *out) {
    memset(out, 0, n * n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            const double *restrict from = b + k * n;
            double *restrict to = out + i * n, factor = a[i * n + k];
            for (size_t j = 0; j < n; j++) to[j] += factor * from[j];
        }
    }
}

/* Returns the mean over channels of the products of two symmetric matrices: what rows of this covariance cost in this metric. */
static double mean_cost(const double *metric, const double *covariance, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n * n; i++) sum += metric[i] * covariance[i];
    return sum / (double)n;
}

/* Fits the parameters of a side with this metric and m->covariance, which is overwritten. */
static enum terse_status fit(const struct weight_profile *w, const struct matrices *m, const double *metric, double importance,
                             float *floats, struct terse_error *error) {
    size_t n = w->head_dim;
    double trace = 0;
    struct transform_moments moments = {.mean = m->mean, .directions = m->inverse, .covariance = m->covariance};
    enum terse_status status = transform_fit_metric(metric, w->head_dim, m->root, m->inverse, error);
    if (status) return status;
    multiply(m->root, m->covariance, n, m->u);
    multiply(m->u, m->root, n, m->covariance);
    for (size_t i = 0; i < n; i++) trace += m->covariance[i * n + i];
    bool some = trace > 0 && isfinite(trace);
    for (size_t i = 0; i < n * n; i++) m->covariance[i] = some ? m->covariance[i] / trace * (double)n : i % (n + 1) == 0;
    memset(m->mean, 0, n * sizeof *m->mean);
    moments.gain_most = some ? (float)fmin(GAIN_MOST * sqrt(trace / (double)n), GAIN_LIMIT) : 1;
    moments.gain = some ? (float)fmin(sqrt(trace / (double)n), GAIN_LIMIT) : 1;
    moments.importance = (float)log2(fmax(importance, SQUARE_LEAST));
    return transform_fit(&moments, w->head_dim, floats, error);
}

static float *parameters_of(const struct weight_profile *w, enum codec_side side, uint32_t layer, uint32_t head) {
    size_t set = (size_t)w->model->layer[layer].kv_number * w->heads + head;
    return w->parameters[side] + set * transform_parameter_floats(w->head_dim);
}

static enum terse_status fit_head(const struct weight_profile *w, uint32_t layer, uint32_t head, float *scratch,
                                  const struct matrices *m, struct terse_error *error) {
    const struct terse_model *model = w->model;
    size_t n = model->head_dim;
    const double *metric = m->metrics + head * n * n;
    weight_value_covariance(model, layer, head, scratch, m->covariance);
    double value = mean_cost(metric, m->covariance, n);
    enum terse_status status = fit(w, m, metric, value, parameters_of(w, CODEC_VALUES, layer, head), error);
    if (status) return status;
    weight_key_covariance(model, layer, head, scratch, m->covariance);
    rotate_covariance(w, layer, m->covariance);
    weight_query_power(model, layer, head, scratch, m->power);
    for (size_t i = 0; i < n * n; i++) m->queries[i] = i % (n + 1) ? 0 : m->power[i / n];
    double logit = mean_cost(m->queries, m->covariance, n); /* logits are divided by the root of n */
    return fit(w, m, m->queries, value * logit * exp2(KEYS_IMPORTANCE), parameters_of(w, CODEC_KEYS, layer, head), error);
}

/* Fits all slices of a layer's rows. */
static enum terse_status fit_slices(const struct weight_profile *w, uint32_t layer, const struct matrices *m,
                                    struct terse_error *error) {
    const size_t n = w->head_dim;
    struct weight_latents own;
    enum terse_status status = weight_latents_new(w->model, layer, &own, error);
    for (uint32_t slice = 0; slice < w->heads && !status; slice++) {
        const double *metric = own.metric + slice * n * n;
        memcpy(m->covariance, own.covariance + slice * n * n, n * n * sizeof *m->covariance);
        if (!slice) rotate_covariance(w, layer, m->covariance);
        status = fit(w, m, metric, mean_cost(metric, m->covariance, n), parameters_of(w, CODEC_KEYS, layer, slice), error);
    }
    w->values[layer] = own.values;
    weight_latents_free(&own);
    return status;
}

/* ---- All of it */

/* Returns the squared length that the heads of a layer add to the residual stream together, after the norm where there is one. */
static double added_square(const struct weight_profile *w, uint32_t layer, double of_heads) {
    const struct norm *norm = &w->model->layer[layer].attention_post_norm;
    double square = 0;
    for (uint32_t c = 0; c < w->model->width && norm->gain; c++) square += (double)norm->gain[c] * (double)norm->gain[c];
    return norm->gain ? square : VALUES_PART * w->model->head_dim * of_heads;
}

/* Divides importances by the residual stream's mean square, of which every layer's values add a part. What recurrent layers add is
 * left out. */
static void divide_by_residual(struct weight_profile *w) {
    const struct terse_model *m = w->model;
    const bool latents = m->latent.rank > 0;
    const size_t last = transform_parameter_floats(w->head_dim) - 1;
    double values = 0;
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        if (!m->layer[layer].k.data) continue;
        const float residual = (float)log2(fmax(w->residual[layer] + values, SQUARE_LEAST));
        double of_heads = latents ? w->values[layer] / m->head_dim : 0;
        for (uint32_t head = 0; head < w->heads && !latents; head++)
            of_heads += exp2((double)parameters_of(w, CODEC_VALUES, layer, head)[last]);
        const double added = added_square(w, layer, of_heads);
        const float norm = m->layer[layer].attention_post_norm.gain ? (float)log2(added / fmax(of_heads, SQUARE_LEAST)) : 0;
        for (uint32_t i = 0; i < 2 * w->heads; i++) {
            if (latents && i % 2) continue;
            float *importance = parameters_of(w, i % 2 ? CODEC_VALUES : CODEC_KEYS, layer, i / 2) + last;
            importance[0] += norm - residual;
            importance[-1] = residual;
        }
        values += added;
    }
}

static void fit_layer(struct weight_profile *w, uint32_t layer) {
    const struct terse_model *m = w->model;
    size_t thread = (size_t)omp_get_thread_num();
    float *scratch = w->scratch + thread * weight_moments_scratch(m);
    struct matrices own = matrices_at(w, w->matrices + thread * matrix_doubles(w));
    struct terse_error error;
    enum terse_status status = m->latent.rank ? fit_slices(w, layer, &own, &error) : TERSE_OK;
    if (!m->latent.rank) weight_value_metrics(m, layer, 0, m->kv_heads, scratch, own.metrics);
    for (uint32_t head = 0; head < m->kv_heads && !m->latent.rank && !status; head++)
        status = fit_head(w, layer, head, scratch, &own, &error);
    if (!status) return;
#pragma omp critical
    if (!w->status) {
        w->status = status;
        w->error = error;
    }
}

static enum terse_status fit_all(struct weight_profile *w, struct terse_error *error) {
    enum terse_status status = find_residual(w, error);
    if (status) return status;
    size_t doubles = rotation_doubles(w);
    find_rotations(w, &w->model->rope, w->cosine, w->sine);
    if (w->model->sliding_rope.n_rot) find_rotations(w, &w->model->sliding_rope, w->cosine + doubles, w->sine + doubles);
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t layer = 0; layer < w->model->layers; layer++)
        if (w->model->layer[layer].k.data) fit_layer(w, layer);
    if (w->status) return status_fail(error, w->status, "%s", w->error.message);
    divide_by_residual(w);
    return TERSE_OK;
}

static enum terse_status allocate(struct weight_profile *w, struct terse_error *error) {
    const struct terse_model *m = w->model;
    size_t sets = (size_t)model_kv_layers(m) * w->heads, floats = sets * transform_parameter_floats(w->head_dim);
    size_t doubles = (m->sliding_rope.n_rot ? 2 : 1) * rotation_doubles(w), threads = (size_t)omp_get_max_threads();
    w->parameters[CODEC_KEYS] = memory_array(2 * floats, sizeof(float));
    w->residual = memory_array(2 * (size_t)m->layers, sizeof *w->residual);
    w->cosine = memory_array(2 * doubles, sizeof *w->cosine);
    w->scratch = memory_array(threads, weight_moments_scratch(m) * sizeof *w->scratch);
    w->matrices = memory_array(threads, matrix_doubles(w) * sizeof *w->matrices);
    if (!w->parameters[CODEC_KEYS] || !w->residual || !w->cosine || !w->scratch || !w->matrices)
        return status_no_memory(error, 2 * floats * sizeof(float), "the profile of a model's weights");
    w->parameters[CODEC_VALUES] = w->parameters[CODEC_KEYS] + floats;
    w->values = w->residual + m->layers;
    w->sine = w->cosine + doubles;
    return TERSE_OK;
}

enum terse_status weight_profile_new(const struct terse_model *model, struct terse_codebook **profile, struct terse_error *error) {
    const uint32_t slices = model->latent.rank ? method_latent_slices(model->rope.n_rot, model->latent.rank) : 0;
    struct weight_profile w = {
        .model = model, .heads = slices ? slices : model->kv_heads, .head_dim = slices ? model->rope.n_rot : model->head_dim};
    struct codebook_info info = {.method = METHOD_PROFILE,
                                 .key = {.codec = &codec_transform},
                                 .value = {.codec = slices ? NULL : &codec_transform},
                                 .layers = model_kv_layers(model),
                                 .kv_heads = w.heads,
                                 .head_dim = w.head_dim,
                                 .fingerprint = model->norms_fingerprint,
                                 .fingerprint_of = CODEBOOK_OF_NORMS};
    *profile = NULL;
    snprintf(info.model, sizeof info.model, "%s", model->name);
    enum terse_status status = codec_check_head_dim(w.head_dim, error);
    if (!status) status = allocate(&w, error);
    if (!status) status = fit_all(&w, error);
    if (!status) status = codebook_new(&info, w.parameters[CODEC_KEYS], w.parameters[CODEC_VALUES], profile, error);
    memory_free(w.parameters[CODEC_KEYS]);
    memory_free(w.residual);
    memory_free(w.cosine);
    memory_free(w.scratch);
    memory_free(w.matrices);
    return status;
}
