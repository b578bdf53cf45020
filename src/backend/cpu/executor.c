/* Implements the executor: begins and ends steps. Owns the memory of activations and the grouping of a step's parts; forward.c
 * computes. */
#include "backend/cpu/executor.h"

#include "backend/cpu/forward.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weight_profile.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/parts.h"
#include "model/architecture.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_TOKENS 256 /* memory for more tokens than this is given back after the step */

/* ---- Memory */

static void scratch_free(struct scratch *s) {
    memory_free(s->logits);
    memory_free(s->tile);
    *s = (struct scratch){0};
}

static void activations_free(struct activations *a) {
    float *all[] = {a->normed, a->q,    a->out,  a->inner,          a->factor,        a->kept,       a->shares,
                    a->mixed,  a->gate, a->beta, a->latents.ranked, a->latents.heads, a->latents.in, a->latents.out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    routes_free(&a->routes);
    *a = (struct activations){0};
}

static void free_keys(struct pass *p) {
    if (p->v != p->k) memory_free(p->v);
    memory_free(p->k);
    p->k = p->v = NULL;
}

static void pass_free(struct pass *p) {
    if (!p) return;
    memory_free(p->hidden);
    free_keys(p);
    memory_free(p->sequence);
    memory_free(p->cache);
    memory_free(p->micro_batch);
    activations_free(&p->activations);
    free(p);
}

/* Returns the width of the factor beside the inner activations, which SwiGLU has. */
static size_t factor_width(const struct terse_model *m) { return m->layer[0].gate.data || m->experts ? m->feed_forward : 0; }

/* Returns the most floats that linear() needs for any matrix. */
static size_t tile_floats(const struct terse_model *m, uint32_t threads) {
    size_t most = linear_scratch(&m->output, threads);
    for (const struct layer *l = m->layer; l < m->layer + m->layers; l++) {
        const struct matrix *all[LAYER_MATRICES];
        size_t n = layer_matrices(l, all);
        for (size_t i = 0; i < n; i++) most = size_max(most, linear_scratch(all[i], threads));
    }
    return most;
}

struct wanted {
    float **buffer;
    size_t count, each;
};

/* Allocates all of them or none; sizes are in floats. */
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

/* Reserves scratch for panels of so many tokens. */
static enum terse_status scratch_reserve(struct executor *e, size_t panel, struct terse_error *error) {
    size_t rows = forward_logit_rows(e->model, panel);
    if (e->scratch.rows >= rows) return TERSE_OK;
    struct scratch s = {.rows = rows};
    const struct wanted wanted[] = {{&s.logits, rows, e->model->vocabulary}, {&s.tile, tile_floats(e->model, e->threads), 1}};
    enum terse_status status = allocate(wanted, sizeof wanted / sizeof wanted[0], error);
    if (status) return status;
    scratch_free(&e->scratch);
    e->scratch = s;
    return TERSE_OK;
}

static enum terse_status activations_reserve(struct activations *a, const struct terse_model *m, const struct collective *ranks,
                                             size_t panel, struct terse_error *error) {
    const size_t kept = !ranks           ? 0
                        : m->latent.rank ? latent_heads_width(m)
                                         : model_query_width(m),
                 shares = ranks ? (1 + (size_t)ranks->ranks) * ((panel + ranks->ranks - 1) / ranks->ranks) : 0;
    const size_t q_width = model_query_width(m), gates = m->architecture->gated_heads ? q_width : 0,
                 recurrent = m->recurrent ? model_recurrent_width(m) : 0, mixed = m->recurrent ? model_mixed_width(m) : 0;
    if (a->rows >= panel) return TERSE_OK;
    activations_free(a);
    const struct wanted wanted[] = {{&a->normed, panel, m->width},
                                    {&a->q, panel, q_width},
                                    {&a->out, panel, size_max(q_width, recurrent)},
                                    {&a->inner, panel, m->feed_forward},
                                    {&a->kept, panel, kept},
                                    {&a->shares, shares, m->width},
                                    {&a->factor, panel, factor_width(m)},
                                    {&a->mixed, panel, size_max(2 * gates, mixed)},
                                    {&a->gate, panel, size_max(gates, recurrent)},
                                    {&a->beta, panel, 2 * (size_t)m->recurrent_value_heads},
                                    {&a->latents.ranked, panel, m->latent.query_rank},
                                    {&a->latents.heads, panel, latent_heads_width(m)},
                                    {&a->latents.in, panel, latent_head_width(m)},
                                    {&a->latents.out, panel, latent_head_width(m)}};
    enum terse_status status = allocate(wanted, sizeof wanted / sizeof wanted[0], error);
    if (!status && m->experts) status = routes_reserve(&a->routes, m, panel, error);
    if (status)
        activations_free(a);
    else
        a->rows = panel;
    return status;
}

static enum terse_status sequences_reserve(struct pass *p, size_t sequences, struct terse_error *error) {
    if (p->sequences >= sequences) return TERSE_OK;
    memory_free(p->sequence);
    memory_free(p->cache);
    memory_free(p->micro_batch);
    p->sequences = 0;
    p->sequence = memory_array(sequences, sizeof *p->sequence);
    p->cache = memory_array(sequences, sizeof(struct cache *));
    p->micro_batch = memory_array(sequences, sizeof *p->micro_batch);
    if (!p->sequence || !p->cache || !p->micro_batch)
        return status_no_memory(error, sequences * (sizeof *p->sequence + sizeof(struct cache *) + sizeof *p->micro_batch),
                                "a batch");
    p->sequences = sequences;
    return TERSE_OK;
}

static enum terse_status rows_reserve(struct pass *p, size_t n, struct terse_error *error) {
    const struct terse_model *m = p->executor->model;
    size_t kv_width = (size_t)m->kv_heads * m->head_dim;
    if (p->capacity >= n) return TERSE_OK;
    memory_free(p->hidden);
    free_keys(p);
    p->hidden = NULL;
    p->capacity = 0;
    const struct wanted wanted[] = {{&p->hidden, n, m->width}, {&p->k, n, kv_width}, {&p->v, n, kv_width}};
    enum terse_status status = allocate(wanted, m->latent.rank ? 2 : 3, error);
    if (m->latent.rank) p->v = p->k;
    if (!status) p->capacity = n;
    return status;
}

/* ---- A pass's life */

static void end(struct pass *p) {
    if (!p) return;
    struct executor *e = p->executor;
    if (--e->passes == 0 && p->capacity > KEEP_TOKENS) scratch_free(&e->scratch);
    if (e->spare || p->capacity > KEEP_TOKENS)
        pass_free(p);
    else
        e->spare = p;
}

/* Inserts the part among the sequences: those of few tokens come first, the longest caches before the others (struct
 * kv_batch). */
static void insert(struct pass *p, const struct step_part *part, size_t *n_few) {
    const struct executor *e = p->executor;
    bool each = part->n <= e->few, wanted = part->rows && part->first_row < part->n;
    struct sequence s = {.part = *part, .length = cache_length(part->cache)};
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

/* Cuts the step into micro-batches. Those of few tokens hold at most PANEL_MOST tokens together, which pass through a layer at a
 * time. */
static void arrange(struct pass *p, const struct step *step) {
    size_t few = 0;
    p->n = p->n_sequences = p->n_micro_batches = 0;
    for (size_t i = 0; i < step->n; i++) insert(p, &step->parts[i], &few);
    for (size_t i = 0; i < p->n_sequences; i++) {
        size_t n = p->sequence[i].part.n;
        if (i == 0 || i >= few || p->micro_batch[p->n_micro_batches - 1].count + n > PANEL_MOST)
            p->micro_batch[p->n_micro_batches++] = (struct micro_batch){&p->sequence[i], 0, p->n, 0, i < few};
        struct micro_batch *micro_batch = &p->micro_batch[p->n_micro_batches - 1];
        p->sequence[i].first = p->n;
        p->cache[i] = p->sequence[i].part.cache;
        p->n += n;
        micro_batch->n_sequences++;
        micro_batch->count += n;
    }
}

/* Returns the most tokens that pass through a layer at a time. */
static size_t largest_panel(const struct pass *p) {
    size_t largest = 0;
    for (const struct micro_batch *g = p->micro_batch; g < p->micro_batch + p->n_micro_batches; g++) {
        size_t panel = g->each ? g->count : forward_panel(p->executor->model, g->sequences->length, g->count);
        if (panel > largest) largest = panel;
    }
    return largest;
}

static enum terse_status reserve(struct pass *p, const struct step *step, struct terse_error *error) {
    enum terse_status status = sequences_reserve(p, step->n, error);
    if (status) return status;
    arrange(p, step);
    size_t panel = largest_panel(p);
    p->ranks = cache_base_of(step->parts[0].cache)->shape.ranks;
    status = rows_reserve(p, p->n, error);
    if (!status) status = activations_reserve(&p->activations, p->executor->model, p->ranks, panel, error);
    return status ? status : scratch_reserve(p->executor, panel, error);
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
    if (!status) status = forward_begin(p, error);
    if (status)
        end(p);
    else
        *pass = p;
    return status;
}

/* ---- Life */

/* Returns the most tokens that count as few for all of the model's matrices. */
static size_t few_tokens(const struct terse_model *m) {
    size_t few = linear_few(&m->output);
    for (const struct layer *l = m->layer; l < m->layer + m->layers; l++) {
        const struct matrix *all[LAYER_MATRICES];
        size_t n = layer_matrices(l, all);
        for (size_t i = 0; i < n; i++)
            if (linear_few(all[i]) < few) few = linear_few(all[i]);
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
                                              .kernels = terse_cpu_name,
                                              .load = load,
                                              .unload = unload,
                                              .weight_profile = weight_profile_new,
                                              .begin = begin,
                                              .advance = forward_advance,
                                              .progress = forward_progress,
                                              .end = end};
