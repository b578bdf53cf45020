/* Implements the executor: begins and ends steps. Owns the memory of activations and the grouping of a step's parts; forward.c
 * computes. */
#include "backend/cuda/executor.h"

#include "backend/cuda/device.h"
#include "backend/cuda/forward.h"
#include "backend/cuda/kv/step.h"
#include "backend/cuda/ranks.h"
#include "backend/cuda/top_logits.h"
#include "base/memory.h"
#include "kv/parts.h"
#include "model/architecture.h"

#include <math.h>
#include <stdlib.h>

#define LOGIT_BYTES ((size_t)64 << 20) /* of logits that are computed together, but of one row at least */
#define LEAST_ROWS EACH_ROWS           /* of activations, at first */
#define BESIDES ((size_t)512 << 20)    /* bytes that are kept free beside the weights: a prompt's activations, some pages */

/* ---- Memory */

struct wanted {
    void **buffer;
    size_t count, each; /* each: bytes */
};

static void release(const struct wanted *wanted, size_t n) {
    for (size_t i = 0; i < n; i++) {
        device_free(NULL, *wanted[i].buffer, wanted[i].count * wanted[i].each);
        *wanted[i].buffer = NULL;
    }
}

/* Allocates all of them or none. */
static enum terse_status allocate(const struct wanted *wanted, size_t n, struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        if (!wanted[i].each) continue;
        if ((*wanted[i].buffer = device_alloc(NULL, wanted[i].count * wanted[i].each, "activations", error))) continue;
        release(wanted, i);
        return TERSE_E_MEMORY;
    }
    return TERSE_OK;
}

/* Returns the width of the widest rows that are input to a product. */
static size_t widest_input(const struct terse_model *m) {
    size_t widest = m->width > m->feed_forward ? m->width : m->feed_forward;
    return widest > model_query_width(m) ? widest : model_query_width(m);
}

#define ACTIVATIONS 25
#define LOGITS 2

/* Returns whether experts' matrices read vectors in this form. */
static bool experts_read(const struct terse_model *m, enum vector_form form) {
    for (const struct layer *l = m->layer; l < m->layer + m->layers && m->experts; l++) {
        const struct matrix *const all[] = {&l->experts.gate, &l->experts.up, &l->experts.down};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (weights_form(all[i]->type) == form) return true;
    }
    return false;
}

static void experts_wanted(struct activations *a, const struct terse_model *m, struct wanted *wanted) {
    struct expert_rows *e = &a->experts;
    const size_t number = sizeof(float), inner = m->layer[0].experts.down.columns,
                 rows = a->rows < pass_expert_rows(m) ? a->rows : pass_expert_rows(m), used = m->experts_used * number,
                 items = expert_items_most((uint32_t)(rows * m->experts_used), m->experts), slots = items * EACH_ROWS,
                 widest = m->width > inner ? m->width : inner, padded = memory_round_up(widest, WIDTH_STEP),
                 halves = experts_read(m, ONE_HALF) || experts_read(m, TWO_HALVES) ? padded * 2 : 0;
    const struct wanted all[] = {{(void **)&e->routes.logits, rows, m->experts * number},
                                 {(void **)&e->routes.share, rows, used},
                                 {(void **)&e->routes.chosen, rows, used},
                                 {(void **)&e->routes.slot, rows, used},
                                 {(void **)&e->routes.row, slots, sizeof *e->routes.row},
                                 {(void **)&e->routes.items, items, sizeof *e->routes.items},
                                 {&e->vectors.high, slots, halves},
                                 {&e->vectors.low, slots, halves},
                                 {(void **)&e->vectors.sums, slots, GROUP_SUMS * padded / 32 * number},
                                 {(void **)&e->vectors.sizes, slots, number},
                                 {&e->vectors.thirds, slots, experts_read(m, THIRDS) ? 3 * padded * 2 : 0},
                                 {(void **)&e->inner, slots, inner * number},
                                 {(void **)&e->factor, slots, inner * number},
                                 {(void **)&e->made, slots, m->width * number},
                                 {(void **)&e->gate, rows, number}};
    e->routes.experts = m->experts;
    e->routes.used = m->experts_used;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        wanted[i] = all[i];
        if (!m->experts) wanted[i].each = 0;
    }
}

static void activations_wanted(struct activations *a, const struct terse_model *m, struct wanted wanted[ACTIVATIONS]) {
    const struct layer *l = &m->layer[0];
    const size_t number = sizeof(float), factor = l->gate.data || l->experts.shared_gate.data ? m->feed_forward * number : 0;
    const struct wanted all[] = {{(void **)&a->hidden, a->rows, m->width * number},
                                 {(void **)&a->q, a->rows, model_query_width(m) * number},
                                 {(void **)&a->k, a->rows, model_kv_width(m) * number},
                                 {(void **)&a->v, a->rows, model_kv_width(m) * number},
                                 {(void **)&a->out, a->rows, model_query_width(m) * number},
                                 {(void **)&a->inner, a->rows, m->feed_forward * number},
                                 {(void **)&a->factor, a->rows, factor},
                                 {(void **)&a->product, a->rows, m->width * number},
                                 {&a->halves, a->rows, memory_round_up(widest_input(m), 32) * 2},
                                 {(void **)&a->sizes, a->rows, number}};
    const size_t n = sizeof all / sizeof all[0];
    for (size_t i = 0; i < n; i++) wanted[i] = all[i];
    experts_wanted(a, m, wanted + n);
}

static void activations_free(struct executor *e) {
    struct wanted wanted[ACTIVATIONS];
    activations_wanted(&e->activations, e->model, wanted);
    release(wanted, ACTIVATIONS);
    e->activations = (struct activations){0};
}

/* Reserves activations for panels and groups of so many rows. Waits for work that is queued with the memory that is given up, as
 * freeing does. */
static enum terse_status activations_reserve(struct executor *e, size_t rows, struct terse_error *error) {
    struct wanted wanted[ACTIVATIONS];
    if (e->activations.rows >= rows) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    pass_drop_graphs(e);
    activations_free(e);
    e->activations.rows = rows < LEAST_ROWS ? LEAST_ROWS : rows;
    activations_wanted(&e->activations, e->model, wanted);
    enum terse_status status = allocate(wanted, ACTIVATIONS, error);
    if (status) e->activations = (struct activations){0};
    return status;
}

static void logits_wanted(struct logits *l, const struct terse_model *m, struct wanted wanted[LOGITS]) {
    wanted[0] = (struct wanted){(void **)&l->device, l->rows, m->vocabulary * sizeof(float)};
    wanted[1] = (struct wanted){(void **)&l->hidden, l->rows, m->width * sizeof(float)};
}

static void logits_free(struct executor *e) {
    struct wanted wanted[LOGITS];
    logits_wanted(&e->logits, e->model, wanted);
    release(wanted, LOGITS);
    if (e->logits.host) cudaFreeHost(e->logits.host);
    e->logits = (struct logits){0};
}

/* Reserves rows of logits: `must` rows, which are computed together whatever they take, and others while all take no more than
 * LOGIT_BYTES. */
static enum terse_status logits_reserve(struct executor *e, size_t must, size_t rows, struct terse_error *error) {
    size_t row_bytes = e->model->vocabulary * sizeof(float), most = LOGIT_BYTES / row_bytes;
    struct wanted wanted[LOGITS];
    if (rows > most) rows = most ? most : 1;
    if (rows < must) rows = must;
    if (e->logits.rows >= rows) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    pass_drop_graphs(e);
    logits_free(e);
    e->logits.rows = rows;
    logits_wanted(&e->logits, e->model, wanted);
    enum terse_status status = allocate(wanted, LOGITS, error);
    if (status) {
        e->logits = (struct logits){0};
        return status;
    }
    if (cudaMallocHost((void **)&e->logits.host, rows * row_bytes) == cudaSuccess) return TERSE_OK;
    cudaGetLastError();
    e->logits.host = NULL;
    logits_free(e);
    return status_no_memory(error, rows * row_bytes, "logits");
}

/* ---- A pass's life */

#define PASS_ARRAYS 5

static bool notes_residual(const struct pass *p) {
    for (const struct group *g = p->group; g < p->group + p->n_groups; g++)
        if (!g->decodes && parts_wants_residual(g->sequences->part.cache)) return true;
    return false;
}

static size_t residual_bytes(const struct pass *p) { return p->n_groups * p->executor->model->layers * sizeof *p->residual; }

static void pass_wanted(struct pass *p, struct wanted wanted[PASS_ARRAYS]) {
    bool positions = p->executor->weights.positions.data;
    wanted[0] = (struct wanted){(void **)&p->hidden, p->capacity, p->executor->model->width * sizeof(float)};
    wanted[1] = (struct wanted){(void **)&p->tokens, p->capacity, sizeof(int32_t)};
    wanted[2] = (struct wanted){(void **)&p->positions, p->capacity, positions ? sizeof(int32_t) : 0};
    wanted[3] = (struct wanted){(void **)&p->residual, 1, p->notes_residual ? residual_bytes(p) : 0};
    wanted[4] = (struct wanted){(void **)&p->shares, p->share_floats, p->share_floats ? sizeof(float) : 0};
}

static void end(struct pass *p) {
    if (!p) return;
    struct wanted wanted[PASS_ARRAYS];
    if (p->hidden) cudaStreamSynchronize(device_stream()); /* an unfinished pass may still be computed on */
    pass_wanted(p, wanted);
    release(wanted, PASS_ARRAYS);
    memory_free(p->sequence);
    memory_free(p->group);
    memory_free(p->cache);
    free(p);
}

static enum terse_status pass_new(struct executor *e, size_t parts, struct pass **pass, struct terse_error *error) {
    struct pass *p = *pass = calloc(1, sizeof *p);
    if (!p) return status_no_memory(error, sizeof *p, "a step");
    p->executor = e;
    p->sequence = memory_array(parts, sizeof *p->sequence);
    p->group = memory_array(parts, sizeof *p->group);
    p->cache = memory_array(parts, sizeof(struct cache *));
    if (p->sequence && p->group && p->cache) return TERSE_OK;
    return status_no_memory(error, parts * (sizeof *p->sequence + sizeof *p->group + sizeof(struct cache *)), "a batch");
}

/* Inserts the part among the sequences: those that decode come first. */
static void insert(struct pass *p, const struct step_part *part, bool decodes, size_t *n_decoding) {
    bool wanted = part->rows && part->first_row < part->n;
    struct sequence s = {.part = *part, .length = cache_length(part->cache)};
    size_t at = p->n_sequences++;
    s.needed = wanted ? part->first_row : part->last_logits ? part->n - 1 : part->n;
    s.holds = decodes && part->held && part->held->row && part->last_logits && !wanted;
    if (part->held) part->held->n = 0;
    if (decodes) {
        p->sequence[at] = p->sequence[*n_decoding];
        at = (*n_decoding)++;
    }
    p->sequence[at] = s;
}

/* Groups the caches. Groups that decode hold at most GROUP_ROWS rows. */
static void arrange(struct pass *p, const struct step *step) {
    size_t decoding = 0;
    for (size_t i = 0; i < step->n; i++) insert(p, &step->parts[i], cache_decodes(step->parts[i].cache), &decoding);
    for (size_t i = 0; i < p->n_sequences; i++) {
        struct sequence *s = &p->sequence[i];
        p->cache[i] = s->part.cache;
        struct group *group = p->n_groups ? &p->group[p->n_groups - 1] : NULL;
        if (!group || i >= decoding || group->rows + s->part.n > GROUP_ROWS) {
            group = &p->group[p->n_groups++];
            *group = (struct group){.sequences = s, .decodes = i < decoding};
        }
        s->first = group->rows;
        s->kept = group->kept;
        group->n_sequences++;
        group->rows += s->part.n;
        group->kept += s->part.n - s->needed;
        group->holds |= s->holds;
        group->fetches |= s->needed < s->part.n && !s->holds;
        p->n += s->part.n;
    }
}

/* Returns how many floats ranks exchange together of a group that does not decode, where they share some layer. */
static size_t share_floats(const struct pass *p, const struct group *g) {
    const struct terse_model *m = p->executor->model;
    bool shared = false;
    for (uint32_t layer = 0; layer < m->layers && p->ranks && !shared; layer++)
        shared = parts_attends_alone(g->sequences->part.cache, layer);
    return shared ? pass_share_floats(m, p->ranks->ranks, g->sequences->length, g->rows) : 0;
}

static enum terse_status reserve(struct pass *p, struct terse_error *error) {
    struct executor *e = p->executor;
    size_t rows = 0, must = 0, kept = 0;
    struct wanted wanted[PASS_ARRAYS];
    p->ranks = cache_base_of(p->sequence->part.cache)->shape.ranks;
    for (const struct group *g = p->group; g < p->group + p->n_groups; g++) {
        size_t panel = g->decodes ? g->rows : pass_panel(e->model, g->sequences->length, g->rows);
        if (panel > rows) rows = panel;
        if (g->kept > kept) kept = g->kept;
        if (g->decodes && g->kept > must) must = g->kept;
        if (g->decodes) continue;
        if (g->rows > p->capacity) p->capacity = g->rows;
        if (share_floats(p, g) > p->share_floats) p->share_floats = share_floats(p, g);
    }
    enum terse_status status = activations_reserve(e, rows, error);
    if (!status && kept) status = logits_reserve(e, must, kept < rows ? kept : rows, error);
    p->notes_residual = notes_residual(p);
    pass_wanted(p, wanted);
    if (status || !p->capacity || (status = allocate(wanted, PASS_ARRAYS, error)) || !p->residual) return status;
    return device_check(cudaMemsetAsync(p->residual, 0, residual_bytes(p), device_stream()), "beginning a step", error);
}

static enum terse_status begin(struct executor *e, const struct step *step, struct pass **pass, size_t *failed,
                               struct terse_error *error) {
    struct pass *p;
    *failed = step->n;
    enum terse_status status = pass_new(e, step->n, &p, error);
    for (size_t i = 0; i < step->n && !status; i++) {
        const struct step_part *part = &step->parts[i];
        if ((status = e->kv->begin(part->cache, part->kind, part->n, error))) *failed = i;
    }
    if (!status) arrange(p, step);
    if (!status) status = reserve(p, error);
    if (status) {
        end(p);
        p = NULL;
    } else {
        pass_begin(p);
    }
    *pass = p;
    return status;
}

/* ---- Life */

static void vectors_wanted(struct device_vectors *v, const struct terse_model *m, struct wanted wanted[5]) {
    size_t columns = memory_round_up(widest_input(m), WIDTH_STEP);
    const struct wanted all[5] = {{&v->high, EACH_MOST, columns * 2},
                                  {&v->low, EACH_MOST, columns * 2},
                                  {(void **)&v->sums, GROUP_SUMS * EACH_MOST, columns / 32 * sizeof(float)},
                                  {&v->thirds, EACH_MOST, columns * 3 * 2},
                                  {(void **)&v->sizes, EACH_MOST, sizeof(float)}};
    for (size_t i = 0; i < 5; i++) wanted[i] = all[i];
}

static void top_logits_wanted(struct top_logits *l, const struct terse_model *m, struct wanted wanted[2]) {
    const size_t row = TOP_LOGITS * sizeof(struct token_logit);
    wanted[0] = (struct wanted){(void **)&l->parts, (size_t)GROUP_ROWS * top_logits_parts(m->vocabulary), row};
    wanted[1] = (struct wanted){(void **)&l->device, GROUP_ROWS, row};
}

static void unload(struct executor *e) {
    if (!e) return;
    struct wanted wanted[5];
    cudaStreamSynchronize(device_stream());
    pass_drop_graphs(e);
    for (int i = 0; i < PIECES_AHEAD; i++)
        if (e->piece[i]) cudaEventDestroy(e->piece[i]);
    if (e->sent) cudaEventDestroy(e->sent);
    if (e->staged) cudaFreeHost(e->staged);
    if (e->top_logits.host) cudaFreeHost(e->top_logits.host);
    top_logits_wanted(&e->top_logits, e->model, wanted);
    release(wanted, 2);
    if (e->seen) cudaFreeHost(e->seen);
    device_free(NULL, e->not_finite, sizeof *e->not_finite);
    device_free(NULL, e->input, sizeof *e->input);
    vectors_wanted(&e->each, e->model, wanted);
    release(wanted, 5);
    activations_free(e);
    logits_free(e);
    batch_free(e->batch);
    gemm_free(e->gemm);
    device_model_free(&e->weights);
    free(e);
}

static enum terse_status load_parts(struct executor *e, struct terse_error *error) {
    const struct cache_shape shape = cache_shape_of(e->model, e->model->context);
    struct wanted wanted[5];
    enum terse_status status = device_model_load(e->model, gemm_bytes() + BESIDES, NULL, &e->weights, error);
    if (!status) status = gemm_new(&e->gemm, error);
    if (!status) status = batch_new(&shape, &e->batch, error);
    vectors_wanted(&e->each, e->model, wanted);
    if (!status) status = allocate(wanted, 5, error);
    if (!status) {
        top_logits_wanted(&e->top_logits, e->model, wanted);
        status = allocate(wanted, 2, error);
    }
    if (!status)
        status = device_check(cudaMallocHost((void **)&e->top_logits.host, GROUP_ROWS * TOP_LOGITS * sizeof *e->top_logits.host),
                              "reserving memory", error);
    if (!status && !(e->input = device_alloc(NULL, sizeof *e->input, "steps", error))) status = TERSE_E_MEMORY;
    if (!status) status = device_check(cudaMallocHost((void **)&e->staged, sizeof *e->staged), "reserving memory", error);
    if (!status && !(e->not_finite = device_alloc(NULL, sizeof *e->not_finite, "steps", error))) status = TERSE_E_MEMORY;
    if (!status) status = device_check(cudaMallocHost((void **)&e->seen, sizeof *e->seen), "reserving memory", error);
    if (!status) status = device_check(pass_forget_not_finite(e), "starting", error);
    if (!status) batch_watch(e->batch, e->not_finite);
    if (!status) status = device_check(cudaEventCreateWithFlags(&e->sent, cudaEventDisableTiming), "making an event", error);
    for (int i = 0; i < PIECES_AHEAD && !status; i++)
        status = device_check(cudaEventCreateWithFlags(&e->piece[i], cudaEventDisableTiming), "making an event", error);
    return status;
}

/* Refuses models that the kernels do not compute. */
static enum terse_status supports(const struct terse_model *model, struct terse_error *error) {
    const struct architecture *a = model->architecture;
    if (!model->recurrent && !model->latent.rank) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED, "the GPU does not compute %s models%s yet: leave out --device cuda", a->name,
                       model->recurrent ? " with recurrent layers" : " with latent attention");
}

static enum terse_status load(const struct terse_model *model, const struct kv_ops *kv, uint32_t threads,
                              struct executor **executor, struct terse_error *error) {
    (void)threads;
    struct executor *e = *executor = calloc(1, sizeof *e);
    if (!e) return status_no_memory(error, sizeof *e, "the executor");
    e->model = model;
    e->kv = kv;
    device_number();
    enum terse_status status = load_parts(e, error);
    if (!status) return TERSE_OK;
    unload(e);
    *executor = NULL;
    return status;
}

const struct executor_ops cuda_executor_ops = {.available = device_available,
                                               .kernels = device_name,
                                               .connect = ranks_connect,
                                               .supports = supports,
                                               .load = load,
                                               .unload = unload,
                                               .hold = device_logits_new,
                                               .release = device_logits_free,
                                               .fetch = device_logits_fetch,
                                               .begin = begin,
                                               .advance = pass_advance,
                                               .progress = pass_progress,
                                               .end = end};
