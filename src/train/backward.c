/* Runs the backward pass: the order of the work and its memory. The gradients of single operations are in backward_ops.c, those of
 * attention in backward_attention.c.
 *
 * It sweeps forward once, then back layer by layer. Wide rows (feed-forward, logits) are computed in panels of tokens; queries,
 * keys and values of a layer exist for the whole window. Without gradients there is only the forward sweep, each layer in the
 * memory of the one before, as far as the keys and values of the last. */
#include "train/backward.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/recurrent.h"
#include "backend/cpu/rows.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/size.h"
#include "model/architecture.h"
#include "train/backward_experts.h"
#include "train/window_ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGIT_TOKENS 64 /* of a panel of logits, at least */
#define LOOK_TOKENS 4   /* that backward_look runs */

/* The backward sweep needs these rows of a layer's forward sweep. Those of the last layers are kept, those of the others are
 * computed again. */
struct rows {
    float *q;                 /* [n][Hq][hd], rotated; dL/dq in the end */
    float *k, *k_rotated, *v; /* [n][Hk][hd] */
    float *raw_q, *raw_k;     /* before the norm of heads; where there is one, or a clamp */
    /* These rows are of a panel alone where the layer's rows are not kept. */
    float *state; /* [n][width], past attention */
    float *merged,
        *fed; /* [n][width], what attention and the feed-forward layer add, before the norms of that, where there are any */
    float *inner, *factor; /* [n][feed_forward], before their function; no factor without a gate */
};

/* These are the rows of a layer that a sink sees. */
enum { SEEN_HIDDEN, SEEN_K, SEEN_V, SEEN_DK, SEEN_DV, SEEN };

struct backward {
    const struct terse_model *model;
    const struct learning_ops *ops;
    struct learner *learner;
    size_t tokens; /* capacity; below, n stands for it */
    bool gradients;
    size_t logit_rows;
    /* Rows that stay save the backward sweep the products that would compute them again, a seventh of all work: as many layers stay
     * as fit into what the operations allow. Their number depends only on shapes, and changes no bit of the results. */
    uint32_t staying; /* layers whose rows stay, the last ones */
    /* The forward sweep leaves these to the backward one; without gradients they are of a single layer. */
    float *hidden;   /* [layers + 1][n][width], entering each layer, and leaving the last */
    float *attended; /* [layers][n][Hq][hd], what attention gives */
    float *log_sum;  /* [layers][n][Hq] */
    /* These are of the whole window. */
    float *d_hidden; /* [n][width] */
    /* These are of one layer at a time. */
    struct rows rows;  /* [staying] from the last on, then of the layer at hand if it does not stay: rows_of */
    float *d_attended; /* [n][Hq][hd] */
    float *dk, *dv;    /* [n][Hk][hd] */
    /* These are of one panel at a time. */
    float *normed;  /* [panel][width] */
    float *d_inner; /* [panel][feed_forward]; in the forward sweep the activations of a layer that stays */
    float *logits;  /* [logit_rows][vocabulary] */
    float *capped;  /* the same, where logits are capped: their gradients take their place */
    double *losses; /* [logit_rows] */
    bool looks;     /* the forward sweep goes to the end without gradients, too: backward_look */
    bool draw;      /* backward_draw_labels */
    uint64_t seed;
    float *staged[SEEN]; /* [n][width] or [n][Hk][hd], of the host: what the sink sees, where rows are elsewhere */
    /* Where heads are gated or layers recurrent: the products of a panel, the gates of the window, or of a panel that goes through a
     * recurrent layer, and that layer's beta, alpha and state. */
    float *mixed, *gate, *beta, *state;
    struct backward_experts experts; /* of a panel; empty where layers have none */
};

/* ---- Memory */

static size_t q_width(const struct terse_model *m) { return (size_t)m->query_heads * m->head_dim; }

/* These return whether queries or keys must stay as their matrix gave them, since a norm or a clamp follows. An architecture has the same norms
 * in every layer. */
static bool raw_queries(const struct terse_model *m) { return m->layer[0].q_norm.gain || m->clamp > 0; }
static bool raw_keys(const struct terse_model *m) { return m->layer[0].k_norm.gain || m->clamp > 0; }

static size_t raw_q_width(const struct terse_model *m) { return raw_queries(m) ? q_width(m) : 0; }
static size_t raw_k_width(const struct terse_model *m) { return raw_keys(m) ? model_kv_width(m) : 0; }
/* Layers of experts keep their inner activations to themselves. */
static size_t inner_width(const struct terse_model *m) { return m->experts ? 0 : m->feed_forward; }
static size_t factor_width(const struct terse_model *m) { return m->layer[0].gate.data ? m->feed_forward : 0; }
static size_t added_width(const struct terse_model *m) { return m->architecture->post_norms ? m->width : 0; }

static size_t recurrent_width(const struct terse_model *m) { return m->recurrent ? model_recurrent_width(m) : 0; }
static size_t gate_width(const struct terse_model *m) { return m->architecture->gated_heads ? q_width(m) : 0; }

static bool stays(const struct backward *b, uint32_t layer) { return b->model->layers - layer <= b->staying; }

/* Returns a layer's rows; of those that may be a panel's, the tokens from `first` on. */
static struct rows rows_of(const struct backward *b, uint32_t layer, size_t first) {
    const struct terse_model *m = b->model;
    const struct rows *all = &b->rows;
    size_t at = (stays(b, layer) ? m->layers - 1 - layer : b->staying) * b->tokens, panel = at + (stays(b, layer) ? first : 0);
    return (struct rows){all->q + at * q_width(m),
                         all->k + at * model_kv_width(m),
                         all->k_rotated + at * model_kv_width(m),
                         all->v + at * model_kv_width(m),
                         all->raw_q + at * raw_q_width(m),
                         all->raw_k + at * raw_k_width(m),
                         all->state + panel * m->width,
                         all->merged + panel * added_width(m),
                         all->fed + panel * added_width(m),
                         all->inner + panel * inner_width(m),
                         all->factor + panel * factor_width(m)};
}

static uint32_t count_staying(const struct terse_model *m, size_t tokens, size_t bytes) {
    size_t width = q_width(m) + 3 * model_kv_width(m) + raw_q_width(m) + raw_k_width(m) + m->width + 2 * added_width(m) +
                   inner_width(m) + factor_width(m);
    return (uint32_t)size_min(bytes / sizeof(float) / width / tokens, m->layers);
}

static struct attention attention_of(const struct backward *b, uint32_t index, const struct rows *rows, size_t n) {
    const struct terse_model *m = b->model;
    return (struct attention){m->query_heads,
                              m->kv_heads,
                              m->head_dim,
                              n,
                              m->attention_scale,
                              m->attention_cap,
                              m->slopes,
                              m->sinks ? m->sinks + (size_t)index * m->query_heads : NULL,
                              model_slides(m, index) ? m->window : 0,
                              rows->q,
                              rows->k_rotated,
                              rows->v};
}

static void release(struct backward *b) {
    float **all[] = {&b->hidden,         &b->attended,   &b->log_sum,     &b->d_hidden,   &b->rows.q,     &b->rows.k,
                     &b->rows.k_rotated, &b->rows.v,     &b->rows.raw_q,  &b->rows.raw_k, &b->rows.state, &b->rows.merged,
                     &b->rows.fed,       &b->rows.inner, &b->rows.factor, &b->d_attended, &b->dk,         &b->dv,
                     &b->normed,         &b->d_inner,    &b->logits,      &b->capped,     &b->mixed,      &b->gate,
                     &b->beta,           &b->state};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        b->ops->release(b->learner, *all[i]);
        *all[i] = NULL;
    }
    for (size_t i = 0; i < SEEN; i++) {
        if (b->ops->unstage) b->ops->unstage(b->learner, b->staged[i]);
        b->staged[i] = NULL;
    }
    backward_experts_free(&b->experts);
    memory_free(b->losses);
    b->losses = NULL;
}

/* Returns the floats of a token's rows that the sink sees: the hidden state without gradients alone, which take its time. */
static size_t seen_width(const struct backward *b, size_t seen) {
    if (seen == SEEN_HIDDEN) return b->gradients ? 0 : b->model->width;
    return seen < SEEN_DK || b->gradients ? model_kv_width(b->model) : 0;
}

static enum terse_status allocate(struct backward *b, struct terse_error *error) {
    const struct terse_model *m = b->model;
    size_t n = b->tokens, panel = size_min(n, b->ops->panel);
    /* Only the backward sweep needs these. */
    size_t kept = b->gradients ? m->layers : 1, back = b->gradients ? n : 0, back_panel = b->gradients ? panel : 0;
    bool others = b->staying < m->layers;
    size_t rows = (b->staying + others) * n, panel_rows = b->staying * n + (others ? panel : 0);
    const struct {
        float **buffer;
        size_t count, each;
    } wanted[] = {
        {&b->hidden, n, (b->gradients + kept) * m->width},
        {&b->attended, n, kept * size_max(q_width(m), recurrent_width(m))},
        {&b->log_sum, n, kept * m->query_heads},
        {&b->d_hidden, back, m->width},
        {&b->rows.q, rows, q_width(m)},
        {&b->rows.k, rows, model_kv_width(m)},
        {&b->rows.k_rotated, rows, model_kv_width(m)},
        {&b->rows.v, rows, model_kv_width(m)},
        {&b->rows.raw_q, rows, raw_q_width(m)},
        {&b->rows.raw_k, rows, raw_k_width(m)},
        {&b->rows.state, b->gradients ? panel_rows : 0, m->width},
        {&b->rows.merged, panel_rows, added_width(m)},
        {&b->rows.fed, panel_rows, added_width(m)},
        {&b->rows.inner, panel_rows, inner_width(m)},
        {&b->rows.factor, panel_rows, factor_width(m)},
        {&b->d_attended, back, q_width(m)},
        {&b->dk, back, model_kv_width(m)},
        {&b->dv, back, model_kv_width(m)},
        {&b->normed, panel, m->width},
        {&b->d_inner, back_panel, inner_width(m)},
        {&b->logits, b->logit_rows, m->vocabulary},
        {&b->capped, m->logit_cap > 0 ? b->logit_rows : 0, m->vocabulary},
        {&b->mixed, panel, size_max(2 * gate_width(m), m->recurrent ? model_mixed_width(m) : 0)},
        {&b->gate, n, size_max(gate_width(m), recurrent_width(m))},
        {&b->beta, panel, 2 * (size_t)m->recurrent_value_heads},
        {&b->state, model_recurrent_floats(m), 1},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!(*wanted[i].buffer = b->ops->reserve(b->learner, wanted[i].count, wanted[i].each, error))) return TERSE_E_MEMORY;
    }
    if (!(b->losses = memory_array(b->logit_rows, sizeof *b->losses)))
        return status_no_memory(error, b->logit_rows * sizeof *b->losses, "the gradients of a window");
    for (size_t i = 0; i < SEEN && b->ops->stage; i++)
        if (!(b->staged[i] = b->ops->stage(b->learner, n, seen_width(b, i), error))) return TERSE_E_MEMORY;
    return m->experts ? backward_experts_reserve(&b->experts, m, panel, error) : TERSE_OK;
}

/* Reports progress. `done` counts passes over a layer; a layer's backward pass is two. */
static bool report(const struct backward *b, const struct terse_progress *progress, uint64_t done) {
    const char *what = b->gradients ? "gradients" : "keys and values";
    uint64_t total = (b->gradients ? 3 : 1) * (uint64_t)b->model->layers;
    return !progress || !progress->report || progress->report(progress->user, what, done, total);
}

/* While a learner is opened nothing is done yet. */
struct opening {
    const struct backward *backward;
    const struct terse_progress *progress;
};

static bool report_opening(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct opening *opening = user;
    (void)what, (void)done, (void)total;
    return report(opening->backward, opening->progress, 0);
}

static enum terse_status prepare(struct backward *b, const struct terse_progress *progress, struct terse_error *error) {
    struct opening opening = {b, progress};
    const struct terse_progress asking = {report_opening, &opening};
    enum terse_status status = b->learner ? TERSE_OK : b->ops->open(b->model, b->tokens, &asking, &b->learner, error);
    return status ? status : allocate(b, error);
}

enum terse_status backward_new(const struct learning_ops *ops, const struct terse_model *model, size_t tokens, bool gradients,
                               const struct terse_progress *progress, struct backward **backward, struct terse_error *error) {
    enum terse_status status;
    *backward = NULL;
    if (tokens < 2)
        return status_fail(error, TERSE_E_ARGUMENT, "windows of %zu tokens predict nothing: make them at least 2", tokens);
    if (model->positions.data && tokens > model->positions.rows)
        return status_fail(error, TERSE_E_CONTEXT,
                           "windows of %zu tokens are longer than the %" PRIu32
                           " positions that the model has learned: make them shorter",
                           tokens, model->positions.rows);
    if (gradients && model->recurrent)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "gradients do not go through the recurrent layers of %s models yet: learn without (--weighting none), "
                           "or use a method that does, as terse-4",
                           model->architecture->name);
    struct backward *b = calloc(1, sizeof *b);
    if (!b) return status_no_memory(error, sizeof *b, "the gradients of a window");
    b->model = model;
    b->tokens = tokens;
    b->gradients = gradients;
    b->ops = ops && ops->supports(model, NULL) == TERSE_OK ? ops : &window_ops_cpu;
    b->logit_rows = size_max(b->ops->logit_bytes / (model->vocabulary * sizeof(float)), LOGIT_TOKENS);
    b->logit_rows = gradients ? size_min(b->logit_rows, size_min(b->ops->panel, tokens)) : model->recurrent ? 0 : LOOK_TOKENS;
    b->staying = gradients ? count_staying(model, tokens, b->ops->staying_bytes) : 0;
    status = gemm_prepare(error);
    if (!status) status = prepare(b, progress, error);
    if (status == TERSE_E_MEMORY && b->staying) { /* without the rows that stay it is slower, but works */
        release(b);
        b->staying = 0;
        status = prepare(b, progress, error);
    }
    if (status) {
        backward_free(b);
        return status;
    }
    *backward = b;
    return TERSE_OK;
}

void backward_free(struct backward *b) {
    if (!b) return;
    release(b);
    b->ops->close(b->learner);
    free(b);
}

/* ---- A layer, forward */

/* Returns where a layer's rows lie among those that stay. */
static size_t place(const struct backward *b, uint32_t layer) { return b->gradients ? layer * b->tokens : 0; }

static float *hidden_of(const struct backward *b, uint32_t layer) { return b->hidden + place(b, layer) * b->model->width; }
static float *attended_of(const struct backward *b, uint32_t layer) { return b->attended + place(b, layer) * q_width(b->model); }
static float *log_sum_of(const struct backward *b, uint32_t layer) { return b->log_sum + place(b, layer) * b->model->query_heads; }

/* Applies the norm of heads; without a norm it copies the raw rows. */
static void after_projection(struct backward *b, const struct norm *norm, const float *raw, float *out, size_t heads,
                             size_t head_dim) {
    if (norm->gain)
        b->ops->norm(b->learner, norm, raw, out, heads, head_dim);
    else
        b->ops->copy(b->learner, out, raw, heads, head_dim);
}

/* Computes what a recurrent layer gives for the whole window, in the place of attention. */
static void recur(struct backward *b, uint32_t index, size_t n) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    const struct recurrent *r = &layer->recurrent;
    memset(b->state, 0, model_recurrent_floats(m) * sizeof *b->state);
    for (size_t first = 0; first < n; first += b->ops->panel) {
        const size_t count = size_min(b->ops->panel, n - first), heads = m->recurrent_value_heads;
        float *alpha = b->beta + (r->alpha.data ? count * heads : heads / m->recurrent_key_heads);
        const struct linear_op ops[] = {{&r->mixed, b->mixed}, {&r->gate, b->gate}, {&r->beta, b->beta}, {&r->alpha, alpha}};
        norm_rows(&layer->attention_norm, hidden_of(b, index) + first * m->width, b->normed, count, m->width);
        linear(ops, r->alpha.data ? 4 : 3, b->normed, count, window_scratch(b->learner));
        recurrent_read(&(struct recurrent_job){m, r, b->state, count, b->mixed, b->gate, b->beta, alpha,
                                               attended_of(b, index) + first * recurrent_width(m)});
    }
}

/* Computes queries (rotated), keys (as they are and rotated) and values of a layer. */
static void project(struct backward *b, uint32_t index, size_t n) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    const float *hidden = hidden_of(b, index);
    struct rows rows = rows_of(b, index, 0);
    float *q = raw_queries(m) ? rows.raw_q : rows.q, *k = raw_keys(m) ? rows.raw_k : rows.k;
    for (size_t first = 0; first < n; first += b->ops->panel) {
        size_t count = size_min(b->ops->panel, n - first);
        const struct linear_op ops[] = {{&layer->q, gate_width(m) ? b->mixed : q + first * q_width(m)},
                                        {&layer->k, k + first * model_kv_width(m)},
                                        {&layer->v, rows.v + first * model_kv_width(m)}};
        b->ops->norm(b->learner, &layer->attention_norm, hidden + first * m->width, b->normed, count, m->width);
        b->ops->linear(b->learner, ops, 3, b->normed, count);
        for (size_t i = 0; i < 3 && m->clamp > 0; i++) b->ops->clamp(b->learner, ops[i].out, m->clamp, count, ops[i].w->rows);
        if (gate_width(m))
            split_gates(b->mixed, count * m->query_heads, m->head_dim, q + first * q_width(m), b->gate + first * q_width(m));
    }
    after_projection(b, &layer->q_norm, q, rows.q, n * m->query_heads, m->head_dim);
    after_projection(b, &layer->k_norm, k, rows.k, n * m->kv_heads, m->head_dim);
    b->ops->copy(b->learner, rows.k_rotated, rows.k, n, model_kv_width(m));
    b->ops->turn(b->learner, index, WINDOW_TURN_ROWS, rows.q, n, m->query_heads);
    b->ops->turn(b->learner, index, WINDOW_TURN_ROWS, rows.k_rotated, n, m->kv_heads);
}

/* Computes normed[count][width] of a panel: the norm of w x. `raw` keeps w x. */
static void make_added(struct backward *b, const struct matrix *w, const struct norm *post, const float *x, float *raw,
                       size_t count) {
    b->ops->linear(b->learner, &(struct linear_op){w, post->gain ? raw : b->normed}, 1, x, count);
    if (post->gain) b->ops->norm(b->learner, post, raw, b->normed, count, b->model->width);
}

/* Computes state[count][width] of a panel: what entered the layer, which may lie there, plus the output of attention. */
static void add_attention(struct backward *b, uint32_t index, const struct rows *rows, size_t first, size_t count, float *state) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    b->ops->copy(b->learner, state, hidden_of(b, index) + first * m->width, count, m->width);
    make_added(b, &layer->o, &layer->attention_post_norm, attended_of(b, index) + first * layer->o.columns, rows->merged, count);
    b->ops->add(b->learner, state, b->normed, count, m->width);
}

/* Computes the inner activations of a panel's feed-forward layer, before their function, from its input `from`: the rows past
 * attention or, where the layer is parallel, the layer's input. */
static void feed(struct backward *b, const struct layer *layer, const struct rows *rows, const float *from, size_t count) {
    struct linear_op ops[2];
    size_t n = feed_forward_ops(layer, rows->inner, rows->factor, ops);
    b->ops->norm(b->learner, &layer->feed_forward_norm, from, b->normed, count, b->model->width);
    b->ops->linear(b->learner, ops, n, b->normed, count);
}

/* Computes normed[count][width], the layer's output, from the inner activations. active[count][feed_forward] may be rows->inner. */
static void narrow(struct backward *b, const struct layer *layer, const struct rows *rows, float *active, size_t count) {
    const struct terse_model *m = b->model;
    b->ops->copy(b->learner, active, rows->inner, count, m->feed_forward);
    b->ops->activate(b->learner, m->architecture->activation, active, rows->factor, count, m->feed_forward);
    make_added(b, &layer->down, &layer->feed_forward_post_norm, active, rows->fed, count);
}

/* Shows a layer's rows to the sink, in the host's memory. */
static enum terse_status show(struct backward *b, uint32_t index, size_t n, const struct backward_sink *sink,
                              struct terse_error *error) {
    const struct rows rows = rows_of(b, index, 0);
    const float *seen[SEEN] = {hidden_of(b, index), rows.k, rows.v, b->dk, b->dv};
    for (size_t i = 0; i < SEEN && b->ops->stage; i++) {
        enum terse_status status = b->ops->fetch(b->learner, seen[i], n * seen_width(b, i), b->staged[i], error);
        if (status) return status;
        seen[i] = seen_width(b, i) ? b->staged[i] : NULL;
    }
    struct captured captured = {.n = n, .hidden = seen[SEEN_HIDDEN], .k = seen[SEEN_K], .v = seen[SEEN_V]};
    if (!b->ops->stage) captured.k_rotated = rows.k_rotated;
    if (!b->ops->stage && !b->gradients) captured.q = rows.q;
    if (b->gradients) captured.dk = seen[SEEN_DK], captured.dv = seen[SEEN_DV];
    sink->layer(sink->user, b->model->layer[index].kv_number, &captured);
    return TERSE_OK;
}

static enum terse_status check_keys(const struct backward *b, uint32_t layer, size_t n, struct terse_error *error) {
    const struct terse_model *m = b->model;
    const struct rows rows = rows_of(b, layer, 0);
    enum terse_status status = b->ops->check_finite(b->learner, MODEL_BEHIND(layer), rows.k, n, model_kv_width(m), error);
    return status ? status : b->ops->check_finite(b->learner, MODEL_BEHIND(layer), rows.v, n, model_kv_width(m), error);
}

/* Computes the rest of a layer from its queries, keys and values. */
static void layer_forward(struct backward *b, uint32_t index, size_t n) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    struct rows rows = rows_of(b, index, 0);
    struct attention attention = attention_of(b, index, &rows, n);
    if (layer->k.data) b->ops->attend(b->learner, &attention, attended_of(b, index), log_sum_of(b, index));
    if (layer->k.data && gate_width(m)) apply_gates(attended_of(b, index), b->gate, n, gate_width(m));
    for (size_t first = 0; first < n; first += b->ops->panel) {
        size_t count = size_min(b->ops->panel, n - first);
        rows = rows_of(b, index, first);
        float *leaving = hidden_of(b, index + 1) + first * m->width;
        float *state = stays(b, index) ? rows.state : leaving, *active = stays(b, index) ? b->d_inner : rows.inner;
        if (m->architecture->parallel)
            feed(b, layer, &rows, hidden_of(b, index) + first * m->width, count); /* `leaving` may lie there */
        add_attention(b, index, &rows, first, count, state);
        if (m->experts) {
            b->ops->copy(b->learner, leaving, state, count, m->width);
            b->ops->norm(b->learner, &layer->feed_forward_norm, state, b->normed, count, m->width);
            backward_experts_forward(&b->experts, layer, b->normed, count, leaving, window_scratch(b->learner));
            continue;
        }
        if (!m->architecture->parallel) feed(b, layer, &rows, state, count);
        b->ops->copy(b->learner, leaving, state, count, m->width);
        narrow(b, layer, &rows, active, count);
        b->ops->add(b->learner, leaving, b->normed, count, m->width);
    }
}

/* ---- Backward. d_hidden is the gradient with respect to the layer's output, and is replaced by that with respect to its input. */

/* Computes the loss, and its gradient with respect to the output of the last layer. */
static enum terse_status output_backward(struct backward *b, const int32_t *tokens, size_t n, double *loss,
                                         struct terse_error *error) {
    const struct terse_model *m = b->model;
    const float *hidden = hidden_of(b, m->layers);
    double sum = 0;
    for (size_t first = 0; first < n - 1; first += b->logit_rows) {
        size_t count = size_min(b->logit_rows, n - 1 - first), at = first * m->width;
        b->ops->norm(b->learner, &m->output_norm, hidden + at, b->normed, count, m->width);
        b->ops->linear(b->learner, &(struct linear_op){&m->output, b->logits}, 1, b->normed, count);
        if (m->logit_cap > 0) b->ops->cap(b->learner, b->logits, m->logit_cap, count, m->vocabulary);
        enum terse_status status = b->ops->check_finite(b->learner, MODEL_OUTPUT(m), b->logits, count, m->vocabulary, error);
        if (status) return status;
        if (m->logit_cap > 0) b->ops->copy(b->learner, b->capped, b->logits, count, m->vocabulary);
        struct targets targets = {b->draw ? NULL : tokens + first + 1, b->seed + (first + 1) * RANDOM_STEP};
        b->ops->cross_entropy(b->learner, b->logits, &targets, count, 1 / (float)(n - 1), b->losses);
        if (m->logit_cap > 0) b->ops->cap_backward(b->learner, b->capped, m->logit_cap, b->logits, count, m->vocabulary);
        b->ops->linear_backward(b->learner, &m->output, b->logits, count, false, b->d_hidden + at);
        b->ops->norm_backward(b->learner, &m->output_norm, hidden + at, b->d_hidden + at, count, m->width);
        for (size_t i = 0; i < count; i++) sum += b->losses[i];
    }
    b->ops->clear(b->learner, b->d_hidden + (n - 1) * m->width, m->width); /* nothing is predicted from the last token */
    *loss = sum / (double)(n - 1);
    return TERSE_OK;
}

/* Returns the gradient with respect to the output of the matrix whose product, perhaps through a norm, was added to the hidden
 * state; d is the gradient with respect to the summand. It is d itself or, through a norm, in `normed`. */
static const float *added_backward(struct backward *b, const struct norm *post, const float *raw, const float *d, size_t count) {
    if (!post->gain) return d;
    b->ops->copy(b->learner, b->normed, d, count, b->model->width);
    b->ops->norm_backward(b->learner, post, raw, b->normed, count, b->model->width);
    return b->normed;
}

/* Computes the gradient with respect to the output of attention from d[count][width] of a panel, that of the sum that attention is added to. */
static void merge_backward(struct backward *b, uint32_t index, const struct rows *rows, size_t first, const float *d,
                           size_t count) {
    const struct layer *layer = &b->model->layer[index];
    d = added_backward(b, &layer->attention_post_norm, rows->merged, d, count);
    b->ops->linear_backward(b->learner, &layer->o, d, count, false, b->d_attended + first * q_width(b->model));
}

/* Computes in `normed` the gradients with respect to the input of the matrices of a panel's feed-forward layer from those of their
 * output, which may lie there. */
static void dense_backward(struct backward *b, const struct layer *layer, const struct rows *rows, const float *d, size_t count) {
    const struct terse_model *m = b->model;
    struct linear_op ops[2];
    size_t n_ops = feed_forward_ops(layer, rows->inner, rows->factor, ops);
    b->ops->linear_backward(b->learner, &layer->down, d, count, false, b->d_inner);
    b->ops->activation_backward(b->learner, m->architecture->activation, rows->inner, rows->factor, b->d_inner, count,
                                m->feed_forward);
    for (size_t i = 0; i < n_ops; i++) b->ops->linear_backward(b->learner, ops[i].w, ops[i].out, count, i > 0, b->normed);
}

/* Computes the gradients through the feed-forward part, as far as the output of attention. */
static void feed_backward(struct backward *b, uint32_t index, size_t n) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    for (size_t first = 0; first < n; first += b->ops->panel) {
        size_t count = size_min(b->ops->panel, n - first);
        float *d = b->d_hidden + first * m->width;
        struct rows rows = rows_of(b, index, first);
        if (!stays(b, index)) add_attention(b, index, &rows, first, count, rows.state);
        const float *from = m->architecture->parallel ? hidden_of(b, index) + first * m->width : rows.state;
        if (m->architecture->parallel) merge_backward(b, index, &rows, first, d, count);
        if (m->experts) {
            b->ops->norm(b->learner, &layer->feed_forward_norm, rows.state, b->normed, count, m->width);
            backward_experts_run(&b->experts, layer, b->normed, d, count, window_scratch(b->learner));
        } else {
            if (!stays(b, index)) feed(b, layer, &rows, from, count);
            if (!stays(b, index) && layer->feed_forward_post_norm.gain) narrow(b, layer, &rows, b->d_inner, count);
            dense_backward(b, layer, &rows, added_backward(b, &layer->feed_forward_post_norm, rows.fed, d, count), count);
        }
        b->ops->norm_backward(b->learner, &layer->feed_forward_norm, from, b->normed, count, m->width);
        b->ops->add(b->learner, d, b->normed, count, m->width);
        if (!m->architecture->parallel) merge_backward(b, index, &rows, first, d, count);
    }
}

/* Computes the gradient with respect to the layer's input from those of rotated queries (in q), keys and values. */
static void project_backward(struct backward *b, uint32_t index, size_t n) {
    const struct terse_model *m = b->model;
    const struct layer *layer = &m->layer[index];
    const float *hidden = hidden_of(b, index);
    struct rows rows = rows_of(b, index, 0);
    b->ops->turn(b->learner, index, WINDOW_TURN_BACK, rows.q, n, m->query_heads);
    if (layer->q_norm.gain) b->ops->norm_backward(b->learner, &layer->q_norm, rows.raw_q, rows.q, n * m->query_heads, m->head_dim);
    if (layer->k_norm.gain) b->ops->norm_backward(b->learner, &layer->k_norm, rows.raw_k, b->dk, n * m->kv_heads, m->head_dim);
    if (m->clamp > 0) {
        b->ops->clamp_backward(b->learner, rows.raw_q, m->clamp, rows.q, n, q_width(m));
        b->ops->clamp_backward(b->learner, rows.raw_k, m->clamp, b->dk, n, model_kv_width(m));
        b->ops->clamp_backward(b->learner, rows.v, m->clamp, b->dv, n, model_kv_width(m));
    }
    for (size_t first = 0; first < n; first += b->ops->panel) {
        size_t count = size_min(b->ops->panel, n - first);
        b->ops->linear_backward(b->learner, &layer->q, rows.q + first * q_width(m), count, false, b->normed);
        b->ops->linear_backward(b->learner, &layer->k, b->dk + first * model_kv_width(m), count, true, b->normed);
        b->ops->linear_backward(b->learner, &layer->v, b->dv + first * model_kv_width(m), count, true, b->normed);
        b->ops->norm_backward(b->learner, &layer->attention_norm, hidden + first * m->width, b->normed, count, m->width);
        b->ops->add(b->learner, b->d_hidden + first * m->width, b->normed, count, m->width);
    }
}

static enum terse_status layer_backward(struct backward *b, uint32_t index, size_t n, const struct backward_sink *sink,
                                        struct terse_error *error) {
    feed_backward(b, index, n);
    if (!stays(b, index)) project(b, index, n);
    struct rows rows = rows_of(b, index, 0);
    struct attention attention = attention_of(b, index, &rows, n);
    b->ops->attend_backward(b->learner, &attention, attended_of(b, index), log_sum_of(b, index), b->d_attended, b->dk, b->dv,
                            index > 0);
    b->ops->turn(b->learner, index, WINDOW_TURN_BACK, b->dk, n, b->model->kv_heads);
    enum terse_status status = show(b, index, n, sink, error);
    if (index > 0 && !status) project_backward(b, index, n);
    return status;
}

/* ---- A window */

static enum terse_status check(const struct backward *b, const int32_t *tokens, size_t n, struct terse_error *error) {
    uint32_t vocabulary = b->model->vocabulary;
    if (n < 2) return status_fail(error, TERSE_E_ARGUMENT, "%zu tokens predict nothing: give a window of at least 2", n);
    if (n > b->tokens)
        return status_fail(error, TERSE_E_ARGUMENT, "a window of %zu tokens where %zu were announced: give shorter ones", n,
                           b->tokens);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocabulary)
            return status_fail(error, TERSE_E_ARGUMENT, "token %" PRId32 " at %zu is outside the vocabulary of %" PRIu32, tokens[i],
                               i, vocabulary);
    return TERSE_OK;
}

void backward_draw_labels(struct backward *backward, uint64_t seed) {
    backward->draw = true;
    backward->seed = random_mix(seed);
}

/* Computes a layer's queries, keys and values, which the sink is given at once where no gradients are to come. */
static enum terse_status bring_keys(struct backward *b, uint32_t index, size_t n, const struct backward_sink *sink,
                                    struct terse_error *error) {
    project(b, index, n);
    enum terse_status status = check_keys(b, index, n, error);
    return status || b->gradients ? status : show(b, index, n, sink, error);
}

/* Sweeps forward as far as the last layer's keys and values or, with gradients, to the end. */
static enum terse_status sweep_forward(struct backward *b, const int32_t *tokens, size_t n, const struct backward_sink *sink,
                                       const struct terse_progress *progress, bool *go_on, struct terse_error *error) {
    const struct terse_model *m = b->model;
    b->ops->embed(b->learner, tokens, n, b->hidden);
    enum terse_status status = b->ops->check_finite(b->learner, MODEL_EMBEDDINGS, b->hidden, n, m->width, error);
    for (uint32_t i = 0; i < m->layers && *go_on && !status; i++) {
        bool whole = b->gradients || b->looks || i + 1 < m->layers;
        if (m->layer[i].k.data)
            status = bring_keys(b, i, n, sink, error);
        else
            recur(b, i, n);
        if (status) break;
        if (whole) layer_forward(b, i, n);
        if (whole) status = b->ops->check_finite(b->learner, MODEL_BEHIND(i), hidden_of(b, i + 1), n, m->width, error);
        *go_on = report(b, progress, i + 1);
    }
    return status;
}

static void ignore_layer(void *user, uint32_t layer, const struct captured *rows) { (void)user, (void)layer, (void)rows; }

enum terse_status backward_look(struct backward *b, const int32_t *tokens, size_t n, struct terse_error *error) {
    const struct terse_model *m = b->model;
    const struct backward_sink sink = {ignore_layer, NULL};
    bool go_on = true;
    n = size_min(n, LOOK_TOKENS);
    enum terse_status status = check(b, tokens, n, error);
    b->looks = true;
    if (!status) status = sweep_forward(b, tokens, n, &sink, NULL, &go_on, error);
    b->looks = false;
    if (status) return status;
    b->ops->norm(b->learner, &m->output_norm, hidden_of(b, m->layers), b->normed, n, m->width);
    b->ops->linear(b->learner, &(struct linear_op){&m->output, b->logits}, 1, b->normed, n);
    if (m->logit_cap > 0) b->ops->cap(b->learner, b->logits, m->logit_cap, n, m->vocabulary);
    return b->ops->check_finite(b->learner, MODEL_OUTPUT(m), b->logits, n, m->vocabulary, error);
}

enum terse_status backward_run(struct backward *b, const int32_t *tokens, size_t n, const struct backward_sink *sink,
                               const struct terse_progress *progress, double *loss, struct terse_error *error) {
    uint32_t layers = b->model->layers;
    bool go_on = true;
    enum terse_status status = check(b, tokens, n, error);
    if (!status) status = sweep_forward(b, tokens, n, sink, progress, &go_on, error);
    if (!status && go_on && b->gradients) status = output_backward(b, tokens, n, loss, error);
    if (status) return status;
    for (uint32_t i = b->gradients ? layers : 0; i > 0 && go_on; i--) {
        if ((status = layer_backward(b, i - 1, n, sink, error))) return status;
        go_on = report(b, progress, layers + 2 * (uint64_t)(layers - i + 1));
    }
    if (go_on) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted in the %s of %zu tokens",
                       b->gradients ? "gradients" : "keys and values", n);
}
