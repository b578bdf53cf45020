/* Sessions of models with sliding layers: those hold what their window sees and no more, also after it was forked, cut or saved; logits are
 * those of dense attention under a mask. */
#include "backend/backend.h"
#include "support/fixture_model.h"
#include "support/model_oracle.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "terse_calibrate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HALF 6e-3 /* as in test_reference_models.c: of the largest logit */

enum { MOST = 900, LONG = 2700 };

/* Its layers all slide, with a window of 100; one of seven does not, and the window is 80. */
#define SLIDES "starcoder2-window"
#define MIXED "gemma3"

static const char *const methods[] = {"f16",      "q8_0",      "q4_0",         "kivi-2", "terse-2",    "antkv-1",  "cq-1",
                                      "cq-0.375", "million-2", "streaming-64", "mat-64", "snapkv-128", "quest-64", "selfindex-2"};
enum { METHODS = sizeof methods / sizeof methods[0] };

static int32_t tokens[LONG];

static int make_tokens(void **state) {
    (void)state;
    random_tokens(tokens, LONG, 96, 7);
    return 0;
}

struct setup {
    struct terse_model *model;
    struct terse_engine *engine;
    struct terse_codebook *codebook;
    struct terse_session_options options;
};

static struct setup start(const char *model, const char *method) {
    struct setup s = {.model = fixture_model(model)};
    struct terse_error error;
    s.engine = must_start(&backend_cpu, s.model, 1);
    s.options = short_session_options(method, TERSE_TAIL_DEFAULT);
    char name[32];
    if (terse_cache_codebook(&s.options.cache, name, sizeof name, &error)) fail_msg("%s", error.message);
    if (name[0] && strcmp(name, "terse") != 0 && terse_codebook_random(s.model, method, &s.codebook, &error))
        fail_msg("%s", error.message);
    s.options.cache.codebook = s.codebook;
    return s;
}

static void stop(struct setup *s) {
    terse_engine_free(s->engine);
    terse_codebook_free(s->codebook);
    terse_model_free(s->model);
}

static void decode(struct terse_session *session, size_t from, size_t n, float *logits) {
    struct terse_error error;
    for (size_t i = 0; i < n; i++)
        if (terse_session_decode(session, tokens + from + i, 1, NULL, &error)) fail_msg("%s", error.message);
    if (logits) memcpy(logits, terse_session_logits(session), 96 * sizeof *logits);
}

/* ---- Memory */

static void memory_is_foretold_and_ends_growing(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct setup s = start(SLIDES, methods[m]);
        struct terse_session *session = must_open(s.engine, &s.options);
        struct terse_cache_report foretold;
        struct terse_error error;
        must_prefill(session, tokens, 300);
        if (terse_cache_bytes(s.model, NULL, &s.options.cache, 300, &foretold, &error)) fail_msg("%s", error.message);
        assert_int_equal(report_of(session).resident, foretold.resident);
        assert_true(foretold.kept < 110);
        decode(session, 300, 200, NULL);
        uint64_t resident = report_of(session).resident;
        decode(session, 500, MOST - 500, NULL);
        if (report_of(session).resident != resident)
            fail_msg("%s: %llu bytes after 500 tokens, %llu after %d", methods[m], (unsigned long long)resident,
                     (unsigned long long)report_of(session).resident, MOST);
        terse_session_free(session);
        stop(&s);
    }
}

/* Windows are too short to fit transforms to: without a profile, layers that slide hold 8 bits, beside others that go by transforms. */
static void layers_that_slide_hold_8_bits_without_a_profile(void **state) {
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        struct setup s = start(mixed ? MIXED : SLIDES, "terse-2"), whole = start(mixed ? MIXED : SLIDES, "q8_0");
        const size_t n = mixed ? LONG : 300;
        s.options.context = whole.options.context = LONG + 100;
        struct terse_session *session = must_open(s.engine, &s.options), *other = must_open(whole.engine, &whole.options);
        struct terse_cache_report foretold, full, of_8_bits;
        struct terse_error error;
        float own[96], of_other[96];
        must_prefill(session, tokens, n);
        must_prefill(other, tokens, n);
        if (terse_cache_bytes(s.model, NULL, &s.options.cache, n, &foretold, &error)) fail_msg("%s", error.message);
        full = report_of(session);
        of_8_bits = report_of(other);
        assert_int_equal(full.resident, foretold.resident);
        assert_int_equal(full.codes, foretold.codes);
        if (mixed) { /* 6 of its 7 layers slide, with 80 tokens each; of one of 2 bits there is less than of one of 8 */
            assert_true(full.codes < of_8_bits.codes / 2);
            assert_true(full.kept == n);
        } else {
            assert_memory_equal(&full, &of_8_bits, sizeof full);
            memcpy(own, terse_session_logits(session), sizeof own);
            memcpy(of_other, terse_session_logits(other), sizeof of_other);
            assert_memory_equal(own, of_other, sizeof own);
            decode(session, n, 200, own);
            decode(other, n, 200, of_other);
            assert_memory_equal(own, of_other, sizeof own);
        }
        terse_session_free(session);
        terse_session_free(other);
        stop(&s);
        stop(&whole);
    }
}

/* In a model that has a full layer too, only that layer's cache grows. */
static void full_layers_alone_grow(void **state) {
    (void)state;
    struct setup s = start(MIXED, "f16");
    struct terse_session *session = must_open(s.engine, &s.options);
    struct terse_cache_report before, foretold;
    struct terse_error error;
    must_prefill(session, tokens, 384);
    if (terse_cache_bytes(s.model, NULL, &s.options.cache, 384, &foretold, &error)) fail_msg("%s", error.message);
    assert_int_equal(report_of(session).resident, foretold.resident);
    assert_int_equal(report_of(session).kept, 384);
    decode(session, 384, 64, NULL); /* from here on there are pages of the window */
    before = report_of(session);
    decode(session, 448, 384, NULL);
    /* 384 keys and values of one KV head of 32 channels in half precision, and entries of tables */
    uint64_t grown = report_of(session).resident - before.resident, own = 384 * 2 * 32 * 2;
    if (grown < own || grown > own + 2048) fail_msg("%llu bytes more", (unsigned long long)grown);
    terse_session_free(session);
    stop(&s);
}

/* ---- Logits */

static double apart(const float *logits, const double *expected, size_t n) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)logits[i] - expected[i]));
        size = fmax(size, fabs(expected[i]));
    }
    return worst / size;
}

static void long_texts_equal_dense_attention_under_a_mask(void **state) {
    (void)state;
    struct setup s = start(SLIDES, "f16");
    struct terse_session *session = must_open(s.engine, &s.options);
    struct model_oracle oracle = model_oracle_new(s.model, tokens, MOST);
    size_t vocabulary = s.model->vocabulary;
    model_oracle_run(&oracle, 0);
    must_prefill(session, tokens, 500);
    for (size_t n = 500; n <= MOST; n += 50) {
        double worst = apart(terse_session_logits(session), oracle.logits + (n - 1) * vocabulary, vocabulary);
        if (!(worst <= HALF)) fail_msg("token %zu: %g of the largest logit apart", n, worst);
        if (n < MOST) decode(session, n, 50, NULL);
    }
    model_oracle_free(&oracle);
    terse_session_free(session);
    stop(&s);
}

/* ---- A session cut short, forked, saved, begun by a prefix */

static void cut_back_where_the_window_allows_it(void **state) {
    (void)state;
    static const char *const models[] = {SLIDES, MIXED};
    static const char *const some[] = {"f16", "q8_0", "terse-2", "kivi-2"};
    for (size_t i = 0; i < 8; i++) {
        struct setup s = start(models[i % 2], some[i / 2]);
        struct terse_session *session = must_open(s.engine, &s.options), *cut = must_open(s.engine, &s.options);
        struct terse_error error;
        float own[96], again[96];
        must_prefill(session, tokens, 380);
        must_prefill(cut, tokens, 384);
        decode(cut, 384, 2, NULL);
        if (terse_session_truncate(cut, 380, &error)) fail_msg("%s", error.message);
        decode(session, 380, 20, own);
        decode(cut, 380, 20, again);
        for (size_t t = 0; t < 96; t++)
            if (!(fabsf(own[t] - again[t]) <= 0.1f))
                fail_msg("%s, %s: %g and %g", models[i % 2], some[i / 2], (double)own[t], (double)again[t]);
        assert_int_equal(terse_session_truncate(cut, 150, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, i % 2 ? "window of 80 tokens" : "window of 100 tokens"));
        assert_int_equal(terse_session_length(cut), 400); /* and it goes on as if nothing had been asked */
        decode(session, 400, 3, own);
        decode(cut, 400, 3, again);
        for (size_t t = 0; t < 96; t++) assert_true(fabsf(own[t] - again[t]) <= 0.1f);
        terse_session_free(session);
        terse_session_free(cut);
        stop(&s);
    }
}

static void forks_and_loaded_states_go_on_alike(void **state) {
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_template("sliding", path);
    const int file = mkstemp(path);
    assert_true(file >= 0 && close(file) == 0);
    for (size_t m = 0; m < 2 * METHODS; m++) {
        struct setup s = start(m % 2 ? MIXED : SLIDES, methods[m / 2]);
        struct terse_session *session = must_open(s.engine, &s.options), *fork, *loaded;
        struct terse_error error;
        float own[96], of_fork[96], of_loaded[96];
        must_prefill(session, tokens, 300);
        decode(session, 300, 40, NULL);
        if (terse_session_fork(session, &fork, &error)) fail_msg("%s", error.message);
        if (terse_session_save(session, path, &error)) fail_msg("%s", error.message);
        if (terse_session_load(s.engine, &s.options, path, &loaded, &error)) fail_msg("%s: %s", methods[m / 2], error.message);
        decode(session, 340, 150, own);
        decode(fork, 340, 150, of_fork);
        decode(loaded, 340, 150, of_loaded);
        assert_memory_equal(own, of_fork, sizeof own);
        assert_memory_equal(own, of_loaded, sizeof own);
        terse_session_free(session);
        terse_session_free(fork);
        terse_session_free(loaded);
        stop(&s);
    }
    unlink(path);
}

/* Tokens whose pages a prefix has dropped are read again. */
static void prefixes_serve_as_far_as_they_reach(void **state) {
    (void)state;
    static const char *const some[] = {"f16", "q8_0"};
    for (size_t m = 0; m < 2; m++) {
        struct setup s = start(MIXED, some[m]);
        struct terse_session *session = must_open(s.engine, &s.options), *next;
        struct terse_error error;
        float own[96], by_prefix[96];
        int32_t other[400];
        size_t held;
        must_prefill(session, tokens, 350);
        if (terse_engine_keep_prefix(s.engine, session, &error)) fail_msg("%s", error.message);
        for (size_t at = 100; at <= 350; at += 50) {
            memcpy(other, tokens, sizeof other);
            for (size_t i = at; i < 400; i++) other[i] = (tokens[i] + 1) % 96;
            if (terse_session_new_with_prefix(s.engine, &s.options, other, 400, &next, &held, &error))
                fail_msg("%s", error.message);
            assert_true(held <= at);
            if (at == 100) assert_int_equal(held, 0); /* the last 80 of 100 tokens are no longer there */
            if (at == 350) assert_int_equal(held, 350);
            must_prefill(next, other + held, 400 - held);
            memcpy(by_prefix, terse_session_logits(next), sizeof by_prefix);
            terse_session_free(next);
            struct terse_session *fresh = must_open(s.engine, &s.options);
            must_prefill(fresh, other, 400);
            memcpy(own, terse_session_logits(fresh), sizeof own);
            terse_session_free(fresh);
            for (size_t t = 0; t < 96; t++)
                if (!(fabsf(own[t] - by_prefix[t]) <= 0.1f))
                    fail_msg("%s at %zu: %g and %g", some[m], at, (double)own[t], (double)by_prefix[t]);
        }
        terse_session_free(session);
        stop(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_foretold_and_ends_growing),
        cmocka_unit_test(layers_that_slide_hold_8_bits_without_a_profile),
        cmocka_unit_test(full_layers_alone_grow),
        cmocka_unit_test(long_texts_equal_dense_attention_under_a_mask),
        cmocka_unit_test(cut_back_where_the_window_allows_it),
        cmocka_unit_test(forks_and_loaded_states_go_on_alike),
        cmocka_unit_test(prefixes_serve_as_far_as_they_reach),
    };
    return cmocka_run_group_tests_name("sliding layers", tests, make_tokens, NULL);
}
