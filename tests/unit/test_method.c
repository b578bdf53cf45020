/* The table of methods: names, parameters, overrides, refusals; and what the policies keep. */
#include "method/method.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct method resolve(const char *name, const char *key, const char *value, uint32_t tail) {
    struct terse_cache_options options = {
        .method = name, .key_type = key, .value_type = value, .tail_tokens = tail, .anchor_percent = -1};
    struct method method;
    struct terse_error error;
    if (method_resolve(&options, 64, &method, &error)) fail_msg("%s", error.message);
    return method;
}

static void refuse(const char *name, const char *key, const char *value, const char *expected) {
    struct terse_cache_options options = {
        .method = name, .key_type = key, .value_type = value, .tail_tokens = TERSE_TAIL_DEFAULT, .anchor_percent = -1};
    struct method method;
    struct terse_error error;
    assert_int_equal(method_resolve(&options, 64, &method, &error), TERSE_E_ARGUMENT);
    assert_null(strchr(error.message, '\n'));
    if (!strstr(error.message, expected)) fail_msg("'%s' does not say '%s'", error.message, expected);
    assert_int_equal(method_resolve(&options, 64, &method, NULL), TERSE_E_ARGUMENT);
}

static void names_choose_codecs_and_policy(void **state) {
    (void)state;
    struct method m = resolve(NULL, NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "f16");
    assert_true(m.key.codec == &codec_f16 && m.value.codec == &codec_f16 && m.policy == &policy_keep_all);
    m = resolve("q8_0", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "q8_0");
    assert_true(m.key.codec == &codec_q8_0 && m.value.codec == &codec_q8_0);
    m = resolve("q4_0", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_true(m.key.codec == &codec_q4_0 && m.value.codec == &codec_q4_0);
    m = resolve("streaming-512", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-512");
    assert_true(m.policy == &policy_streaming && m.key.codec == &codec_f16);
    assert_int_equal(m.parameters.budget, 512);
    assert_int_equal(m.parameters.exact, 4);
    m = resolve("streaming-00000000000000000000000000000000000000000000000000000000016", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "streaming-16");
}

static void codecs_can_be_overridden(void **state) {
    (void)state;
    struct method m = resolve("f16", "q8_0", "q4_0", TERSE_TAIL_DEFAULT);
    assert_string_equal(m.name, "q8_0/q4_0");
    assert_true(m.key.codec == &codec_q8_0 && m.value.codec == &codec_q4_0);
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

static void codes_leave_the_first_tokens_exact(void **state) {
    (void)state;
    static const struct {
        const char *name, *key, *evict;
        uint32_t exact;
    } known[] = {{"f16", NULL, NULL, 0},          {"snapkv-200", NULL, NULL, 0},   {"quest-64", NULL, NULL, 0},
                 {"selfindex-16", NULL, NULL, 0}, {"q8_0", NULL, NULL, 4},         {"f16", "q4_0", NULL, 4},
                 {"antkv-2", NULL, NULL, 4},      {"selfindex-2", NULL, NULL, 4},  {"q4_0", "f16", NULL, 4},
                 {"million-4", NULL, NULL, 4},    {"streaming-99", NULL, NULL, 4}, {"mat-512", NULL, NULL, 64},
                 {"q4_0", NULL, "mat-512", 64},   {"kivi-2", NULL, "mat-32", 8},   {"q4_0", NULL, "snapkv-200", 4}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct terse_cache_options options = terse_cache_options_defaults();
        struct method m;
        options.method = known[i].name;
        options.key_type = known[i].key;
        options.evict = known[i].evict;
        assert_int_equal(method_resolve(&options, 64, &m, NULL), TERSE_OK);
        assert_int_equal(m.parameters.exact, known[i].exact);
        struct policy_decision kept = m.policy->retain(&m.parameters, 3);
        assert_int_equal(kept.exact, known[i].exact ? 3 : 0);
        assert_int_equal(kept.first, kept.exact);
    }
}

static void first_tokens_and_scores_of_anchors_are_chosen(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t first;
        enum terse_anchor_score score;
        const char *refusal; /* NULL: it is served */
    } known[] = {{"q4_0", TERSE_FIRST_NONE, TERSE_ANCHORS_SQUARED, NULL},
                 {"terse-2", 9, TERSE_ANCHORS_SQUARED, NULL},
                 {"antkv-1", 0, TERSE_ANCHORS_L1, NULL},
                 {"antkv-1", 0, TERSE_ANCHORS_RANDOM, NULL},
                 {"antkv-1", 0, (enum terse_anchor_score)7, "7 is no score"},
                 {"q4_0", 0, TERSE_ANCHORS_L1, "q4_0 chooses no anchors by errors"},
                 {"selfindex-2", 0, TERSE_ANCHORS_L1, "selfindex-2 chooses no anchors by errors"},
                 {"snapkv-64", 0, TERSE_ANCHORS_L1, "snapkv-64 chooses no anchors by errors"},
                 {"f16", 9, TERSE_ANCHORS_SQUARED, "f16 keeps no codes"},
                 {"mat-512", 9, TERSE_ANCHORS_SQUARED, "mat-512 keeps no codes"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct terse_cache_options options = terse_cache_options_defaults();
        struct terse_error error;
        struct method m;
        options.method = known[i].name;
        options.first_tokens = known[i].first;
        options.anchor_score = known[i].score;
        const enum terse_status status = method_resolve(&options, 64, &m, &error);
        assert_int_equal(status, known[i].refusal ? TERSE_E_ARGUMENT : TERSE_OK);
        if (known[i].refusal && !strstr(error.message, known[i].refusal)) fail_msg("%s", error.message);
        if (known[i].refusal) continue;
        const uint32_t first = known[i].first == TERSE_FIRST_NONE ? 0 : known[i].first ? known[i].first : 4;
        char plain[METHOD_IDENTITY], own[METHOD_IDENTITY];
        assert_int_equal(m.parameters.exact, first);
        assert_int_equal(method_of_window(&m, 100).parameters.exact, first);
        method_identity(&m, own);
        m.parameters.anchor_score = TERSE_ANCHORS_SQUARED;
        method_identity(&m, plain);
        assert_true((strcmp(plain, own) == 0) == (known[i].score == TERSE_ANCHORS_SQUARED));
    }
}

static void unknown_names_are_refused_in_one_line(void **state) {
    (void)state;
    refuse("f32", NULL, NULL,
           "f16, q8_0, q4_0, terse-4, terse-3, terse-2, terse-1, terse-0.5, terse-N, kivi-4, kivi-2, streaming-N, mat-N, snapkv-N");
    refuse("", NULL, NULL,
           "f16, q8_0, q4_0, terse-4, terse-3, terse-2, terse-1, terse-0.5, terse-N, kivi-4, kivi-2, streaming-N, mat-N, snapkv-N");
    refuse("streaming", NULL, NULL, "streaming-N");
    refuse("streaming-", NULL, NULL, "streaming-N");
    refuse("streaming-12x", NULL, NULL, "streaming-N");
    refuse("streaming--12", NULL, NULL, "streaming-N");
    refuse("streaming-4294967296", NULL, NULL, "streaming-N");
    refuse("streaming-15", NULL, NULL, "streaming-16 or more");
    refuse("f16", "q3", NULL, "unknown key type 'q3': use one of f16, q8_0, q4_0, kivi-4, kivi-2");
    refuse("f16", NULL, "streaming-512", "unknown value type 'streaming-512': use one of f16, q8_0, q4_0, kivi-4, kivi-2");
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
    assert_int_equal(n, 33);
    assert_string_equal(terse_cache_options_defaults().method, "f16");
}

static void learned_methods_name_codec_shape_and_codebook(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t width, bits;
        enum codec_rope rope;
        bool weighted;
    } known[] = {{"antkv-4", 2, 8, CODEC_ROPE_IN_RUN, true},       {"antkv-2", 4, 8, CODEC_ROPE_IN_RUN, true},
                 {"antkv-1", 8, 8, CODEC_ROPE_IN_RUN, true},       {"antkv-0.75", 16, 12, CODEC_ROPE_IN_RUN, true},
                 {"antkv-0.375", 32, 12, CODEC_ROPE_IN_RUN, true}, {"cq-4", 2, 8, CODEC_ROPE_IN_RUN, false},
                 {"cq-2", 4, 8, CODEC_ROPE_IN_RUN, false},         {"cq-1", 8, 8, CODEC_ROPE_IN_RUN, false},
                 {"cq-0.75", 16, 12, CODEC_ROPE_IN_RUN, false},    {"cq-0.375", 32, 12, CODEC_ROPE_IN_RUN, false},
                 {"million-4", 2, 8, CODEC_ROPE_AFTER, false},     {"million-3", 4, 12, CODEC_ROPE_AFTER, false},
                 {"million-2", 4, 8, CODEC_ROPE_AFTER, false},     {"million-16x5", 4, 5, CODEC_ROPE_AFTER, false}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct method m = resolve(known[i].name, NULL, NULL, TERSE_TAIL_DEFAULT);
        assert_string_equal(m.name, known[i].name);
        assert_string_equal(m.codebook, known[i].name);
        assert_int_equal(m.key.width, known[i].width);
        assert_int_equal(m.value.bits, known[i].bits);
        assert_true(m.key.codec->rope == known[i].rope && (m.power > 0) == known[i].weighted);
        assert_int_equal(m.tail_tokens, 128);
        assert_true(m.policy == (known[i].weighted ? &policy_anchors : &policy_keep_all));
        /* Bits per value of long sequences are those of the name. */
        if (!strchr(known[i].name, 'x')) {
            size_t bytes = codec_page_bytes(m.key.codec, method_shape(&m, CODEC_KEYS, 0, 0, 64, 1), CODEC_KEYS);
            double gain = m.key.codec == &codec_gain_shape ? 8.0 / 64 : 0;
            assert_true((double)bytes * 8 / (64 * 64) == atof(strchr(known[i].name, '-') + 1) + gain);
        }
    }
    struct method sums = resolve("commvq-2", NULL, NULL, TERSE_TAIL_DEFAULT);
    assert_true(sums.value.codec == &codec_additive && sums.value.width == 64 && sums.value.bits == 128 && sums.power == 2);
    assert_int_equal(codec_page_bytes(sums.value.codec, method_shape(&sums, CODEC_VALUES, 0, 0, 64, 1), CODEC_VALUES),
                     64 + 64 * 64 * 2 / 8);
    assert_int_equal(resolve("commvq-1", NULL, NULL, TERSE_TAIL_DEFAULT).value.bits, 64);
    assert_string_equal(resolve("million-0016x08", NULL, NULL, 0).codebook, "million-16x8");
    assert_string_equal(resolve("antkv-1", NULL, "q8_0", 0).name, "antkv-1+gain-shape/q8_0");
    assert_string_equal(resolve("antkv-1", NULL, "q8_0", 0).codebook, "antkv-1");
    assert_string_equal(resolve("antkv-1", "f16", "q8_0", 0).codebook, "");
    refuse("million-3x8", NULL, NULL, "do not divide a head of 64");
    refuse("million-0x8", NULL, NULL, "do not divide");
    refuse("million-16x", NULL, NULL, "unknown KV method");
    refuse("antkv-3", NULL, NULL, "unknown KV method");
    refuse("f16", "pq", NULL, "unknown key type 'pq': use one of f16, q8_0, q4_0, kivi-4, kivi-2");
    struct method bad = resolve("million-16x13", NULL, NULL, 0);
    assert_int_equal(method_check(&bad, 64, 1, NULL), TERSE_E_UNSUPPORTED);
}

static void any_method_that_keeps_all_tokens_can_have_anchors(void **state) {
    (void)state;
    struct terse_cache_options options = {.method = "antkv-1", .anchor_percent = -1};
    struct method m;
    struct terse_error error;
    assert_int_equal(method_resolve(&options, 64, &m, &error), TERSE_OK);
    assert_int_equal(m.policy->anchors(&m.parameters, 8192, 8000), 82);
    assert_int_equal(m.policy->anchors(&m.parameters, 8192, 64), 64);
    options.anchor_percent = 0;
    assert_int_equal(method_resolve(&options, 64, &m, &error), TERSE_OK);
    assert_true(m.policy == &policy_keep_all);
    options = (struct terse_cache_options){.method = "q4_0", .anchor_count = 64};
    assert_int_equal(method_resolve(&options, 64, &m, &error), TERSE_OK);
    assert_int_equal(m.policy->anchors(&m.parameters, 8192, 8000), 64);
    options = (struct terse_cache_options){.method = "q4_0", .anchor_percent = 101};
    assert_int_equal(method_resolve(&options, 64, &m, &error), TERSE_E_ARGUMENT);
    options = (struct terse_cache_options){.method = "streaming-64", .anchor_count = 4};
    assert_int_equal(method_resolve(&options, 64, &m, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "omit --anchors"));
}

static void a_missing_codebook_is_named(void **state) {
    (void)state;
    struct method m = resolve("antkv-1", NULL, NULL, 0);
    struct terse_error error;
    assert_int_equal(method_check_codebook(&m, (uint64_t[]){1, 1}, 1, 1, 64, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "terse calibrate --kv antkv-1"));
    m = resolve("q4_0", NULL, NULL, 0);
    assert_int_equal(method_check_codebook(&m, (uint64_t[]){1, 1}, 1, 1, 64, &error), TERSE_OK);
}

static void streaming_keeps_sinks_and_the_newest(void **state) {
    (void)state;
    struct policy_parameters parameters = {.budget = 20, .exact = 4};
    for (uint64_t tokens = 0; tokens < 100; tokens++) {
        struct policy_decision kept = policy_streaming.retain(&parameters, tokens);
        uint64_t count = kept.exact + tokens - kept.first;
        assert_int_equal(kept.exact, tokens < 4 ? tokens : 4);
        assert_true(kept.first >= kept.exact && kept.first <= tokens);
        assert_int_equal(count, tokens < 20 ? tokens : 20);
    }
    struct policy_decision all = policy_keep_all.retain(&(struct policy_parameters){0}, 1000);
    assert_int_equal(all.exact, 0);
    assert_int_equal(all.first, 0);
    all = policy_keep_all.retain(&parameters, 1000);
    assert_true(all.exact == 4 && all.first == 4);
}

/* Of keys that end with a latent: 64 rotated channels and 512, as in DeepSeek's models, and widths that do not fit each other. */
static void keys_of_latents_are_cut_into_slices(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{64, 512, 9}, {32, 64, 3}, {256, 256, 2}, {64, 96, 0},
                                         {48, 96, 0},  {0, 512, 0}, {64, 1024, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct method method = resolve("terse-3", NULL, NULL, TERSE_TAIL_DEFAULT);
        struct terse_error error;
        const uint32_t slices = method_latent_slices(shapes[i][0], shapes[i][1]);
        assert_int_equal(slices, shapes[i][2]);
        assert_int_equal(method_for_latents(&method, shapes[i][0], shapes[i][1], &error), slices ? TERSE_OK : TERSE_E_UNSUPPORTED);
        if (slices) {
            assert_int_equal(method_slices(&method), slices);
            assert_int_equal(method_slice_width(&method, shapes[i][0] + shapes[i][1]), shapes[i][0]);
            assert_true(!(method.value.rate > 0)); /* there are no values to share bits with */
        } else if (!strstr(error.message, "terse-3 cuts") || !strstr(error.message, "use --kv f16, q8_0")) {
            fail_msg("%s", error.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_latents_are_cut_into_slices),
        cmocka_unit_test(names_choose_codecs_and_policy),
        cmocka_unit_test(codecs_can_be_overridden),
        cmocka_unit_test(tail_has_a_default_for_each_method),
        cmocka_unit_test(codes_leave_the_first_tokens_exact),
        cmocka_unit_test(first_tokens_and_scores_of_anchors_are_chosen),
        cmocka_unit_test(unknown_names_are_refused_in_one_line),
        cmocka_unit_test(heads_the_kernels_cannot_serve_are_refused),
        cmocka_unit_test(methods_are_described),
        cmocka_unit_test(learned_methods_name_codec_shape_and_codebook),
        cmocka_unit_test(any_method_that_keeps_all_tokens_can_have_anchors),
        cmocka_unit_test(a_missing_codebook_is_named),
        cmocka_unit_test(streaming_keeps_sinks_and_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
