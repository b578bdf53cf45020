/* Gathers the CPU's operations of a window's passes in a table, and owns what they share: scratch, and the angles of the window. */
#include "train/window_ops.h"

#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "base/memory.h"
#include "base/size.h"
#include "train/backward_attention.h"
#include "train/backward_ops.h"
#include "train/window_rope.h"

#include <omp.h>
#include <string.h>

struct learner {
    const struct terse_model *model;
    uint32_t threads;
    float *scratch;
    struct window_rope rope;
};

float *window_scratch(struct learner *learner) { return learner->scratch; }

/* ---- Life and memory */

static enum terse_status supports(const struct terse_model *model, struct terse_error *error) {
    (void)model, (void)error;
    return TERSE_OK;
}

static size_t scratch_floats(const struct terse_model *m, size_t tokens, uint32_t threads) {
    const struct attention attention = {
        .query_heads = m->query_heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim, .n = tokens};
    size_t most = attention_scratch(&attention, threads);
    for (const struct layer *layer = m->layer; layer < m->layer + m->layers; layer++) {
        const struct matrix *of[LAYER_MATRICES + 1];
        size_t n = layer_matrices(layer, of);
        of[n++] = &m->output;
        for (size_t i = 0; i < n; i++)
            most = size_max(most, size_max(linear_scratch(of[i], threads), linear_backward_scratch(of[i])));
    }
    return most;
}

static void close_learner(struct learner *l) {
    if (!l) return;
    memory_free(l->scratch);
    window_rope_free(&l->rope);
    memory_free(l);
}

static enum terse_status open_learner(const struct terse_model *model, size_t tokens, const struct terse_progress *progress,
                                      struct learner **learner, struct terse_error *error) {
    const uint32_t threads = (uint32_t)omp_get_max_threads();
    (void)progress; /* it takes no time */
    const size_t floats = scratch_floats(model, tokens, threads);
    struct learner *l = *learner = memory_zeros(1, sizeof *l);
    if (!l) return status_no_memory(error, sizeof *l, "the gradients of a window");
    l->model = model;
    l->threads = threads;
    l->scratch = memory_array(floats, sizeof *l->scratch);
    enum terse_status status = l->scratch ? window_rope_new(&l->rope, model, tokens, error)
                                          : status_no_memory(error, floats * sizeof *l->scratch, "the gradients of a window");
    if (!status) {
        window_rope_set(&l->rope, 0, 0);
        return TERSE_OK;
    }
    close_learner(l);
    *learner = NULL;
    return status;
}

static float *reserve(struct learner *l, size_t count, size_t each, struct terse_error *error) {
    (void)l;
    float *rows = memory_array(count, each * sizeof *rows);
    if (!rows) status_no_memory(error, count * each * sizeof *rows, "the gradients of a window");
    return rows;
}

static void release(struct learner *l, float *rows) {
    (void)l;
    memory_free(rows);
}

static enum terse_status fetch(struct learner *l, const float *from, size_t n, float *to, struct terse_error *error) {
    (void)l, (void)error;
    memcpy(to, from, n * sizeof *to);
    return TERSE_OK;
}

static enum terse_status check_finite(struct learner *l, uint32_t place, const float *x, size_t n, size_t width,
                                      struct terse_error *error) {
    return rows_check_finite(l->model, place, x, n, width, error);
}

/* ---- Forward */

static void embed(struct learner *l, const int32_t *tokens, size_t n, float *hidden) { embed_rows(l->model, tokens, n, 0, hidden); }

static void norm(struct learner *l, const struct norm *of, const float *x, float *out, size_t n, size_t width) {
    (void)l;
    norm_rows(of, x, out, n, width);
}

static void copy(struct learner *l, float *to, const float *from, size_t n, size_t width) {
    (void)l;
    if (to == from) return;
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) memcpy(to + t * width, from + t * width, width * sizeof *to);
}

static void clear(struct learner *l, float *x, size_t n) {
    (void)l;
    memset(x, 0, n * sizeof *x);
}

static void add(struct learner *l, float *x, const float *y, size_t n, size_t width) {
    (void)l;
    add_rows(x, y, n, width);
}

static void clamp(struct learner *l, float *x, float most, size_t n, size_t width) {
    (void)l;
    clamp_rows(x, most, n, width);
}

static void cap(struct learner *l, float *x, float at, size_t n, size_t width) {
    (void)l;
    cap_rows(x, at, n, width);
}

static void activate(struct learner *l, enum activation activation, float *x, const float *up, size_t n, size_t width) {
    (void)l;
    activate_rows(activation, x, up, n, width);
}

static void turn(struct learner *l, uint32_t layer, enum window_turn how, float *rows, size_t n, uint32_t heads) {
    const struct window_turns *turns = window_turns_of(&l->rope, layer);
    size_t width = (size_t)heads * l->model->head_dim;
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) window_turn_rows(turns, how, t, rows + t * width, heads);
}

static void multiply(struct learner *l, const struct linear_op *ops, size_t n_ops, const float *x, size_t n) {
    linear(ops, n_ops, x, n, l->scratch);
}

static void attend(struct learner *l, const struct attention *attention, float *out, float *log_sum) {
    attention_forward(attention, out, log_sum, l->threads, l->scratch);
}

/* ---- Backward */

static void multiply_backward(struct learner *l, const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx) {
    linear_backward(w, dy, n, accumulate, dx, l->scratch);
}

static void of_norm(struct learner *l, const struct norm *by, const float *x, float *d, size_t n, size_t width) {
    (void)l;
    norm_backward(by, x, d, n, width);
}

static void of_clamp(struct learner *l, const float *x, float most, float *d, size_t n, size_t width) {
    (void)l;
    clamp_backward(x, most, d, n, width);
}

static void of_cap(struct learner *l, const float *capped, float at, float *d, size_t n, size_t width) {
    (void)l;
    cap_backward(capped, at, d, n, width);
}

static void of_activation(struct learner *l, enum activation activation, float *x, float *up, const float *d, size_t n,
                          size_t width) {
    (void)l;
    activation_backward(activation, x, up, d, n, width);
}

static void cross_entropy(struct learner *l, float *logits, const struct targets *targets, size_t n, float scale, double *loss) {
    cross_entropy_backward(logits, targets, n, l->model->vocabulary, scale, loss);
}

static void of_attention(struct learner *l, const struct attention *attention, const float *out, const float *log_sum,
                         const float *d_out, float *dk, float *dv, bool queries) {
    attention_backward(attention, out, log_sum, d_out, dk, dv, queries, l->threads, l->scratch);
}

const struct learning_ops window_ops_cpu = {.panel = 512, /* enough that dequantizing weights costs little */
                                            .logit_bytes = (size_t)32 << 20,
                                            .staying_bytes = (size_t)512 << 20,
                                            .supports = supports,
                                            .open = open_learner,
                                            .close = close_learner,
                                            .reserve = reserve,
                                            .release = release,
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
                                            .linear = multiply,
                                            .attend = attend,
                                            .linear_backward = multiply_backward,
                                            .norm_backward = of_norm,
                                            .clamp_backward = of_clamp,
                                            .cap_backward = of_cap,
                                            .activation_backward = of_activation,
                                            .cross_entropy = cross_entropy,
                                            .attend_backward = of_attention};
