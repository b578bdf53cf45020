/* Engines: sessions that share one do not disturb each other, callbacks come back on the caller's thread, options are checked, and the
 * executor reaches caches through kv_ops alone, in the order that backend.h states. */
#include "engine/engine.h"
#include "support/session_steps.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 96, STEPS = 12 };

static struct terse_model *model;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static int load_model(void **state) {
    (void)state;
    struct terse_error error;
    if (terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, &error)) return -1;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + 5) % (int32_t)info.vocabulary;
    return 0;
}

static int free_model(void **state) {
    (void)state;
    terse_model_free(model);
    return 0;
}

static struct terse_session *new_session(struct terse_engine *engine, const char *method) {
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = method;
    options.cache.tail_tokens = 0;
    return must_open(engine, &options);
}

static void read_one(struct terse_session *session, size_t i) {
    struct terse_error error;
    enum terse_status status = i ? terse_session_decode(session, tokens + i, 1, NULL, &error)
                                 : terse_session_prefill(session, tokens, TOKENS - STEPS, NULL, &error);
    if (status) fail_msg("%s", error.message);
}

/* logits[STEPS][vocabulary] of a session that is alone on its engine. */
static float *read_alone(const char *method) {
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    struct terse_session *session = new_session(engine, method);
    float *logits = malloc(STEPS * (size_t)info.vocabulary * sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < STEPS; i++) {
        read_one(session, i ? TOKENS - STEPS + i : 0);
        memcpy(logits + i * info.vocabulary, terse_session_logits(session), info.vocabulary * sizeof *logits);
    }
    terse_session_free(session);
    terse_engine_free(engine);
    return logits;
}

static void sessions_of_an_engine_do_not_disturb_each_other(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q4_0", "selfindex-2", "streaming-64"};
    enum { N = sizeof methods / sizeof methods[0] };
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    struct terse_session *sessions[N];
    float *alone[N];
    for (size_t s = 0; s < N; s++) {
        alone[s] = read_alone(methods[s]);
        sessions[s] = new_session(engine, methods[s]);
    }
    for (size_t i = 0; i < STEPS; i++)
        for (size_t s = 0; s < N; s++) {
            read_one(sessions[s], i ? TOKENS - STEPS + i : 0);
            assert_memory_equal(terse_session_logits(sessions[s]), alone[s] + i * info.vocabulary, info.vocabulary * sizeof(float));
        }
    for (size_t s = 0; s < N; s++) {
        free(alone[s]);
        terse_session_free(sessions[s]);
    }
    assert_int_equal(terse_engine_threads(engine), 2);
    assert_ptr_equal(terse_engine_model(engine), model);
    terse_engine_free(engine);
}

/* ---- Callbacks */

struct heard {
    pthread_t thread;
    size_t rows, reports;
};

static void hear_row(void *user, size_t i, const float *logits) {
    struct heard *heard = user;
    assert_true(pthread_equal(pthread_self(), heard->thread));
    assert_int_equal(i, 7 + heard->rows++);
    assert_true(isfinite(logits[0]));
}

static bool hear_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    struct heard *heard = user;
    assert_true(pthread_equal(pthread_self(), heard->thread));
    assert_string_equal(what, "prompt");
    assert_true(done <= total);
    heard->reports++;
    return true;
}

static void callbacks_come_to_the_callers_thread(void **state) {
    (void)state;
    static const enum terse_prefill modes[] = {TERSE_PREFILL_EXACT, TERSE_PREFILL_COMPRESSED};
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    for (int i = 0; i < 2; i++) {
        struct heard heard = {.thread = pthread_self()};
        struct terse_session_options options = terse_session_options_defaults();
        struct terse_session *session;
        struct terse_error error;
        options.prefill = modes[i];
        options.batch = 20;
        options.progress = (struct terse_progress){hear_progress, &heard};
        assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_OK);
        const struct terse_logits_sink sink = {hear_row, &heard, 7};
        assert_int_equal(terse_session_prefill(session, tokens, TOKENS, &sink, &error), TERSE_OK);
        assert_int_equal(heard.rows, TOKENS - 7);
        assert_true(heard.reports >= 2);
        terse_session_free(session);
    }
    terse_engine_free(engine);
}

/* ---- Options */

static void options_of_another_size_are_refused(void **state) {
    (void)state;
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_session *session;
    struct terse_cache_report report;
    struct terse_error error;
    engine_options.size -= 4;
    assert_int_equal(terse_engine_new(model, &engine_options, &engine, &error), TERSE_E_ARGUMENT);
    assert_null(engine);
    assert_non_null(strstr(error.message, "terse_engine_options_defaults()"));
    engine = must_start(&backend_cpu, model, 1);
    struct terse_session_options options = terse_session_options_defaults();
    options.size = 0;
    assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT);
    options = terse_session_options_defaults();
    options.cache.size++;
    assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "terse_cache_options"));
    assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, 10, &report, &error), TERSE_E_ARGUMENT);
    session = new_session(engine, "f16");
    struct terse_sampling sampling = {.temperature = 0};
    assert_int_equal(terse_session_set_sampling(session, &sampling, &error), TERSE_E_ARGUMENT);
    terse_session_free(session);
    engine_options = terse_engine_options_defaults();
    engine_options.threads = 1025;
    terse_engine_free(engine);
    assert_int_equal(terse_engine_new(model, &engine_options, &engine, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "1025 threads"));
}

/* ---- Two engines on two threads */

static const char *const two_methods[] = {"f16", "q4_0"};

/* A worker thread reads a prompt and takes some steps of two sessions together, on an engine of its own. */
struct worker {
    float *logits[2]; /* [vocabulary] after the last step */
};

static void *work_alone(void *user) {
    struct worker *w = user;
    struct terse_engine *own = must_start(&backend_cpu, model, 2);
    struct terse_session *sessions[2];
    struct terse_error error;
    for (size_t i = 0; i < 2; i++) {
        sessions[i] = new_session(own, two_methods[i]);
        read_one(sessions[i], 0);
    }
    for (size_t step = 1; step < STEPS; step++) {
        struct terse_step_item items[2];
        for (size_t i = 0; i < 2; i++) items[i] = (struct terse_step_item){.session = sessions[i], .tokens = tokens + step, .n = 1};
        assert_int_equal(terse_engine_step(own, items, 2, &error), TERSE_OK);
    }
    for (size_t i = 0; i < 2; i++) {
        memcpy(w->logits[i], terse_session_logits(sessions[i]), info.vocabulary * sizeof(float));
        terse_session_free(sessions[i]);
    }
    terse_engine_free(own);
    return NULL;
}

static void *cancel_it(void *user) {
    terse_session_cancel(user);
    return NULL;
}

static void two_engines_on_two_threads(void **state) {
    (void)state;
    struct worker workers[2];
    struct terse_error error;
    pthread_t threads[2], canceller;
    for (size_t i = 0; i < 4; i++) workers[i / 2].logits[i % 2] = calloc(info.vocabulary, sizeof(float));
    struct terse_engine *third = must_start(&backend_cpu, model, 2);
    struct terse_session *stopped = new_session(third, "f16");
    for (size_t i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, work_alone, &workers[i]), 0);
    assert_int_equal(pthread_create(&canceller, NULL, cancel_it, stopped), 0);
    enum terse_status status = TERSE_OK;
    while (!status) { /* the cancellation comes in one of these, or between them */
        status = terse_session_prefill(stopped, tokens, TOKENS, NULL, &error);
        uint64_t length = terse_session_length(stopped);
        assert_int_equal(length, status ? 0 : TOKENS);
        terse_session_reset(stopped);
    }
    assert_int_equal(status, TERSE_E_INTERRUPTED);
    assert_int_equal(terse_session_prefill(stopped, tokens, TOKENS, NULL, &error), TERSE_OK);
    pthread_join(canceller, NULL);
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 2; i++) {
        struct terse_session *session = new_session(third, two_methods[i]);
        for (size_t step = 0; step < STEPS; step++) read_one(session, step);
        for (size_t k = 0; k < 2; k++)
            assert_memory_equal(workers[k].logits[i], terse_session_logits(session), info.vocabulary * sizeof(float));
        terse_session_free(session);
    }
    for (size_t i = 0; i < 4; i++) free(workers[i / 2].logits[i % 2]);
    terse_session_free(stopped);
    terse_engine_free(third);
}

/* ---- The seam: another kv_ops in front of the CPU's */

static char calls[256];
static int fails_at = -1; /* the attend call that is to fail */

static void note(char call) {
    size_t n = strlen(calls);
    assert_true(n + 1 < sizeof calls);
    calls[n] = call;
    calls[n + 1] = 0;
}

static enum terse_status noted_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    note('b');
    return backend_cpu.kv->begin(cache, kind, n, error);
}
static enum terse_status noted_join(const struct kv_batch *batch, struct terse_error *error) {
    note('j');
    return backend_cpu.kv->join(batch, error);
}
static enum terse_status noted_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    note((char)('0' + rows->layer));
    return backend_cpu.kv->append(batch, rows, error);
}
static enum terse_status noted_attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    note('a');
    if (fails_at >= 0 && fails_at-- == 0) return status_fail(error, TERSE_E_MEMORY, "no device");
    return backend_cpu.kv->attend(batch, rows, error);
}
static enum terse_status noted_seal(const struct kv_batch *batch, uint32_t layer, struct terse_error *error) {
    note('s');
    return backend_cpu.kv->seal(batch, layer, error);
}
static enum terse_status noted_commit(struct cache *cache, struct terse_error *error) {
    note('c');
    return backend_cpu.kv->commit(cache, error);
}

static void executors_reach_caches_through_the_table(void **state) {
    (void)state;
    struct kv_ops noted = *backend_cpu.kv;
    noted.begin = noted_begin;
    noted.join = noted_join;
    noted.append = noted_append;
    noted.attend = noted_attend;
    noted.seal = noted_seal;
    noted.commit = noted_commit;
    const struct backend backend = {.name = "noted", .executor = backend_cpu.executor, .kv = &noted};
    struct terse_engine *engine = must_start(&backend, model, 1);
    struct terse_session *session = new_session(engine, "q8_0");
    struct terse_error error;
    assert_int_equal(info.layers, 2);
    assert_int_equal(terse_session_prefill(session, tokens, 70, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_OK);
    assert_string_equal(calls, "bj0as1asc"
                               "bj0as1asc");
    /* An error of a layer's call ends the step and is returned to the caller. */
    fails_at = 0;
    assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_E_MEMORY);
    assert_string_equal(error.message, "no device");
    assert_int_equal(terse_session_length(session), 71);
    assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_length(session), 72);
    terse_session_free(session);
    terse_engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_of_an_engine_do_not_disturb_each_other), cmocka_unit_test(callbacks_come_to_the_callers_thread),
        cmocka_unit_test(options_of_another_size_are_refused), cmocka_unit_test(two_engines_on_two_threads),
        cmocka_unit_test(executors_reach_caches_through_the_table)};
    return cmocka_run_group_tests(tests, load_model, free_model);
}
