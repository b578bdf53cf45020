/* Implements the operations of learning on windows. Owns a copy of the model's weights, the memory of what products and attention
 * need beside their operands, and the first failure of what is queued, which the next fetch tells.
 *
 * Products with weights take both operands as halves, as those of a prompt do (gemm.h); attention's take floats, rounded to TF32. So
 * rows are some 1e-3 of their size apart from the CPU's. Sums are made in an order that depends on shapes alone. */
#include "backend/cuda/learning.h"

#include "backend/cuda/device.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/learning_kernels.h"
#include "backend/cuda/model.h"
#include "backend/cuda/rows.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/architecture.h"

#include <stddef.h>
#include <string.h>

#define PANEL 2048                      /* tokens: enough that converting weights to halves costs little */
#define LOGIT_BYTES ((size_t)512 << 20) /* of a panel of logits, for the same reason */
#define STAYING_BYTES ((size_t)4 << 30) /* of rows that stay for the backward sweep, where there is room */
#define BESIDES ((size_t)1 << 30)       /* bytes that are kept free beside the weights: rows of a short window */

static const char what[] = "windows to learn from";

size_t learning_logit_bytes = (size_t)256 << 20;

/* A buffer grows to the largest of what was asked for. */
struct buffer {
    void *memory;
    size_t bytes;
};

struct turns {
    float *cosine, *sine; /* [tokens][n_rot / 2] */
};

struct learner {
    const struct terse_model *model;
    size_t tokens;
    struct device_model weights;
    struct gemm *gemm;
    struct turns turns[2]; /* of most layers, and of sliding ones that have a rotation of their own */
    float *slopes, *sinks; /* [Hq], [layers][Hq]; NULL where the model has none */
    struct buffer ids, halves, sizes, product, logits, d_logits, products, d_q, draws, losses;
    uint32_t *not_finite;
    enum terse_status status; /* of the first failure */
    struct terse_error error;
};

/* ---- Failures */

static bool works(const struct learner *l) { return !l->status; }

static void note(struct learner *l, enum terse_status status) {
    if (!l->status) l->status = status;
}

static void check(struct learner *l, cudaError_t result) {
    if (works(l)) note(l, device_check(result, "learning", &l->error));
}

static enum terse_status tell(const struct learner *l, struct terse_error *error) {
    return works(l) ? TERSE_OK : status_fail(error, l->status, "%s", l->error.message);
}

/* ---- Memory */

/* Returns the buffer's memory, of so many bytes at least; NULL after a failure. Freeing waits for what is queued with the old one. */
static void *grow(struct learner *l, struct buffer *buffer, size_t bytes) {
    if (!works(l)) return NULL;
    if (buffer->bytes >= bytes) return buffer->memory;
    cudaStreamSynchronize(device_stream());
    device_free(NULL, buffer->memory, buffer->bytes);
    *buffer = (struct buffer){device_alloc(NULL, bytes, what, &l->error), bytes};
    if (buffer->memory) return buffer->memory;
    buffer->bytes = 0;
    note(l, TERSE_E_MEMORY);
    return NULL;
}

static float *reserve(struct learner *l, size_t count, size_t each, struct terse_error *error) {
    (void)l;
    if (each && count > SIZE_MAX / sizeof(float) / each) {
        status_no_memory(error, SIZE_MAX, what);
        return NULL;
    }
    return device_alloc(NULL, count * each * sizeof(float), what, error);
}

static void release(struct learner *l, float *rows) {
    (void)l;
    device_free(NULL, rows, 0);
}

static float *stage(struct learner *l, size_t count, size_t each, struct terse_error *error) {
    void *memory = NULL;
    const size_t bytes = count * each * sizeof(float);
    (void)l;
    if (cudaMallocHost(&memory, bytes ? bytes : 1) == cudaSuccess) return memory; /* page-locked */
    cudaGetLastError();
    status_no_memory(error, bytes, what);
    return NULL;
}

static void unstage(struct learner *l, float *memory) {
    (void)l;
    if (memory) cudaFreeHost(memory);
}

static enum terse_status fetch(struct learner *l, const float *from, size_t n, float *to, struct terse_error *error) {
    if (works(l) && n) check(l, device_fetch(to, from, n * sizeof *to));
    return tell(l, error);
}

static enum terse_status check_finite(struct learner *l, uint32_t place, const float *x, size_t n, size_t width,
                                      struct terse_error *error) {
    uint32_t first = UINT32_MAX;
    if (works(l)) check(l, rows_seek_not_finite(x, n * width, l->not_finite, place, device_stream()));
    if (works(l)) check(l, device_fetch(&first, l->not_finite, sizeof first));
    if (!works(l) || first == UINT32_MAX) return tell(l, error);
    check(l, cudaMemsetAsync(l->not_finite, 0xff, sizeof *l->not_finite, device_stream())); /* for the next window */
    return model_not_finite(l->model, place, error);
}

/* ---- Forward */

static void embed(struct learner *l, const int32_t *tokens, size_t n, float *hidden) {
    const struct terse_model *m = l->model;
    int32_t *ids = grow(l, &l->ids, 2 * l->tokens * sizeof *ids), *positions = memory_array(n, sizeof *positions);
    if (!positions) note(l, status_no_memory(&l->error, n * sizeof *positions, what));
    for (size_t i = 0; i < n && works(l); i++) positions[i] = (int32_t)i;
    if (works(l)) check(l, device_send(ids, tokens, n * sizeof *ids));
    if (works(l)) check(l, device_send(ids + l->tokens, positions, n * sizeof *ids));
    if (works(l)) check(l, weights_gather(&l->weights.embedding, ids, (uint32_t)n, hidden, false, device_stream()));
    if (works(l) && l->weights.positions.data)
        check(l, weights_gather(&l->weights.positions, ids + l->tokens, (uint32_t)n, hidden, true, device_stream()));
    if (works(l) && m->embedding_scale != 1) check(l, rows_scale(hidden, m->embedding_scale, n * m->width, device_stream()));
    memory_free(positions);
}

static void copy(struct learner *l, float *to, const float *from, size_t n, size_t width) {
    if (!works(l) || to == from) return;
    check(l, cudaMemcpyAsync(to, from, n * width * sizeof *to, cudaMemcpyDeviceToDevice, device_stream()));
}

static void norm(struct learner *l, const struct norm *of, const float *x, float *out, size_t n, size_t width) {
    copy(l, out, x, n, width);
    if (works(l)) check(l, rows_norm(*device_model_norm(&l->weights, of), out, (uint32_t)n, (uint32_t)width, 0, device_stream()));
}

static void clear(struct learner *l, float *x, size_t n) {
    if (works(l)) check(l, cudaMemsetAsync(x, 0, n * sizeof *x, device_stream()));
}

static void add(struct learner *l, float *x, const float *y, size_t n, size_t width) {
    if (works(l)) check(l, learning_add(x, y, n * width, device_stream()));
}

static void clamp(struct learner *l, float *x, float most, size_t n, size_t width) {
    if (works(l)) check(l, rows_clamp(x, most, n * width, device_stream()));
}

static void cap(struct learner *l, float *x, float at, size_t n, size_t width) {
    if (works(l)) check(l, rows_cap(x, at, n * width, device_stream()));
}

static void activate(struct learner *l, enum activation activation, float *x, const float *up, size_t n, size_t width) {
    if (works(l)) check(l, learning_activate(activation, x, up, n * width, device_stream()));
}

static bool turns_apart(const struct terse_model *m, uint32_t layer) { return m->sliding_rope.n_rot && model_slides(m, layer); }

static void turn(struct learner *l, uint32_t layer, enum window_turn how, float *rows, size_t n, uint32_t heads) {
    const bool apart = turns_apart(l->model, layer);
    const struct turns *turns = &l->turns[apart];
    struct rope rope = apart ? l->model->sliding_rope : l->model->rope;
    if (!works(l) || !rope.n_rot) return;
    if (how == WINDOW_TURN_GRADIENTS) rope.magnitude = 1 / rope.magnitude;
    check(l, learning_turn(rope, turns->cosine, turns->sine, how == WINDOW_TURN_BACK, rows, (uint32_t)n, heads, device_stream()));
}

/* Makes halves of x[n][width], as products take them. */
static struct device_vectors operand(struct learner *l, const float *x, size_t n, size_t width) {
    const struct device_vectors to = {.halves = grow(l, &l->halves, n * memory_round_up(width, 32) * 2),
                                      .sizes = grow(l, &l->sizes, n * sizeof(float))};
    if (works(l))
        check(l, rows_prepare((struct row_form){.kind = ROW_PLAIN}, x, NULL, (uint32_t)n, (uint32_t)width, &to, device_stream()));
    return to;
}

static void linear(struct learner *l, const struct linear_op *ops, size_t n_ops, const float *x, size_t n) {
    const struct device_vectors halves = operand(l, x, n, ops[0].w->columns);
    for (size_t i = 0; i < n_ops && works(l); i++)
        note(l, gemm_multiply(l->gemm, device_model_matrix(&l->weights, ops[i].w), &halves, (uint32_t)n, ops[i].out, false, NULL,
                              device_stream(), &l->error));
}

/* ---- Attention: tiles of queries, by products over all KV heads for each of the G query heads that share one */

static struct learning_tile tile_at(const struct learner *l, const struct attention *a, size_t first, size_t count) {
    const size_t end = first + count;
    return (struct learning_tile){.kv_heads = a->kv_heads,
                                  .group = a->query_heads / a->kv_heads,
                                  .head_dim = a->head_dim,
                                  .first = (uint32_t)first,
                                  .count = (uint32_t)count,
                                  .keys = (uint32_t)end,
                                  .stride = memory_round_up(end, 32),
                                  .cap = a->cap,
                                  .slopes = a->slopes ? l->slopes : NULL,
                                  .sinks = a->sinks ? l->sinks + (a->sinks - l->model->sinks) : NULL,
                                  .window = (uint32_t)a->window};
}

/* Returns how many tokens' queries are a tile. */
static size_t tile_tokens(const struct attention *a) {
    const size_t token = a->query_heads * memory_round_up(a->n, 32) * sizeof(float), most = learning_logit_bytes / token;
    return most < 1 ? 1 : most < a->n ? most : a->n;
}

static float *logits_for(struct learner *l, struct buffer *buffer, const struct attention *a) {
    return grow(l, buffer, tile_tokens(a) * a->query_heads * memory_round_up(a->n, 32) * sizeof(float));
}

/* Returns the tile's rows of head g of each group, of an array [n][Hq][hd]. */
static size_t rows_of(const struct learning_tile *t, uint32_t g) {
    return ((size_t)t->first * t->kv_heads * t->group + g) * t->head_dim;
}

static size_t logits_of(const struct learning_tile *t, uint32_t g) { return (size_t)g * t->kv_heads * t->count * t->stride; }

/* Computes logits[G][Hk][count][stride] = factor rows[n][Hq][hd] of the tile times keys [n][Hk][hd]. */
static void multiply_keys(struct learner *l, const struct learning_tile *t, const float *rows, const float *keys, float factor,
                          float *logits) {
    const size_t q_stride = (size_t)t->kv_heads * t->group * t->head_dim, k_stride = (size_t)t->kv_heads * t->head_dim;
    for (uint32_t g = 0; g < t->group && works(l); g++) {
        const struct float_product product = {.m = t->count,
                                              .n = t->keys,
                                              .k = t->head_dim,
                                              .batch = t->kv_heads,
                                              .a = rows + rows_of(t, g),
                                              .b = keys,
                                              .out = logits + logits_of(t, g),
                                              .b_transposed = true,
                                              .factor = factor,
                                              .a_stride = q_stride,
                                              .b_stride = k_stride,
                                              .out_stride = t->stride,
                                              .a_apart = (size_t)t->group * t->head_dim,
                                              .b_apart = t->head_dim,
                                              .out_apart = t->count * t->stride};
        note(l, gemm_floats(l->gemm, &product, device_stream(), &l->error));
    }
}

/* Computes rows[count][Hq][hd] = factor weights times values [n][Hk][hd]. */
static void multiply_values(struct learner *l, const struct learning_tile *t, const float *weights, const float *values,
                            float factor, float *rows) {
    const size_t q_stride = (size_t)t->kv_heads * t->group * t->head_dim, k_stride = (size_t)t->kv_heads * t->head_dim;
    for (uint32_t g = 0; g < t->group && works(l); g++) {
        const struct float_product product = {.m = t->count,
                                              .n = t->head_dim,
                                              .k = t->keys,
                                              .batch = t->kv_heads,
                                              .a = weights + logits_of(t, g),
                                              .b = values,
                                              .out = rows + (size_t)g * t->head_dim,
                                              .factor = factor,
                                              .a_stride = t->stride,
                                              .b_stride = k_stride,
                                              .out_stride = q_stride,
                                              .a_apart = t->count * t->stride,
                                              .b_apart = t->head_dim,
                                              .out_apart = (size_t)t->group * t->head_dim};
        note(l, gemm_floats(l->gemm, &product, device_stream(), &l->error));
    }
}

/* Adds to sums[n][Hk][hd] factor times the transposed weights times rows[n][Hq][hd] of the tile. */
static void add_outer(struct learner *l, const struct learning_tile *t, const float *weights, const float *rows, float factor,
                      float *sums) {
    const size_t q_stride = (size_t)t->kv_heads * t->group * t->head_dim, k_stride = (size_t)t->kv_heads * t->head_dim;
    for (uint32_t g = 0; g < t->group && works(l); g++) {
        const struct float_product product = {.m = t->keys,
                                              .n = t->head_dim,
                                              .k = t->count,
                                              .batch = t->kv_heads,
                                              .a = weights + logits_of(t, g),
                                              .b = rows + rows_of(t, g),
                                              .out = sums,
                                              .a_transposed = true,
                                              .add = true,
                                              .factor = factor,
                                              .a_stride = t->stride,
                                              .b_stride = q_stride,
                                              .out_stride = k_stride,
                                              .a_apart = t->count * t->stride,
                                              .b_apart = (size_t)t->group * t->head_dim,
                                              .out_apart = t->head_dim};
        note(l, gemm_floats(l->gemm, &product, device_stream(), &l->error));
    }
}

static void attend(struct learner *l, const struct attention *a, float *out, float *log_sum) {
    float *logits = logits_for(l, &l->logits, a);
    for (size_t first = 0, count; first < a->n && works(l); first += count) {
        count = tile_tokens(a) < a->n - first ? tile_tokens(a) : a->n - first;
        const struct learning_tile tile = tile_at(l, a, first, count);
        multiply_keys(l, &tile, a->q, a->k, a->scale, logits);
        if (works(l)) check(l, learning_softmax(&tile, logits, log_sum, device_stream()));
        multiply_values(l, &tile, logits, a->v, 1, out + first * a->query_heads * a->head_dim);
    }
}

static void attend_backward(struct learner *l, const struct attention *a, const float *out, const float *log_sum,
                            const float *d_out, float *dk, float *dv, bool queries) {
    const size_t width = (size_t)a->query_heads * a->head_dim, kv_floats = a->n * a->kv_heads * a->head_dim;
    float *logits = logits_for(l, &l->logits, a), *d_logits = logits_for(l, &l->d_logits, a),
          *products = grow(l, &l->products, tile_tokens(a) * a->query_heads * sizeof *products),
          *d_q = grow(l, &l->d_q, tile_tokens(a) * width * sizeof *d_q);
    clear(l, dk, kv_floats);
    clear(l, dv, kv_floats);
    for (size_t first = 0, count; first < a->n && works(l); first += count) {
        count = tile_tokens(a) < a->n - first ? tile_tokens(a) : a->n - first;
        const struct learning_tile tile = tile_at(l, a, first, count);
        multiply_keys(l, &tile, a->q, a->k, a->scale, logits);
        multiply_keys(l, &tile, d_out, a->v, 1, d_logits);
        if (works(l)) check(l, learning_products(&tile, d_out, out, products, device_stream()));
        if (works(l)) check(l, learning_softmax_backward(&tile, log_sum, products, logits, d_logits, device_stream()));
        add_outer(l, &tile, logits, d_out, 1, dv);
        add_outer(l, &tile, d_logits, a->q, a->scale, dk);
        if (!queries) continue;
        multiply_values(l, &tile, d_logits, a->k, a->scale, d_q);
        copy(l, a->q + first * width, d_q, count, width); /* the tile's queries are read no more */
    }
}

/* ---- Backward */

static void linear_backward(struct learner *l, const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx) {
    const struct device_vectors halves = operand(l, dy, n, w->rows);
    float *product = accumulate ? grow(l, &l->product, n * w->columns * sizeof *product) : NULL;
    if (works(l))
        note(l, gemm_multiply_back(l->gemm, device_model_matrix(&l->weights, w), &halves, (uint32_t)n, dx, accumulate, product,
                                   device_stream(), &l->error));
}

static void norm_backward(struct learner *l, const struct norm *of, const float *x, float *d, size_t n, size_t width) {
    if (works(l))
        check(l, learning_norm_backward(*device_model_norm(&l->weights, of), x, d, (uint32_t)n, (uint32_t)width, device_stream()));
}

static void clamp_backward(struct learner *l, const float *x, float most, float *d, size_t n, size_t width) {
    if (works(l)) check(l, learning_clamp_backward(x, most, d, n * width, device_stream()));
}

static void cap_backward(struct learner *l, const float *capped, float at, float *d, size_t n, size_t width) {
    if (works(l)) check(l, learning_cap_backward(capped, at, d, n * width, device_stream()));
}

static void activation_backward(struct learner *l, enum activation activation, float *x, float *up, const float *d, size_t n,
                                size_t width) {
    if (works(l)) check(l, learning_activation_backward(activation, x, up, d, n * width, device_stream()));
}

/* Sends the targets of n rows, or the numbers by which they are drawn. */
static void send_targets(struct learner *l, const struct targets *targets, size_t n, int32_t *ids, double *draws) {
    double *numbers = memory_array(n, sizeof *numbers);
    if (!numbers) note(l, status_no_memory(&l->error, n * sizeof *numbers, what));
    for (size_t i = 0; i < n && numbers; i++) numbers[i] = random_uniform(random_mix(targets->seed + i * RANDOM_STEP));
    if (works(l) && targets->tokens) check(l, device_send(ids, targets->tokens, n * sizeof *ids));
    if (works(l) && !targets->tokens) check(l, cudaMemsetAsync(ids, 0xff, n * sizeof *ids, device_stream()));
    if (works(l)) check(l, device_send(draws, numbers, n * sizeof *draws));
    memory_free(numbers);
}

static void cross_entropy(struct learner *l, float *logits, const struct targets *targets, size_t n, float scale, double *loss) {
    int32_t *ids = grow(l, &l->ids, 2 * l->tokens * sizeof *ids);
    double *draws = grow(l, &l->draws, n * sizeof *draws), *losses = grow(l, &l->losses, n * sizeof *losses);
    if (works(l)) send_targets(l, targets, n, ids, draws);
    if (works(l))
        check(l, learning_cross_entropy(logits, ids, draws, (uint32_t)n, l->model->vocabulary, scale, losses, device_stream()));
    if (works(l)) check(l, device_fetch(loss, losses, n * sizeof *loss));
    for (size_t i = 0; i < n && !works(l); i++) loss[i] = 0;
}

/* ---- Life */

static enum terse_status supports(const struct terse_model *model, struct terse_error *error) {
    if (!model->recurrent && !model->latent.rank && !model->experts && !model->architecture->gated_heads) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED, "windows of %s models are computed on the CPU", model->architecture->name);
}

static float *send(const float *from, size_t n, struct terse_error *error) {
    float *memory = device_alloc(NULL, n * sizeof *memory, what, error);
    if (!memory || !device_check(device_send(memory, from, n * sizeof *memory), "uploading weights", error)) return memory;
    device_free(NULL, memory, n * sizeof *memory);
    return NULL;
}

static enum terse_status send_turns(const struct rope *rope, size_t tokens, struct turns *turns, struct terse_error *error) {
    const size_t pairs = rope->n_rot / 2;
    if (!pairs) return TERSE_OK;
    float *angles = memory_array(2 * tokens, pairs * sizeof *angles), *sine = angles + tokens * pairs;
    if (!angles) return status_no_memory(error, 2 * tokens * pairs * sizeof *angles, what);
    for (size_t t = 0; t < tokens; t++) rope_angles(rope, (int64_t)t, angles + t * pairs, sine + t * pairs);
    turns->cosine = send(angles, tokens * pairs, error);
    if (turns->cosine) turns->sine = send(sine, tokens * pairs, error);
    memory_free(angles);
    return turns->sine ? TERSE_OK : TERSE_E_MEMORY;
}

static void close_learner(struct learner *l) {
    if (!l) return;
    struct buffer *const all[] = {&l->ids,      &l->halves,   &l->sizes, &l->product, &l->logits,
                                  &l->d_logits, &l->products, &l->d_q,   &l->draws,   &l->losses};
    cudaStreamSynchronize(device_stream());
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) device_free(NULL, all[i]->memory, all[i]->bytes);
    for (int kind = 0; kind < 2; kind++) {
        device_free(NULL, l->turns[kind].cosine, 0);
        device_free(NULL, l->turns[kind].sine, 0);
    }
    device_free(NULL, l->slopes, 0);
    device_free(NULL, l->sinks, 0);
    device_free(NULL, l->not_finite, sizeof *l->not_finite);
    gemm_free(l->gemm);
    device_model_free(&l->weights);
    memory_free(l);
}

static enum terse_status open_parts(struct learner *l, const struct terse_progress *progress, struct terse_error *error) {
    const struct terse_model *m = l->model;
    enum terse_status status = device_model_load(m, gemm_bytes() + BESIDES, progress, &l->weights, error);
    if (!status) status = gemm_new(&l->gemm, error);
    if (!status) status = send_turns(&m->rope, l->tokens, &l->turns[0], error);
    if (!status) status = send_turns(&m->sliding_rope, l->tokens, &l->turns[1], error);
    if (!status && m->slopes && !(l->slopes = send(m->slopes, m->query_heads, error))) status = TERSE_E_MEMORY;
    if (!status && m->sinks && !(l->sinks = send(m->sinks, (size_t)m->layers * m->query_heads, error))) status = TERSE_E_MEMORY;
    if (!status && !(l->not_finite = device_alloc(NULL, sizeof *l->not_finite, what, error))) status = TERSE_E_MEMORY;
    if (status) return status;
    return device_check(cudaMemsetAsync(l->not_finite, 0xff, sizeof *l->not_finite, device_stream()), "learning", error);
}

static enum terse_status open_learner(const struct terse_model *model, size_t tokens, const struct terse_progress *progress,
                                      struct learner **learner, struct terse_error *error) {
    struct learner *l = *learner = memory_zeros(1, sizeof *l);
    if (!l) return status_no_memory(error, sizeof *l, what);
    l->model = model;
    l->tokens = tokens;
    enum terse_status status = open_parts(l, progress, error);
    if (!status) return TERSE_OK;
    close_learner(l);
    *learner = NULL;
    return status;
}

const struct learning_ops cuda_learning_ops = {.panel = PANEL,
                                               .logit_bytes = LOGIT_BYTES,
                                               .staying_bytes = STAYING_BYTES,
                                               .supports = supports,
                                               .open = open_learner,
                                               .close = close_learner,
                                               .reserve = reserve,
                                               .release = release,
                                               .stage = stage,
                                               .unstage = unstage,
                                               .fetch = fetch,
                                               .check_finite = check_finite,
                                               .embed = embed,
                                               .norm = norm,
                                               .copy = copy,
                                               .clear = clear,
                                               .add = add,
                                               .clamp = clamp,
                                               .cap = cap,
                                               .activate = activate,
                                               .turn = turn,
                                               .linear = linear,
                                               .attend = attend,
                                               .linear_backward = linear_backward,
                                               .norm_backward = norm_backward,
                                               .clamp_backward = clamp_backward,
                                               .cap_backward = cap_backward,
                                               .activation_backward = activation_backward,
                                               .cross_entropy = cross_entropy,
                                               .attend_backward = attend_backward,
                                               .open_search = learning_search_open,
                                               .find = learning_search_find,
                                               .close_search = learning_search_close,
                                               .open_mixture = learning_mixture_open,
                                               .expect = learning_mixture_expect,
                                               .close_mixture = learning_mixture_close};
