/* Logits of whole models on the GPU, compared with the CPU's. */
#ifndef TERSE_TESTS_CUDA_MODEL_LOGITS_H
#define TERSE_TESTS_CUDA_MODEL_LOGITS_H

#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "support/random_model.h"
#include "support/session_steps.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The bound of a difference, as a part of the row's largest logit. Products of a prompt take both operands as halves, attention queries, keys and
 * values: 2^-11 each, over the layers of a model. */
#define BOUND 1e-2

#define TOKENS_MOST 700

static const struct backend backend = {.name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops};
static int32_t tokens[TOKENS_MOST];

struct rows {
    float *logits; /* [n][vocabulary] */
    size_t vocabulary, shift, n;
};

static inline void keep_row(void *user, size_t i, const float *logits) {
    struct rows *rows = user;
    assert_int_equal(rows->shift + i, rows->n);
    memcpy(rows->logits + rows->n++ * rows->vocabulary, logits, rows->vocabulary * sizeof *logits);
}

/* A way to read a text: a prompt of `first` tokens, then steps of `rest`, as further prompts or as decoding. */
struct way {
    const char *name;
    size_t first, rest;
    bool decode;
};

/* All logits of a text. */
static inline void read_text(struct terse_engine *engine, const char *method, const struct way *way, size_t n, struct rows *rows) {
    struct terse_session *session = must_open_method(engine, method);
    struct terse_logits_sink sink = {keep_row, rows, 0};
    struct terse_error error;
    rows->n = 0;
    for (size_t i = 0, count; i < n; i += count) {
        count = i == 0 ? way->first : way->rest;
        if (count > n - i) count = n - i;
        rows->shift = i;
        enum terse_status status = i && way->decode ? terse_session_decode(session, tokens + i, count, &sink, &error)
                                                    : terse_session_prefill(session, tokens + i, count, &sink, &error);
        if (status) fail_msg("%s, token %zu: %s", way->name, i, error.message);
    }
    terse_session_free(session);
}

static inline void compare(const char *name, const char *way, const struct rows *got, const struct rows *want, double bound) {
    double worst = 0;
    assert_int_equal(got->n, want->n);
    for (size_t row = 0; row < got->n; row++) {
        double apart = 0, size = 0;
        for (size_t i = row * got->vocabulary; i < (row + 1) * got->vocabulary; i++) {
            assert_true(isfinite(got->logits[i]));
            apart = fmax(apart, fabs((double)got->logits[i] - (double)want->logits[i]));
            size = fmax(size, fabs((double)want->logits[i]));
        }
        if (!(apart <= bound * size))
            fail_msg("%s, %s: logits of token %zu are %g of the largest apart", name, way, row, apart / size);
        worst = fmax(worst, apart / size);
    }
    print_message("%s, %s: %.1e\n", name, way, worst);
}

/* Compares the logits of n tokens, read in each of the ways. */
static inline void check_logits(const char *name, struct terse_model *model, const char *method, const struct way *ways,
                                size_t n_ways, size_t n) {
    struct terse_engine *engines[2] = {must_start(&backend_cpu, model, 2), must_start(&backend, model, 2)};
    struct terse_model_info info;
    struct rows rows[2];
    terse_model_describe(model, &info);
    for (int i = 0; i < 2; i++) {
        rows[i] = (struct rows){.vocabulary = info.vocabulary};
        assert_non_null(rows[i].logits = malloc(n * info.vocabulary * sizeof(float)));
    }
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)((7 + i * 37) % info.vocabulary);
    for (size_t i = 0; i < n_ways; i++) {
        for (int k = 0; k < 2; k++) read_text(engines[k], method, &ways[i], n, &rows[k]);
        compare(name, ways[i].name, &rows[1], &rows[0], BOUND);
    }
    for (int i = 0; i < 2; i++) {
        terse_engine_free(engines[i]);
        free(rows[i].logits);
    }
}

#endif
