/* Implements the forward pass. Owns the order of the work; leaves products to weights.h and gemm.h, rows to rows.h and everything
 * about keys and values to the caches.
 *
 * As on the CPU, all tokens of a prompt pass one layer before the next begins, in panels, so that beside the hidden states only one
 * layer's keys and values exist in full precision. A piece of the work is as many panels as have some number of multiplications; at
 * most PIECES_AHEAD pieces are queued on the device, so that a caller may stop between them. */
#include "backend/cuda/forward.h"

#include "backend/cuda/device.h"
#include "backend/cuda/ranks.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/top_logits.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/parts.h"
#include "model/architecture.h"

#include <string.h>

#define PIECE_MULTIPLICATIONS 5e12 /* some hundredths of a second */
#define PANEL_LEAST 256

static bool done(const struct pass *p) { return p->at == p->n_groups; }
static const struct group *group_of(const struct pass *p) { return &p->group[p->at]; }
static const struct device_layer *layer_of(const struct pass *p) { return &p->executor->weights.layer[p->layer]; }
static bool last_layer(const struct pass *p) { return p->layer + 1 == p->executor->model->layers; }

/* ---- Sizes */

/* Counts the multiplications for one token in one layer when it reads `tokens` others. */
static double multiplications(const struct terse_model *m, uint64_t tokens) {
    const struct layer *l = &m->layer[0];
    const struct matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double sum = 2.0 * (double)tokens * (double)model_query_width(m);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->data) sum += (double)all[i]->rows * all[i]->columns;
    if (m->experts) sum += 3.0 * m->experts_used * l->experts.down.columns * m->width;
    return sum;
}

size_t pass_panel(const struct terse_model *model, uint64_t length, size_t n) {
    double most = PIECE_MULTIPLICATIONS / multiplications(model, length + n);
    size_t panel = most > PANEL_MOST ? PANEL_MOST : most < PANEL_LEAST ? PANEL_LEAST : (size_t)most;
    return panel < n ? panel : n;
}

/* Returns how long the strips are (see "Queries that ranks share") of `left` rows of a part as pass_panel() has it. */
static size_t shared_strip(const struct terse_model *model, uint32_t ranks, uint64_t length, size_t n, size_t left) {
    const size_t most = pass_panel(model, length, n) / 2, even = (left + 2 * ranks - 1) / (2 * ranks);
    return even < most ? even : most;
}

/* Returns the floats of a rank's share: two strips, and where a number was not finite, with room for alignment. */
static size_t share_floats(const struct terse_model *model, size_t strip) { return 2 * strip * model->width + 4; }

size_t pass_share_floats(const struct terse_model *model, uint32_t ranks, uint64_t length, size_t n) {
    return n > PANEL_LEAST ? ranks * share_floats(model, shared_strip(model, ranks, length, n, n)) : 0;
}

/* ---- Products */

/* An operand is the input that several products share: rows of x in some form. */
struct operand {
    struct row_form form;
    const float *x, *factor; /* [n][width], factor of an activation alone */
    uint32_t width;
};

/* Returns the form in which rows are input to a product after the norm. Kernels that make it note numbers that are not finite as
 * those of `place` in the model. */
static struct row_form norm_form(const struct executor *e, const struct norm *norm, uint32_t place) {
    return (struct row_form){.kind = ROW_NORM, .norm = *norm, .not_finite = e->not_finite, .place = place};
}

/* Returns of such vectors the forms that these products read. */
static struct device_vectors forms_of(struct device_vectors forms, const struct device_product *products, size_t n) {
    bool wanted[] = {[ONE_HALF] = false, [TWO_HALVES] = false, [THIRDS] = false};
    for (size_t i = 0; i < n; i++) wanted[weights_form(products[i].w->type)] = true;
    if (!wanted[THIRDS]) forms.thirds = NULL;
    if (!wanted[TWO_HALVES]) forms.low = NULL;
    if (!wanted[TWO_HALVES] && !wanted[ONE_HALF]) forms.high = forms.sizes = NULL;
    return forms;
}

/* Multiplies each row by itself. */
static enum terse_status multiply_each(const struct executor *e, const struct device_product *products, size_t n_products,
                                       const struct operand *of, size_t n, bool add, struct terse_error *error) {
    const struct device_vectors forms = forms_of(e->each, products, n_products);
    cudaError_t result = cudaSuccess;
    for (size_t first = 0; first < n && result == cudaSuccess; first += EACH_MOST) {
        uint32_t count = (uint32_t)(n - first < EACH_MOST ? n - first : EACH_MOST);
        struct device_product own[PRODUCTS_MOST];
        for (size_t i = 0; i < n_products; i++)
            own[i] = (struct device_product){products[i].w, products[i].out + first * products[i].w->rows};
        result = rows_prepare(of->form, of->x + first * of->width, of->factor ? of->factor + first * of->width : NULL, count,
                              of->width, &forms, device_stream());
        if (result == cudaSuccess) result = weights_each(own, n_products, &forms, count, add, device_stream());
    }
    return device_check(result, "a product", error);
}

/* Multiplies few rows each by itself, many together. With `add`, products are added to what is in `out`. */
static enum terse_status multiply(const struct executor *e, const struct device_product *products, size_t n_products,
                                  const struct operand *of, size_t n, bool add, struct terse_error *error) {
    const struct activations *a = &e->activations;
    const struct device_vectors forms = {.halves = a->halves, .sizes = a->sizes};
    if (n < GEMM_ROWS) return multiply_each(e, products, n_products, of, n, add, error);
    enum terse_status status = device_check(
        rows_prepare(of->form, of->x, of->factor, (uint32_t)n, of->width, &forms, device_stream()), "preparing a product", error);
    for (size_t i = 0; i < n_products && !status; i++)
        status =
            gemm_multiply(e->gemm, products[i].w, &forms, (uint32_t)n, products[i].out, add, a->product, device_stream(), error);
    return status;
}

/* A multiplier multiplies rows. In a step that decodes all rows go through the same one, since no row may depend on how many others
 * there are. */
typedef enum terse_status multiplier(const struct executor *e, const struct device_product *products, size_t n_products,
                                     const struct operand *of, size_t n, bool add, struct terse_error *error);

/* ---- Parts of a layer, of n rows */

enum { QUERIES = 1, KEYS_AND_VALUES = 2 };

/* Computes q, k and v from their matrices, or those of them that are wanted, before rotation, as caches take them. */
static enum terse_status project(const struct executor *e, const struct device_layer *l, multiplier *by, const float *hidden,
                                 size_t n, int wanted, struct terse_error *error) {
    const struct terse_model *m = e->model;
    const struct activations *a = &e->activations;
    const uint32_t before = (uint32_t)(l - e->weights.layer); /* behind the layer before, or the embeddings */
    const struct operand normed = {norm_form(e, &l->attention_norm, before), hidden, NULL, m->width};
    struct device_product products[PRODUCTS_MOST] = {{NULL, NULL}};
    size_t n_products = 0;
    if (wanted & QUERIES) products[n_products++] = (struct device_product){&l->q, a->q};
    if (wanted & KEYS_AND_VALUES) products[n_products++] = (struct device_product){&l->k, a->k};
    if (wanted & KEYS_AND_VALUES) products[n_products++] = (struct device_product){&l->v, a->v};
    enum terse_status status = by(e, products, n_products, &normed, n, false, error);
    cudaError_t result = cudaSuccess;
    for (size_t i = 0; i < n_products && m->clamp > 0 && !status && result == cudaSuccess; i++)
        result = rows_clamp(products[i].out, m->clamp, n * products[i].w->rows, device_stream());
    if (!status && result == cudaSuccess && (wanted & QUERIES) && l->q_norm.gain)
        result = rows_norm(l->q_norm, a->q, (uint32_t)(n * m->query_heads), m->head_dim, 0, device_stream());
    if (!status && result == cudaSuccess && (wanted & KEYS_AND_VALUES) && l->k_norm.gain)
        result = rows_norm(l->k_norm, a->k, (uint32_t)(n * m->kv_heads), m->head_dim, 0, device_stream());
    return status ? status : device_check(result, "queries and keys", error);
}

/* Adds the product of a layer's matrix, or its norm where the layer has one, to the hidden states. */
static enum terse_status add_product(const struct executor *e, const struct device_matrix *w, const struct norm *post,
                                     multiplier *by, const struct operand *of, float *hidden, size_t n, struct terse_error *error) {
    float *const product = e->activations.product;
    const struct device_product added = {w, hidden}, apart = {w, product};
    if (!post->gain) return by(e, &added, 1, of, n, true, error);
    enum terse_status status = by(e, &apart, 1, of, n, false, error);
    if (status) return status;
    return device_check(rows_add_norm(*post, product, (uint32_t)n, e->model->width, hidden, device_stream()), "a layer", error);
}

/* Computes what is inside a feed-forward layer, from its norm up to the activation. */
static enum terse_status feed_forward_inner(const struct executor *e, const struct device_layer *l, multiplier *by,
                                            const float *hidden, size_t n, struct terse_error *error) {
    const struct activations *a = &e->activations;
    const uint32_t layer = (uint32_t)(l - e->weights.layer);
    const struct operand normed = {norm_form(e, &l->feed_forward_norm, MODEL_BEHIND(layer)), hidden, NULL, e->model->width};
    const struct device_product widen[2] = {{l->gate.data ? &l->gate : &l->up, a->inner}, {&l->up, a->factor}};
    return by(e, widen, l->gate.data ? 2 : 1, &normed, n, false, error);
}

/* Computes products of experts with all slots, whose vectors are rows of x by their routes, or `by_slot` x of the slots. */
static cudaError_t multiply_slots(const struct executor *e, const struct device_product *products, size_t n_products,
                                  const struct operand *of, size_t rows, bool by_slot) {
    const struct expert_rows *x = &e->activations.experts;
    const struct device_vectors forms = forms_of(x->vectors, products, n_products);
    const uint32_t items = expert_items_most((uint32_t)rows * x->routes.used, x->routes.experts);
    cudaError_t result = rows_prepare_slots(of->form, of->x, of->factor, x->routes.row, items * EACH_ROWS, by_slot, of->width,
                                            &forms, device_stream());
    if (result != cudaSuccess) return result;
    return experts_each(products, n_products, &forms, x->routes.items, items, (uint32_t)(rows < EACH_ROWS ? rows : EACH_ROWS),
                        device_stream());
}

/* Adds to the hidden states what the expert of all tokens makes of them. Its inner activations are there. */
static enum terse_status add_shared(const struct executor *e, const struct device_experts *w, multiplier *by, float *hidden,
                                    size_t n, struct terse_error *error) {
    const struct activations *a = &e->activations;
    const struct operand inner = {
        {.kind = ROW_ACTIVATION, .activation = e->model->architecture->activation}, a->inner, a->factor, w->shared_down.columns};
    const struct device_product narrow = {&w->shared_down, a->product};
    enum terse_status status = by(e, &narrow, 1, &inner, n, false, error);
    if (status) return status;
    return device_check(experts_add_shared(a->product, w->shared_router.data ? a->experts.gate : NULL, (uint32_t)n, e->model->width,
                                           hidden, device_stream()),
                        "experts", error);
}

/* Computes a feed-forward layer of experts for rows that are routed together. Products with the router are those of single rows,
 * since roundings decide which experts are chosen. */
static enum terse_status route_some(const struct executor *e, const struct device_layer *l, multiplier *by, float *hidden, size_t n,
                                    struct terse_error *error) {
    const struct terse_model *m = e->model;
    const struct activations *a = &e->activations;
    const struct expert_rows *x = &a->experts;
    const struct device_experts *w = &l->experts;
    const bool shared = w->shared_gate.data;
    const struct operand normed = {norm_form(e, &l->feed_forward_norm, MODEL_BEHIND((uint32_t)(l - e->weights.layer))), hidden,
                                   NULL, m->width},
                         inner = {{.kind = ROW_ACTIVATION, .activation = m->architecture->activation},
                                  x->inner,
                                  x->factor,
                                  w->down.columns};
    const struct device_product routers[] = {{&w->router, x->routes.logits}, {&w->shared_router, x->gate}},
                                own[] = {{&w->shared_gate, a->inner}, {&w->shared_up, a->factor}},
                                widen[] = {{&w->gate, x->inner}, {&w->up, x->factor}}, narrow = {&w->down, x->made};
    enum terse_status status = multiply_each(e, routers, w->shared_router.data ? 2 : 1, &normed, n, false, error);
    if (!status && shared) status = by(e, own, 2, &normed, n, false, error);
    if (status) return status;
    cudaError_t result = route_rows(&x->routes, &m->routing, (uint32_t)n, device_stream());
    if (result == cudaSuccess) result = multiply_slots(e, widen, 2, &normed, n, false);
    if (result == cudaSuccess) result = multiply_slots(e, &narrow, 1, &inner, n, true);
    if (result == cudaSuccess) result = experts_add(&x->routes, x->made, (uint32_t)n, m->width, hidden, device_stream());
    status = device_check(result, "experts", error);
    return status || !shared ? status : add_shared(e, w, by, hidden, n, error);
}

static enum terse_status apply_experts(const struct executor *e, const struct device_layer *l, multiplier *by, float *hidden,
                                       size_t n, struct terse_error *error) {
    const size_t most = pass_expert_rows(e->model), width = e->model->width;
    enum terse_status status = TERSE_OK;
    for (size_t first = 0; first < n && !status; first += most)
        status = route_some(e, l, by, hidden + first * width, n - first < most ? n - first : most, error);
    return status;
}

/* Finishes a layer, from the heads' outputs on. */
static enum terse_status finish_layer(const struct executor *e, const struct device_layer *l, multiplier *by, float *hidden,
                                      size_t n, struct terse_error *error) {
    const struct terse_model *m = e->model;
    const struct activations *a = &e->activations;
    const struct operand heads = {{.kind = ROW_PLAIN}, a->out, NULL, (uint32_t)model_query_width(m)};
    const struct operand inner = {
        {.kind = ROW_ACTIVATION, .activation = m->architecture->activation}, a->inner, a->factor, m->feed_forward};
    const bool parallel = m->architecture->parallel;
    enum terse_status status = TERSE_OK;
    if (parallel) status = feed_forward_inner(e, l, by, hidden, n, error); /* of what enters the layer */
    if (!status) status = add_product(e, &l->o, &l->attention_post_norm, by, &heads, hidden, n, error);
    if (!status && m->experts) return apply_experts(e, l, by, hidden, n, error);
    if (!status && !parallel) status = feed_forward_inner(e, l, by, hidden, n, error);
    return status ? status : add_product(e, &l->down, &l->feed_forward_post_norm, by, &inner, hidden, n, error);
}

static enum terse_status embed(const struct executor *e, const int32_t *tokens, const int32_t *positions, size_t n, float *hidden,
                               struct terse_error *error) {
    const struct device_model *w = &e->weights;
    const struct terse_model *m = e->model;
    cudaError_t result = weights_gather(&w->embedding, tokens, (uint32_t)n, hidden, false, device_stream());
    if (result == cudaSuccess && w->positions.data)
        result = weights_gather(&w->positions, positions, (uint32_t)n, hidden, true, device_stream());
    if (result == cudaSuccess && m->architecture->scaled_embedding)
        result = rows_scale(hidden, m->embedding_scale, n * m->width, device_stream());
    return device_check(result, "embedding tokens", error);
}

/* ---- Numbers that are not finite: kernels note where, the end of a step checks */

cudaError_t pass_forget_not_finite(struct executor *e) {
    *e->seen = UINT32_MAX;
    return device_send(e->not_finite, e->seen, sizeof *e->seen);
}

static enum terse_status fetch_not_finite(const struct executor *e, struct terse_error *error) {
    return device_check(cudaMemcpyAsync(e->seen, e->not_finite, sizeof *e->seen, cudaMemcpyDeviceToHost, device_stream()),
                        "ending a step", error);
}

/* Checks what was fetched, once the stream has fetched it. */
static enum terse_status check_finite(struct executor *e, struct terse_error *error) {
    uint32_t place = *e->seen;
    if (place == UINT32_MAX) return TERSE_OK;
    enum terse_status status = device_check(pass_forget_not_finite(e), "ending a step", error);
    return status ? status : model_not_finite(e->model, place, error);
}

static enum terse_status seek_not_finite(const struct executor *e, uint32_t place, const float *x, size_t count,
                                         struct terse_error *error) {
    return device_check(rows_seek_not_finite(x, count, e->not_finite, place, device_stream()), "a step", error);
}

/* Computes logits of n rows, n <= logits.rows, and queues the copy to the host's memory of whether all numbers before them were
 * finite. */
static enum terse_status output(const struct executor *e, multiplier *by, const float *hidden, size_t n,
                                struct terse_error *error) {
    const struct terse_model *m = e->model;
    const struct operand normed = {norm_form(e, &e->weights.output_norm, MODEL_BEHIND(m->layers - 1)), hidden, NULL, m->width};
    const struct device_product product = {&e->weights.output, e->logits.device};
    enum terse_status status = by(e, &product, 1, &normed, n, false, error);
    if (!status && m->logit_cap > 0)
        status = device_check(rows_cap(e->logits.device, m->logit_cap, n * m->vocabulary, device_stream()), "logits", error);
    if (!status) status = seek_not_finite(e, MODEL_OUTPUT(m), e->logits.device, n * m->vocabulary, error);
    return status ? status : fetch_not_finite(e, error);
}

/* Queues the copy of n rows of logits to the host's memory. */
static enum terse_status fetch_logits(const struct executor *e, size_t n, struct terse_error *error) {
    size_t bytes = n * e->model->vocabulary * sizeof(float);
    return device_check(cudaMemcpyAsync(e->logits.host, e->logits.device, bytes, cudaMemcpyDeviceToHost, device_stream()),
                        "fetching logits", error);
}

/* Queues the copy of rows of logits to where they are held, and that of the likeliest tokens of all n rows to the host's memory. */
static enum terse_status hold_logits(const struct executor *e, size_t n, struct terse_error *error) {
    const struct top_logits *l = &e->top_logits;
    const struct find_top_logits find = {.logits = e->logits.device,
                                         .n = (uint32_t)n,
                                         .vocabulary = e->model->vocabulary,
                                         .held = e->input->held,
                                         .parts = l->parts,
                                         .top_logits = l->device};
    cudaError_t result = find_top_logits(&find, device_stream());
    if (result == cudaSuccess)
        result = cudaMemcpyAsync(l->host, l->device, n * TOP_LOGITS * sizeof *l->host, cudaMemcpyDeviceToHost, device_stream());
    return device_check(result, "finding the likeliest tokens", error);
}

/* Hands over the sequence's logits among rows [first, first + count) of those of its group whose logits are computed. */
static void hand_over(const struct pass *p, const struct sequence *s, size_t first, size_t count) {
    size_t vocabulary = p->executor->model->vocabulary, n = s->part.n - s->needed;
    size_t begin = s->kept > first ? s->kept : first, end = s->kept + n < first + count ? s->kept + n : first + count;
    if (begin >= end) return;
    if (s->holds) {
        struct device_logits *held = s->part.held;
        held->n = vocabulary < TOP_LOGITS ? vocabulary : TOP_LOGITS;
        memcpy(held->top_logits, p->executor->top_logits.host + begin * TOP_LOGITS, held->n * sizeof *held->top_logits);
        return;
    }
    const float *own = p->executor->logits.host + (begin - first) * vocabulary;
    if (s->part.rows) s->part.rows(s->part.user, s->needed + begin - s->kept, end - begin, own);
    if (end == s->kept + n && s->part.last_logits)
        memcpy(s->part.last_logits, own + (end - begin - 1) * vocabulary, vocabulary * sizeof *own);
}

/* ---- A group that decodes: one piece */

static enum terse_status run_group(const struct pass *p, struct terse_error *error) {
    const struct executor *e = p->executor;
    const struct group *g = group_of(p);
    const struct activations *a = &e->activations;
    enum terse_status status = embed(e, e->input->tokens, e->input->positions, g->rows, a->hidden, error);
    for (uint32_t i = 0; i < e->model->layers && !status; i++) {
        const struct device_layer *l = &e->weights.layer[i];
        status = project(e, l, multiply_each, a->hidden, g->rows, QUERIES | KEYS_AND_VALUES, error);
        const struct kv_rows rows = {.layer = i, .count = g->rows, .k = a->k, .v = a->v, .q = a->q, .out = a->out};
        if (!status) status = e->kv->append(&p->batch, &rows, error);
        if (!status) status = e->kv->attend(&p->batch, &rows, error);
        if (!status) status = e->kv->seal(&p->batch, i, error);
        if (!status) status = finish_layer(e, l, multiply_each, a->hidden, g->rows, error);
    }
    if (status || !g->kept) return status;
    status =
        device_check(rows_pick(a->hidden, e->input->kept, (uint32_t)g->kept, e->model->width, e->logits.hidden, device_stream()),
                     "logits", error);
    if (!status) status = output(e, multiply_each, e->logits.hidden, g->kept, error);
    if (!status && g->holds) status = hold_logits(e, g->kept, error);
    return status || !g->fetches ? status : fetch_logits(e, g->kept, error);
}

/* Sends what the group's kernels read to the device. */
static enum terse_status send_group(struct pass *p, struct terse_error *error) {
    struct executor *e = p->executor;
    const struct group *g = group_of(p);
    size_t row = 0, kept = 0;
    cudaError_t result = cudaEventSynchronize(e->sent);
    for (size_t i = 0; i < g->n_sequences; i++) {
        const struct sequence *s = &g->sequences[i];
        for (size_t t = 0; t < s->part.n; t++, row++) {
            e->staged->tokens[row] = s->part.tokens[t];
            e->staged->positions[row] = (int32_t)(s->length + t);
            if (t < s->needed) continue;
            e->staged->held[kept] = s->holds ? s->part.held->row : NULL;
            e->staged->kept[kept++] = (uint32_t)row;
        }
    }
    if (result == cudaSuccess)
        result = cudaMemcpyAsync(e->input, e->staged, sizeof *e->input, cudaMemcpyHostToDevice, device_stream());
    if (result == cudaSuccess) result = cudaEventRecord(e->sent, device_stream());
    return device_check(result, "sending a step", error);
}

static enum terse_status join(struct pass *p, struct terse_error *error) {
    const struct group *g = group_of(p);
    p->batch = (struct kv_batch){p->cache + (g->sequences - p->sequence), g->n_sequences, g->decodes ? p->executor->batch : NULL};
    return p->executor->kv->join(&p->batch, error);
}

static void drop_graph(struct step_graph *graph) {
    if (graph->launch) cudaGraphExecDestroy(graph->launch);
    *graph = (struct step_graph){0};
}

void pass_drop_graphs(struct executor *e) {
    for (int i = 0; i < GRAPHS; i++) drop_graph(&e->graph[i]);
}

/* Finds the step's graph. If it is new, it takes the place of the one used longest ago and has no launch yet. */
static struct step_graph *find_graph(struct executor *e, uint64_t key, bool *known) {
    struct step_graph *oldest = &e->graph[0];
    *known = false;
    for (struct step_graph *graph = e->graph; graph < e->graph + GRAPHS; graph++) {
        if (graph->used && graph->key == key) *known = true;
        if (graph->used && graph->key == key) return graph;
        if (graph->used < oldest->used) oldest = graph;
    }
    drop_graph(oldest);
    oldest->key = key;
    return oldest;
}

static enum terse_status capture(const struct pass *p, struct step_graph *graph, struct terse_error *error) {
    cudaGraph_t captured = NULL;
    enum terse_status status =
        device_check(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal), "capturing a step", error);
    if (status) return status;
    status = run_group(p, error);
    cudaError_t result =
        cudaStreamEndCapture(device_stream(), &captured); /* also after a failure, or the stream could not be used again */
    if (!status) status = device_check(result, "capturing a step", error);
    if (!status) status = device_check(cudaGraphInstantiate(&graph->launch, captured, 0), "making a graph of a step", error);
    if (captured) cudaGraphDestroy(captured);
    if (status) graph->launch = NULL;
    return status;
}

/* Launches the group's step. A step that comes for the first time is launched kernel by kernel, which loads the kernels. */
static enum terse_status launch_group(struct pass *p, struct terse_error *error) {
    struct executor *e = p->executor;
    const struct group *g = group_of(p);
    bool known;
    uint64_t key = ((batch_key(e->batch) * 31 + g->rows) * 131 + g->kept) * 4 + g->holds * 2 + g->fetches;
    struct step_graph *graph = find_graph(e, key, &known);
    graph->used = ++e->steps;
    enum terse_status status = known && !graph->launch ? capture(p, graph, error) : TERSE_OK;
    if (status) return status;
    return known ? device_check(cudaGraphLaunch(graph->launch, device_stream()), "launching a step", error) : run_group(p, error);
}

static void begin_group(struct pass *p) {
    p->layer = 0;
    p->stage = STAGE_KEYS;
    p->row = 0;
}

/* Tells caches how large the residual stream is, where they need it. */
static enum terse_status note_residual(const struct pass *p, struct terse_error *error) {
    const uint32_t layers = p->executor->model->layers;
    enum terse_status status = TERSE_OK;
    int64_t *sums = memory_array(p->n_groups * (size_t)layers, sizeof *sums);
    if (!sums) return status_no_memory(error, p->n_groups * (size_t)layers * sizeof *sums, "a step");
    status = device_check(device_fetch(sums, p->residual, p->n_groups * layers * sizeof *sums), "ending a step", error);
    for (size_t g = 0; g < p->n_groups && !status; g++) {
        const struct step_part *part = &p->group[g].sequences->part;
        for (uint32_t layer = 0; layer < layers && !p->group[g].decodes && parts_wants_residual(part->cache); layer++)
            parts_note_residual(part->cache, layer, sums[g * layers + layer], part->n);
    }
    memory_free(sums);
    return status;
}

/* Commits the group's caches, but not before all of the step is computed. */
static enum terse_status end_group(struct pass *p, struct terse_error *error) {
    bool last = p->at + 1 == p->n_groups, fetched = group_of(p)->kept > 0;
    enum terse_status status = TERSE_OK;
    if (last && !fetched) status = fetch_not_finite(p->executor, error);
    if (last && !status) status = device_check(cudaStreamSynchronize(device_stream()), "a step", error);
    if (last && !fetched && !status) status = check_finite(p->executor, error);
    if (status) return status;
    p->before += group_of(p)->rows;
    p->at++;
    begin_group(p);
    if (last && p->notes_residual) status = note_residual(p, error);
    for (size_t i = 0; i < p->n_sequences && last && !status; i++)
        status = p->executor->kv->commit(p->sequence[i].part.cache, error);
    return status;
}

static enum terse_status run_decoding(struct pass *p, struct terse_error *error) {
    const struct group *g = group_of(p);
    enum terse_status status = send_group(p, error);
    if (!status) status = join(p, error);
    if (!status) status = launch_group(p, error);
    if (!status && g->kept) status = device_check(cudaStreamSynchronize(device_stream()), "a decoding step", error);
    if (!status && g->kept) status = check_finite(p->executor, error);
    for (size_t i = 0; i < g->n_sequences && g->kept && !status; i++) hand_over(p, &g->sequences[i], 0, g->kept);
    return status ? status : end_group(p, error);
}

/* ---- A group that does not decode: one part, a panel at a time */

/* Returns how many of the first rows the layer need not pass on. */
static size_t not_needed(const struct pass *p) { return last_layer(p) ? group_of(p)->sequences->needed : 0; }

static size_t panel_rows(const struct pass *p) {
    const struct group *g = group_of(p);
    size_t most = pass_panel(p->executor->model, g->sequences->length, g->rows), left = g->rows - p->row;
    return left < most ? left : most;
}

static float *hidden_at(const struct pass *p, size_t row) { return p->hidden + row * p->executor->model->width; }

static enum terse_status send_part(const struct pass *p, struct terse_error *error) {
    const struct sequence *s = group_of(p)->sequences;
    cudaError_t result =
        cudaMemcpyAsync(p->tokens, s->part.tokens, s->part.n * sizeof *p->tokens, cudaMemcpyHostToDevice, device_stream());
    for (size_t t = 0; t < s->part.n && p->executor->weights.positions.data;
         t += GROUP_ROWS) { /* such models have short contexts */
        int32_t positions[GROUP_ROWS];
        size_t count = s->part.n - t < GROUP_ROWS ? s->part.n - t : GROUP_ROWS;
        for (size_t i = 0; i < count; i++) positions[i] = (int32_t)(s->length + t + i);
        if (result == cudaSuccess)
            result =
                cudaMemcpyAsync(p->positions + t, positions, count * sizeof *positions, cudaMemcpyHostToDevice, device_stream());
    }
    if (result == cudaSuccess) result = cudaStreamSynchronize(device_stream()); /* what was copied may go */
    return device_check(result, "sending a prompt", error);
}

static enum terse_status run_keys(struct pass *p, size_t count, struct terse_error *error) {
    const struct executor *e = p->executor;
    const struct activations *a = &e->activations;
    const struct kv_rows rows = {.layer = p->layer, .first = p->row, .count = count, .k = a->k, .v = a->v};
    enum terse_status status = TERSE_OK;
    if (p->layer == 0 && p->row == 0 && !(status = join(p, error))) status = send_part(p, error);
    if (p->layer == 0 && !status) status = embed(e, p->tokens + p->row, p->positions + p->row, count, hidden_at(p, p->row), error);
    if (p->notes_residual && !status)
        status = device_check(rows_sum_log_squares(hidden_at(p, p->row), (uint32_t)count, e->model->width, RESIDUAL_UNIT,
                                                   p->residual + p->at * e->model->layers + p->layer, device_stream()),
                              "a step", error);
    if (!status) status = project(e, layer_of(p), multiply, hidden_at(p, p->row), count, KEYS_AND_VALUES, error);
    if (!status) status = seek_not_finite(e, MODEL_BEHIND(p->layer), a->k, count * model_kv_width(e->model), error);
    if (!status) status = seek_not_finite(e, MODEL_BEHIND(p->layer), a->v, count * model_kv_width(e->model), error);
    return status ? status : e->kv->append(&p->batch, &rows, error);
}

/* Projects the queries of n rows, whose hidden states follow one another. */
static enum terse_status project_queries(const struct pass *p, const float *hidden, size_t n, struct terse_error *error) {
    const struct executor *e = p->executor;
    float *q = e->activations.q;
    enum terse_status status = project(e, layer_of(p), multiply, hidden, n, QUERIES, error);
    return status ? status : seek_not_finite(e, MODEL_BEHIND(p->layer), q, n * model_query_width(e->model), error);
}

static enum terse_status run_observe(struct pass *p, size_t count, struct terse_error *error) {
    const struct kv_rows rows = {.layer = p->layer, .first = p->row, .count = count, .q = p->executor->activations.q};
    enum terse_status status = project_queries(p, hidden_at(p, p->row), count, error);
    return status ? status : p->executor->kv->observe(&p->batch, &rows, error);
}

/* Computes what follows the keys and values of a layer, of rows in one or two places of the batch, whose hidden states follow one another. */
static enum terse_status run_queries(struct pass *p, float *hidden, struct kv_rows one, struct kv_rows other,
                                     struct terse_error *error) {
    const struct executor *e = p->executor;
    const struct activations *a = &e->activations;
    const size_t n = one.count + other.count, behind = one.count * model_query_width(e->model);
    one.q = a->q, one.out = a->out;
    other.q = a->q + behind, other.out = a->out + behind;
    enum terse_status status = project_queries(p, hidden, n, error);
    if (!status) status = e->kv->attend(&p->batch, &one, error);
    if (!status) status = e->kv->attend(&p->batch, &other, error);
    return status ? status : finish_layer(e, layer_of(p), multiply, hidden, n, error);
}

/* ---- Queries that ranks share.
 *
 * Every rank has the hidden states of all tokens and, of the layer in progress, all keys and values. So it seals its pages, and fits to the sequence,
 * as one process does. What follows the keys and values is shared: up to a panel of rows for each of n ranks is cut into 2n strips, and rank r
 * computes the r-th from the beginning and the r-th from the end, so that the queries of all ranks see as many tokens (zigzag). Both strips go
 * through products as one panel. Then ranks gather the hidden states, so that all have the bits of the rank that computed them.
 *
 * Every rank computes all rows where it cannot attend without the others, and the last rows of a prompt where these are PANEL_LEAST or fewer. */

/* These rows of a part are computed by all ranks together, between two exchanges. */
struct shared_rows {
    size_t first, count;
    size_t strip; /* rows of a strip; the last ones are shorter or empty */
};

static struct shared_rows next_shared(const struct pass *p) {
    const struct sequence *s = group_of(p)->sequences;
    const size_t left = group_of(p)->rows - p->row, ranks = p->ranks->ranks,
                 strip = shared_strip(p->executor->model, p->ranks->ranks, s->length, s->part.n, left);
    return (struct shared_rows){p->row, size_min(left, 2 * ranks * strip), strip};
}

static bool is_shared(const struct pass *p) {
    const struct group *g = group_of(p);
    return p->ranks && g->rows - p->row > PANEL_LEAST && parts_attends_alone(g->sequences->part.cache, p->layer);
}

/* Returns a strip as rows of the part, by its place in p->shares, which has the two of rank 0, then those of rank 1, and so on. */
static struct kv_rows strip_at(const struct pass *p, const struct shared_rows *shared, uint32_t place) {
    const size_t number = place % 2 ? 2 * p->ranks->ranks - 1 - place / 2 : place / 2,
                 first = size_min(number * shared->strip, shared->count), end = size_min(first + shared->strip, shared->count);
    return (struct kv_rows){.layer = p->layer, .first = shared->first + first, .count = end - first};
}

/* Returns a rank's share. */
static float *share_of(const struct pass *p, const struct shared_rows *shared, uint32_t rank) {
    return p->shares + rank * share_floats(p->executor->model, shared->strip);
}

/* Copies a strip's hidden states to its place in p->shares, or from there. */
static enum terse_status copy_strip(const struct pass *p, const struct shared_rows *shared, uint32_t place, bool from,
                                    struct terse_error *error) {
    const struct kv_rows rows = strip_at(p, shared, place);
    const size_t width = p->executor->model->width, bytes = rows.count * width * sizeof *p->shares;
    float *hidden = hidden_at(p, rows.first), *share = share_of(p, shared, place / 2) + place % 2 * shared->strip * width;
    cudaError_t result = cudaSuccess;
    if (bytes && from) result = cudaMemcpyAsync(hidden, share, bytes, cudaMemcpyDeviceToDevice, device_stream());
    if (bytes && !from) result = cudaMemcpyAsync(share, hidden, bytes, cudaMemcpyDeviceToDevice, device_stream());
    return device_check(result, "sharing a prompt", error);
}

/* Computes this rank's strips where they lie in p->shares. */
static enum terse_status run_strips(struct pass *p, const struct shared_rows *shared, struct terse_error *error) {
    const uint32_t place = 2 * p->ranks->rank;
    const struct kv_rows one = strip_at(p, shared, place), other = strip_at(p, shared, place + 1);
    if (!one.count) return TERSE_OK;
    enum terse_status status = copy_strip(p, shared, place, false, error);
    if (!status) status = copy_strip(p, shared, place + 1, false, error);
    return status ? status : run_queries(p, share_of(p, shared, p->ranks->rank), one, other, error);
}

/* Gathers the shares. All ranks note what one of them has found not to be finite, or it alone would end the step. */
static enum terse_status gather_shares(const struct pass *p, const struct shared_rows *shared, struct terse_error *error) {
    const struct executor *e = p->executor;
    const size_t floats = share_floats(e->model, shared->strip), note = 2 * shared->strip * e->model->width;
    cudaError_t result = cudaMemcpyAsync(share_of(p, shared, p->ranks->rank) + note, e->not_finite, sizeof *e->not_finite,
                                         cudaMemcpyDeviceToDevice, device_stream());
    enum terse_status status = device_check(result, "sharing a prompt", error);
    if (!status) status = ranks_gather(p->ranks, p->shares, floats * sizeof *p->shares, error);
    if (status) return status;
    const uint32_t *noted = (const uint32_t *)(p->shares + note);
    return device_check(rows_lower_not_finite(noted, floats, p->ranks->ranks, e->not_finite, device_stream()), "sharing a prompt",
                        error);
}

static enum terse_status run_shared(struct pass *p, const struct shared_rows *shared, struct terse_error *error) {
    enum terse_status status = run_strips(p, shared, error);
    if (!status) status = gather_shares(p, shared, error);
    for (uint32_t place = 0; place < 2 * p->ranks->ranks && !status; place++) status = copy_strip(p, shared, place, true, error);
    return status;
}

/* Moves on past a panel of `count` rows; returns whether rows are left. */
static bool next_panel(struct pass *p, size_t count) {
    p->row += count;
    return p->row < group_of(p)->rows;
}

static void begin_queries(struct pass *p, size_t row) {
    p->row = row;
    p->stage = p->row < group_of(p)->rows ? STAGE_QUERIES : STAGE_SEAL;
}

/* Goes on after the keys and values of the layer. Queries that policies observe are observed as they attend, unless all are to be
 * observed before. */
static void end_keys(struct pass *p) {
    const size_t needed = not_needed(p);
    size_t first, end = p->executor->kv->queries_to_observe(&p->batch, needed, &first);
    if (end <= needed) {
        begin_queries(p, first < end ? first : needed);
        return;
    }
    p->row = first;
    p->stage = STAGE_OBSERVE;
}

static void end_layer(struct pass *p) {
    bool last = last_layer(p);
    p->stage = last ? STAGE_OUTPUT : STAGE_KEYS;
    p->row = last ? group_of(p)->sequences->needed : 0;
    if (!last) p->layer++;
}

static enum terse_status run_output(struct pass *p, struct terse_error *error) {
    struct executor *e = p->executor;
    const struct group *g = group_of(p);
    size_t left = g->rows - p->row, count = left < e->logits.rows ? left : e->logits.rows;
    if (!left) return end_group(p, error);
    enum terse_status status = output(e, multiply, hidden_at(p, p->row), count, error);
    if (!status) status = fetch_logits(e, count, error);
    if (!status) status = device_check(cudaStreamSynchronize(device_stream()), "a prompt", error);
    if (!status) status = check_finite(p->executor, error);
    if (status) return status;
    hand_over(p, g->sequences, p->row - g->sequences->needed, count);
    return next_panel(p, count) ? TERSE_OK : end_group(p, error);
}

/* Computes queries as run_panel() does. Pieces end at the same place on all ranks. */
static enum terse_status run_some_queries(struct pass *p, double *left, struct terse_error *error) {
    const bool shares = is_shared(p);
    const struct shared_rows rows = shares ? next_shared(p) : (struct shared_rows){p->row, panel_rows(p), 0};
    const uint64_t tokens = group_of(p)->sequences->length + rows.first + rows.count;
    *left -= (double)rows.count / (shares ? p->ranks->ranks : 1) * multiplications(p->executor->model, tokens);
    const struct kv_rows all = {.layer = p->layer, .first = p->row, .count = rows.count}, none = {.layer = p->layer};
    enum terse_status status = shares ? run_shared(p, &rows, error) : run_queries(p, hidden_at(p, p->row), all, none, error);
    if (!next_panel(p, rows.count)) p->stage = STAGE_SEAL;
    return status;
}

/* Computes a panel of a stage; subtracts its multiplications from *left. */
static enum terse_status run_panel(struct pass *p, double *left, struct terse_error *error) {
    const struct group *g = group_of(p);
    const struct terse_model *m = p->executor->model;
    size_t count = panel_rows(p);
    enum terse_status status;
    switch (p->stage) {
    case STAGE_KEYS:
        *left -= (double)count * 2 * (double)model_kv_width(m) * m->width;
        status = run_keys(p, count, error);
        if (!next_panel(p, count)) end_keys(p);
        return status;
    case STAGE_OBSERVE:
        *left -= (double)count * multiplications(m, g->sequences->length + p->row + count);
        status = run_observe(p, count, error);
        if (!next_panel(p, count)) begin_queries(p, not_needed(p));
        return status;
    case STAGE_QUERIES: return run_some_queries(p, left, error);
    case STAGE_SEAL:
        *left -= (double)g->rows * (double)model_kv_width(m) * m->width; /* about as much as making what is sealed */
        status = p->executor->kv->seal(&p->batch, p->layer, error);
        end_layer(p);
        return status;
    default: *left = 0; return run_output(p, error);
    }
}

/* ---- Pieces */

void pass_begin(struct pass *p) {
    p->at = p->before = 0;
    begin_group(p);
}

/* Waits until few enough pieces are queued for another. */
static enum terse_status end_piece(struct executor *e, struct terse_error *error) {
    cudaEvent_t oldest = e->piece[e->pieces++ % PIECES_AHEAD];
    cudaError_t result = cudaEventRecord(oldest, device_stream());
    if (result == cudaSuccess) result = cudaEventSynchronize(e->piece[e->pieces % PIECES_AHEAD]);
    return device_check(result, "a prompt", error);
}

enum terse_status pass_advance(struct pass *p, struct terse_error *error) {
    double left = PIECE_MULTIPLICATIONS;
    enum terse_status status = TERSE_OK;
    if (done(p)) return TERSE_OK;
    if (group_of(p)->decodes) return run_decoding(p, error);
    for (size_t at = p->at; p->at == at && left > 0 && !status;) status = run_panel(p, &left, error);
    return status ? status : end_piece(p->executor, error);
}

struct step_progress pass_progress(const struct pass *p) {
    uint64_t layers = p->executor->model->layers, total = layers * p->n;
    if (done(p)) return (struct step_progress){total, total};
    uint64_t rows = p->stage >= STAGE_SEAL ? group_of(p)->rows : p->stage == STAGE_QUERIES ? p->row : 0;
    uint64_t at = p->before * layers + p->layer * group_of(p)->rows + rows;
    return (struct step_progress){at < total ? at : total - 1, total};
}
