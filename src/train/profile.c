/* Learns a profile: moments from samples, parameters from moments, importance from the weights and the parameters. */
#include "train/profile.h"

#include "backend/cpu/vector.h"
#include "backend/cpu/weight_moments.h"
#include "backend/cpu/weight_profile.h"
#include "base/memory.h"
#include "format/codebook_importance.h"
#include "format/transform_fit.h"
#include "kv/pre_rope.h"
#include "method/policy.h"
#include "train/capture.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE WEIGHT_TILE /* rows that are multiplied by a matrix at a time; sums of more are in double precision */
#define GAIN_LEAST 1e-6  /* of the size of the mean: a smaller gain is what rounding leaves of a constant row */

struct profile {
    const struct terse_model *model;
    const struct profile_options *options;
    struct capture *samples;
    float **parameters;          /* [side] */
    float *scratch;              /* [threads][scratch_floats] */
    struct pre_rope pre_rope[2]; /* of most layers, and of sliding ones that have a rotation of their own */
    /* The threads share these. */
    uint64_t done;
    bool stop; /* a fit has failed, or the caller wants no more */
    enum terse_status status;
    struct terse_error error;
};

static size_t sets_of(const struct profile *p) { return (size_t)model_kv_layers(p->model) * p->model->kv_heads; }

static float *parameters_of(const struct profile *p, enum codec_side side, size_t set) {
    return p->parameters[side] + set * transform_parameter_floats(p->model->head_dim);
}

/* A tile is the scratch of one thread. */
struct tile {
    float *rows, *entered; /* [TILE][hd] */
    float *root;           /* [hd][hd] of a metric */
    float *weights;        /* [weight_moments_scratch] */
};

static size_t scratch_floats(const struct terse_model *m) {
    return memory_round_up((size_t)2 * TILE * m->head_dim + (size_t)m->head_dim * m->head_dim, 16) + weight_moments_scratch(m);
}

static struct tile tile_of_thread(const struct profile *p) {
    size_t hd = p->model->head_dim, rows = TILE * hd;
    float *own = p->scratch + (size_t)omp_get_thread_num() * scratch_floats(p->model);
    return (struct tile){own, own + rows, own + 2 * rows, own + memory_round_up(2 * rows + hd * hd, 16)};
}

static double square(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* ---- Metrics */

/* Computes the metric of the weights, as a cache does that fits itself, so that such a cache is as near to f16 beside a profile as
 * without one. */
static void key_metric(const struct profile *p, uint32_t layer, uint32_t head, float *scratch, double *metric) {
    double power[CODEC_HEAD_DIM_MAX];
    size_t hd = p->model->head_dim;
    weight_query_power(p->model, model_kv_layer(p->model, layer), head, scratch, power);
    for (size_t i = 0; i < hd * hd; i++) metric[i] = i % (hd + 1) ? 0 : power[i / hd];
}

/* ---- The mean of keys before rotation */

/* Returns the pairs that turn within a run, and their angles; NULL of values. */
static const struct pre_rope *pre_rope_of(const struct profile *p, enum codec_side side, uint32_t layer) {
    const struct terse_model *m = p->model;
    return side == CODEC_VALUES ? NULL : &p->pre_rope[m->sliding_rope.n_rot && model_slides(m, model_kv_layer(m, layer))];
}

static const float *angles_of(const struct pre_rope *own, size_t place) {
    return own->angles + 2 * (place % ROPE_RUN_TOKENS) * own->pairs;
}

/* Takes mean[hd] from the row of the token at a place of a window. */
static void take_pre_rope_mean(const struct pre_rope *own, size_t place, const float *mean, float *row) {
    if (!own || !own->pairs) return;
    const float *angles = angles_of(own, place);
    pre_rope_add_row(own->rope, own->pairs, angles, angles + own->pairs, -1, mean, row);
}

/* ---- Moments and parameters of one layer, KV head and side */

struct moments {
    double *metric, *root, *inverse, *covariance; /* [hd][hd] */
    double *mean;                                 /* [hd] */
    float *pre_rope_mean;                         /* [hd] */
    float *gains;                                 /* [samples] */
};

/* Reads up to TILE samples from the first-th on, less the means, to tile->rows. Returns their number. */
static size_t read_tile(const struct profile *p, const struct capture_reading *all, size_t first, const float *pre_rope_mean,
                        const double *mean, const struct tile *tile) {
    const struct pre_rope *turning = pre_rope_of(p, all->side, all->layer);
    size_t hd = p->model->head_dim, n = all->count - first < TILE ? all->count - first : TILE;
    struct capture_reading reading = *all;
    reading.first = first;
    reading.count = n;
    capture_rows(p->samples, &reading, 0, hd, tile->rows);
    for (size_t i = 0; i < n && pre_rope_mean; i++)
        take_pre_rope_mean(turning, capture_place(p->samples, first + i), pre_rope_mean, tile->rows + i * hd);
    for (size_t i = 0; i < n && mean; i++)
        for (size_t c = 0; c < hd; c++) tile->rows[i * hd + c] -= (float)mean[c];
    return n;
}

static void find_pre_rope_mean(const struct profile *p, const struct capture_reading *all, const struct tile *tile, float *mean) {
    const struct pre_rope *own = pre_rope_of(p, all->side, all->layer);
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    size_t hd = p->model->head_dim;
    for (size_t first = 0; first < all->count && own && own->pairs; first += TILE) {
        size_t n = read_tile(p, all, first, NULL, NULL, tile);
        for (size_t i = 0; i < n; i++) {
            const float *angles = angles_of(own, capture_place(p->samples, first + i));
            pre_rope_sum_row(own->rope, own->pairs, angles, angles + own->pairs, tile->rows + i * hd, sum);
        }
    }
    for (size_t c = 0; c < hd; c++) mean[c] = (float)(sum[c] / (double)all->count);
}

static void find_mean(const struct profile *p, const struct capture_reading *all, const struct tile *tile,
                      const float *pre_rope_mean, double *mean) {
    size_t hd = p->model->head_dim;
    memset(mean, 0, hd * sizeof *mean);
    for (size_t first = 0; first < all->count; first += TILE) {
        size_t n = read_tile(p, all, first, pre_rope_mean, NULL, tile);
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < hd; c++) mean[c] += (double)tile->rows[i * hd + c];
    }
    for (size_t c = 0; c < hd; c++) mean[c] /= (double)all->count;
}

/* Returns the gain below which rows count as constant. */
static double least_gain(const struct moments *m, size_t hd) {
    double sum = 0;
    for (size_t i = 0; i < hd; i++) {
        double entered = 0;
        for (size_t j = 0; j < hd; j++) entered += m->root[i * hd + j] * m->mean[j];
        sum += entered * entered;
    }
    return GAIN_LEAST * sqrt(sum / (double)hd);
}

/* Computes the covariance of rows that are entered and have size 1, and the sizes that they had. */
static void find_covariance(const struct profile *p, const struct capture_reading *all, const struct tile *tile,
                            struct moments *m) {
    size_t hd = p->model->head_dim, used = 0;
    double least = least_gain(m, hd);
    memset(m->covariance, 0, hd * hd * sizeof *m->covariance);
    for (size_t first = 0; first < all->count; first += TILE) {
        size_t n = read_tile(p, all, first, m->pre_rope_mean, m->mean, tile);
        vector_multiply_panel(tile->rows, n, hd, hd, tile->root, hd, tile->entered);
        for (size_t i = 0; i < n; i++) {
            float *row = tile->entered + i * hd;
            double gain = sqrt(square(row, hd) / (double)hd);
            float scale = gain > least ? (float)(1 / gain) : 0;
            for (size_t c = 0; c < hd; c++) row[c] *= scale;
            m->gains[first + i] = (float)(gain > least ? gain : 0);
            used += gain > least;
        }
        weight_add_products(tile->entered, n, hd, tile->weights, m->covariance);
    }
    for (size_t i = 0; i < hd * hd && used; i++) m->covariance[i] /= (double)used;
}

static enum terse_status fit_set(struct profile *p, enum codec_side side, size_t set, struct moments *m,
                                 struct terse_error *error) {
    const struct tile tile = tile_of_thread(p);
    uint32_t hd = p->model->head_dim, layer = (uint32_t)(set / p->model->kv_heads), head = (uint32_t)(set % p->model->kv_heads);
    struct capture_reading all = {side, layer, head, 0, 1, capture_samples(p->samples)};
    struct transform_moments moments = {
        .mean = m->mean, .pre_rope_mean = m->pre_rope_mean, .directions = m->inverse, .covariance = m->covariance};
    if (side == CODEC_KEYS)
        key_metric(p, layer, head, tile.weights, m->metric);
    else
        weight_value_metrics(p->model, model_kv_layer(p->model, layer), head, 1, tile.weights, m->metric);
    enum terse_status status = transform_fit_metric(m->metric, hd, m->root, m->inverse, error);
    if (status) return status;
    for (size_t i = 0; i < (size_t)hd * hd; i++) tile.root[i] = (float)m->root[i];
    find_pre_rope_mean(p, &all, &tile, m->pre_rope_mean);
    find_mean(p, &all, &tile, m->pre_rope_mean, m->mean);
    find_covariance(p, &all, &tile, m);
    moments.gain = (float)sqrt(square(m->gains, all.count) / (double)all.count);
    moments.residual = capture_residual(p->samples, layer);
    transform_fit_gains(m->gains, all.count, &moments.gain_least, &moments.gain_most);
    return transform_fit(&moments, hd, parameters_of(p, side, set), error);
}

static enum terse_status fit_alone(struct profile *p, enum codec_side side, size_t set, struct terse_error *error) {
    size_t hd = p->model->head_dim, samples = capture_samples(p->samples);
    double *matrices = memory_array(4 * hd * hd + hd, sizeof *matrices);
    float *gains = memory_array(samples, sizeof *gains), pre_rope_mean[CODEC_HEAD_DIM_MAX];
    enum terse_status status;
    if (matrices && gains)
        status = fit_set(p, side, set,
                         &(struct moments){matrices, matrices + hd * hd, matrices + 2 * hd * hd, matrices + 3 * hd * hd,
                                           matrices + 4 * hd * hd, pre_rope_mean, gains},
                         error);
    else
        status = status_no_memory(error, 4 * hd * hd * sizeof *matrices + samples * sizeof *gains, "a transform");
    memory_free(matrices);
    memory_free(gains);
    return status;
}

/* Returns whether the work goes on. Only the caller's own thread reports to the caller. */
static bool go_on(struct profile *p) {
    const struct terse_progress *progress = &p->options->progress;
    uint64_t done;
    bool stop;
#pragma omp atomic read
    done = p->done;
#pragma omp atomic read
    stop = p->stop;
    if (stop || omp_get_thread_num() != 0 || !progress->report) return !stop;
    if (progress->report(progress->user, "transforms", done, 2 * sets_of(p))) return true;
#pragma omp atomic write
    p->stop = true;
    return false;
}

/* Does one fit, unless one has failed; the first failure is the one reported. */
static void fit_or_stop(struct profile *p, size_t index) {
    struct terse_error error;
    if (!go_on(p)) return;
    enum terse_status status = fit_alone(p, index % 2 ? CODEC_VALUES : CODEC_KEYS, index / 2, &error);
    if (status) {
#pragma omp critical
        if (!p->status) {
            p->status = status;
            p->error = error;
        }
#pragma omp atomic write
        p->stop = true;
    }
#pragma omp atomic update
    p->done++;
}

static enum terse_status fit_all(struct profile *p, struct terse_error *error) {
    size_t fits = 2 * sets_of(p);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < fits; i++) fit_or_stop(p, i);
    if (p->status) return status_fail(error, p->status, "%s", p->error.message);
    if (go_on(p)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %" PRIu64 " of %zu transforms", p->done, fits);
}

/* ---- Importance */

/* Corrects the importance that the weights imply for the rows of the text. */
static enum terse_status correct_importance(const struct profile *p, const struct terse_codebook *weights,
                                            struct terse_error *error) {
    const size_t sets = sets_of(p);
    struct codebook_rows *rows = memory_array(2 * sets, sizeof *rows);
    float *importance = memory_array(2 * sets, sizeof *importance);
    enum terse_status status = TERSE_OK;
    if (!rows || !importance) status = status_no_memory(error, 2 * sets * (sizeof *rows + sizeof *importance), "a profile");
    for (size_t i = 0; i < 2 * sets && !status; i++) {
        const float *floats = parameters_of(p, i < sets ? CODEC_KEYS : CODEC_VALUES, i % sets);
        const struct transform_parameters own = transform_parameters_at(floats, p->model->head_dim);
        rows[i] = (struct codebook_rows){own.size, own.gain, own.residual};
    }
    if (!status)
        status = codebook_importance(weights, (const struct codebook_rows *[2]){rows, rows + sets},
                                     model_normalizes_attention(p->model), (float *[2]){importance, importance + sets}, error);
    for (size_t i = 0; i < 2 * sets && !status; i++)
        parameters_of(p, i < sets ? CODEC_KEYS : CODEC_VALUES, i % sets + 1)[-1] = importance[i];
    memory_free(rows);
    memory_free(importance);
    return status;
}

static enum terse_status find_importance(const struct profile *p, struct terse_error *error) {
    struct terse_codebook *weights;
    enum terse_status status = weight_profile_new(p->model, &weights, error);
    if (!status) status = correct_importance(p, weights, error);
    terse_codebook_free(weights);
    return status;
}

/* ---- All of it */

static enum terse_status allocate(struct profile *p, struct terse_error *error) {
    const struct terse_model *m = p->model;
    const size_t threads = (size_t)omp_get_max_threads(), bytes = scratch_floats(m) * sizeof *p->scratch;
    p->scratch = memory_array(threads, bytes);
    if (!p->scratch) return status_no_memory(error, threads * bytes, "a profile");
    enum terse_status status = pre_rope_new(&m->rope, &p->pre_rope[0], error);
    return status ? status : pre_rope_new(&m->sliding_rope, &p->pre_rope[1], error);
}

static void release(struct profile *p) {
    memory_free(p->scratch);
    for (int kind = 0; kind < 2; kind++) pre_rope_free(&p->pre_rope[kind]);
}

static uint32_t windows_of(uint32_t window) { return window && PROFILE_TOKENS / window ? PROFILE_TOKENS / window : 1; }

enum terse_status profile_learn(const struct terse_model *model, const struct profile_options *options, const int32_t *tokens,
                                size_t n, float *parameters[2], uint64_t *seen, struct terse_error *error) {
    struct profile p = {.model = model, .options = options, .parameters = parameters};
    struct capture_options samples = {.side = {{.kept = true, .rotated = true}, {.kept = true}},
                                      .window = options->window,
                                      .windows = options->windows ? options->windows : windows_of(options->window),
                                      .run = ROPE_RUN_TOKENS,
                                      .skip = SINKS,
                                      .residual = true,
                                      .budget = options->budget,
                                      .progress = options->progress,
                                      .ops = options->ops};
    enum terse_status status = capture_new(model, &samples, tokens, n, &p.samples, error);
    if (status) return status;
    *seen = capture_tokens(p.samples);
    status = allocate(&p, error);
    if (!status) status = fit_all(&p, error);
    capture_free(p.samples); /* before memory for the weights' profile is needed */
    if (!status) status = find_importance(&p, error);
    release(&p);
    return status;
}
