/* Layers of experts of quantized models, against sums in double precision over dequantized weights; what changes no bit of them: other rows,
 * threads, parts of the work. Logits of whole models are held to other software's in test_reference_models. */
#include "backend/cpu/experts.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/linear.h"
#include "base/memory.h"
#include "model/architecture.h"
#include "support/random_model.h"
#include "support/session_steps.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 150, THREADS = 3 };

static void *room(size_t count, size_t size) {
    void *memory = memory_zeros(count, size);
    assert_non_null(memory);
    return memory;
}

/* ---- The choice */

static void choose(const float *logits, uint32_t experts, uint32_t used, bool over_all, const uint32_t *chosen,
                   const double *shares) {
    uint32_t got[8];
    float share[8];
    experts_choose(logits, experts, used, &(struct routing){.of_all = over_all, .scale = 1}, NULL, got, share);
    for (uint32_t i = 0; i < used; i++) {
        assert_int_equal(got[i], chosen[i]);
        assert_true(fabs((double)share[i] - shares[i]) <= 1e-6);
    }
}

static void test_choice(void **state) {
    (void)state;
    static const float logits[5] = {1, 3, -2, 3, 2};
    const double e1 = exp(-2), e2 = exp(-5), e4 = exp(-1), all = 2 + e1 + e2 + e4;             /* relative to the largest */
    choose(logits, 5, 3, true, (uint32_t[]){1, 3, 4}, (double[]){1 / all, 1 / all, e4 / all}); /* of equal ones the first */
    choose(logits, 5, 3, false, (uint32_t[]){1, 3, 4}, (double[]){1 / (2 + e4), 1 / (2 + e4), e4 / (2 + e4)});
    choose(logits, 5, 1, false, (uint32_t[]){1}, (double[]){1});
    choose(logits, 5, 5, true, (uint32_t[]){1, 3, 4, 0, 2}, (double[]){1 / all, 1 / all, e4 / all, e1 / all, e2 / all});
    choose((float[]){900, -900, 901}, 3, 2, false, (uint32_t[]){2, 0}, (double[]){1 / (1 + e4), e4 / (1 + e4)});
    uint32_t got[4];
    float share[4];
    experts_choose((float[]){NAN, NAN, NAN, NAN}, 4, 4, &(struct routing){.scale = 1}, NULL, got,
                   share); /* each once, and no share that hides it */
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(got[i], i);
        assert_true(isnan(share[i]));
    }
}

/* ---- A layer */

struct layer_run {
    struct terse_model *model;
    void *file;
    struct routes routes;
    float *x, *inner, *factor, *tile;
};

static struct layer_run new_run(const struct random_model_spec *spec) {
    struct layer_run r = {0};
    struct terse_error error;
    const struct matrix *all[LAYER_MATRICES];
    size_t tile = 0;
    uint32_t random = 7;
    r.model = random_model_new(spec, &r.file);
    size_t n = layer_matrices(&r.model->layer[1], all);
    for (size_t i = 0; i < n; i++)
        if (linear_scratch(all[i], THREADS) > tile) tile = linear_scratch(all[i], THREADS);
    r.x = room(ROWS * r.model->width, sizeof *r.x);
    r.inner = room(ROWS * r.model->feed_forward, sizeof *r.inner);
    r.factor = room(ROWS * r.model->feed_forward, sizeof *r.factor);
    r.tile = room(tile, sizeof *r.tile);
    if (routes_reserve(&r.routes, r.model, ROWS, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < ROWS * r.model->width; i++) {
        random = random * 1664525u + 1013904223u;
        r.x[i] = 3 * ((float)(random >> 8) / (1 << 23) - 1);
    }
    return r;
}

static void free_run(struct layer_run *r) {
    memory_free(r->x);
    memory_free(r->inner);
    memory_free(r->factor);
    memory_free(r->tile);
    routes_free(&r->routes);
    terse_model_free(r->model);
    memory_free(r->file);
}

/* out[n][width], 1 before, of rows from `first` on; in parts of `some` multiplications. Returns the number of parts. */
static size_t run(struct layer_run *r, size_t first, size_t n, bool each, int threads, double some, float *out) {
    struct experts_job job = {r->model, &r->model->layer[1], r->x + first * r->model->width, n, each, out, r->inner, r->factor,
                              r->tile,  &r->routes};
    uint32_t item = 0;
    size_t parts = 1;
    omp_set_num_threads(threads);
    for (size_t i = 0; i < n * r->model->width; i++) out[i] = 1;
    for (double left = some; !experts_some(&job, &item, &left); left = some) parts++;
    return parts;
}

static void product(const struct matrix *w, const double *x, double *y) {
    float *row = room(w->columns, sizeof *row);
    for (uint32_t r = 0; r < w->rows; r++) {
        weights_ops_at(CPU_SCALAR)->dequantize[w->type]((const char *)w->data + r * w->row_bytes, row, w->columns);
        y[r] = 0;
        for (uint32_t c = 0; c < w->columns; c++) y[r] += (double)row[c] * x[c];
    }
    memory_free(row);
}

static void add_swiglu(const struct expert *e, double share, const double *x, double *out) {
    double *gate = room(e->gate.rows, sizeof *gate), *up = room(e->gate.rows, sizeof *up), *made = room(e->down.rows, sizeof *made);
    product(&e->gate, x, gate);
    product(&e->up, x, up);
    for (uint32_t i = 0; i < e->gate.rows; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    product(&e->down, up, made);
    for (uint32_t i = 0; i < e->down.rows; i++) out[i] += share * made[i];
    memory_free(gate);
    memory_free(up);
    memory_free(made);
}

/* Computes the layer's output for a row. Returns how near its router's choice is to another: the gap between the last chosen logit and the next. */
static double naive(const struct layer_run *r, size_t row, double *out) {
    const struct terse_model *m = r->model;
    const struct layer *layer = &m->layer[1];
    double logits[16], x[1024], all = 0, chosen = 0, gap = INFINITY, along = 0;
    assert_true(m->experts <= 16 && m->width <= 1024);
    for (uint32_t i = 0; i < m->width; i++) {
        x[i] = (double)r->x[row * m->width + i];
        out[i] = 1;
        if (layer->experts.shared_router) along += x[i] * (double)layer->experts.shared_router[i];
    }
    product(&layer->experts.router, x, logits);
    for (uint32_t i = 0; i < m->experts; i++) all += exp(logits[i]);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < m->experts; i++) {
            uint32_t larger = 0;
            for (uint32_t j = 0; j < m->experts; j++) larger += logits[j] > logits[i];
            if (larger >= m->experts_used) continue;
            for (uint32_t j = 0; j < m->experts; j++)
                if (larger + 1 == m->experts_used && logits[j] < logits[i]) gap = fmin(gap, logits[i] - logits[j]);
            if (!pass) chosen += exp(logits[i]);
            struct expert expert = expert_of(m, layer, i);
            if (pass) add_swiglu(&expert, exp(logits[i]) / (m->architecture->shares_of_all ? all : chosen), x, out);
        }
    }
    struct expert shared = {layer->experts.shared_gate, layer->experts.shared_up, layer->experts.shared_down};
    if (layer->experts.shared_router) add_swiglu(&shared, 1 / (1 + exp(-along)), x, out);
    return gap;
}

static void test_layer(void **state) {
    const struct random_model_spec *spec = *state;
    bool bytes = false; /* whether there are weights that are multiplied by few rows as bytes (kernels/weights/ops.h) */
    for (size_t i = 0; i < sizeof spec->types / sizeof spec->types[0]; i++)
        bytes |= spec->types[i] == TENSOR_Q4_K || spec->types[i] == TENSOR_IQ4_NL || spec->types[i] == TENSOR_IQ4_XS;
    struct layer_run r = new_run(spec);
    const size_t width = r.model->width, n[] = {1, 9, ROWS};
    float *out = room(ROWS * width, sizeof *out);
    double *want = room(width, sizeof *want);
    for (int each = 0; each < 2; each++) {
        for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) {
            size_t checked = 0;
            run(&r, 0, n[i], each, 2, INFINITY, out);
            for (size_t t = 0; t < n[i]; t += 7) {
                double apart = 0, size = 0;
                if (naive(&r, t, want) < 1e-4) continue; /* rounding may choose */
                for (size_t c = 0; c < width; c++) {
                    apart = fmax(apart, fabs((double)out[t * width + c] - want[c]));
                    size = fmax(size, fabs(want[c]));
                }
                if (!(apart <= (bytes ? 2e-2 : 1e-4) * size))
                    fail_msg("row %zu of %zu: %g of the largest apart", t, n[i], apart / size);
                checked++;
            }
            assert_true(checked > 0);
        }
    }
    memory_free(out);
    memory_free(want);
    free_run(&r);
}

/* Rows by themselves: whatever rows are beside them; all: whatever the threads and parts are. */
static void test_same_bits(void **state) {
    struct layer_run r = new_run(*state);
    const size_t width = r.model->width;
    float *whole = room(ROWS * width, sizeof *whole), *parts = room(ROWS * width, sizeof *parts);
    for (int each = 0; each < 2; each++) {
        assert_int_equal(run(&r, 0, ROWS, each, 1, INFINITY, whole), 1);
        run(&r, 0, ROWS, each, THREADS, INFINITY, parts);
        assert_memory_equal(whole, parts, ROWS * width * sizeof *whole);
        assert_true(run(&r, 0, ROWS, each, 2, 1, parts) > 2);
        assert_memory_equal(whole, parts, ROWS * width * sizeof *whole);
        for (size_t t = 0, count = 1; t < ROWS && each; t += count, count = count % 5 + 1) {
            if (count > ROWS - t) count = ROWS - t;
            run(&r, t, count, true, 2, INFINITY, parts);
            assert_memory_equal(whole + t * width, parts, count * width * sizeof *whole);
        }
    }
    memory_free(whole);
    memory_free(parts);
    free_run(&r);
}

/* ---- Sessions */

/* Several sessions in a step get what each gets alone. */
static void test_batch(void **state) {
    enum { SESSIONS = 4, STEPS = 6 };
    void *file;
    struct terse_model *model = random_model_new(*state, &file);
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    struct terse_session *together[SESSIONS], *alone[SESSIONS];
    struct terse_error error;
    size_t vocabulary = model->vocabulary;
    for (int i = 0; i < SESSIONS; i++) {
        int32_t prompt[60];
        for (int t = 0; t < 60; t++) prompt[t] = (t * 37 + i * 11) % 300;
        struct terse_session **both[] = {&together[i], &alone[i]};
        for (int b = 0; b < 2; b++) {
            *both[b] = must_open_method(engine, "q8_0");
            if (terse_session_prefill(*both[b], prompt, (size_t)(20 + 13 * i), NULL, &error)) fail_msg("%s", error.message);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        struct terse_step_item items[SESSIONS];
        int32_t tokens[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            tokens[i] = (step * 91 + i * 17) % 300;
            items[i] = (struct terse_step_item){.session = together[i], .tokens = &tokens[i], .n = 1};
        }
        if (terse_engine_step(engine, items, SESSIONS, &error)) fail_msg("%s", error.message);
        for (int i = 0; i < SESSIONS; i++) {
            if (terse_session_decode(alone[i], &tokens[i], 1, NULL, &error)) fail_msg("%s", error.message);
            assert_memory_equal(terse_session_logits(together[i]), terse_session_logits(alone[i]), vocabulary * sizeof(float));
        }
    }
    for (int i = 0; i < SESSIONS; i++) {
        terse_session_free(together[i]);
        terse_session_free(alone[i]);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

int main(void) {
    struct CMUnitTest tests[1 + 3 * RANDOM_EXPERT_MODELS] = {cmocka_unit_test(test_choice)};
    size_t n = 1;
    for (size_t i = 0; i < RANDOM_EXPERT_MODELS; i++) {
        void *spec = (void *)(uintptr_t)&random_expert_models[i];
        tests[n++] = (struct CMUnitTest){"a layer", test_layer, NULL, NULL, spec};
        tests[n++] = (struct CMUnitTest){"the same bits", test_same_bits, NULL, NULL, spec};
        tests[n++] = (struct CMUnitTest){"a batch", test_batch, NULL, NULL, spec};
    }
    return _cmocka_run_group_tests("experts", tests, n, NULL, NULL);
}
