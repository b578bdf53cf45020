/* Sessions of codec transform without a profile, longer than what their caches wait for: until then they read exactly, a prompt is as the steps in
 * which it is read, and what was fitted goes with forks, saved states, cuts and shared prefixes. The same with a profile, but that short prompts go
 * by it. */
#include "method/method.h"
#include "support/session_steps.h"
#include "terse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FITTED = SINKS + FIT_TOKENS, PROMPT = 2600, TOKENS = 3000, LONG = SINKS + FIT_TOKENS_MOST + 200, CONTEXT = 5000 };

static struct terse_model *model;
static struct terse_engine *engine;
static const struct terse_codebook *profile; /* that of the weights, as a learned one */
static struct terse_model_info info;
static int32_t tokens[LONG];

static int make_engine(void **state) {
    (void)state;
    must_start_fixture("qwen3", 2, &model, &engine, &info);
    if (engine_weight_profile(engine, &profile, NULL)) return -1;
    random_tokens(tokens, LONG, info.vocabulary, 5);
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session_options options_of(const char *method, enum terse_prefill prefill) {
    struct terse_session_options options = short_session_options(method, TERSE_TAIL_DEFAULT);
    options.context = CONTEXT;
    options.prefill = prefill;
    options.batch = 500;
    return options;
}

static struct terse_session *open_by(const char *method, enum terse_prefill prefill) {
    struct terse_session_options options = options_of(method, prefill);
    return must_open(engine, &options);
}

static double apart(const struct terse_session *one, const struct terse_session *other) {
    return logits_apart(terse_session_logits(one), terse_session_logits(other), info.vocabulary);
}

static struct terse_session_options options_with_profile(const char *method) {
    struct terse_session_options options = options_of(method, TERSE_PREFILL_EXACT);
    options.cache.codebook = profile;
    return options;
}

/* The cache of half precision is what a waiting one is, but for the first tokens' place; of 1 bit per value nothing else would be as near. */
static void tokens_are_read_exactly_until_there_are_enough(void **state) {
    static const enum terse_prefill modes[] = {TERSE_PREFILL_EXACT, TERSE_PREFILL_COMPRESSED};
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct terse_session *session = open_by("terse-1", modes[i]), *half = open_by("f16", modes[i]);
        must_prefill(session, tokens, FITTED - 50);
        must_prefill(half, tokens, FITTED - 50);
        assert_true(apart(session, half) < 2e-3);
        must_decode(session, tokens, 50);
        must_decode(half, tokens, 50);
        assert_true(apart(session, half) < 2e-3);
        assert_int_equal(report_of(session).codes, 0);
        must_decode(session, tokens, 1);
        must_decode(half, tokens, 1);
        assert_true(report_of(session).codes > 0);
        must_decode(session, tokens, 20);
        must_decode(half, tokens, 20);
        assert_true(apart(session, half) > 5e-3);
        terse_session_free(session);
        terse_session_free(half);
    }
}

static void a_prompt_is_as_its_steps(void **state) {
    (void)state;
    struct terse_session *whole = open_by("terse-2", TERSE_PREFILL_EXACT), *parts = open_by("terse-2", TERSE_PREFILL_EXACT);
    struct terse_cache_report foretold;
    struct terse_session_options options = options_of("terse-2", TERSE_PREFILL_EXACT);
    must_prefill(whole, tokens, PROMPT);
    must_prefill(parts, tokens, FITTED);
    assert_int_equal(report_of(parts).codes, 0);
    must_prefill(parts, tokens + FITTED, PROMPT - FITTED);
    check_same_logits(whole, parts);
    assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, PROMPT, &foretold, NULL), TERSE_OK);
    assert_int_equal(report_of(whole).resident, foretold.resident);
    assert_int_equal(report_of(whole).codes, foretold.codes);
    must_decode(whole, tokens, 30);
    must_decode(parts, tokens, 30);
    check_same_logits(whole, parts);
    terse_session_free(whole);
    terse_session_free(parts);
}

/* Where the two profiles are the same, so are the sessions: what their caches note of the residual stream, fit and seal. */
static void a_long_prompt_beside_a_profile_is_as_without(void **state) {
    static const size_t lengths[] = {FITTED, FITTED + 1, PROMPT};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const struct terse_session_options options = options_with_profile("terse-2");
        struct terse_session *session = must_open(engine, &options), *without = open_by("terse-2", TERSE_PREFILL_EXACT);
        struct terse_cache_report own, other, foretold;
        must_prefill(session, tokens, lengths[i]);
        must_prefill(without, tokens, lengths[i]);
        own = report_of(session), other = report_of(without);
        assert_memory_equal(&own, &other, sizeof own);
        assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, lengths[i], &foretold, NULL), TERSE_OK);
        assert_int_equal(own.resident, foretold.resident);
        must_decode(session, tokens, 70);
        must_decode(without, tokens, 70);
        check_same_logits(session, without);
        terse_session_free(session);
        terse_session_free(without);
    }
}

static void a_short_prompt_goes_by_the_profile(void **state) {
    static const size_t lengths[] = {500, FITTED - 1};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const struct terse_session_options options = options_with_profile("terse-2");
        struct terse_session *session = must_open(engine, &options), *single = must_open(engine, &options);
        struct terse_cache_report foretold;
        must_prefill(session, tokens, lengths[i]);
        assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, lengths[i], &foretold, NULL), TERSE_OK);
        assert_true(foretold.codes > 0);
        assert_int_equal(report_of(session).resident, foretold.resident);
        must_decode(single, tokens, 300);
        assert_true(report_of(single).codes > 0);
        terse_session_free(session);
        terse_session_free(single);
    }
}

static void forks_and_loaded_states_go_on_alike(void **state) {
    static const size_t lengths[] = {100, 1500, FITTED, PROMPT};
    const bool beside_profile = *state != NULL;
    char path[64];
    snprintf(path, sizeof path, "test_session_fit-%ld.state", (long)getpid());
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const struct terse_session_options options =
            beside_profile ? options_with_profile("terse-2") : options_of("terse-2", TERSE_PREFILL_EXACT);
        struct terse_session *session = must_open(engine, &options);
        must_prefill(session, tokens, lengths[i]);
        struct terse_session *fork = must_fork(session);
        must_save(session, path);
        struct terse_session *loaded = must_load(engine, &options, path);
        struct terse_session *const all[] = {session, fork, loaded};
        for (size_t s = 0; s < 3; s++) {
            must_decode(all[s], tokens, 5);
            must_prefill(all[s], tokens, 900);
            must_decode(all[s], tokens, 70);
        }
        assert_int_equal(report_of(session).codes > 0, beside_profile || lengths[i] > 1000);
        check_same_logits(session, fork);
        check_same_logits(session, loaded);
        for (size_t s = 0; s < 3; s++) terse_session_free(all[s]);
    }
    unlink(path);
}

/* Reads two prompts of so many tokens that differ from the token `at` on, the second behind what it shares with the first; returns how many tokens
 * it shares. */
static size_t share(const struct terse_session_options *options, size_t one, size_t two, size_t at) {
    static int32_t other[LONG];
    struct terse_session *first = must_open(engine, options), *next, *fresh = must_open(engine, options);
    size_t held;
    must_prefill(first, tokens, one);
    must_keep_prefix(engine, first);
    memcpy(other, tokens, sizeof other);
    for (size_t i = at; i < two; i++) other[i] = (tokens[i] + 1) % (int32_t)info.vocabulary;
    next = must_open_with_prefix(engine, options, other, two, &held);
    must_prefill(next, other + held, two - held);
    must_prefill(fresh, other, two);
    fprintf(stderr, "%zu and %zu tokens, at %zu held %zu apart %g\n", one, two, at, held, apart(next, fresh));
    assert_true(held <= at);
    assert_true(apart(next, fresh) <= (held ? 0.05 : 0)); /* the other reads its first tokens exactly */
    terse_session_free(next);
    terse_session_free(fresh);
    terse_session_free(first);
    terse_engine_drop_prefixes(engine);
    return held;
}

/* A prompt that begins as another did shares what was fitted, if both begin with as many tokens as the shortest that is fitted has. */
static void prompts_that_begin_alike_share_pages(void **state) {
    const struct terse_session_options options =
        *state ? options_with_profile("terse-7") : options_of("terse-7", TERSE_PREFILL_EXACT);
    assert_int_equal(share(&options, PROMPT, TOKENS, FITTED - 52), 0);
    assert_true(share(&options, PROMPT, TOKENS, 2500) > 0);
    if (!*state) assert_true(share(&options, LONG, LONG, 2500) > 0); /* which is fitted to more than they have in common */
}

/* Pages that go by the profile serve short prompts; a long one reads the same tokens again, to fit to them. */
static void long_prompts_share_no_pages_of_short_ones(void **state) {
    const struct terse_session_options options = options_with_profile("terse-7");
    (void)state;
    struct terse_session *first = must_open(engine, &options), *next;
    size_t held;
    must_prefill(first, tokens, 1500);
    must_keep_prefix(engine, first);
    tokens[1200] ^= 1;
    for (size_t n = 1900; n < TOKENS; n += 1000) {
        next = must_open_with_prefix(engine, &options, tokens, n, &held);
        assert_int_equal(held > 0, n < FITTED);
        terse_session_free(next);
    }
    tokens[1200] ^= 1;
    terse_session_free(first);
    terse_engine_drop_prefixes(engine);
}

/* The papers' protocol reads by the profile of the weights from its first token on. */
static void the_papers_protocol_does_not_wait(void **state) {
    (void)state;
    struct terse_session *session = open_by("terse-2", TERSE_PREFILL_PAPER);
    must_prefill(session, tokens, 300);
    assert_true(report_of(session).codes > 0);
    assert_int_equal(report_of(session).window, 0);
    must_decode(session, tokens, 5);
    terse_session_free(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_read_exactly_until_there_are_enough),
        cmocka_unit_test(a_prompt_is_as_its_steps),
        cmocka_unit_test(a_long_prompt_beside_a_profile_is_as_without),
        cmocka_unit_test(a_short_prompt_goes_by_the_profile),
        cmocka_unit_test(forks_and_loaded_states_go_on_alike),
        cmocka_unit_test_prestate(forks_and_loaded_states_go_on_alike, "beside a profile"),
        cmocka_unit_test(prompts_that_begin_alike_share_pages),
        cmocka_unit_test_prestate(prompts_that_begin_alike_share_pages, "beside a profile"),
        cmocka_unit_test(long_prompts_share_no_pages_of_short_ones),
        cmocka_unit_test(the_papers_protocol_does_not_wait),
    };
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
