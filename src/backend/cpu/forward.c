/* Implements the forward pass. Owns the order of the work; leaves products to linear.c, rows to rows.c and everything about keys
 * and values to the caches.
 *
 * All tokens of a micro-batch pass one layer before the next begins, in panels, so that beside the hidden states only one layer's
 * keys and values exist in full precision (docs/architecture.md, "A step"). Decoding is the same with a few tokens of each
 * sequence. A piece of the work is a bounded number of multiplications, at which a weight matrix may be cut, or a part of a panel's
 * attention, or a part of sealing a layer; for tokens that go each by itself it is a layer. */
#include "backend/cpu/forward.h"

#include "backend/cpu/experts.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/piece.h"
#include "backend/cpu/recurrent.h"
#include "backend/cpu/rows.h"
#include "base/size.h"
#include "kv/parts.h"
#include "model/architecture.h"

#include <math.h>
#include <string.h>

/* A panel has so many tokens that dequantizing a weight once for them costs little, and beyond that as many as need so many
 * multiplications. */
#define PANEL_MULTIPLICATIONS 1e9
#define PANEL_LEAST 192
#define LOGIT_BYTES ((size_t)8 << 20) /* of logits that are computed together */

static const struct micro_batch *micro_batch_of(const struct pass *p) { return &p->micro_batch[p->at]; }
static const struct layer *layer_of(const struct pass *p) { return &p->executor->model->layer[p->layer]; }
static bool is_recurrent(const struct pass *p) { return layer_of(p)->recurrent.mixed.data != NULL; }
static bool has_latents(const struct pass *p) { return p->executor->model->latent.rank > 0; }
static bool has_experts(const struct pass *p) { return layer_of(p)->experts.router.data != NULL; }
static uint32_t kv_layer(const struct pass *p) { return layer_of(p)->kv_number; }
static bool last_layer(const struct pass *p) { return p->layer + 1 == p->executor->model->layers; }
static bool done(const struct pass *p) { return p->at == p->n_micro_batches; }

/* ---- Sizes */

static double attention_multiplications(const struct terse_model *m, uint64_t tokens) {
    return 2.0 * (double)tokens * m->query_heads * m->head_dim;
}

/* Counts the multiplications for one token in one layer when it reads `tokens` others. */
static double multiplications(const struct terse_model *m, uint64_t tokens) {
    const struct layer *l = &m->layer[0];
    const struct matrix *all[LAYER_MATRICES];
    size_t n = layer_matrices(l, all);
    double sum = attention_multiplications(m, tokens);
    for (size_t i = 0; i < n; i++) {
        bool of_experts = all[i] == &l->experts.gate || all[i] == &l->experts.up || all[i] == &l->experts.down;
        sum += (double)all[i]->rows * all[i]->columns * (of_experts ? (double)m->experts_used / m->experts : 1);
    }
    return sum;
}

size_t forward_panel(const struct terse_model *model, uint64_t length, size_t n) {
    double most = PANEL_MULTIPLICATIONS / multiplications(model, length + n);
    size_t panel = most > PANEL_MOST ? PANEL_MOST : most < PANEL_LEAST ? PANEL_LEAST : (size_t)most;
    return panel < n ? panel : n;
}

/* Returns how many tokens of a panel are the sequence's; *token is the first one's number in the sequence. */
static size_t rows_of(const struct sequence *s, struct panel panel, size_t *token) {
    size_t first = panel.first > s->first ? panel.first : s->first, end = s->first + s->part.n;
    if (end > panel.first + panel.count) end = panel.first + panel.count;
    *token = first - s->first;
    return first < end ? end - first : 0;
}

/* ---- Products of a panel: what comes before them, their operands, what comes after */

static float *hidden_at(const struct pass *p, size_t row) { return p->hidden + row * p->executor->model->width; }

static void embed(const struct pass *p, struct panel panel) {
    for (const struct sequence *s = panel.micro_batch->sequences; s < panel.micro_batch->sequences + panel.micro_batch->n_sequences;
         s++) {
        size_t token, count = rows_of(s, panel, &token);
        if (count) embed_rows(p->executor->model, s->part.tokens + token, count, s->length + token, hidden_at(p, s->first + token));
    }
}

static bool is_gated(const struct pass *p) { return p->executor->model->architecture->gated_heads && !is_recurrent(p); }

/* Returns the gates of a panel's queries. */
static const float *gates_of(const struct pass *p, struct panel panel) {
    return p->activations.gate + (panel.first - panel.first_query) * model_query_width(p->executor->model);
}

static void before_product(const struct pass *p, enum stage stage, struct panel panel) {
    const struct terse_model *m = p->executor->model;
    const struct activations *a = &p->activations;
    float *hidden = hidden_at(p, panel.first);
    switch (stage) {
    case STAGE_MIXED:
    case STAGE_KEYS:
        if (p->layer == 0) embed(p, panel);
        norm_rows(&layer_of(p)->attention_norm, hidden, a->normed, panel.count, m->width);
        break;
    case STAGE_OBSERVE:
    case STAGE_QUERIES: norm_rows(&layer_of(p)->attention_norm, hidden, a->normed, panel.count, m->width); break;
    case STAGE_RANKED:
        norm_rows(&layer_of(p)->latents.query_norm, a->latents.ranked, a->latents.ranked, panel.count, m->latent.query_rank);
        break;
    case STAGE_O_PROJ:
        if (is_gated(p)) apply_gates(a->out, gates_of(p, panel), panel.count, model_query_width(m));
        break;
    case STAGE_UP_GATE: norm_rows(&layer_of(p)->feed_forward_norm, hidden, a->normed, panel.count, m->width); break;
    case STAGE_DOWN: activate_rows(m->architecture->activation, a->inner, a->factor, panel.count, layer_of(p)->down.columns); break;
    case STAGE_OUTPUT: norm_rows(&m->output_norm, hidden, hidden, panel.count, m->width); break;
    default: break;
    }
}

/* Returns the product that begins with the hidden state, of queries or their latents. */
static struct linear_op queries_op(const struct pass *p) {
    const struct activations *a = &p->activations;
    const struct layer *l = layer_of(p);
    if (l->latents.queries.data) return (struct linear_op){&l->latents.queries, a->latents.ranked};
    return (struct linear_op){&l->q, has_latents(p) ? a->latents.heads : is_gated(p) ? a->mixed : a->q};
}

/* Lists the stage's matrices, which share the input x. */
static size_t product_ops(const struct pass *p, enum stage stage, struct panel panel, struct linear_op ops[LINEAR_OPS_MOST],
                          const float **x) {
    const struct activations *a = &p->activations;
    const struct layer *l = layer_of(p);
    const struct linear_op queries = queries_op(p);
    size_t n = 0;
    *x = a->normed;
    switch (stage) {
    case STAGE_KEYS:
        if (panel.micro_batch->each) ops[n++] = queries;
        ops[n++] = (struct linear_op){&l->k, p->k + panel.first * model_kv_width(p->executor->model)};
        if (!has_latents(p)) ops[n++] = (struct linear_op){&l->v, p->v + panel.first * model_kv_width(p->executor->model)};
        return n;
    case STAGE_RANKED:
        *x = a->latents.ranked;
        ops[n++] = (struct linear_op){&l->q, a->latents.heads};
        return n;
    case STAGE_OBSERVE:
    case STAGE_QUERIES: ops[n++] = queries; return n;
    case STAGE_MIXED:
        ops[n++] = (struct linear_op){&l->recurrent.mixed, a->mixed};
        ops[n++] = (struct linear_op){&l->recurrent.gate, a->gate};
        ops[n++] = (struct linear_op){&l->recurrent.beta, a->beta};
        if (l->recurrent.alpha.data)
            ops[n++] = (struct linear_op){&l->recurrent.alpha, a->beta + a->rows * l->recurrent.alpha.rows};
        return n;
    case STAGE_O_PROJ: *x = has_latents(p) ? a->latents.heads : a->out; break;
    case STAGE_UP_GATE: return feed_forward_ops(l, a->inner, a->factor, ops);
    case STAGE_DOWN:
        *x = a->inner;
        ops[n++] = (struct linear_op){&l->down, a->normed};
        return n;
    case STAGE_OUTPUT:
        *x = hidden_at(p, panel.first);
        ops[n++] = (struct linear_op){&p->executor->model->output, p->executor->scratch.logits};
        return n;
    default: break;
    }
    ops[n++] = (struct linear_op){&l->o, a->normed};
    return n;
}

static struct latents_job latents_job_of(const struct pass *p, struct panel panel) {
    return (struct latents_job){.model = p->executor->model,
                                .layer = &layer_of(p)->latents,
                                .n = panel.count,
                                .each = panel.micro_batch->each,
                                .rows = &p->activations.latents,
                                .tile = p->executor->scratch.tile};
}

static void after_product(const struct pass *p, enum stage stage, struct panel panel, const struct linear_op *ops, size_t n_ops) {
    const struct terse_model *m = p->executor->model;
    const struct activations *a = &p->activations;
    const struct layer *l = layer_of(p);
    size_t count = panel.count;
    const struct norm *post = stage == STAGE_O_PROJ ? &l->attention_post_norm : &l->feed_forward_post_norm;
    if (stage == STAGE_OUTPUT && m->logit_cap > 0) cap_rows(ops[0].out, m->logit_cap, count, m->vocabulary);
    if ((stage == STAGE_O_PROJ || stage == STAGE_DOWN) && post->gain) norm_rows(post, a->normed, a->normed, count, m->width);
    if (stage == STAGE_O_PROJ || stage == STAGE_DOWN) add_rows(hidden_at(p, panel.first), a->normed, count, m->width);
    if (stage > STAGE_QUERIES) return;
    for (size_t i = 0; i < n_ops && m->clamp > 0; i++) clamp_rows(ops[i].out, m->clamp, count, ops[i].w->rows);
    bool queries = stage != STAGE_KEYS || panel.micro_batch->each, keys = stage == STAGE_KEYS;
    float *k = p->k + panel.first * model_kv_width(p->executor->model);
    if (queries && is_gated(p)) split_gates(a->mixed, count * m->query_heads, m->head_dim, a->q, a->gate);
    if (queries && l->q_norm.gain) norm_rows(&l->q_norm, a->q, a->q, count * m->query_heads, m->head_dim);
    if (keys && has_latents(p)) {
        const struct latents_job job = latents_job_of(p, panel);
        latents_finish_keys(&job, k);
    }
    if (keys && l->k_norm.gain) norm_rows(&l->k_norm, k, k, count * m->kv_heads, m->head_dim);
}

/* Computes a part of a stage's product, of about *left multiplications, and subtracts them from *left. Returns whether the stage is
 * done. */
static bool multiply_some(struct pass *p, enum stage stage, struct panel panel, double *left) {
    struct linear_op ops[LINEAR_OPS_MOST];
    const float *x;
    size_t n_ops = product_ops(p, stage, panel, ops, &x);
    if (p->item == 0) before_product(p, stage, panel);
    if (!linear_some(ops, n_ops, x, panel.count, p->executor->scratch.tile, &p->item, left)) return false;
    p->item = 0;
    after_product(p, stage, panel, ops, n_ops);
    return true;
}

static void multiply_each(const struct pass *p, enum stage stage, struct panel panel) {
    struct linear_op ops[LINEAR_OPS_MOST];
    const float *x;
    size_t n_ops = product_ops(p, stage, panel, ops, &x);
    before_product(p, stage, panel);
    linear_each(ops, n_ops, x, panel.count, p->executor->scratch.tile);
    after_product(p, stage, panel, ops, n_ops);
}

/* Computes a feed-forward layer of experts as multiply_some() does; with `each`, token by token. */
static bool apply_experts(struct pass *p, struct panel panel, bool each, double *left) {
    const struct activations *a = &p->activations;
    struct experts_job job = {.model = p->executor->model,
                              .layer = layer_of(p),
                              .x = a->normed,
                              .n = panel.count,
                              .each = each,
                              .out = hidden_at(p, panel.first),
                              .inner = a->inner,
                              .factor = a->factor,
                              .tile = p->executor->scratch.tile,
                              .routes = &p->activations.routes};
    if (p->item == 0) before_product(p, STAGE_UP_GATE, panel);
    if (!experts_some(&job, &p->item, left)) return false;
    p->item = 0;
    return true;
}

/* Computes the products of the stages STAGE_ABSORB and STAGE_EXPAND as multiply_some() does. */
static bool multiply_latents(struct pass *p, enum stage stage, struct panel panel, double *left) {
    const struct latents_job job = latents_job_of(p, panel);
    const struct activations *a = &p->activations;
    bool finished =
        stage == STAGE_ABSORB ? latents_absorb_some(&job, a->q, &p->item, left) : latents_expand_some(&job, a->out, &p->item, left);
    if (finished) p->item = 0;
    return finished;
}

/* ---- The caches of the micro-batch */

/* Returns a panel's queries, and room for their outputs, as rows of the batch. */
static struct kv_rows queries_of(const struct pass *p, struct panel panel) {
    const size_t width = (size_t)p->executor->model->query_heads * p->executor->model->head_dim;
    return (struct kv_rows){.layer = kv_layer(p),
                            .first = panel.first - panel.micro_batch->first,
                            .count = panel.count,
                            .q = p->activations.q + (panel.first - panel.first_query) * width,
                            .out = p->activations.out};
}

/* Appends keys and values of all the micro-batch's tokens, and queries, where they are there. */
static enum terse_status append(const struct pass *p, struct terse_error *error) {
    const struct kv_ops *kv = p->executor->kv;
    const struct micro_batch *g = micro_batch_of(p);
    const struct terse_model *m = p->executor->model;
    for (const struct sequence *s = g->sequences; s < g->sequences + g->n_sequences; s++)
        if (parts_wants_residual(s->part.cache))
            parts_note_residual(s->part.cache, kv_layer(p),
                                sum_log_squares(hidden_at(p, s->first), s->part.n, m->width, RESIDUAL_UNIT), s->part.n);
    const size_t at = g->first * model_kv_width(m);
    const struct kv_rows rows = {
        .layer = kv_layer(p), .count = g->count, .k = p->k + at, .v = p->v + at, .q = g->each ? p->activations.q : NULL};
    return kv->append(&p->batch, &rows, error);
}

/* Returns the end of the rows that are shown to the caches before any attends. */
static size_t observed(const struct pass *p, size_t *first) {
    const struct micro_batch *g = micro_batch_of(p);
    return p->executor->kv->queries_to_observe(&p->batch, last_layer(p) && !g->each ? g->sequences->attended : 0, first);
}

/* Does all that sequences need between the products of tokens that go each by itself. */
static enum terse_status read_caches(const struct pass *p, struct panel panel, struct terse_error *error) {
    const struct kv_ops *kv = p->executor->kv;
    enum terse_status status = append(p, error);
    if (status) return status;
    const struct kv_rows all = queries_of(p, panel);
    struct panel shown = panel;
    size_t first, end = observed(p, &first);
    if (end > first) {
        shown.first += first;
        shown.count = end - first;
        const struct kv_rows rows = queries_of(p, shown);
        status = kv->observe(&p->batch, &rows, error);
    }
    return status ? status : kv->attend(&p->batch, &all, error);
}

/* ---- Infinities and NaN. They are looked for before a cache stores what follows from them. */

static enum terse_status check_rows(const struct pass *p, struct panel panel, uint32_t place, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    return rows_check_finite(m, place, hidden_at(p, panel.first), panel.count, m->width, error);
}

/* Checks keys and values of a panel, since codes might hide such numbers, and what entered the first layer. */
static enum terse_status check_keys(const struct pass *p, struct panel panel, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    size_t at = panel.first * model_kv_width(p->executor->model);
    enum terse_status status = p->layer ? TERSE_OK : check_rows(p, panel, MODEL_EMBEDDINGS, error);
    if (!status)
        status = rows_check_finite(m, MODEL_BEHIND(p->layer), p->k + at, panel.count, model_kv_width(p->executor->model), error);
    return status || has_latents(p)
               ? status
               : rows_check_finite(m, MODEL_BEHIND(p->layer), p->v + at, panel.count, model_kv_width(p->executor->model), error);
}

/* Checks what the states of a recurrent layer follow from, and what entered the first layer. */
static enum terse_status check_mixed(const struct pass *p, struct panel panel, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    enum terse_status status = p->layer ? TERSE_OK : check_rows(p, panel, MODEL_EMBEDDINGS, error);
    return status ? status
                  : rows_check_finite(m, MODEL_BEHIND(p->layer), p->activations.mixed, panel.count, model_mixed_width(m), error);
}

/* ---- The states of recurrent layers */

/* Returns where a row's alpha lies; of one product with beta it follows the beta of a key head's value heads. */
static const float *alpha_of(const struct pass *p, size_t row) {
    const struct terse_model *m = p->executor->model;
    const struct activations *a = &p->activations;
    const struct recurrent *r = &layer_of(p)->recurrent;
    return r->alpha.data ? a->beta + (a->rows + row) * r->alpha.rows
                         : a->beta + row * r->beta.rows + m->recurrent_value_heads / m->recurrent_key_heads;
}

/* Has a sequence's state take in `count` tokens of a panel, from its `token`-th of the step on, and is kept where it must be. */
static void recur_sequence(const struct pass *p, const struct sequence *s, struct panel panel, size_t token, size_t count) {
    const struct terse_model *m = p->executor->model;
    const struct activations *a = &p->activations;
    const struct cache_base *cache = cache_base_of(s->part.cache);
    const uint32_t layer = p->layer - kv_layer(p);
    for (size_t n; count; token += n, count -= n) {
        const size_t row = s->first + token - panel.first;
        n = recurrent_run(cache, s->length + token, count);
        recurrent_read(&(struct recurrent_job){.model = m,
                                               .layer = &layer_of(p)->recurrent,
                                               .state = recurrent_layer(cache, layer),
                                               .n = n,
                                               .mixed = a->mixed + row * model_mixed_width(m),
                                               .gate = a->gate + row * model_recurrent_width(m),
                                               .beta = a->beta + row * layer_of(p)->recurrent.beta.rows,
                                               .alpha = alpha_of(p, row),
                                               .out = a->out + row * model_recurrent_width(m)});
        recurrent_keep(cache, layer, s->length + token + n);
    }
}

static void recur(const struct pass *p, struct panel panel) {
    const struct micro_batch *g = panel.micro_batch;
    for (const struct sequence *s = g->sequences; s < g->sequences + g->n_sequences; s++) {
        size_t token, count = rows_of(s, panel, &token);
        if (count) recur_sequence(p, s, panel, token, count);
    }
}

/* ---- Tokens each by itself */

/* Returns the next stage. A parallel layer is widened before attention is added to what has entered it. */
static enum stage stage_after(const struct pass *p, enum stage stage) {
    const bool latents = has_latents(p);
    if (stage == STAGE_O_PROJ && has_experts(p)) return STAGE_EXPERTS;
    if (stage == STAGE_RECUR) return STAGE_O_PROJ;
    if (stage == STAGE_QUERIES && latents) return layer_of(p)->latents.queries.data ? STAGE_RANKED : STAGE_ABSORB;
    if (stage == STAGE_QUERIES || stage == STAGE_ABSORB) return STAGE_ATTEND;
    if (stage == STAGE_ATTEND && latents) return STAGE_EXPAND;
    if (!p->executor->model->architecture->parallel) return stage == STAGE_ATTEND ? STAGE_O_PROJ : stage + 1;
    return stage == STAGE_ATTEND ? STAGE_UP_GATE : stage == STAGE_UP_GATE ? STAGE_O_PROJ : STAGE_DOWN;
}

static enum terse_status attend(struct pass *p, struct panel panel, struct terse_error *error) {
    multiply_each(p, STAGE_KEYS, panel);
    enum terse_status status = check_keys(p, panel, error);
    if (!status && layer_of(p)->latents.queries.data) multiply_each(p, STAGE_RANKED, panel);
    if (!status && has_latents(p)) multiply_latents(p, STAGE_ABSORB, panel, &(double){INFINITY});
    return status ? status : read_caches(p, panel, error);
}

static enum terse_status take_in(const struct pass *p, struct panel panel, struct terse_error *error) {
    multiply_each(p, STAGE_MIXED, panel);
    enum terse_status status = check_mixed(p, panel, error);
    if (!status) recur(p, panel);
    return status;
}

static enum terse_status run_layer_by_rows(struct pass *p, struct terse_error *error) {
    const struct micro_batch *micro_batch = micro_batch_of(p);
    struct panel panel = {micro_batch, micro_batch->first, micro_batch->count, micro_batch->first};
    enum terse_status status = is_recurrent(p) ? take_in(p, panel, error) : attend(p, panel, error);
    if (status) return status;
    for (enum stage stage = is_recurrent(p) ? STAGE_RECUR : STAGE_ATTEND; stage != STAGE_DOWN && stage != STAGE_EXPERTS;) {
        stage = stage_after(p, stage);
        if (stage == STAGE_EXPERTS)
            apply_experts(p, panel, true, &(double){INFINITY});
        else if (stage == STAGE_EXPAND)
            multiply_latents(p, stage, panel, &(double){INFINITY});
        else
            multiply_each(p, stage, panel);
    }
    status = check_rows(p, panel, MODEL_BEHIND(p->layer), error);
    return status || is_recurrent(p) ? status : p->executor->kv->seal(&p->batch, kv_layer(p), error);
}

/* ---- A longer part */

/* Returns the token behind those of the stage. */
static size_t stage_end(const struct pass *p) {
    const struct micro_batch *g = micro_batch_of(p);
    size_t first;
    return g->first + (p->stage == STAGE_OBSERVE ? observed(p, &first) : g->count);
}

/* Sets the stage's panel from this token on. Returns false if there are none. */
static bool begin_panel(struct pass *p, size_t token) {
    const struct micro_batch *g = micro_batch_of(p);
    size_t left = stage_end(p) - token, most = forward_panel(p->executor->model, g->sequences->length, g->count);
    p->panel = (struct panel){g, token, left < most ? left : most, token};
    return left > 0;
}

static bool next_panel(struct pass *p) { return begin_panel(p, p->panel.first + p->panel.count); }

/* Returns the first token whose work goes on after the keys and values of the layer. */
static size_t attended(const struct pass *p) {
    return micro_batch_of(p)->first + (last_layer(p) ? micro_batch_of(p)->sequences->attended : 0);
}

/* ---- Panels that ranks share.
 *
 * Between layers every rank has the hidden states of all tokens, and of each layer all keys and values: so it seals its pages, fits and observes as
 * one process does. What follows them is shared: of as many panels as there are ranks, a group, each rank computes one, the same panels as one
 * process, so that products have the same bits; then they gather the hidden states. From group to group ranks take panels in the other order, so
 * that later ones, which attend to more, are as many for each. Where a rank reads its own tokens alone (kv/deal.h), or anchors are chosen, all attend, in
 * order, and only what follows is shared. */

static size_t panel_most(const struct pass *p) {
    return forward_panel(p->executor->model, micro_batch_of(p)->sequences->length, micro_batch_of(p)->count);
}

/* Returns whether ranks share the layer's panels from here on. Recurrent layers have no keys and values, and gates stay with the queries. */
static bool is_shared(const struct pass *p, size_t first, size_t end) {
    return p->ranks && !is_recurrent(p) && !p->executor->model->architecture->gated_heads && end > first + panel_most(p);
}

/* Returns whether a rank need not attend but for its own panels. */
static bool attends_to_own(const struct pass *p) {
    return parts_attends_alone(micro_batch_of(p)->sequences->part.cache, kv_layer(p));
}

/* Returns the i-th panel of a group; count 0: there are not as many. */
static struct panel panel_of_group(const struct pass *p, size_t i) {
    const size_t most = panel_most(p), first = p->group.first + i * most, end = p->group.first + p->group.count;
    return (struct panel){p->group.micro_batch, first, first < end ? size_min(end - first, most) : 0, first};
}

/* Gathers the group's hidden states, a piece of each rank's panel at a time. */
static enum terse_status gather_group(const struct pass *p, size_t number, struct terse_error *error) {
    const size_t width = p->executor->model->width, ranks = p->ranks->ranks, most = panel_most(p),
                 piece = (most + ranks - 1) / ranks, longest = size_min(most, p->group.count);
    float *own = p->activations.shares, *all = own + piece * width;
    enum terse_status status = TERSE_OK;
    for (size_t row = 0; row < longest && !status; row += piece) {
        const size_t mine = row < p->own.count ? size_min(piece, p->own.count - row) : 0;
        memset(own, 0, piece * width * sizeof *own);
        if (mine) memcpy(own, hidden_at(p, p->own.first + row), mine * width * sizeof *own);
        status = collective_gather(p->ranks, own, piece * width * sizeof *own, all, error);
        for (size_t rank = 0; rank < ranks && !status; rank++) {
            const struct panel theirs = panel_of_group(p, number % 2 ? ranks - 1 - rank : rank);
            const size_t rows = row < theirs.count ? size_min(piece, theirs.count - row) : 0;
            if (rows) memcpy(hidden_at(p, theirs.first + row), all + rank * piece * width, rows * width * sizeof *own);
        }
    }
    return status;
}

static size_t group_tokens(const struct pass *p) { return p->ranks->ranks * panel_most(p); }

/* Returns how many groups of the layer come before this one. */
static size_t group_number(const struct pass *p) { return (p->group.first - attended(p)) / group_tokens(p); }

/* Begins the queries of token `first` and those after it: of a group where ranks share them, else of a panel; none are left: seals the layer. */
static void begin_queries_at(struct pass *p, size_t first) {
    const struct micro_batch *g = micro_batch_of(p);
    const size_t end = g->first + g->count;
    p->stage = STAGE_QUERIES;
    p->group.count = 0;
    if (!is_shared(p, attended(p), end)) {
        if (!begin_panel(p, first)) p->stage = STAGE_SEAL;
        return;
    }
    if (first == end) {
        p->stage = STAGE_SEAL;
        return;
    }
    p->group = (struct panel){g, first, size_min(group_tokens(p), end - first), first};
    p->own = panel_of_group(p, group_number(p) % 2 ? p->ranks->ranks - 1 - p->ranks->rank : p->ranks->rank);
    p->panel = attends_to_own(p) ? p->own : panel_of_group(p, 0);
}

/* Ends this rank's panel, if it has one. */
static enum terse_status end_group(struct pass *p, struct terse_error *error) {
    enum terse_status status = gather_group(p, group_number(p), error);
    if (!status) status = check_rows(p, p->group, MODEL_BEHIND(p->layer), error);
    if (!status) begin_queries_at(p, p->group.first + p->group.count);
    p->paused = true;
    return status;
}

static void swap_outputs(struct pass *p) {
    struct activations *a = &p->activations;
    float **outputs = has_latents(p) ? &a->latents.heads : &a->out, *kept = a->kept;
    a->kept = *outputs;
    *outputs = kept;
}

/* Goes on behind attention: where all ranks attend to a group, with its next panel, and at last with what follows this rank's own. */
static enum terse_status leave_attention(struct pass *p, struct terse_error *error) {
    const size_t end = p->panel.first + p->panel.count;
    if (!p->group.count || attends_to_own(p)) return TERSE_OK;
    if (p->own.count && p->panel.first == p->own.first) swap_outputs(p);
    if (end < p->group.first + p->group.count) {
        p->panel = panel_of_group(p, (end - p->group.first) / panel_most(p));
        p->stage = STAGE_QUERIES;
        return TERSE_OK;
    }
    if (!p->own.count) return end_group(p, error);
    p->panel = p->own;
    swap_outputs(p);
    return TERSE_OK;
}

static void begin_layer(struct pass *p, uint32_t layer) {
    p->layer = layer;
    p->group.count = 0;
    p->stage = is_recurrent(p) ? STAGE_MIXED : STAGE_KEYS;
    if (!micro_batch_of(p)->each) begin_panel(p, micro_batch_of(p)->first);
}

/* Moves the rows whose logits are wanted to the beginning of their micro-batch where rows of several sequences lie between them. */
static void keep_rows(struct pass *p) {
    const struct micro_batch *g = micro_batch_of(p);
    size_t width = p->executor->model->width, at = g->first;
    for (struct sequence *s = g->sequences; s < g->sequences + g->n_sequences; s++) {
        size_t from = s->first + s->needed, count = s->part.n - s->needed;
        s->kept = g->each ? at : from;
        if (s->kept < from) memmove(hidden_at(p, s->kept), hidden_at(p, from), count * width * sizeof(float));
        at += count;
    }
}

static void end_layer(struct pass *p) {
    const struct micro_batch *g = micro_batch_of(p);
    if (!last_layer(p)) {
        begin_layer(p, p->layer + 1);
        return;
    }
    keep_rows(p);
    p->stage = STAGE_OUTPUT;
    p->panel = (struct panel){.micro_batch = g, .first = g->sequences->kept};
}

static void begin_queries(struct pass *p) { begin_queries_at(p, attended(p)); }

static enum terse_status end_keys(struct pass *p, struct terse_error *error) {
    p->paused = true;
    enum terse_status status = check_keys(p, p->panel, error);
    if (status || next_panel(p)) return status;
    if ((status = append(p, error))) return status;
    size_t first, end = observed(p, &first);
    p->stage = STAGE_OBSERVE;
    if (first >= end || !begin_panel(p, micro_batch_of(p)->first + first)) begin_queries(p);
    return TERSE_OK;
}

static enum terse_status end_observing(struct pass *p, struct terse_error *error) {
    bool whole = p->panel.count == micro_batch_of(p)->count;
    const struct kv_rows rows = queries_of(p, p->panel);
    enum terse_status status = p->executor->kv->observe(&p->batch, &rows, error);
    if (whole) { /* these queries are those that attend */
        size_t skipped = attended(p) - p->panel.first;
        p->panel.first += skipped;
        p->panel.count -= skipped;
        p->group.count = 0;
        p->stage = p->panel.count ? STAGE_ATTEND : STAGE_SEAL;
    } else if (!next_panel(p)) {
        begin_queries(p);
    }
    p->paused = true;
    return status;
}

static enum terse_status end_narrowing(struct pass *p, struct terse_error *error) {
    if (p->group.count) return end_group(p, error);
    p->paused = true;
    enum terse_status status = check_rows(p, p->panel, MODEL_BEHIND(p->layer), error);
    const bool recurrent = is_recurrent(p);
    p->stage = recurrent ? STAGE_MIXED : STAGE_QUERIES;
    if (next_panel(p)) return status;
    p->stage = STAGE_SEAL;
    if (recurrent && !status) end_layer(p);
    return status;
}

static enum terse_status end_product(struct pass *p, struct terse_error *error) {
    switch (p->stage) {
    case STAGE_KEYS: return end_keys(p, error);
    case STAGE_OBSERVE: return end_observing(p, error);
    case STAGE_MIXED: p->stage = STAGE_RECUR; return check_mixed(p, p->panel, error);
    case STAGE_EXPERTS:
    case STAGE_DOWN: return end_narrowing(p, error);
    case STAGE_EXPAND: p->stage = stage_after(p, STAGE_EXPAND); return leave_attention(p, error);
    default: p->stage = stage_after(p, p->stage); return TERSE_OK;
    }
}

static enum terse_status run_recur(struct pass *p, double *left) {
    const struct terse_model *m = p->executor->model;
    *left -= 3.0 * (double)p->panel.count * (double)model_recurrent_width(m) * m->recurrent_state;
    recur(p, p->panel);
    p->stage = STAGE_O_PROJ;
    return TERSE_OK;
}

static enum terse_status run_attend(struct pass *p, double *left, struct terse_error *error) {
    const struct sequence *s = micro_batch_of(p)->sequences;
    *left -= attention_multiplications(p->executor->model, s->length + p->panel.first + p->panel.count - s->first) *
             (double)p->panel.count;
    const struct kv_rows rows = queries_of(p, p->panel);
    if (p->executor->kv->attend_some(&p->batch, &rows)) return TERSE_OK;
    p->stage = stage_after(p, STAGE_ATTEND);
    enum terse_status status = p->executor->kv->attend(&p->batch, &rows, error);
    return status || p->stage == STAGE_EXPAND ? status : leave_attention(p, error);
}

/* ---- After the layers */

size_t forward_logit_rows(const struct terse_model *m, size_t n) {
    size_t rows = LOGIT_BYTES / (m->vocabulary * sizeof(float));
    if (rows < 1) rows = 1;
    return rows < n ? rows : n;
}

static enum terse_status begin_micro_batch(struct pass *p, size_t at, struct terse_error *error) {
    p->at = at;
    p->item = 0;
    if (done(p)) return TERSE_OK;
    begin_layer(p, 0);
    const struct micro_batch *g = micro_batch_of(p);
    p->batch = (struct kv_batch){p->cache + (g->sequences - p->sequence), g->n_sequences, NULL};
    return p->executor->kv->join(&p->batch, error);
}

static enum terse_status run_seal(struct pass *p, struct terse_error *error) {
    if (p->executor->kv->seal_some(&p->batch)) return TERSE_OK;
    enum terse_status status = p->executor->kv->seal(&p->batch, kv_layer(p), error);
    if (!status) end_layer(p);
    p->paused = true;
    return status;
}

static void hand_over(const struct pass *p, struct panel panel, const float *logits) {
    size_t vocabulary = p->executor->model->vocabulary, end = panel.first + panel.count;
    for (const struct sequence *s = panel.micro_batch->sequences; s < panel.micro_batch->sequences + panel.micro_batch->n_sequences;
         s++) {
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
    const struct micro_batch *g = micro_batch_of(p);
    const struct sequence *s = g->sequences, *last = s + g->n_sequences - 1;
    const struct terse_model *m = p->executor->model;
    size_t row = p->panel.first + p->panel.count, left = last->kept + last->part.n - last->needed - row;
    size_t most = forward_logit_rows(m, g->each ? g->count : forward_panel(m, s->length, g->count));
    p->panel = (struct panel){g, row, left < most ? left : most, row};
    if (left && g->each)
        multiply_each(p, STAGE_OUTPUT, p->panel);
    else if (left)
        multiply_some(p, STAGE_OUTPUT, p->panel, &(double){INFINITY});
    const float *logits = p->executor->scratch.logits;
    enum terse_status status =
        left ? rows_check_finite(m, MODEL_OUTPUT(m), logits, p->panel.count, m->vocabulary, error) : TERSE_OK;
    if (status) return status;
    if (left) hand_over(p, p->panel, logits);
    if (left > most) return TERSE_OK;
    if (p->at + 1 == p->n_micro_batches) status = commit(p, error);
    return status ? status : begin_micro_batch(p, p->at + 1, error);
}

/* ---- Pieces. Ranks exchange data within them, so a piece ends at the same place on all, whatever each has to do and with how many threads: behind
 * keys and values of a panel, a panel or a group, or sealing. */

enum terse_status forward_begin(struct pass *p, struct terse_error *error) { return begin_micro_batch(p, 0, error); }

/* Computes a part of a piece, of *left multiplications at most. */
static enum terse_status run_some(struct pass *p, double *left, struct terse_error *error) {
    if (p->stage == STAGE_QUERIES && p->group.count && !p->panel.count) return end_group(p, error);
    if (p->stage < STAGE_SEAL && !micro_batch_of(p)->each) {
        if (p->stage == STAGE_ATTEND) return run_attend(p, left, error);
        if (p->stage == STAGE_RECUR) return run_recur(p, left);
        bool latents = p->stage == STAGE_ABSORB || p->stage == STAGE_EXPAND;
        bool finished = p->stage == STAGE_EXPERTS ? apply_experts(p, p->panel, false, left)
                        : latents                 ? multiply_latents(p, p->stage, p->panel, left)
                                                  : multiply_some(p, p->stage, p->panel, left);
        return finished ? end_product(p, error) : TERSE_OK;
    }
    *left = 0;
    p->paused = p->stage != STAGE_SEAL;
    if (p->stage == STAGE_OUTPUT) return run_output(p, error);
    if (p->stage == STAGE_SEAL) return run_seal(p, error);
    enum terse_status status = run_layer_by_rows(p, error);
    if (!status) end_layer(p);
    return status;
}

enum terse_status forward_advance(struct pass *p, struct terse_error *error) {
    double left = p->ranks ? INFINITY : PIECE_MULTIPLICATIONS * p->executor->threads;
    enum terse_status status = TERSE_OK;
    p->paused = false;
    while (!done(p) && !status && left > 0 && !(p->ranks && p->paused)) status = run_some(p, &left, error);
    return status;
}

struct step_progress forward_progress(const struct pass *p) {
    uint64_t layers = p->executor->model->layers, total = layers * p->n;
    if (done(p)) return (struct step_progress){total, total};
    const struct micro_batch *g = micro_batch_of(p);
    uint64_t rows = p->stage >= STAGE_SEAL ? g->count : p->stage >= STAGE_QUERIES ? p->panel.first - g->first : 0;
    uint64_t at = g->first * layers + p->layer * g->count + rows;
    return (struct step_progress){at < total ? at : total - 1, total};
}
