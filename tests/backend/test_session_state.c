/* Sessions cut short, forked, and begun where others have been: they go on as one that never read the rest, never was one of two, or read
 * all by itself. */
#include "support/session_steps.h"
#include "terse.h"
#include "terse_calibrate.h"

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
    must_start_fixture("qwen3", 2, &model, &engine, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session_options options_of(const char *method) { return short_session_options(method, 32); }

static struct terse_session *new_session(const char *method) {
    struct terse_session_options options = options_of(method);
    return must_open(engine, &options);
}

static const char *const methods[] = {"f16",     "q8_0",       "q4_0",     "kivi-2",      "terse-2",     "streaming-64",
                                      "mat-128", "snapkv-128", "quest-64", "selfindex-2", "selfindex-16"};
#define METHODS (sizeof methods / sizeof methods[0])

static void a_fork_goes_on_as_its_origin(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        int32_t alone[STEPS], one[STEPS], two[STEPS], other[STEPS];
        struct terse_session *session = new_session(methods[m]), *copy;
        sample_by(session, 5, 3);
        must_prefill(session, tokens, PROMPT);
        must_generate(session, 10, alone);
        copy = must_fork(session);
        assert_int_equal(terse_session_length(copy), PROMPT + 10);
        check_same_logits(copy, session);
        for (size_t i = 0; i < STEPS; i++) { /* by turns */
            must_generate(session, 1, one + i);
            must_generate(copy, 1, two + i);
        }
        assert_memory_equal(one, two, sizeof one);
        check_same_logits(copy, session);
        sample_by(copy, 6, 3);
        must_generate(session, STEPS, one);
        must_generate(copy, STEPS, other);
        assert_true(memcmp(one, other, sizeof one) != 0);
        must_prefill(copy, tokens + PROMPT, TOKENS - PROMPT);
        terse_session_free(session);
        must_generate(copy, STEPS, other);
        terse_session_free(copy);
        /* And as a session that was never forked. */
        session = new_session(methods[m]);
        sample_by(session, 5, 3);
        must_prefill(session, tokens, PROMPT);
        must_generate(session, 10, other);
        assert_memory_equal(other, alone, 10 * sizeof *other);
        must_generate(session, STEPS, other);
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
        sample_by(session, 5, 3);
        must_prefill(session, tokens, PROMPT);
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
        copy = must_fork(session);
        must_generate(session, 8, first);
        assert_int_equal(terse_session_truncate(session, PROMPT + 8, &error), TERSE_OK);
        assert_non_null(terse_session_logits(session)); /* nothing was cut */
        assert_int_equal(terse_session_truncate(session, PROMPT - 1, &error), TERSE_OK);
        assert_int_equal(terse_session_decode(session, tokens + PROMPT - 1, 1, NULL, &error), TERSE_OK);
        check_same_logits(copy, session);
        sample_by(session, 5, 3); /* penalties look at the tokens that are left */
        must_generate(session, 8, again);
        assert_memory_equal(first, again, 8 * sizeof *first);
        terse_session_free(copy);
        terse_session_free(session);
    }
}

static void json_texts_fork_and_are_not_cut(void **state) {
    (void)state;
    struct terse_session *session = new_session("q8_0"), *copy;
    struct terse_error error;
    must_prefill(session, tokens, 50);
    assert_int_equal(terse_session_require_json(session, NULL, &error), TERSE_OK);
    copy = must_fork(session);
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

/* Truncating to 0 frees the memory of the tokens read; random numbers and a JSON text go on behind the same tokens when they are read again. */
static void an_emptied_session_goes_on(void **state) {
    (void)state;
    uint64_t before = terse_engine_kv_bytes(engine);
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *session = new_session(methods[m]), *other = new_session(methods[m]);
        int32_t text[PROMPT + STEPS], one[STEPS], two[STEPS], none;
        uint64_t empty = terse_engine_kv_bytes(engine);
        memcpy(text, tokens, PROMPT * sizeof *text);
        sample_by(session, 5, 3);
        sample_by(other, 5, 3);
        must_prefill(session, tokens, PROMPT);
        must_generate(session, STEPS, text + PROMPT);
        assert_true(terse_engine_kv_bytes(engine) > empty);
        assert_int_equal(terse_session_truncate(session, 0, NULL), TERSE_OK);
        assert_int_equal(terse_engine_kv_bytes(engine), empty);
        assert_int_equal(terse_session_length(session), 0);
        assert_null(terse_session_logits(session));
        must_prefill(session, text, PROMPT + STEPS);
        must_prefill(other, text, PROMPT + STEPS);
        check_same_logits(session, other);
        for (size_t i = 0; i < STEPS; i++)
            assert_int_equal(terse_session_sample(other, &none, NULL), TERSE_OK); /* as were drawn before */
        must_generate(session, STEPS, one);
        must_generate(other, STEPS, two);
        assert_memory_equal(one, two, sizeof one);
        terse_session_free(session);
        terse_session_free(other);
    }
    assert_int_equal(terse_engine_kv_bytes(engine), before);
}

static void an_emptied_session_goes_on_with_its_json(void **state) {
    (void)state;
    struct terse_session *session = new_session("q8_0"), *other = new_session("q8_0");
    struct terse_error error;
    int32_t text[PROMPT + STEPS], of_session, of_other;
    memcpy(text, tokens, PROMPT * sizeof *text);
    must_prefill(session, tokens, PROMPT);
    must_prefill(other, tokens, PROMPT);
    assert_int_equal(terse_session_require_json(session, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_require_json(other, NULL, &error), TERSE_OK);
    size_t n = 0;
    for (; n < STEPS; n++) {
        enum terse_status status = terse_session_sample(session, &text[PROMPT + n], &error);
        if (status || terse_token_ends(model, text[PROMPT + n])) break;
        assert_int_equal(terse_session_decode(session, text + PROMPT + n, 1, NULL, NULL), TERSE_OK);
        assert_int_equal(terse_session_decode(other, text + PROMPT + n, 1, NULL, NULL), TERSE_OK);
    }
    assert_true(n > 0);
    assert_int_equal(terse_session_truncate(session, 0, &error), TERSE_OK);
    must_prefill(session, text, PROMPT + n);
    /* Not begun anew: greedily both choose alike, or know of no token. */
    enum terse_status status = terse_session_sample(session, &of_session, &error);
    assert_int_equal(terse_session_sample(other, &of_other, &error), status);
    assert_int_equal(of_session, of_other);
    terse_session_free(session);
    terse_session_free(other);
}

/* ---- Prefixes ---- */

static struct terse_session *with_prefix(const char *method, const int32_t *text, size_t n, size_t *held) {
    struct terse_session_options options = options_of(method);
    return must_open_with_prefix(engine, &options, text, n, held);
}

/* Reads text[n], which leaves the kept sequence somewhere, and compares with a session that has read text[kept], as many tokens as the kept
 * sequence's prompt had but others from there on, and takes the same cut. */
static void compare_with_fresh(const struct terse_session_options *options, const int32_t *text, size_t n, size_t kept,
                               size_t held_right) {
    struct terse_session *fresh = must_open(engine, options);
    struct terse_cache_report report;
    size_t held;
    struct terse_session *session = must_open_with_prefix(engine, options, text, n, &held);
    if (held != held_right) fail_msg("%s: %zu tokens are held, not %zu", options->cache.method, held, held_right);
    terse_session_cache(session, &report);
    assert_true((report.shared > 0) == (held > 0));
    must_prefill(session, text + held, n - held);
    must_prefill(fresh, text, held ? kept : n);
    if (held) {
        assert_int_equal(terse_session_truncate(fresh, held, NULL), TERSE_OK);
        must_prefill(fresh, text + held, n - held);
    }
    const double apart = logits_apart(terse_session_logits(session), terse_session_logits(fresh), info.vocabulary);
    if (!(apart <= 1e-4)) fail_msg("%s: logits are %g of the largest apart", options->cache.method, apart);
    terse_session_free(session);
    terse_session_free(fresh);
}

/* A prompt that begins as a kept one holds what reading it would have left; where that depends on what comes later it holds nothing. Pages end
 * at 64, 128, or behind 4 exact tokens at 68, 132, and 32 to 95 tokens lie in the window behind the last of them: all that is alike is held where it
 * ends there, unless the prompt is so short that its own window would begin a page earlier; else 32 tokens before the difference are read
 * again. terse-2 without a profile learns from its first 2,052 tokens. */
static void a_prompt_that_begins_as_another_shares_its_pages(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int alike, kept, n, held;
    } cases[] = {{"f16", 170, 200, 270, 170},       {"f16", 170, 270, 300, 128},         {"q8_0", 170, 200, 270, 170},
                 {"q8_0", 170, 270, 300, 132},      {"q8_0", 170, 260, 290, 132},        {"q8_0", 200, 232, 240, 200},
                 {"q8_0", 200, 232, 220, 132},      {"q4_0", 170, 200, 270, 170},        {"kivi-2", 170, 200, 270, 170},
                 {"million-4", 170, 200, 270, 170}, {"cq-1", 170, 200, 270, 170},        {"commvq-2", 170, 200, 270, 170},
                 {"quest-64", 170, 200, 270, 170},  {"quest-64", 170, 270, 300, 128},    {"terse-2", 170, 200, 270, 0},
                 {"terse-2", 2050, 2080, 2150, 0},  {"terse-2", 2200, 2230, 2300, 2200}, {"terse-2", 2170, 2230, 2300, 2116},
                 {"antkv-1", 170, 200, 270, 0},     {"mat-128", 170, 200, 270, 0},       {"streaming-64", 170, 200, 270, 0},
                 {"snapkv-128", 170, 200, 270, 0},  {"selfindex-2", 170, 200, 270, 0},   {"selfindex-16", 170, 200, 270, 0}};
    enum { MOST = 2300, BEYOND = 130 };
    int32_t *text = malloc(MOST * sizeof *text), *other = malloc(MOST * sizeof *other);
    assert_true(text && other);
    for (int i = 0; i < MOST; i++) text[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct terse_session_options options = options_of(cases[c].method);
        struct terse_codebook *codebook = NULL;
        size_t alike = (size_t)cases[c].alike;
        options.context = MOST + BEYOND;
        if (strncmp(cases[c].method, "terse", 5) != 0) (void)terse_codebook_random(model, cases[c].method, &codebook, NULL);
        options.cache.codebook = codebook;
        for (size_t i = 0; i < MOST; i++) other[i] = i < alike ? text[i] : (text[i] + 5) % (int32_t)info.vocabulary;
        struct terse_session *first = must_open(engine, &options);
        must_prefill(first, text, (size_t)cases[c].kept);
        must_keep_prefix(engine, first);
        compare_with_fresh(&options, other, (size_t)cases[c].n, (size_t)cases[c].kept, (size_t)cases[c].held);
        terse_session_free(first);
        terse_engine_drop_prefixes(engine);
        terse_codebook_free(codebook);
    }
    free(text);
    free(other);
}

/* A sequence that a prompt begins with goes on as if it had never been left, by any method. */
static void a_kept_sequence_goes_on(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *first = new_session(methods[m]), *second;
        int32_t text[TOKENS];
        size_t held;
        memcpy(text, tokens, sizeof text);
        must_prefill(first, tokens, PROMPT);
        must_generate(first, 10, text + PROMPT);
        must_keep_prefix(engine, first);
        must_keep_prefix(engine, first); /* once is enough */
        second = with_prefix(methods[m], text, TOKENS, &held);
        assert_int_equal(held, PROMPT + 10);
        must_prefill(first, text + held, TOKENS - held);
        must_prefill(second, text + held, TOKENS - held);
        check_same_logits(first, second);
        terse_session_free(second);
        /* At least one token is left to read, another method knows nothing of it, nor does who reads prompts otherwise. */
        terse_session_free(with_prefix(methods[m], text, PROMPT + 10, &held));
        assert_true(held < PROMPT + 10);
        terse_session_free(with_prefix(methods[(m + 1) % METHODS], text, TOKENS, &held));
        assert_int_equal(held, 0);
        terse_session_free(with_prefix(methods[m], text + 1, TOKENS - 1, &held));
        assert_int_equal(held, 0);
        terse_engine_drop_prefixes(engine);
        terse_session_free(first);
    }
}

static void the_least_recently_used_prefix_leaves(void **state) {
    (void)state;
    enum { MOST = 16 };
    struct terse_session *session = new_session("q8_0");
    size_t held;
    for (int i = 0; i < MOST; i++) {
        terse_session_reset(session);
        must_prefill(session, tokens + i, 20);
        must_keep_prefix(engine, session);
    }
    terse_session_free(with_prefix("q8_0", tokens, 21, &held)); /* the first becomes the newest */
    assert_int_equal(held, 20);
    terse_session_reset(session);
    must_keep_prefix(engine, session); /* nothing */
    must_prefill(session, tokens + MOST, 20);
    must_keep_prefix(engine, session);
    terse_session_free(session);
    for (int i = 0; i <= MOST; i++) {
        terse_session_free(with_prefix("q8_0", tokens + i, 21, &held));
        assert_int_equal(held, i == 1 ? 0 : 20);
    }
    terse_engine_drop_prefixes(engine);
}

/* Of what the engine keeps, only the sequences that others begin with are dropped; a session tells its tokens. */
static void a_kept_sequence_is_dropped(void **state) {
    (void)state;
    struct terse_session *session = new_session("q8_0");
    size_t held, n;
    must_prefill(session, tokens, 20);
    must_keep_prefix(engine, session);
    must_prefill(session, tokens + 20, 10);
    must_keep_prefix(engine, session);
    assert_memory_equal(terse_session_tokens(session, &n), tokens, 30 * sizeof *tokens);
    assert_int_equal(n, 30);
    terse_session_reset(session);
    (void)terse_session_tokens(session, &n);
    assert_int_equal(n, 0);
    must_prefill(session, tokens + 1, 20);
    must_keep_prefix(engine, session);
    terse_session_free(session);
    assert_int_equal(terse_engine_drop_prefix(engine, tokens, 19), 0);
    assert_int_equal(terse_engine_drop_prefix(engine, tokens, 29), 20);
    terse_session_free(with_prefix("q8_0", tokens, 31, &held));
    assert_int_equal(held, 30); /* the longer one stays */
    assert_int_equal(terse_engine_drop_prefix(engine, tokens, TOKENS), 30);
    terse_session_free(with_prefix("q8_0", tokens, 31, &held));
    assert_int_equal(held, 0);
    terse_session_free(with_prefix("q8_0", tokens + 1, 21, &held));
    assert_int_equal(held, 20); /* another sequence's */
    terse_engine_drop_prefixes(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_goes_on_as_its_origin),    cmocka_unit_test(a_cut_in_the_window_takes_tokens_back),
        cmocka_unit_test(an_emptied_session_goes_on),      cmocka_unit_test(an_emptied_session_goes_on_with_its_json),
        cmocka_unit_test(json_texts_fork_and_are_not_cut), cmocka_unit_test(a_prompt_that_begins_as_another_shares_its_pages),
        cmocka_unit_test(a_kept_sequence_goes_on),         cmocka_unit_test(the_least_recently_used_prefix_leaves),
        cmocka_unit_test(a_kept_sequence_is_dropped)};
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
