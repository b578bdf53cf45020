/* The forward pass. Owns the order of the work and the activations; leaves ops to linear.c, rows to rows.c and everything about
 * keys and values to the caches.
 *
 * All tokens of a step pass one layer before the next begins, in panels, so that beside the hidden states only one layer's keys and
 * values exist in full precision (design: "Prefill"). Decoding is the same with a token of each sequence. The work goes in pieces, of a
 * panel in one layer at most, between which other passes may advance: hidden states, keys and values are a pass's own, all else is scratch
 * that holds nothing from piece to piece.
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

/* Tokens that pass through a layer at a time: many enough that dequantizing a weight once for them costs little, and few enough for pieces
 * of work of about this many multiplications, some hundredths of a second on one thread. */
#define PANEL_MULTIPLICATIONS 1e9
#define PANEL_LEAST 192
#define PANEL_MOST 512
#define LOGIT_BYTES ((size_t)8 << 20)
#define KEEP_TOKENS 256 /* memory for more tokens than this is given back after the step */

/* Memory of one piece of work. */
struct scratch {
    size_t panel;   /* tokens that pass through a layer at a time, at most */
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
    size_t few; /* tokens of a part up to which each of its rows is multiplied by itself */
    struct scratch scratch;
    size_t passes;      /* on their way */
    struct pass *spare; /* one that has ended, for the sake of its memory */
};

/* A part of the step, and where its rows lie among those of the pass. */
struct sequence {
    struct step_part part;
    size_t first;
    size_t needed;   /* its tokens from here on have logits computed */
    size_t attended; /* and its tokens from here on go past the keys and values of the last layer */
    size_t kept;     /* the row of token `needed` once the layers are done */
    uint64_t length; /* of the cache before the step */
};

/* Rows that are multiplied together: those of all parts of few tokens, each row by itself (linear.h), or those of one longer part. Groups go
 * through the model one after another. */
struct group {
    struct sequence *sequences;
    size_t n_sequences;
    size_t first, count;
    bool each;
};

enum stage {
    STAGE_KEYS,    /* keys and values of all rows go to the caches */
    STAGE_OBSERVE, /* queries are shown to the caches */
    STAGE_ATTEND,  /* attention and feed-forward */
    STAGE_SEAL,    /* the caches seal the layer */
    STAGE_OUTPUT   /* after the last layer: logits */
};

struct pass {
    struct executor *executor;
    size_t capacity;  /* tokens of hidden, k, v */
    float *hidden;    /* [tokens][width] */
    float *k, *v;     /* [tokens][Hk][hd] */
    size_t sequences; /* capacity of the two */
    struct sequence *sequence;
    struct group *group;

    size_t n, n_sequences, n_groups;
    /* What comes next: rows of a group from `row` on. */
    size_t at;
    uint32_t layer;
    enum stage stage;
    size_t row;
};

/* Rows of a group that are computed in one piece. */
struct panel {
    const struct group *group;
    size_t first, count;
    size_t first_query; /* of which row the scratch's q begins with the queries */
};

/* ---- Memory */

static void scratch_free(struct scratch *s) {
    float *all[] = {s->normed, s->q, s->out, s->inner, s->factor, s->logits, s->tile};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    *s = (struct scratch){0};
}

static void pass_free(struct pass *p) {
    if (!p) return;
    memory_free(p->hidden);
    memory_free(p->k);
    memory_free(p->v);
    memory_free(p->sequence);
    memory_free(p->group);
    free(p);
}

/* Width of the factor beside the inner activations: SwiGLU's. */
static size_t factor_width(const struct terse_model *m) { return m->layer[0].gate.data ? m->feed_forward : 0; }

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

struct wanted {
    float **buffer;
    size_t count, each;
};

/* All of them or none; sizes in floats. */
static enum terse_status allocate(const struct wanted *wanted, size_t n, struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        size_t row_bytes = wanted[i].each * sizeof(float);
        if ((*wanted[i].buffer = memory_array(wanted[i].count, row_bytes))) continue;
        for (size_t j = 0; j < i; j++) {
            memory_free(*wanted[j].buffer);
            *wanted[j].buffer = NULL;
        }
        return status_no_memory(error, wanted[i].count * row_bytes, "activations");
    }
    return TERSE_OK;
}

/* For panels of n tokens. */
static enum terse_status scratch_reserve(struct executor *e, size_t n, struct terse_error *error) {
    const struct terse_model *m = e->model;
    size_t panel = n < PANEL_MOST ? n : PANEL_MOST, q_width = (size_t)m->query_heads * m->head_dim;
    if (e->scratch.panel >= panel) return TERSE_OK;
    struct scratch s = {.panel = panel};
    const struct wanted wanted[] = {{&s.normed, panel, m->width},
                                    {&s.q, panel, q_width},
                                    {&s.out, panel, q_width},
                                    {&s.inner, panel, m->feed_forward},
                                    {&s.factor, panel, factor_width(m)},
                                    {&s.logits, logit_rows(m, panel), m->vocabulary},
                                    {&s.tile, tile_floats(m, e->threads), 1}};
    enum terse_status status = allocate(wanted, sizeof wanted / sizeof wanted[0], error);
    if (status) return status;
    scratch_free(&e->scratch);
    e->scratch = s;
    return TERSE_OK;
}

static enum terse_status pass_reserve(struct pass *p, size_t sequences, size_t n, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    size_t kv_width = (size_t)m->kv_heads * m->head_dim;
    if (p->sequences < sequences) {
        memory_free(p->sequence);
        memory_free(p->group);
        p->sequences = 0;
        p->sequence = memory_array(sequences, sizeof *p->sequence);
        p->group = memory_array(sequences, sizeof *p->group);
        if (!p->sequence || !p->group)
            return status_no_memory(error, sequences * (sizeof *p->sequence + sizeof *p->group), "a batch");
        p->sequences = sequences;
    }
    if (p->capacity >= n) return TERSE_OK;
    memory_free(p->hidden);
    memory_free(p->k);
    memory_free(p->v);
    p->hidden = p->k = p->v = NULL;
    p->capacity = 0;
    const struct wanted wanted[] = {{&p->hidden, n, m->width}, {&p->k, n, kv_width}, {&p->v, n, kv_width}};
    enum terse_status status = allocate(wanted, sizeof wanted / sizeof wanted[0], error);
    if (!status) p->capacity = n;
    return status;
}

/* ---- A panel through a layer */

static const struct layer *layer_of(const struct pass *p) { return &p->executor->model->layer[p->layer]; }
static bool last_layer(const struct pass *p) { return p->layer + 1 == p->executor->model->layers; }

static void multiply(const struct pass *p, const struct group *group, const struct linear_op *ops, size_t n_ops, const float *x,
                     size_t n) {
    if (group->each)
        linear_each(ops, n_ops, x, n, p->executor->scratch.tile);
    else
        linear(ops, n_ops, x, n, p->executor->scratch.tile);
}

/* The rows of a panel that are a sequence's: the sequence's token of the first, and their number. */
static size_t rows_of(const struct sequence *s, struct panel panel, size_t *token) {
    size_t first = panel.first > s->first ? panel.first : s->first, end = s->first + s->part.n;
    if (end > panel.first + panel.count) end = panel.first + panel.count;
    *token = first - s->first;
    return first < end ? end - first : 0;
}

static void embed(const struct pass *p, struct panel panel) {
    const struct terse_model *m = p->executor->model;
    for (const struct sequence *s = panel.group->sequences; s < panel.group->sequences + panel.group->n_sequences; s++) {
        size_t token, count = rows_of(s, panel, &token);
        if (count) embed_rows(m, s->part.tokens + token, count, s->length + token, p->hidden + (s->first + token) * m->width);
    }
}

/* Queries of a panel's tokens into the scratch's q, and their keys and values to those of the pass, as far as they are wanted. */
static void project(const struct pass *p, struct panel panel, bool queries, bool keys) {
    const struct terse_model *m = p->executor->model;
    const struct scratch *s = &p->executor->scratch;
    const struct layer *layer = layer_of(p);
    size_t kv_width = (size_t)m->kv_heads * m->head_dim, count = panel.count;
    float *k = p->k + panel.first * kv_width, *v = p->v + panel.first * kv_width;
    struct linear_op ops[3];
    size_t n = 0;
    if (queries) ops[n++] = (struct linear_op){&layer->q, s->q};
    if (keys && p->layer == 0) embed(p, panel);
    if (keys) {
        ops[n++] = (struct linear_op){&layer->k, k};
        ops[n++] = (struct linear_op){&layer->v, v};
    }
    norm_rows(&layer->attention_norm, p->hidden + panel.first * m->width, s->normed, count, m->width);
    multiply(p, panel.group, ops, n, s->normed, count);
    for (size_t i = 0; i < n && m->clamp > 0; i++) clamp_rows(ops[i].out, m->clamp, count, ops[i].w->rows);
    if (queries && layer->q_norm.gain) norm_rows(&layer->q_norm, s->q, s->q, count * m->query_heads, m->head_dim);
    if (keys && layer->k_norm.gain) norm_rows(&layer->k_norm, k, k, count * m->kv_heads, m->head_dim);
}

/* Everything after the attention of a panel: output projection and feed-forward, both added to the hidden states. */
static void finish_panel(const struct pass *p, struct panel panel) {
    const struct terse_model *m = p->executor->model;
    const struct scratch *s = &p->executor->scratch;
    const struct layer *layer = layer_of(p);
    float *hidden = p->hidden + panel.first * m->width;
    size_t count = panel.count;
    struct linear_op feed[2];
    size_t n_feed = feed_forward_ops(layer, s->inner, s->factor, feed);
    multiply(p, panel.group, &(struct linear_op){&layer->o, s->normed}, 1, s->out, count);
    add_rows(hidden, s->normed, count, m->width);
    norm_rows(&layer->feed_forward_norm, hidden, s->normed, count, m->width);
    multiply(p, panel.group, feed, n_feed, s->normed, count);
    activate_rows(m->architecture->activation, s->inner, s->factor, count, m->feed_forward);
    multiply(p, panel.group, &(struct linear_op){&layer->down, s->normed}, 1, s->inner, count);
    add_rows(hidden, s->normed, count, m->width);
}

/* ---- The caches of a panel's sequences */

static enum terse_status append(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error) {
    (void)panel;
    const struct terse_model *m = p->executor->model;
    size_t at = s->first * m->kv_heads * m->head_dim;
    return p->executor->kv->append(s->part.cache, p->layer, p->k + at, p->v + at, error);
}

/* How many queries of a sequence are shown to the cache before any attends. */
static size_t observed(const struct pass *p, const struct sequence *s) {
    return p->executor->kv->queries_to_observe(s->part.cache, last_layer(p) ? s->attended : 0);
}

/* A sequence's queries among those of the panel, in the scratch's q. */
static enum terse_status observe(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error) {
    const struct executor *e = p->executor;
    size_t token, width = (size_t)e->model->query_heads * e->model->head_dim, count = rows_of(s, panel, &token),
                  wanted = observed(p, s);
    if (token >= wanted) return TERSE_OK;
    if (count > wanted - token) count = wanted - token;
    const float *q = e->scratch.q + (s->first + token - panel.first_query) * width;
    return count ? e->kv->observe(s->part.cache, q, token, count, error) : TERSE_OK;
}

static enum terse_status attend(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error) {
    const struct executor *e = p->executor;
    size_t token, width = (size_t)e->model->query_heads * e->model->head_dim, count = rows_of(s, panel, &token);
    const float *q = e->scratch.q + (s->first + token - panel.first_query) * width;
    float *out = e->scratch.out + (s->first + token - panel.first) * width;
    return count ? e->kv->attend(s->part.cache, q, token, count, out, error) : TERSE_OK;
}

/* Rows of a one-panel pass, all of them, that attend. */
static struct panel attended(const struct pass *p, struct panel panel) {
    size_t skipped = last_layer(p) ? panel.group->sequences->attended : 0;
    return (struct panel){panel.group, panel.first + skipped, panel.count - skipped, panel.first_query};
}

/* All of a sequence between the products of a pass of one panel. */
static enum terse_status read_cache(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error) {
    enum terse_status status = append(p, s, panel, error);
    if (!status) status = observe(p, s, panel, error);
    return status ? status : attend(p, s, attended(p, panel), error);
}

static enum terse_status seal(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error) {
    (void)panel;
    return p->executor->kv->end_layer(s->part.cache, error);
}

typedef enum terse_status visit(const struct pass *p, const struct sequence *s, struct panel panel, struct terse_error *error);

/* The sequences [first, n) of a group, the longest first, each by one thread. */
static enum terse_status visit_side_by_side(const struct pass *p, visit *call, struct panel panel, size_t first,
                                            struct terse_error *error) {
    enum terse_status failed = TERSE_OK;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = first; i < panel.group->n_sequences; i++) {
        struct terse_error own;
        enum terse_status status = call(p, &panel.group->sequences[i], panel, &own);
        if (!status) continue;
#pragma omp critical /* without a name, which the library would export */
        {
            failed = status;
            if (error) *error = own;
        }
    }
    return failed;
}

/* Calls for every sequence of the panel's group. A sequence that alone is the share of a thread is worked on by all threads; the others, for
 * which waking the threads would not pay or would pay less, by one thread each. */
static enum terse_status visit_caches(const struct pass *p, visit *call, struct panel panel, struct terse_error *error) {
    const struct group *group = panel.group;
    enum terse_status status = TERSE_OK;
    uint64_t left = 0;
    for (size_t i = 0; i < group->n_sequences; i++) left += group->sequences[i].length;
    size_t i = 0;
    for (; i < group->n_sequences && !status; i++) {
        uint64_t length = group->sequences[i].length;
        if (i + 1 < group->n_sequences && length * p->executor->threads <= left) break;
        status = call(p, &group->sequences[i], panel, error);
        left -= length;
    }
    return status || i == group->n_sequences ? status : visit_side_by_side(p, call, panel, i, error);
}

/* ---- The pieces */

static const struct group *group_of(const struct pass *p) { return &p->group[p->at]; }

/* Multiplications of a token in a layer when it reads `tokens` others. */
static double multiplications(const struct terse_model *m, uint64_t tokens) {
    const struct layer *l = &m->layer[0];
    const struct matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double sum = 2.0 * (double)tokens * m->query_heads * m->head_dim;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->data) sum += (double)all[i]->rows * all[i]->columns;
    return sum;
}

/* Tokens of the group that pass through a layer at a time: a matter of the sequence alone, so that its results are. */
static size_t panel_of(const struct pass *p) {
    const struct group *g = group_of(p);
    double most = PANEL_MOST;
    if (!g->each) most = PANEL_MULTIPLICATIONS / multiplications(p->executor->model, g->sequences->length + g->count);
    size_t panel = most > PANEL_MOST ? PANEL_MOST : most < PANEL_LEAST ? PANEL_LEAST : (size_t)most;
    return panel < g->count ? panel : g->count;
}

/* Rows of the group that the stage looks at. */
static size_t stage_first(const struct pass *p) {
    const struct group *group = group_of(p);
    if (p->stage == STAGE_OUTPUT) return group->sequences->kept;
    return group->first + (p->stage == STAGE_ATTEND && last_layer(p) ? group->sequences->attended : 0);
}

static size_t stage_end(const struct pass *p) {
    const struct group *group = group_of(p);
    const struct sequence *s = group->sequences, *last = s + group->n_sequences - 1;
    if (p->stage == STAGE_OUTPUT) return last->kept + last->part.n - last->needed;
    if (p->stage != STAGE_OBSERVE) return group->first + group->count;
    size_t end = group->first;
    for (; s <= last; s++)
        if (observed(p, s)) end = s->first + observed(p, s);
    return end;
}

/* The next rows of the stage, `most` of them at most. */
static struct panel next_panel(const struct pass *p, size_t most) {
    size_t count = stage_end(p) - p->row;
    return (struct panel){group_of(p), p->row, count < most ? count : most, p->row};
}

static bool rows_are_left(const struct pass *p) { return p->row < stage_end(p); }

static void begin_stage(struct pass *p, enum stage stage) {
    p->stage = stage;
    p->row = stage_first(p);
}

static void begin_group(struct pass *p, size_t at) {
    p->at = at;
    p->layer = 0;
    if (at < p->n_groups) begin_stage(p, STAGE_KEYS);
}

/* A whole layer up to the sealing: queries, keys and values are one product. */
static enum terse_status run_one_panel(struct pass *p, struct terse_error *error) {
    struct panel panel = next_panel(p, p->n);
    project(p, panel, true, true);
    enum terse_status status = visit_caches(p, read_cache, panel, error);
    if (status) return status;
    finish_panel(p, attended(p, panel));
    p->stage = STAGE_SEAL;
    return TERSE_OK;
}

static enum terse_status run_keys(struct pass *p, struct terse_error *error) {
    struct panel panel = next_panel(p, panel_of(p));
    project(p, panel, false, true);
    p->row += panel.count;
    if (rows_are_left(p)) return TERSE_OK;
    enum terse_status status = visit_caches(p, append, panel, error);
    begin_stage(p, STAGE_OBSERVE);
    if (!rows_are_left(p)) begin_stage(p, STAGE_ATTEND);
    return status;
}

static enum terse_status run_observe(struct pass *p, struct terse_error *error) {
    struct panel panel = next_panel(p, panel_of(p));
    project(p, panel, true, false);
    enum terse_status status = visit_caches(p, observe, panel, error);
    p->row += panel.count;
    if (!rows_are_left(p)) begin_stage(p, STAGE_ATTEND);
    return status;
}

static enum terse_status run_attend(struct pass *p, struct terse_error *error) {
    struct panel panel = next_panel(p, panel_of(p));
    project(p, panel, true, false);
    enum terse_status status = visit_caches(p, attend, panel, error);
    if (status) return status;
    finish_panel(p, panel);
    p->row += panel.count;
    if (!rows_are_left(p)) p->stage = STAGE_SEAL;
    return TERSE_OK;
}

/* Moves the rows whose logits are wanted to the beginning of their group where rows of several sequences lie between them. */
static void keep_rows(struct pass *p) {
    const struct group *g = group_of(p);
    size_t width = p->executor->model->width, at = g->first;
    for (struct sequence *s = g->sequences; s < g->sequences + g->n_sequences; s++) {
        size_t from = s->first + s->needed, count = s->part.n - s->needed;
        s->kept = g->each ? at : from;
        if (s->kept < from) memmove(p->hidden + s->kept * width, p->hidden + from * width, count * width * sizeof(float));
        at += count;
    }
}

static enum terse_status run_seal(struct pass *p, struct terse_error *error) {
    const struct group *group = group_of(p);
    if (!group->each && p->executor->kv->seal_some(group->sequences->part.cache)) return TERSE_OK;
    enum terse_status status = visit_caches(p, seal, (struct panel){group, group->first, group->count, group->first}, error);
    if (status) return status;
    if (!last_layer(p)) {
        p->layer++;
        begin_stage(p, STAGE_KEYS);
        return TERSE_OK;
    }
    keep_rows(p);
    begin_stage(p, STAGE_OUTPUT);
    return TERSE_OK;
}

static void hand_over(const struct pass *p, struct panel panel, const float *logits) {
    size_t vocabulary = p->executor->model->vocabulary, end = panel.first + panel.count;
    for (const struct sequence *s = panel.group->sequences; s < panel.group->sequences + panel.group->n_sequences; s++) {
        size_t kept_end = s->kept + s->part.n - s->needed, first = s->kept > panel.first ? s->kept : panel.first;
        size_t last = kept_end < end ? kept_end : end;
        if (first >= last) continue;
        const float *own = logits + (first - panel.first) * vocabulary;
        if (s->part.rows) s->part.rows(s->part.user, s->needed + first - s->kept, last - first, own);
        if (last == kept_end && s->part.last_logits)
            memcpy(s->part.last_logits, own + (last - first - 1) * vocabulary, vocabulary * sizeof *own);
    }
}

static enum terse_status commit(const struct pass *p, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < p->n_sequences && !status; i++) status = p->executor->kv->commit(p->sequence[i].part.cache, error);
    return status;
}

static enum terse_status run_output(struct pass *p, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    float *logits = p->executor->scratch.logits;
    struct panel panel = next_panel(p, logit_rows(m, panel_of(p)));
    float *hidden = p->hidden + panel.first * m->width;
    norm_rows(&m->output_norm, hidden, hidden, panel.count, m->width);
    multiply(p, panel.group, &(struct linear_op){&m->output, logits}, 1, hidden, panel.count);
    hand_over(p, panel, logits);
    p->row += panel.count;
    if (rows_are_left(p)) return TERSE_OK;
    if (p->at + 1 == p->n_groups) {
        enum terse_status status = commit(p, error);
        if (status) return status;
    }
    begin_group(p, p->at + 1);
    return TERSE_OK;
}

static bool done(const struct pass *p) { return p->at == p->n_groups; }

static enum terse_status advance(struct pass *p, struct terse_error *error) {
    if (done(p)) return TERSE_OK;
    switch (p->stage) {
    case STAGE_KEYS: return panel_of(p) == group_of(p)->count ? run_one_panel(p, error) : run_keys(p, error);
    case STAGE_OBSERVE: return run_observe(p, error);
    case STAGE_ATTEND: return run_attend(p, error);
    case STAGE_SEAL: return run_seal(p, error);
    default: return run_output(p, error);
    }
}

static struct step_progress progress(const struct pass *p) {
    uint64_t layers = p->executor->model->layers, total = layers * p->n;
    if (done(p)) return (struct step_progress){total, total};
    const struct group *g = group_of(p);
    uint64_t rows = p->stage == STAGE_ATTEND ? p->row - g->first : p->stage >= STAGE_SEAL ? g->count : 0;
    uint64_t at = g->first * layers + p->layer * g->count + rows;
    return (struct step_progress){at < total ? at : total - 1, total};
}

/* ---- A pass's life */

static void end(struct pass *p) {
    if (!p) return;
    struct executor *e = p->executor;
    if (--e->passes == 0 && e->scratch.panel > KEEP_TOKENS) scratch_free(&e->scratch);
    if (e->spare || p->capacity > KEEP_TOKENS)
        pass_free(p);
    else
        e->spare = p;
}

/* The part's place among the sequences: those of few tokens come first, the longest caches before the others (visit_caches). */
static void insert(struct pass *p, const struct step_part *part, size_t *n_few) {
    const struct executor *e = p->executor;
    bool each = part->n <= e->few, wanted = part->rows && part->first_row < part->n;
    struct sequence s = {.part = *part, .length = e->kv->length(part->cache)};
    size_t at = p->n_sequences++;
    s.needed = wanted ? part->first_row : part->last_logits ? part->n - 1 : part->n;
    if (each) {
        for (at = *n_few; at > 0 && p->sequence[at - 1].length < s.length; at--) continue;
        memmove(p->sequence + at + 1, p->sequence + at, (p->n_sequences - 1 - at) * sizeof s);
        ++*n_few;
    } else {
        s.attended = s.needed;
    }
    p->sequence[at] = s;
}

static void arrange(struct pass *p, const struct step *step) {
    size_t few = 0;
    p->n = p->n_sequences = p->n_groups = 0;
    for (size_t i = 0; i < step->n; i++) insert(p, &step->parts[i], &few);
    for (size_t i = 0; i < p->n_sequences; i++) {
        if (i == 0 || i >= few) p->group[p->n_groups++] = (struct group){&p->sequence[i], 0, p->n, 0, i < few};
        struct group *group = &p->group[p->n_groups - 1];
        p->sequence[i].first = p->n;
        p->n += p->sequence[i].part.n;
        group->n_sequences++;
        group->count += p->sequence[i].part.n;
    }
}

static enum terse_status reserve(struct pass *p, const struct step *step, struct terse_error *error) {
    size_t n = 0;
    for (size_t i = 0; i < step->n; i++) n += step->parts[i].n;
    enum terse_status status = pass_reserve(p, step->n, n, error);
    return status ? status : scratch_reserve(p->executor, n, error);
}

static enum terse_status begin(struct executor *e, const struct step *step, struct pass **pass, size_t *failed,
                               struct terse_error *error) {
    struct pass *p = e->spare ? e->spare : calloc(1, sizeof *p);
    *pass = NULL;
    *failed = step->n;
    if (!p) return status_no_memory(error, sizeof *p, "a step");
    e->spare = NULL;
    e->passes++;
    p->executor = e;
    enum terse_status status = reserve(p, step, error);
    for (size_t i = 0; i < step->n && !status; i++) {
        const struct step_part *part = &step->parts[i];
        if ((status = e->kv->begin(part->cache, part->kind, part->n, error))) *failed = i;
    }
    if (status) {
        end(p);
        return status;
    }
    arrange(p, step);
    begin_group(p, 0);
    *pass = p;
    return TERSE_OK;
}

/* ---- Life */

static bool supports_weights(enum tensor_type type) { return weights_ops()->matmul[type] != NULL; }

/* Few enough tokens for all of the model's matrices. */
static size_t few_tokens(const struct terse_model *m) {
    size_t few = linear_few(&m->output);
    for (const struct layer *l = m->layer; l < m->layer + m->layers; l++) {
        const struct matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (all[i]->data && linear_few(all[i]) < few) few = linear_few(all[i]);
    }
    return few;
}

static void unload(struct executor *executor) {
    if (!executor) return;
    pass_free(executor->spare);
    scratch_free(&executor->scratch);
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
    e->few = few_tokens(model);
    *executor = e;
    return TERSE_OK;
}

const struct executor_ops cpu_executor_ops = {.available = cpu_check,
                                              .supports_weights = supports_weights,
                                              .load = load,
                                              .unload = unload,
                                              .weight_profile = weight_profile_new,
                                              .begin = begin,
                                              .advance = advance,
                                              .progress = progress,
                                              .end = end};
