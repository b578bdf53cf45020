/* The forward pass. Owns the order of the work and its memory; leaves products to linear.c, rows to rows.c and everything about
 * keys and values to the cache.
 *
 * Layer-major: all tokens of a step pass one layer before the next begins, in panels, so that beside the hidden states only one
 * layer's keys and values exist in full precision (design: "Prefill"). A decode step is the same with one token.
 */
#include "backend/cpu/executor.h"

#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "base/memory.h"
#include "model/architecture.h"

#include <omp.h>
#include <string.h>

#define PANEL_BYTES ((size_t)128 << 20) /* of activations: large enough that dequantizing a weight once per panel costs little */
#define PANEL_LEAST 256
#define LOGIT_BYTES ((size_t)8 << 20)
#define KEEP_TOKENS 256 /* a workspace for more tokens than this is given back after the step */

/* ---- Workspace */

void workspace_free(struct workspace *w) {
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

static enum terse_status workspace_reserve(struct workspace *w, const struct terse_model *m, size_t n, struct terse_error *error) {
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
        {&w->tile, tile_floats(m, (uint32_t)omp_get_max_threads()), 1},
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
static void project(const struct forward *f, const struct layer *layer, size_t first, size_t count, bool queries, float *k,
                    float *v) {
    const struct terse_model *m = f->model;
    struct workspace *w = f->workspace;
    struct product products[3];
    size_t n = 0;
    if (queries) products[n++] = (struct product){&layer->q, w->q};
    if (k) {
        products[n++] = (struct product){&layer->k, k};
        products[n++] = (struct product){&layer->v, v};
    }
    norm_rows(&layer->attention_norm, w->hidden + first * m->width, w->normed, count, m->width);
    linear(products, n, w->normed, count, w->tile);
    for (size_t i = 0; i < n && m->clamp > 0; i++) clamp_rows(products[i].out, m->clamp, count, products[i].w->rows);
    if (queries && layer->q_norm.gain) norm_rows(&layer->q_norm, w->q, w->q, count * m->query_heads, m->head_dim);
    if (k && layer->k_norm.gain) norm_rows(&layer->k_norm, k, k, count * m->kv_heads, m->head_dim);
}

/* Everything after the attention of a panel: output projection and feed-forward, both added to the hidden states. */
static void finish_panel(const struct forward *f, const struct layer *layer, size_t first, size_t count) {
    const struct terse_model *m = f->model;
    struct workspace *w = f->workspace;
    float *hidden = w->hidden + first * m->width;
    struct product feed[2];
    size_t n_feed = feed_forward_ops(layer, w->inner, w->factor, feed);
    linear(&(struct product){&layer->o, w->normed}, 1, w->out, count, w->tile);
    add_rows(hidden, w->normed, count, m->width);
    norm_rows(&layer->feed_forward_norm, hidden, w->normed, count, m->width);
    linear(feed, n_feed, w->normed, count, w->tile);
    activate_rows(m->architecture->activation, w->inner, w->factor, count, m->feed_forward);
    linear(&(struct product){&layer->down, w->normed}, 1, w->inner, count, w->tile);
    add_rows(hidden, w->normed, count, m->width);
}

static bool report(const struct forward *f, size_t done, size_t total) {
    const struct terse_progress *p = f->progress;
    return !p || !p->report || p->report(p->user, "prompt", done, total);
}

static enum terse_status interrupted(size_t n, struct terse_error *error) {
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted while reading %zu tokens", n);
}

/* One layer for all n tokens; only those from `needed` on go past the keys and values. */
static enum terse_status run_layer(const struct forward *f, uint32_t index, size_t n, size_t needed, struct terse_error *error) {
    const struct terse_model *m = f->model;
    const struct layer *layer = &m->layer[index];
    struct workspace *w = f->workspace;
    size_t kv_width = (size_t)m->kv_heads * m->head_dim, q_width = (size_t)m->query_heads * m->head_dim;
    bool one_panel = n <= w->panel; /* then queries, keys and values are one product, and w->q holds those of all tokens */
    for (size_t first = 0; first < n; first += w->panel) {
        size_t count = n - first < w->panel ? n - first : w->panel;
        project(f, layer, first, count, one_panel, w->k + first * kv_width, w->v + first * kv_width);
    }
    enum terse_status status = cache_append(f->cache, index, w->k, w->v, error);
    if (status) return status;
    size_t observed = cache_queries_to_observe(f->cache, needed);
    for (size_t first = 0; first < observed; first += w->panel) {
        size_t count = observed - first < w->panel ? observed - first : w->panel;
        if (!one_panel) project(f, layer, first, count, true, NULL, NULL);
        if ((status = cache_observe(f->cache, w->q, first, count, error))) return status;
    }
    for (size_t first = needed; first < n; first += w->panel) {
        size_t count = n - first < w->panel ? n - first : w->panel;
        if (!report(f, index * n + first, m->layers * n)) return interrupted(n, error);
        if (!one_panel) project(f, layer, first, count, true, NULL, NULL);
        float *q = one_panel ? w->q + first * q_width : w->q;
        if ((status = cache_attend(f->cache, q, first, count, w->out, error))) return status;
        finish_panel(f, layer, first, count);
    }
    if ((status = cache_end_layer(f->cache, error))) return status;
    return report(f, (index + 1) * n, m->layers * n) ? TERSE_OK : interrupted(n, error);
}

/* ---- Logits */

static void run_output(const struct forward *f, size_t n, size_t needed) {
    const struct terse_model *m = f->model;
    struct workspace *w = f->workspace;
    size_t rows = logit_rows(m, n);
    for (size_t first = needed; first < n; first += rows) {
        size_t count = n - first < rows ? n - first : rows;
        float *hidden = w->hidden + first * m->width;
        norm_rows(&m->output_norm, hidden, hidden, count, m->width);
        linear(&(struct product){&m->output, w->logits}, 1, hidden, count, w->tile);
        for (size_t i = 0; f->sink && i < count; i++) f->sink->row(f->sink->user, first + i, w->logits + i * m->vocabulary);
        if (first + count == n) memcpy(f->last_logits, w->logits + (count - 1) * m->vocabulary, m->vocabulary * sizeof(float));
    }
}

static enum terse_status run_step(const struct forward *f, const int32_t *tokens, size_t n, struct terse_error *error) {
    const struct terse_model *m = f->model;
    size_t needed = f->sink && f->sink->first < n ? f->sink->first : n - 1;
    uint64_t position = cache_length(f->cache);
    enum terse_status status = cache_begin(f->cache, f->kind, n, error);
    if (status) return status;
    embed_rows(m, tokens, n, position, f->workspace->hidden);
    for (uint32_t i = 0; i < m->layers; i++)
        if ((status = run_layer(f, i, n, i + 1 == m->layers ? needed : 0, error))) return status;
    if ((status = cache_commit(f->cache, error))) return status;
    run_output(f, n, needed);
    return TERSE_OK;
}

enum terse_status forward(const struct forward *f, const int32_t *tokens, size_t n, struct terse_error *error) {
    enum terse_status status = workspace_reserve(f->workspace, f->model, n, error);
    if (!status) status = run_step(f, tokens, n, error);
    if (n > KEEP_TOKENS) workspace_free(f->workspace);
    return status;
}
