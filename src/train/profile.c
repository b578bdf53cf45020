/* Learns a profile: moments from samples, parameters from moments, importance from gradients that are used as they come. */
#include "train/profile.h"

#include "backend/cpu/vector.h"
#include "backend/cpu/weight_moments.h"
#include "base/memory.h"
#include "format/transform_fit.h"
#include "kv/pre_rope.h"
#include "method/policy.h"
#include "train/capture.h"
#include "train/window_rope.h"
#include "train/windows.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE WEIGHT_TILE   /* rows that are multiplied by a matrix at a time; sums of more are in double precision */
#define GAIN_LEAST 1e-6    /* of the size of the mean: a smaller gain is what rounding leaves of a constant row */
#define SQUARE_LEAST 1e-37 /* of a gradient: its logarithm is finite in half precision */

struct profile {
    const struct terse_model *model;
    const struct profile_options *options;
    struct capture *samples;
    float **parameters;          /* [side] */
    float *roots[2];             /* [sets][hd][hd] of metrics */
    double *squares[2];          /* [sets] sums of the squares of which importance is the mean */
    float *scratch;              /* [threads][scratch_floats] */
    struct window_rope rope;     /* of offsets in a run */
    struct pre_rope pre_rope[2]; /* of most layers, and of sliding ones that have a rotation of their own */
    double *partial;             /* [2][kv_heads][tiles of a window] */
    /* Shared by the threads */
    uint64_t done;
    bool stop; /* a fit has failed, or the caller wants no more */
    enum terse_status status;
    struct terse_error error;
};

static size_t sets_of(const struct profile *p) { return (size_t)p->model->layers * p->model->kv_heads; }

static float *parameters_of(const struct profile *p, enum codec_side side, size_t set) {
    return p->parameters[side] + set * transform_parameter_floats(p->model->head_dim);
}

static float *root_of(const struct profile *p, enum codec_side side, size_t set) {
    size_t hd = p->model->head_dim;
    return p->roots[side] + set * hd * hd;
}

/* The scratch of one thread. */
struct tile {
    float *rows, *entered; /* [TILE][hd] */
    float *matrix;         /* [hd][hd] */
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

static void key_metric(const struct profile *p, uint32_t layer, uint32_t head, double *metric) {
    double power[CODEC_HEAD_DIM_MAX];
    size_t hd = p->model->head_dim;
    capture_queries(p->samples, layer, head, power);
    for (size_t i = 0; i < hd * hd; i++) metric[i] = i % (hd + 1) ? 0 : power[i / hd];
}

/* ---- The mean of keys before rotation */

/* Returns the pairs that turn within a run, and their angles; NULL of values. */
static const struct pre_rope *pre_rope_of(const struct profile *p, enum codec_side side, uint32_t layer) {
    const struct terse_model *m = p->model;
    return side == CODEC_VALUES ? NULL : &p->pre_rope[m->sliding_rope.n_rot && model_slides(m, layer)];
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

/* Up to TILE samples from the first-th on, less the means, to tile->rows. Returns their number. */
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

/* The gain below which rows count as constant. */
static double least_gain(const struct moments *m, size_t hd) {
    double sum = 0;
    for (size_t i = 0; i < hd; i++) {
        double entered = 0;
        for (size_t j = 0; j < hd; j++) entered += m->root[i * hd + j] * m->mean[j];
        sum += entered * entered;
    }
    return GAIN_LEAST * sqrt(sum / (double)hd);
}

/* Covariance of rows that are entered and have size 1, and the sizes that they had. */
static void find_covariance(const struct profile *p, const struct capture_reading *all, const struct tile *tile, const float *root,
                            struct moments *m) {
    size_t hd = p->model->head_dim, used = 0;
    double least = least_gain(m, hd);
    memset(m->covariance, 0, hd * hd * sizeof *m->covariance);
    for (size_t first = 0; first < all->count; first += TILE) {
        size_t n = read_tile(p, all, first, m->pre_rope_mean, m->mean, tile);
        vector_multiply_panel(tile->rows, n, hd, hd, root, hd, tile->entered);
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
    float *root = root_of(p, side, set);
    if (side == CODEC_KEYS)
        key_metric(p, layer, head, m->metric);
    else
        weight_value_metrics(p->model, layer, head, 1, tile.weights, m->metric);
    enum terse_status status = transform_fit_metric(m->metric, hd, m->root, m->inverse, error);
    if (status) return status;
    for (size_t i = 0; i < (size_t)hd * hd; i++) root[i] = (float)m->root[i];
    find_pre_rope_mean(p, &all, &tile, m->pre_rope_mean);
    find_mean(p, &all, &tile, m->pre_rope_mean, m->mean);
    find_covariance(p, &all, &tile, root, m);
    moments.gain = (float)sqrt(square(m->gains, all.count) / (double)all.count);
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

/* Only the caller's own thread reports to the caller. */
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

/* The first failure is the one reported. */
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

static size_t tiles_of(const struct profile *p) { return (p->options->window - SINKS + TILE - 1) / TILE; }

/* Copies a KV head's rows of tokens first to first + n - 1 to out[n][hd]; rotates them by their offset in a run, unless `turns` is NULL. */
static void gather(const struct profile *p, const float *rows, uint32_t head, size_t first, size_t n,
                   const struct window_turns *turns, enum window_turn turn, float *out) {
    const struct terse_model *m = p->model;
    size_t hd = m->head_dim;
    for (size_t i = 0; i < n; i++) {
        size_t t = first + i;
        memcpy(out + i * hd, rows + (t * m->kv_heads + head) * hd, hd * sizeof *out);
        if (turns) window_turn_rows(turns, turn, t, out + i * hd, 1);
    }
}

/* Returns the sum over the tile's tokens of the mean over components of (dL/dz r)^2, r the row's gain. With z = B^-1 (row - mean), B the basis
 * in columns, dL/dz = B^T dL/drow. */
static double tile_squares(const struct profile *p, enum codec_side side, size_t set, uint32_t head, const float *rows,
                           const float *gradients, size_t first, size_t n) {
    const struct terse_model *m = p->model;
    const struct tile tile = tile_of_thread(p);
    size_t hd = m->head_dim;
    struct transform_parameters own = transform_parameters_at(parameters_of(p, side, set), m->head_dim);
    const struct window_turns *turns = side == CODEC_KEYS ? window_turns_of(&p->rope, (uint32_t)(set / m->kv_heads)) : NULL;
    const struct pre_rope *turning = pre_rope_of(p, side, (uint32_t)(set / m->kv_heads));
    double gains[TILE], sum = 0;
    gather(p, rows, head, first, n, turns, WINDOW_TURN_ROWS, tile.rows);
    for (size_t i = 0; i < n; i++) take_pre_rope_mean(turning, first + i, own.pre_rope_mean, tile.rows + i * hd);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < hd; c++) tile.rows[i * hd + c] -= own.mean[c];
    vector_multiply_panel(tile.rows, n, hd, hd, root_of(p, side, set), hd, tile.entered);
    for (size_t i = 0; i < n; i++) gains[i] = square(tile.entered + i * hd, hd) / (double)hd;
    gather(p, gradients, head, first, n, turns, WINDOW_TURN_GRADIENTS, tile.rows);
    for (size_t i = 0; i < hd * hd; i++) tile.matrix[i] = own.basis[i % hd * hd + i / hd];
    vector_multiply_panel(tile.rows, n, hd, hd, tile.matrix, hd, tile.entered);
    for (size_t i = 0; i < n; i++) sum += gains[i] * square(tile.entered + i * hd, hd) / (double)hd;
    return sum;
}

static void begin_window(void *user, size_t window) { (void)user, (void)window; }

static void add_layer(void *user, uint32_t layer, const struct captured *captured) {
    struct profile *p = user;
    const float *rows[2] = {captured->k, captured->v}, *gradients[2] = {captured->dk, captured->dv};
    uint32_t heads = p->model->kv_heads;
    size_t tiles = tiles_of(p);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < 2 * heads * tiles; i++) {
        enum codec_side side = i / tiles / heads ? CODEC_VALUES : CODEC_KEYS;
        uint32_t head = (uint32_t)(i / tiles % heads);
        size_t first = SINKS + i % tiles * TILE, n = captured->n - first < TILE ? captured->n - first : TILE;
        p->partial[i] = tile_squares(p, side, (size_t)layer * heads + head, head, rows[side], gradients[side], first, n);
    }
    for (size_t i = 0; i < 2 * heads * tiles; i++)
        p->squares[i / tiles / heads][(size_t)layer * heads + i / tiles % heads] += p->partial[i];
}

static enum terse_status find_importance(struct profile *p, const struct windows *windows, const int32_t *tokens, size_t n,
                                         struct terse_error *error) {
    const struct terse_model *m = p->model;
    struct windows_sink sink = {begin_window, add_layer, p};
    window_rope_set(&p->rope, 0, ROPE_RUN_TOKENS);
    enum terse_status status = windows_run(m, windows, tokens, n, &sink, error);
    /* The importance is of a loss that is summed over the window; the backward pass has its mean. */
    double predictions = (double)windows->window - 1, rows = (double)windows_count(windows, n) * (windows->window - SINKS);
    for (size_t i = 0; i < 2 * sets_of(p) && !status; i++) {
        enum codec_side side = i % 2 ? CODEC_VALUES : CODEC_KEYS;
        double mean = p->squares[side][i / 2] / rows * predictions * predictions;
        parameters_of(p, side, i / 2 + 1)[-1] = (float)log2(fmax(mean, SQUARE_LEAST));
    }
    return status;
}

/* ---- All of it */

static enum terse_status allocate(struct profile *p, struct terse_error *error) {
    const struct terse_model *m = p->model;
    size_t hd = m->head_dim;
    p->scratch = memory_array((size_t)omp_get_max_threads(), scratch_floats(m) * sizeof *p->scratch);
    p->partial = memory_array(2 * (size_t)m->kv_heads, tiles_of(p) * sizeof *p->partial);
    bool all = p->scratch && p->partial;
    for (int side = 0; side < 2; side++) {
        p->roots[side] = memory_array(sets_of(p), hd * hd * sizeof *p->roots[side]);
        p->squares[side] = memory_zeros(sets_of(p), sizeof *p->squares[side]);
        all = all && p->roots[side] && p->squares[side];
    }
    if (!all) return status_no_memory(error, sets_of(p) * hd * hd * 2 * sizeof(float), "a profile");
    enum terse_status status = window_rope_new(&p->rope, m, p->options->window, error);
    if (!status) status = pre_rope_new(&m->rope, &p->pre_rope[0], error);
    return status ? status : pre_rope_new(&m->sliding_rope, &p->pre_rope[1], error);
}

static void release(struct profile *p) {
    for (int side = 0; side < 2; side++) {
        memory_free(p->roots[side]);
        memory_free(p->squares[side]);
    }
    memory_free(p->scratch);
    window_rope_free(&p->rope);
    for (int kind = 0; kind < 2; kind++) pre_rope_free(&p->pre_rope[kind]);
    memory_free(p->partial);
}

static uint32_t windows_of(uint32_t tokens, uint32_t window) { return tokens / window ? tokens / window : 1; }

enum terse_status profile_learn(const struct terse_model *model, const struct profile_options *options, const int32_t *tokens,
                                size_t n, float *parameters[2], uint64_t *seen, struct terse_error *error) {
    struct profile p = {.model = model, .options = options, .parameters = parameters};
    uint32_t count = options->windows ? options->windows : windows_of(PROFILE_TOKENS, options->window ? options->window : 1);
    struct capture_options samples = {.side = {{.kept = true, .rotated = true}, {.kept = true}},
                                      .window = options->window,
                                      .windows = count,
                                      .run = ROPE_RUN_TOKENS,
                                      .skip = SINKS,
                                      .queries = true,
                                      .budget = options->budget,
                                      .progress = options->progress};
    enum terse_status status = capture_new(model, &samples, tokens, n, &p.samples, error);
    if (status) return status;
    uint32_t most = windows_of(PROFILE_GRADIENT_TOKENS, options->window);
    struct windows windows = {options->window,  most < count ? most : count, true, !options->text_labels, options->seed,
                              options->progress};
    *seen = capture_tokens(p.samples);
    status = allocate(&p, error);
    if (!status) status = fit_all(&p, error);
    capture_free(p.samples); /* before the memory of the backward pass is needed */
    if (!status) status = find_importance(&p, &windows, tokens, n, error);
    release(&p);
    return status;
}
