/* The naive model. Owns its arrays; shares nothing with the library but the table of architectures and what was loaded: weights,
 * rotation frequencies, ALiBi's slopes. */
#include "support/model_oracle.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "model/architecture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEP 1e-5 /* of a difference: its square and the rounding of a double over it both stay near 1e-10 */

static double *new_doubles(size_t count) {
    double *doubles = calloc(count, sizeof *doubles);
    assert_non_null(doubles);
    return doubles;
}

static size_t side_of(const struct model_oracle *o) { return o->n * o->model->kv_heads * o->model->head_dim; }

struct model_oracle model_oracle_new(const struct terse_model *model, const int32_t *tokens, size_t n) {
    struct model_oracle o = {.model = model, .tokens = tokens, .n = n};
    size_t floats = model->layers * side_of(&o);
    o.hidden = new_doubles((model->layers + 1) * n * model->width);
    o.rotated = new_doubles(floats);
    o.logits = new_doubles(n * model->vocabulary);
    for (int side = 0; side < 2; side++) {
        o.sides[side] = new_doubles(floats);
        o.moves[side] = new_doubles(floats);
    }
    return o;
}

void model_oracle_free(struct model_oracle *o) {
    double *all[] = {o->hidden, o->rotated, o->logits, o->sides[0], o->sides[1], o->moves[0], o->moves[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---- Operations */

static const float *f32_row(const struct matrix *w, size_t row) {
    assert_int_equal(w->type, TENSOR_F32);
    return (const float *)w->data + row * w->columns;
}

/* Quantized weights by the scalar kernels, which have tests of their own. */
static void product(const struct matrix *w, const double *x, double *y) {
    float *numbers = calloc(w->columns, sizeof *numbers);
    assert_non_null(numbers);
    for (uint32_t r = 0; r < w->rows; r++) {
        const float *row = w->type == TENSOR_F32 ? f32_row(w, r) : numbers;
        if (row == numbers)
            weights_ops_at(CPU_SCALAR)->dequantize[w->type]((const char *)w->data + r * w->row_bytes, numbers, w->columns);
        double sum = w->bias ? (double)w->bias[r] : 0;
#pragma omp simd reduction(+ : sum)
        for (uint32_t c = 0; c < w->columns; c++) sum += (double)row[c] * x[c];
        y[r] = sum;
    }
    free(numbers);
}

/* Computes the row-th of rows; y may be x. */
static void apply_norm(const struct norm *norm, size_t row, const double *x, size_t width, double *y) {
    const float *gain = norm->gain + (norm->heads ? row % norm->heads * width : 0);
    double mean = 0, square = 0;
    for (size_t i = 0; i < width && norm->kind == NORM_LAYER; i++) mean += x[i] / (double)width;
    for (size_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(square / (double)width + (double)norm->epsilon);
    for (size_t i = 0; i < width; i++) y[i] = (x[i] - mean) * scale * (double)gain[i] + (norm->bias ? (double)norm->bias[i] : 0);
}

static double gelu(enum activation activation, double x) {
    if (activation == ACTIVATION_GELU) return x * (1 + erf(x * M_SQRT1_2)) / 2;
    return x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
}

static double clamped(double gate, double up) {
    gate = fmin(gate, 7);
    return (fmax(fmin(up, 7), -7) + 1) * gate / (1 + exp(-(double)1.702f * gate));
}

static double cap(double x, float cap) { return cap > 0 ? (double)cap * tanh(x / (double)cap) : x; }

/* of gate[i] and up[i], or of up[i] alone */
static double activate(enum activation activation, bool gated, double gate, double up) {
    switch (activation) {
    case ACTIVATION_SWIGLU_CLAMPED: return clamped(gate, up);
    case ACTIVATION_GEGLU: return gelu(ACTIVATION_GELU_TANH, gate) * up;
    case ACTIVATION_SWIGLU: return up * gate / (1 + exp(-gate));
    default: assert_false(gated); return gelu(activation, up);
    }
}

/* added[width] += share times what a feed-forward layer of these matrices, gate without data if there is none, makes of a token. */
static void feed_forward(const struct terse_model *m, const struct matrix *gate, const struct matrix *up, const struct matrix *down,
                         double share, const double *x, double *added) {
    double *factor = new_doubles(up->rows), *inner = new_doubles(up->rows), *made = new_doubles(m->width);
    product(up, x, inner);
    if (gate->data) product(gate, x, factor);
    for (size_t i = 0; i < up->rows; i++) inner[i] = activate(m->architecture->activation, gate->data != NULL, factor[i], inner[i]);
    product(down, inner, made);
    for (size_t i = 0; i < m->width; i++) added[i] += share * made[i];
    free(factor);
    free(inner);
    free(made);
}

/* An expert is chosen where fewer than experts_used have a larger logit. */
static void feed_experts(const struct terse_model *m, const struct experts *e, const double *x, double *added) {
    double *logits = new_doubles(m->experts), all = 0, chosen = 0, shared = 0;
    uint32_t inner = e->down.columns;
    product(&e->router, x, logits);
    for (int sum = 1; sum >= 0; sum--) {
        for (uint32_t i = 0; i < m->experts; i++) {
            uint32_t larger = 0;
            for (uint32_t j = 0; j < m->experts; j++) larger += logits[j] > logits[i];
            if (sum) all += exp(logits[i]);
            if (larger >= m->experts_used) continue;
            if (sum) chosen += exp(logits[i]);
            struct matrix gate = matrix_rows(&e->gate, i * inner, inner), up = matrix_rows(&e->up, i * inner, inner);
            struct matrix down = matrix_rows(&e->down, i * m->width, m->width);
            double share = exp(logits[i]) / (m->architecture->shares_of_all ? all : chosen);
            if (!sum) feed_forward(m, &gate, &up, &down, share, x, added);
        }
    }
    for (size_t i = 0; i < m->width && e->shared_router; i++) shared += (double)e->shared_router[i] * x[i];
    if (e->shared_router) feed_forward(m, &e->shared_gate, &e->shared_up, &e->shared_down, 1 / (1 + exp(-shared)), x, added);
    free(logits);
}

/* Queries, keys or values of a token: projected, clamped, their heads normed. */
static void project(const struct terse_model *m, const struct matrix *w, const struct norm *head_norm, const double *x, double *y) {
    double most = m->clamp > 0 ? (double)m->clamp : INFINITY;
    product(w, x, y);
    for (uint32_t r = 0; r < w->rows; r++) y[r] = fmin(fmax(y[r], -most), most);
    for (uint32_t first = 0; first < w->rows && head_norm && head_norm->gain; first += m->head_dim)
        apply_norm(head_norm, first / m->head_dim, y + first, m->head_dim, y + first);
}

static void rotate(const struct terse_model *m, uint32_t layer, size_t position, double *row) {
    const struct rope *rope = m->sliding_rope.n_rot && model_slides(m, layer) ? &m->sliding_rope : &m->rope;
    uint32_t pairs = rope->n_rot / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        bool adjacent = rope->pairing == ROPE_ADJACENT;
        double *first = row + (adjacent ? 2 * i : i), *second = row + (adjacent ? 2 * i + 1 : i + pairs);
        double angle = (double)position * (double)rope->frequency[i], size = (double)rope->magnitude;
        double a = *first * size, b = *second * size;
        *first = a * cos(angle) - b * sin(angle);
        *second = a * sin(angle) + b * cos(angle);
    }
}

/* out[hd] of one query head at `position`, which sees the tokens from `first` on and a logit `sink` besides; weights[n] is scratch. */
static void attend(const struct terse_model *m, const double *q, const double *k, const double *v, size_t first, size_t position,
                   double slope, double sink, double *weights, double *out) {
    size_t hd = m->head_dim, stride = m->kv_heads * hd;
    double max = sink, sum = 0;
    for (size_t t = first; t <= position; t++) {
        weights[t] = 0;
        for (size_t c = 0; c < hd; c++) weights[t] += q[c] * k[t * stride + c];
        weights[t] = cap(weights[t] * (double)m->attention_scale, m->attention_cap) + slope * ((double)t - (double)position);
        max = fmax(max, weights[t]);
    }
    for (size_t t = first; t <= position; t++) sum += weights[t] = exp(weights[t] - max);
    sum += exp(sink - max);
    memset(out, 0, hd * sizeof *out);
    for (size_t t = first; t <= position; t++)
        for (size_t c = 0; c < hd; c++) out[c] += weights[t] / sum * v[t * stride + c];
}

/* ---- The model */

/* Keys and values of a token, moved; and the keys rotated. */
static void run_sides(struct model_oracle *o, uint32_t index, size_t t, const double *normed) {
    const struct terse_model *m = o->model;
    const struct layer *layer = &m->layer[index];
    size_t hd = m->head_dim, width = m->kv_heads * hd, at = index * side_of(o) + t * width;
    double *k = o->sides[MODEL_ORACLE_KEYS] + at, *v = o->sides[MODEL_ORACLE_VALUES] + at;
    project(m, &layer->k, &layer->k_norm, normed, k);
    project(m, &layer->v, NULL, normed, v);
    for (size_t i = 0; i < width; i++) {
        o->rotated[at + i] = k[i] += o->moves[MODEL_ORACLE_KEYS][at + i];
        v[i] += o->moves[MODEL_ORACLE_VALUES][at + i];
    }
    for (size_t h = 0; h < m->kv_heads; h++) rotate(m, index, t, o->rotated + at + h * hd);
}

/* added[width] becomes its norm, if there is such a norm, and is added to state. */
static void add(const struct norm *post, double *added, size_t width, double *state) {
    if (post->gain) apply_norm(post, 0, added, width, added);
    for (size_t i = 0; i < width; i++) state[i] += added[i];
}

static void run_layer(struct model_oracle *o, uint32_t index) {
    const struct terse_model *m = o->model;
    const struct layer *layer = &m->layer[index];
    size_t hd = m->head_dim, group = m->query_heads / m->kv_heads;
    const double *k = o->rotated + index * side_of(o), *v = o->sides[MODEL_ORACLE_VALUES] + index * side_of(o);
    double *normed = new_doubles(m->width), *added = new_doubles(m->width), *weights = new_doubles(o->n);
    double *q = new_doubles(m->query_heads * hd), *out = new_doubles(m->query_heads * hd);
    for (size_t t = 0; t < o->n; t++) {
        const double *in = o->hidden + (index * o->n + t) * m->width;
        size_t first = model_slides(m, index) && t >= m->window ? t + 1 - m->window : 0;
        double *state = o->hidden + ((index + 1) * o->n + t) * m->width;
        apply_norm(&layer->attention_norm, 0, in, m->width, normed);
        run_sides(o, index, t, normed);
        project(m, &layer->q, &layer->q_norm, normed, q);
        for (size_t h = 0; h < m->query_heads; h++) {
            double *head = q + h * hd, slope = m->slopes ? (double)m->slopes[h] : 0;
            double sink = m->sinks ? (double)m->sinks[index * m->query_heads + h] : -INFINITY;
            rotate(m, index, t, head);
            attend(m, head, k + h / group * hd, v + h / group * hd, first, t, slope, sink, weights, out + h * hd);
        }
        memcpy(state, in, m->width * sizeof *state);
        product(&layer->o, out, added);
        add(&layer->attention_post_norm, added, m->width, state);
        /* A parallel layer's feed-forward part reads what attention has read. */
        if (!m->architecture->parallel) apply_norm(&layer->feed_forward_norm, 0, state, m->width, normed);
        memset(added, 0, m->width * sizeof *added);
        if (m->experts)
            feed_experts(m, &layer->experts, normed, added);
        else
            feed_forward(m, &layer->gate, &layer->up, &layer->down, 1, normed, added);
        add(&layer->feed_forward_post_norm, added, m->width, state);
    }
    double *all[] = {normed, added, weights, q, out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static double embedded(const struct terse_model *m, size_t t, int32_t token, size_t i) {
    double position = m->positions.data ? (double)f32_row(&m->positions, t)[i] : 0;
    return (double)m->embedding_scale * ((double)f32_row(&m->embedding, (size_t)token)[i] + position);
}

double model_oracle_run(struct model_oracle *o, uint32_t first) {
    const struct terse_model *m = o->model;
    double loss = 0, *normed = new_doubles(m->width);
    for (size_t t = 0; t < o->n && first == 0; t++)
        for (size_t i = 0; i < m->width; i++) o->hidden[t * m->width + i] = embedded(m, t, o->tokens[t], i);
    for (uint32_t layer = first; layer < m->layers; layer++) run_layer(o, layer);
    for (size_t t = 0; t < o->n; t++) {
        double *logits = o->logits + t * m->vocabulary, sum = 0;
        apply_norm(&m->output_norm, 0, o->hidden + (m->layers * o->n + t) * m->width, m->width, normed);
        product(&m->output, normed, logits);
        for (uint32_t i = 0; i < m->vocabulary; i++) sum += exp(logits[i] = cap(logits[i], m->logit_cap));
        if (t + 1 < o->n) loss += log(sum) - logits[o->tokens[t + 1]];
    }
    free(normed);
    return loss / (double)(o->n - 1);
}

double model_oracle_slope(struct model_oracle *o, enum model_oracle_side side, uint32_t layer, const double *direction) {
    size_t count = side_of(o);
    double *moves = o->moves[side] + layer * count, loss[2];
    for (int up = 0; up < 2; up++) {
        for (size_t i = 0; i < count; i++) moves[i] = direction[i] * (up ? STEP : -STEP);
        loss[up] = model_oracle_run(o, layer);
    }
    memset(moves, 0, count * sizeof *moves);
    return (loss[1] - loss[0]) / (2 * STEP);
}
