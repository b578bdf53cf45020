/* The forward pass. Owns the order of the work and the activations; leaves ops to linear.c, rows to rows.c and everything about
 * keys and values to the cache.
 *
 * All tokens of a step pass one layer before the next begins, in panels, so that beside the hidden states only one layer's keys and
 * values exist in full precision (design: "Prefill"). A decode step is the same with one token.
 */
#include "backend/cpu/executor.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/weight_profile.h"
#include "base/memory.h"
#include "model/architecture.h"

#include <stdlib.h>
#include <string.h>

#define PANEL_BYTES ((size_t)128 << 20) /* of activations: large enough that dequantizing a weight once per panel costs little */
#define PANEL_LEAST 256
#define LOGIT_BYTES ((size_t)8 << 20)
#define KEEP_TOKENS 256 /* a workspace for more tokens than this is given back after the step */

/* Activations. Grown to a step's size, shrunk again after a long one, so that a long prompt's memory does not stay. */
struct workspace {
    size_t tokens;  /* capacity of hidden, k, v */
    size_t panel;   /* tokens that pass through a layer at a time */
    float *hidden;  /* [tokens][width] */
    float *k, *v;   /* [tokens][Hk][hd] */
    float *normed;  /* [panel][width] */
    float *q, *out; /* [panel][Hq][hd] */
    float *inner;   /* [panel][feed_forward] */
    float *factor;  /* the same; empty without a gate */
    float *logits;  /* [logit_rows][vocabulary] */
    float *tile;    /* linear()'s scratch */
};

struct executor {
    const struct terse_model *model;
    const struct kv_ops *kv;
    uint32_t threads;
    struct workspace workspace;
};

/* A step on its way. */
struct pass {
    const struct terse_model *model;
    const struct kv_ops *kv;
    struct workspace *workspace;
    const struct step *step;
};

/* ---- Workspace */

static void workspace_free(struct workspace *w) {
    float *all[] = {w->hidden, w->k, w->v, w->normed, w->q, w->out, w->inner, w->factor, w->logits, w->tile};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    *w = (struct workspace){0};
}

/* Width of the factor beside the inner activations: SwiGLU's. */
static size_t factor_width(const struct terse_model *m) { return m->layer[0].gate.data ? m->feed_forward : 0; }

static size_t panel_floats(const struct terse_model *m) {
    return m->width + 2 * (size_t)m->query_heads * m->head_dim + m->feed_forward + factor_width(m);
}

static size_t logit_rows(const struct terse_model *m, size_t n) {
    size_t rows = LOGIT_BYTES / (m->vocabulary * sizeof(float));
    if (rows < 1) rows = 1;
    return rows < n ? rows : n;
}

/* The largest of what linear() needs for any matrix: they all have one of four widths. */
static size_t tile_floats(const struct terse_model *m, uint32_t threads) {
    const struct matrix *widest[] = {&m->layer[0].o, &m->layer[0].down, &m->output};
    size_t most = 0;
    for (size_t i = 0; i < sizeof widest / sizeof widest[0]; i++) {
        size_t floats = linear_scratch(widest[i], threads);
        if (floats > most) most = floats;
    }
    return most;
}

static enum terse_status workspace_reserve(struct executor *e, size_t n, struct terse_error *error) {
    const struct terse_model *m = e->model;
    struct workspace *w = &e->workspace;
    if (w->tokens >= n) return TERSE_OK;
    workspace_free(w);
    size_t panel = PANEL_BYTES / (panel_floats(m) * sizeof(float));
    if (panel < PANEL_LEAST) panel = PANEL_LEAST;
    if (panel > n) panel = n;
    size_t kv_width = (size_t)m->kv_heads * m->head_dim, q_width = (size_t)m->query_heads * m->head_dim;
    const struct {
        float **buffer;
        size_t count, each;
    } wanted[] = {
        {&w->hidden, n, m->width},
        {&w->k, n, kv_width},
        {&w->v, n, kv_width},
        {&w->normed, panel, m->width},
        {&w->q, panel, q_width},
        {&w->out, panel, q_width},
        {&w->inner, panel, m->feed_forward},
        {&w->factor, panel, factor_width(m)},
        {&w->logits, logit_rows(m, n), m->vocabulary},
        {&w->tile, tile_floats(m, e->threads), 1},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        size_t row_bytes = wanted[i].each * sizeof(float);
        if (!(*wanted[i].buffer = memory_array(wanted[i].count, row_bytes))) {
            workspace_free(w);
            return status_no_memory(error, wanted[i].count * row_bytes, "activations");
        }
    }
    w->tokens = n;
    w->panel = panel;
    return TERSE_OK;
}

/* ---- A layer */

/* Queries of `count` tokens into w->q, and keys and values of the same tokens to k and v unless they are NULL. */
static void project(const struct pass *f, const struct layer *layer, size_t first, size_t count, bool queries, float *k, float *v) {
    const struct terse_model *m = f->model;
    struct workspace *w = f->workspace;
    struct linear_op ops[3];
    size_t n = 0;
    if (queries) ops[n++] = (struct linear_op){&layer->q, w->q};
    if (k) {
        ops[n++] = (struct linear_op){&layer->k, k};
        ops[n++] = (struct linear_op){&layer->v, v};
    }
    norm_rows(&layer->attention_norm, w->hidden + first * m->width, w->normed, count, m->width);
    linear(ops, n, w->normed, count, w->tile);
    for (size_t i = 0; i < n && m->clamp > 0; i++) clamp_rows(ops[i].out, m->clamp, count, ops[i].w->rows);
    if (queries && layer->q_norm.gain) norm_rows(&layer->q_norm, w->q, w->q, count * m->query_heads, m->head_dim);
    if (k && layer->k_norm.gain) norm_rows(&layer->k_norm, k, k, count * m->kv_heads, m->head_dim);
}

/* Everything after the attention of a panel: output projection and feed-forward, both added to the hidden states. */
static void finish_panel(const struct pass *f, const struct layer *layer, size_t first, size_t count) {
    const struct terse_model *m = f->model;
    struct workspace *w = f->workspace;
    float *hidden = w->hidden + first * m->width;
    struct linear_op feed[2];
    size_t n_feed = feed_forward_ops(layer, w->inner, w->factor, feed);
    linear(&(struct linear_op){&layer->o, w->normed}, 1, w->out, count, w->tile);
    add_rows(hidden, w->normed, count, m->width);
    norm_rows(&layer->feed_forward_norm, hidden, w->normed, count, m->width);
    linear(feed, n_feed, w->normed, count, w->tile);
    activate_rows(m->architecture->activation, w->inner, w->factor, count, m->feed_forward);
    linear(&(struct linear_op){&layer->down, w->normed}, 1, w->inner, count, w->tile);
    add_rows(hidden, w->normed, count, m->width);
}

static enum terse_status report(const struct pass *f, uint64_t done, struct terse_error *error) {
    const struct step *step = f->step;
    const struct step_observer *o = &step->observer;
    if (!o->progress || o->progress(o->user, done, (uint64_t)f->model->layers * step->n)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted while reading %zu tokens", step->n);
}

/* Queries that are shown to the cache before any attends. */
static enum terse_status observe(const struct pass *f, const struct layer *layer, size_t observed, bool projected,
                                 struct terse_error *error) {
    struct workspace *w = f->workspace;
    enum terse_status status = TERSE_OK;
    for (size_t first = 0; first < observed && !status; first += w->panel) {
        size_t count = observed - first < w->panel ? observed - first : w->panel;
        if (!projected) project(f, layer, first, count, true, NULL, NULL);
        status = f->kv->observe(f->step->cache, w->q, first, count, error);
    }
    return status;
}

/* One layer for all tokens; only those from `needed` on go past the keys and values. */
static enum terse_status run_layer(const struct pass *f, uint32_t index, size_t needed, struct terse_error *error) {
    const struct terse_model *m = f->model;
    const struct layer *layer = &m->layer[index];
    struct workspace *w = f->workspace;
    struct cache *cache = f->step->cache;
    size_t n = f->step->n, kv_width = (size_t)m->kv_heads * m->head_dim, q_width = (size_t)m->query_heads * m->head_dim;
    bool one_panel = n <= w->panel; /* then queries, keys and values are one product, and w->q holds those of all tokens */
    enum terse_status status;
    for (size_t first = 0; first < n; first += w->panel) {
        size_t count = n - first < w->panel ? n - first : w->panel;
        project(f, layer, first, count, one_panel, w->k + first * kv_width, w->v + first * kv_width);
    }
    if ((status = f->kv->append(cache, index, w->k, w->v, error))) return status;
    if ((status = observe(f, layer, f->kv->queries_to_observe(cache, needed), one_panel, error))) return status;
    for (size_t first = needed; first < n; first += w->panel) {
        size_t count = n - first < w->panel ? n - first : w->panel;
        if ((status = report(f, index * n + first, error))) return status;
        if (!one_panel) project(f, layer, first, count, true, NULL, NULL);
        status = f->kv->attend(cache, one_panel ? w->q + first * q_width : w->q, first, count, w->out, error);
        if (status) return status;
        finish_panel(f, layer, first, count);
    }
    if ((status = f->kv->end_layer(cache, error))) return status;
    return report(f, (index + 1) * n, error);
}

/* ---- Logits */

static void run_output(const struct pass *f, size_t needed) {
    const struct terse_model *m = f->model;
    const struct step *step = f->step;
    struct workspace *w = f->workspace;
    size_t n = step->n, rows = logit_rows(m, n);
    for (size_t first = needed; first < n; first += rows) {
        size_t count = n - first < rows ? n - first : rows;
        float *hidden = w->hidden + first * m->width;
        norm_rows(&m->output_norm, hidden, hidden, count, m->width);
        linear(&(struct linear_op){&m->output, w->logits}, 1, hidden, count, w->tile);
        if (step->observer.rows) step->observer.rows(step->observer.user, first, count, w->logits);
        if (first + count == n) memcpy(step->last_logits, w->logits + (count - 1) * m->vocabulary, m->vocabulary * sizeof(float));
    }
}

static enum terse_status run_step(const struct pass *f, struct terse_error *error) {
    const struct terse_model *m = f->model;
    const struct step *step = f->step;
    size_t n = step->n, needed = step->observer.rows && step->observer.first_row < n ? step->observer.first_row : n - 1;
    uint64_t position = f->kv->length(step->cache);
    enum terse_status status = f->kv->begin(step->cache, step->kind, n, error);
    if (status) return status;
    embed_rows(m, step->tokens, n, position, f->workspace->hidden);
    for (uint32_t i = 0; i < m->layers; i++)
        if ((status = run_layer(f, i, i + 1 == m->layers ? needed : 0, error))) return status;
    if ((status = f->kv->commit(step->cache, error))) return status;
    run_output(f, needed);
    return TERSE_OK;
}

static enum terse_status run(struct executor *executor, const struct step *step, struct terse_error *error) {
    const struct pass f = {executor->model, executor->kv, &executor->workspace, step};
    enum terse_status status = workspace_reserve(executor, step->n, error);
    if (!status) status = run_step(&f, error);
    if (step->n > KEEP_TOKENS) workspace_free(&executor->workspace);
    return status;
}

/* ---- Life */

static bool supports_weights(enum tensor_type type) { return weights_ops()->matvec[type] != NULL; }

static void unload(struct executor *executor) {
    if (!executor) return;
    workspace_free(&executor->workspace);
    free(executor);
}

static enum terse_status load(const struct terse_model *model, const struct kv_ops *kv, uint32_t threads,
                              struct executor **executor, struct terse_error *error) {
    *executor = NULL;
    enum terse_status status = gemm_prepare(error);
    if (status) return status;
    struct executor *e = calloc(1, sizeof *e);
    if (!e) return status_no_memory(error, sizeof *e, "the executor");
    e->model = model;
    e->kv = kv;
    e->threads = threads;
    *executor = e;
    return TERSE_OK;
}

const struct executor_ops cpu_executor_ops = {.available = cpu_check,
                                              .supports_weights = supports_weights,
                                              .load = load,
                                              .unload = unload,
                                              .weight_profile = weight_profile_new,
                                              .step = run};
