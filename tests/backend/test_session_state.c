/* Sessions cut short and forked: they go on as one that never read the rest, or never was one of two. */
#include "support/fixture_model.h"
#include "terse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 300, PROMPT = 200, STEPS = 12 };

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static int make_engine(void **state) {
    (void)state;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_error error;
    model = fixture_model("qwen3");
    options.threads = 2;
    if (terse_engine_new(model, &options, &engine, &error)) return -1;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session *new_session(const char *method) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = method;
    options.cache.tail_tokens = 32;
    options.context = 1000;
    options.allow_longer_context = true;
    if (terse_session_new(engine, &options, &session, &error)) fail_msg("%s: %s", method, error.message);
    return session;
}

static void prefill(struct terse_session *session, const int32_t *text, size_t n) {
    struct terse_error error;
    if (terse_session_prefill(session, text, n, NULL, &error)) fail_msg("%s", error.message);
}

/* Appends `n` tokens as they are sampled, to out[n]. */
static void generate(struct terse_session *session, size_t n, int32_t *out) {
    struct terse_error error;
    for (size_t i = 0; i < n; i++) {
        if (terse_session_sample(session, &out[i], &error)) fail_msg("%s", error.message);
        if (terse_session_decode(session, &out[i], 1, NULL, &error)) fail_msg("%s", error.message);
    }
}

static void sample_by(struct terse_session *session, uint64_t seed) {
    struct terse_sampling sampling = terse_sampling_defaults();
    sampling.seed = seed;
    sampling.temperature = 3;
    sampling.top_k = 100;
    sampling.repeat_penalty = 1.3f;
    sampling.repeat_last = 300;
    sampling.biases = &(struct terse_logit_bias){7, -2};
    sampling.n_biases = 1;
    assert_int_equal(terse_session_set_sampling(session, &sampling, NULL), TERSE_OK);
}

static const char *const methods[] = {"f16",     "q8_0",       "q4_0",     "kivi-2",      "terse-2",     "streaming-64",
                                      "mat-128", "snapkv-128", "quest-64", "selfindex-2", "selfindex-16"};
#define METHODS (sizeof methods / sizeof methods[0])

static void a_fork_goes_on_as_its_origin(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        int32_t alone[STEPS], one[STEPS], two[STEPS], other[STEPS];
        struct terse_session *session = new_session(methods[m]), *copy;
        sample_by(session, 5);
        prefill(session, tokens, PROMPT);
        generate(session, 10, alone);
        assert_int_equal(terse_session_fork(session, &copy, NULL), TERSE_OK);
        assert_int_equal(terse_session_length(copy), PROMPT + 10);
        assert_memory_equal(terse_session_logits(copy), terse_session_logits(session), info.vocabulary * sizeof(float));
        for (size_t i = 0; i < STEPS; i++) { /* by turns */
            generate(session, 1, one + i);
            generate(copy, 1, two + i);
        }
        assert_memory_equal(one, two, sizeof one);
        assert_memory_equal(terse_session_logits(copy), terse_session_logits(session), info.vocabulary * sizeof(float));
        sample_by(copy, 6);
        generate(session, STEPS, one);
        generate(copy, STEPS, other);
        assert_true(memcmp(one, other, sizeof one) != 0);
        prefill(copy, tokens + PROMPT, TOKENS - PROMPT);
        terse_session_free(session);
        generate(copy, STEPS, other);
        terse_session_free(copy);
        /* And as a session that was never forked. */
        session = new_session(methods[m]);
        sample_by(session, 5);
        prefill(session, tokens, PROMPT);
        generate(session, 10, other);
        assert_memory_equal(other, alone, 10 * sizeof *other);
        generate(session, STEPS, other);
        assert_memory_equal(other, two, sizeof other);
        terse_session_free(session);
    }
}

/* Cut in the window, a session is as it was; logits are those of the same last token. */
static void a_cut_in_the_window_takes_tokens_back(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *session = new_session(methods[m]);
        struct terse_error error;
        int32_t first[STEPS], again[STEPS];
        bool evicts = strncmp(methods[m], "streaming", 9) == 0 || strncmp(methods[m], "mat", 3) == 0;
        sample_by(session, 5);
        prefill(session, tokens, PROMPT);
        if (terse_session_truncate(session, PROMPT - 1, &error)) {
            assert_true(evicts);
            assert_int_equal(error.code, TERSE_E_UNSUPPORTED);
            assert_int_equal(terse_session_length(session), PROMPT);
            assert_non_null(terse_session_logits(session));
            terse_session_free(session);
            continue;
        }
        assert_false(evicts);
        assert_null(terse_session_logits(session));
        struct terse_session *copy;
        assert_int_equal(terse_session_decode(session, tokens + PROMPT - 1, 1, NULL, &error), TERSE_OK);
        assert_int_equal(terse_session_fork(session, &copy, NULL), TERSE_OK);
        generate(session, 8, first);
        assert_int_equal(terse_session_truncate(session, PROMPT + 8, &error), TERSE_OK);
        assert_non_null(terse_session_logits(session)); /* nothing was cut */
        assert_int_equal(terse_session_truncate(session, PROMPT - 1, &error), TERSE_OK);
        assert_int_equal(terse_session_decode(session, tokens + PROMPT - 1, 1, NULL, &error), TERSE_OK);
        assert_memory_equal(terse_session_logits(copy), terse_session_logits(session), info.vocabulary * sizeof(float));
        sample_by(session, 5); /* penalties look at the tokens that are left */
        generate(session, 8, again);
        assert_memory_equal(first, again, 8 * sizeof *first);
        terse_session_free(copy);
        terse_session_free(session);
    }
}

static void json_texts_fork_and_are_not_cut(void **state) {
    (void)state;
    struct terse_session *session = new_session("q8_0"), *copy;
    struct terse_error error;
    prefill(session, tokens, 50);
    assert_int_equal(terse_session_require_json(session, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_fork(session, &copy, &error), TERSE_OK);
    assert_int_equal(terse_session_truncate(session, 50, &error), TERSE_OK);
    assert_int_equal(terse_session_truncate(session, 49, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "JSON"));
    int32_t of_session, of_copy;
    enum terse_status status = terse_session_sample(session, &of_session, &error);
    terse_session_free(session);
    assert_int_equal(terse_session_sample(copy, &of_copy, &error), status);
    assert_int_equal(of_session, of_copy);
    terse_session_allow_any_text(copy);
    assert_int_equal(terse_session_truncate(copy, 49, &error), TERSE_OK);
    assert_int_equal(terse_session_truncate(copy, 50, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "49"));
    terse_session_free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_fork_goes_on_as_its_origin),
                                       cmocka_unit_test(a_cut_in_the_window_takes_tokens_back),
                                       cmocka_unit_test(json_texts_fork_and_are_not_cut)};
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
