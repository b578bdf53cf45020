/* Backends by name: a third one is opened as a plug-in that no source of the library names, computes what it should, and keeps sessions as the
 * others do; and what is no backend is refused in a line. */
#include "engine/engine.h"
#include "support/session_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 300, MORE = 8 };

static struct terse_model *model;
static struct terse_model_info info;
static int32_t tokens[TOKENS + MORE];

static int load_model(void **state) {
    (void)state;
    struct terse_error error;
    if (terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, &error)) return -1;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS + MORE; i++) tokens[i] = (i * 37 + 5) % (int32_t)info.vocabulary;
    return setenv("TERSE_PLUGIN_PATH", PLUGINS, 1);
}

static int free_model(void **state) {
    (void)state;
    terse_model_free(model);
    return 0;
}

static enum terse_status start(const char *device, struct terse_engine **engine, struct terse_error *error) {
    struct terse_engine_options options = terse_engine_options_defaults();
    options.device = device;
    options.threads = 2;
    return terse_engine_new(model, &options, engine, error);
}

/* logits[MORE][vocabulary] after a prompt, of a session that was cut back, forked and forked again. */
static float *read_on(const char *device) {
    struct terse_engine *engine;
    struct terse_session *session, *fork;
    struct terse_error error;
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = "q8_0";
    options.cache.tail_tokens = 0;
    if (start(device, &engine, &error)) fail_msg("%s", error.message);
    assert_string_equal(terse_engine_device(engine), device);
    session = must_open(engine, &options);
    float *logits = malloc(MORE * (size_t)info.vocabulary * sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(terse_session_prefill(session, tokens, TOKENS, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_truncate(session, TOKENS - MORE, &error), TERSE_OK);
    assert_int_equal(terse_session_fork(session, &fork, &error), TERSE_OK);
    for (size_t i = 0; i < MORE; i++) {
        assert_int_equal(terse_session_decode(fork, tokens + TOKENS - MORE + i, 1, NULL, &error), TERSE_OK);
        memcpy(logits + i * info.vocabulary, terse_session_logits(fork), info.vocabulary * sizeof *logits);
    }
    terse_session_free(fork);
    terse_session_free(session);
    terse_engine_free(engine);
    return logits;
}

static void a_third_backend_is_a_plugin_by_name(void **state) {
    (void)state;
    unsetenv("MOCK_LOADS");
    float *ours = read_on("cpu"), *mock;
    assert_null(getenv("MOCK_LOADS"));
    mock = read_on("mock");
    assert_string_equal(getenv("MOCK_LOADS"), "1");
    assert_memory_equal(ours, mock, MORE * (size_t)info.vocabulary * sizeof *ours);
    free(mock);
    mock = read_on("mock"); /* it is open already */
    assert_string_equal(getenv("MOCK_LOADS"), "2");
    free(mock);
    free(ours);
}

/* The mock's caches say that they take 4,096 bytes more than the CPU's. */
static void a_cache_is_foretold_as_its_backend_keeps_it(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q4_0", "terse-2"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct terse_session_options options = terse_session_options_defaults();
        struct terse_cache_report ours, mock, report;
        struct terse_engine *engine;
        struct terse_error error;
        options.cache.method = methods[i];
        if (terse_cache_bytes(model, "cpu", &options.cache, TOKENS, &ours, &error)) fail_msg("%s", error.message);
        if (terse_cache_bytes(model, NULL, &options.cache, TOKENS, &report, &error)) fail_msg("%s", error.message);
        assert_memory_equal(&report, &ours, sizeof report);
        if (terse_cache_bytes(model, "auto", &options.cache, TOKENS, &report, &error)) fail_msg("%s", error.message);
        assert_memory_equal(&report, &ours, sizeof report); /* there is no GPU */
        if (terse_cache_bytes(model, "mock", &options.cache, TOKENS, &mock, &error)) fail_msg("%s", error.message);
        assert_int_equal(mock.resident, ours.resident + 4096);
        assert_int_equal(mock.tables, ours.tables + 4096);
        if (start("mock", &engine, &error)) fail_msg("%s", error.message);
        struct terse_session *session = must_open(engine, &options);
        assert_int_equal(terse_session_prefill(session, tokens, TOKENS, NULL, &error), TERSE_OK);
        terse_session_cache(session, &report);
        assert_int_equal(report.resident, mock.resident);
        terse_session_free(session);
        terse_engine_free(engine);
    }
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct terse_error error;
    assert_int_equal(terse_cache_bytes(model, "nothing", &options, TOKENS, &report, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "there is no libterse-nothing.so in"));
}

static void what_is_no_backend_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *device, *message;
        enum terse_status status;
    } cases[] = {{"nothing", "there is no libterse-nothing.so in", TERSE_E_UNSUPPORTED},
                 {"gpu", "there is no libterse-cuda.so in", TERSE_E_UNSUPPORTED},
                 {"../mock", "no device \"../mock\": there are cpu, gpu and auto", TERSE_E_ARGUMENT},
                 {"", "no device \"\"", TERSE_E_ARGUMENT},
                 {"a-name-of-more-letters-than-there-are-in-names", "no device", TERSE_E_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct terse_engine *engine = (void *)1;
        struct terse_error error;
        assert_int_equal(start(cases[i].device, &engine, &error), cases[i].status);
        assert_null(engine);
        if (!strstr(error.message, cases[i].message)) fail_msg("%s: %s", cases[i].device, error.message);
    }
}

static void without_a_gpu_the_processor_computes(void **state) {
    (void)state;
    struct terse_engine *engine;
    struct terse_error error;
    assert_int_equal(start("auto", &engine, &error), TERSE_OK);
    assert_string_equal(terse_engine_device(engine), "cpu");
    terse_engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_third_backend_is_a_plugin_by_name),
        cmocka_unit_test(a_cache_is_foretold_as_its_backend_keeps_it),
        cmocka_unit_test(what_is_no_backend_is_refused),
        cmocka_unit_test(without_a_gpu_the_processor_computes),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
