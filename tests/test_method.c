/* The table of methods: names, parameters, overrides, refusals; and what the policies keep. */
#include "method.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct method resolve(const char *name, const char *key, const char *value, uint32_t tail) {
    struct terse_cache_options options = {name, key, value, tail};
    struct method method;
    struct terse_error error;
    if (method_resolve(&options, &method, &error)) fail_msg("%s", error.message);
    return method;
}

static void refuse(const char *name, const char *key, const char *value, const char *expected) {
    struct terse_cache_options options = {name, key, value, TERSE_TAIL_DEFAULT};
    struct method method;
    struct terse_error error;
    assert_int_equal(method_resolve(&options, &method, &error), TERSE_E_ARGUMENT);
    assert_null(strchr(error.message, '\n'));
    if (!strstr(error.message, expected)) fail_msg("'%s' does not say '%s'", error.message, expected);
    assert_int_equal(method_resolve(&options, &method, NULL), TERSE_E_ARGUMENT);
}

static void names_choose_codecs_and_policy(void **state) {
    (void)state;
    struct method m = resolve(NULL, NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "f16");
    assert_true(m.key == &codec_f16 && m.value == &codec_f16 && m.policy == &policy_keep_all);
    m = resolve("q8_0", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "q8_0");
    assert_true(m.key == &codec_q8_0 && m.value == &codec_q8_0);
    m = resolve("q4_0", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_true(m.key == &codec_q4_0 && m.value == &codec_q4_0);
    m = resolve("streaming-512", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-512");
    assert_true(m.policy == &policy_streaming && m.key == &codec_f16);
    assert_int_equal(m.parameters.budget, 512);
    assert_int_equal(m.parameters.sinks, 4);
    m = resolve("streaming-00000000000000000000000000000000000000000000000000000000016", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-16");
}

static void codecs_can_be_overridden(void **state) {
    (void)state;
    struct method m = resolve("f16", "q8_0", "q4_0", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "q8_0/q4_0");
    assert_true(m.key == &codec_q8_0 && m.value == &codec_q4_0);
    m = resolve("f16", NULL, "q8_0", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "f16/q8_0");
    m = resolve("q4_0", "f16", "f16", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "f16");
    m = resolve("streaming-4294967295", "q8_0", "q4_0", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-4294967295+q8_0/q4_0");
    m = resolve("streaming-64", "q4_0", "q4_0", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-64+q4_0");
}

static void tail_has_a_default_for_each_method(void **state) {
    (void)state;
    assert_int_equal(terse_cache_options_defaults().tail_tokens, TERSE_TAIL_DEFAULT);
    assert_int_equal(resolve("f16", NULL, NULL, TERSE_TAIL_DEFAULT).tail_tokens, 0);
    assert_int_equal(resolve("streaming-512", NULL, NULL, TERSE_TAIL_DEFAULT).tail_tokens, 0);
    assert_int_equal(resolve("q8_0", NULL, NULL, TERSE_TAIL_DEFAULT).tail_tokens, 128);
    assert_int_equal(resolve("f16", NULL, "q4_0", TERSE_TAIL_DEFAULT).tail_tokens, 128);
    assert_int_equal(resolve("q4_0", NULL, NULL, 0).tail_tokens, 0);
    assert_int_equal(resolve("f16", NULL, NULL, 99).tail_tokens, 99);
}

static void unknown_names_are_refused_in_one_line(void **state) {
    (void)state;
    refuse("f32", NULL, NULL, "f16, q8_0, q4_0, streaming-N");
    refuse("", NULL, NULL, "f16, q8_0, q4_0, streaming-N");
    refuse("streaming", NULL, NULL, "streaming-N");
    refuse("streaming-", NULL, NULL, "streaming-N");
    refuse("streaming-12x", NULL, NULL, "streaming-N");
    refuse("streaming--12", NULL, NULL, "streaming-N");
    refuse("streaming-4294967296", NULL, NULL, "streaming-N");
    refuse("streaming-15", NULL, NULL, "streaming-16 or more");
    refuse("f16", "q3", NULL, "unknown key type 'q3': use one of f16, q8_0, q4_0");
    refuse("f16", NULL, "streaming-512", "unknown value type 'streaming-512': use one of f16, q8_0, q4_0");
}

static void heads_the_kernels_cannot_serve_are_refused(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 16, 80, 288};
    struct method m = resolve("q8_0", NULL, NULL, TERSE_TAIL_DEFAULT);
    struct terse_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(method_check(&m, bad[i], 4, &error), TERSE_E_UNSUPPORTED);
    assert_int_equal(method_check(&m, 32, 1, &error), TERSE_OK);
    assert_int_equal(method_check(&m, 256, 8, &error), TERSE_OK);
}

static void methods_are_described(void **state) {
    (void)state;
    struct terse_method_info info;
    size_t n = 0;
    for (; terse_method_describe(n, &info); n++) assert_true(info.name[0] && info.summary[0]);
    assert_int_equal(n, 4);
    assert_string_equal(terse_cache_options_defaults().method, "f16");
}

static void streaming_keeps_sinks_and_the_newest(void **state) {
    (void)state;
    struct policy_parameters parameters = {.budget = 20, .sinks = 4};
    for (uint64_t tokens = 0; tokens < 100; tokens++) {
        struct policy_decision kept = policy_streaming.retain(&parameters, tokens);
        uint64_t count = kept.sinks + tokens - kept.first;
        assert_int_equal(kept.sinks, tokens < 4 ? tokens : 4);
        assert_true(kept.first >= kept.sinks && kept.first <= tokens);
        assert_int_equal(count, tokens < 20 ? tokens : 20);
    }
    struct policy_decision all = policy_keep_all.retain(&parameters, 1000);
    assert_int_equal(all.sinks, 0);
    assert_int_equal(all.first, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_choose_codecs_and_policy),
        cmocka_unit_test(codecs_can_be_overridden),
        cmocka_unit_test(tail_has_a_default_for_each_method),
        cmocka_unit_test(unknown_names_are_refused_in_one_line),
        cmocka_unit_test(heads_the_kernels_cannot_serve_are_refused),
        cmocka_unit_test(methods_are_described),
        cmocka_unit_test(streaming_keeps_sinks_and_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
