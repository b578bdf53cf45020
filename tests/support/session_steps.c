/* Steps of sessions. */
#include "support/session_steps.h"

#include "engine/session.h"
#include "model/model.h"
#include "support/fixture_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct terse_session_options short_session_options(const char *method, uint32_t tail_tokens) {
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = method;
    options.cache.tail_tokens = tail_tokens;
    options.context = 1000;
    options.allow_longer_context = true;
    return options;
}

struct terse_engine *must_start(const struct backend *backend, const struct terse_model *model, uint32_t threads) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_error error;
    options.threads = threads;
    if (engine_new(backend, model, &options, &engine, &error)) fail_msg("%s", error.message);
    return engine;
}

void must_start_fixture(const char *name, uint32_t threads, struct terse_model **model, struct terse_engine **engine,
                        struct terse_model_info *info) {
    *model = fixture_model(name);
    *engine = must_start(&backend_cpu, *model, threads);
    terse_model_describe(*model, info);
}

void write_text(int32_t *tokens, int n, uint32_t vocabulary) {
    for (int i = 0; i < n; i++) tokens[i] = (i * 37 + i * i % 11 + i / 50) % (int32_t)vocabulary;
}

void random_tokens(int32_t *tokens, size_t n, uint32_t vocabulary, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((seed >> 33) % vocabulary);
    }
}

struct terse_session *must_open(struct terse_engine *engine, const struct terse_session_options *options) {
    struct terse_session *session;
    struct terse_error error;
    if (terse_session_new(engine, options, &session, &error)) fail_msg("%s: %s", options->cache.method, error.message);
    return session;
}

struct terse_session *must_open_method(struct terse_engine *engine, const char *method) {
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = method;
    return must_open(engine, &options);
}

void must_prefill(struct terse_session *session, const int32_t *tokens, size_t n) {
    struct terse_error error;
    if (terse_session_prefill(session, tokens, n, NULL, &error)) fail_msg("%s", error.message);
}

void must_decode(struct terse_session *session, const int32_t *tokens, size_t n) {
    struct terse_error error;
    for (size_t i = 0; i < n; i++)
        if (terse_session_decode(session, tokens + i, 1, NULL, &error)) fail_msg("%s", error.message);
}

struct terse_session *must_fork(const struct terse_session *session) {
    struct terse_session *copy;
    struct terse_error error;
    if (terse_session_fork(session, &copy, &error)) fail_msg("%s", error.message);
    return copy;
}

void must_truncate(struct terse_session *session, uint64_t n) {
    struct terse_error error;
    if (terse_session_truncate(session, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(terse_session_length(session), n);
}

void must_save(const struct terse_session *session, const char *path) {
    struct terse_error error;
    if (terse_session_save(session, path, &error)) fail_msg("%s", error.message);
}

struct terse_session *must_load(struct terse_engine *engine, const struct terse_session_options *options, const char *path) {
    struct terse_session *session;
    struct terse_error error;
    if (terse_session_load(engine, options, path, &session, &error)) fail_msg("%s: %s", options->cache.method, error.message);
    return session;
}

void must_keep_prefix(struct terse_engine *engine, const struct terse_session *session) {
    struct terse_error error;
    if (terse_engine_keep_prefix(engine, session, &error)) fail_msg("%s", error.message);
}

struct terse_session *must_open_with_prefix(struct terse_engine *engine, const struct terse_session_options *options,
                                            const int32_t *tokens, size_t n, size_t *held) {
    struct terse_session *session;
    struct terse_error error;
    if (terse_session_new_with_prefix(engine, options, tokens, n, &session, held, &error))
        fail_msg("%s: %s", options->cache.method, error.message);
    assert_int_equal(terse_session_length(session), *held);
    return session;
}

void must_generate(struct terse_session *session, size_t n, int32_t *out) {
    struct terse_error error;
    for (size_t i = 0; i < n; i++) {
        if (terse_session_sample(session, &out[i], &error)) fail_msg("%s", error.message);
        if (terse_session_decode(session, &out[i], 1, NULL, &error)) fail_msg("%s", error.message);
    }
}

void sample_by(struct terse_session *session, uint64_t seed, float temperature) {
    struct terse_sampling sampling = terse_sampling_defaults();
    sampling.seed = seed;
    sampling.temperature = temperature;
    sampling.top_k = 100;
    sampling.repeat_penalty = 1.3f;
    sampling.repeat_last = 300;
    sampling.biases = &(struct terse_logit_bias){7, -2};
    sampling.n_biases = 1;
    assert_int_equal(terse_session_set_sampling(session, &sampling, NULL), TERSE_OK);
}

struct terse_cache_report report_of(const struct terse_session *session) {
    struct terse_cache_report report;
    terse_session_cache(session, &report);
    return report;
}

void check_same_logits(const struct terse_session *one, const struct terse_session *other) {
    assert_int_equal(terse_session_length(one), terse_session_length(other));
    assert_memory_equal(terse_session_logits(one), terse_session_logits(other), model_of(one)->vocabulary * sizeof(float));
}

double logits_apart(const float *got, const float *want, size_t n) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    return worst / size;
}

void check_near_logits(size_t n, const char *what, const struct terse_session *one, const struct terse_session *other,
                       double bound) {
    const double difference = logits_apart(terse_session_logits(one), terse_session_logits(other), n);
    print_message("%s: %.1e\n", what, difference);
    if (!(difference <= bound)) fail_msg("%s: logits are %g of the largest apart", what, difference);
}
