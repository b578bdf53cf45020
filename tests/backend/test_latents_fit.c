/* Sessions of terse-N of models with latent attention, longer than what their caches wait for: how near their logits are to those of half
 * precision, memory, batches, forks, cuts, prefixes, saved states, budgets. test_latents.c has the other methods. */
#include "backend/backend.h"
#include "engine/session.h"
#include "format/page_layout.h"
#include "format/transform.h"
#include "method/method.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "terse_calibrate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FITTED = SINKS + FIT_TOKENS, PROMPT = 2300, TOKENS = 2600, CONTEXT = 3000 };

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static int make_engine(void **state) {
    (void)state;
    must_start_fixture("deepseek2-groups", 1, &model, &engine, &info); /* so small a model is no work to share */
    write_text(tokens, TOKENS, info.vocabulary);
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session_options options_of(const char *method) {
    struct terse_session_options options = short_session_options(method, 32);
    options.context = CONTEXT;
    return options;
}

static struct terse_session *new_session(const char *method) {
    const struct terse_session_options options = options_of(method);
    return must_open(engine, &options);
}

/* Returns a session that has read the first n tokens, those behind the prompt one by one. */
static struct terse_session *session_of(const char *method, size_t n) {
    struct terse_session *session = new_session(method);
    must_prefill(session, tokens, n < PROMPT ? n : PROMPT);
    if (n > PROMPT) must_decode(session, tokens + PROMPT, n - PROMPT);
    return session;
}

static void logits_are_near_those_of_half_precision(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double bound;
    } methods[] = {{"terse-8", 0.016}, {"terse-6", 0.03}, {"terse-4", 0.15}};
    struct terse_session *exact = session_of("f16", PROMPT + 9);
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct terse_session *session = session_of(methods[m].name, PROMPT + 9);
        assert_true(report_of(session).codes > 0);
        check_near_logits(info.vocabulary, methods[m].name, session, exact, methods[m].bound);
        terse_session_free(session);
    }
    terse_session_free(exact);
}

/* Bits are shared over the slices of all layers: the sum is that of the rate, with a byte of gain for each slice of a token. */
static void memory_is_what_is_foretold(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 100, FITTED - 1, FITTED, PROMPT, TOKENS};
    const uint64_t slices = info.head_dim / (info.head_dim - info.latent), before = terse_engine_kv_bytes(engine);
    const struct terse_session_options options = options_of("terse-2");
    assert_int_equal(slices, 3);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct terse_session *session = new_session("terse-2");
        struct terse_cache_report foretold;
        must_prefill(session, tokens, lengths[i]);
        const struct terse_cache_report report = report_of(session);
        const uint64_t pages = lengths[i] > FITTED ? (lengths[i] - SINKS - 32) / PAGE_TOKENS : 0;
        assert_int_equal(report.codes,
                         pages * (info.layers * slices * PAGE_TOKENS + info.layers * info.head_dim * PAGE_TOKENS * 2 / 8));
        assert_int_equal(report.exact, SINKS * info.layers * info.head_dim * sizeof(uint16_t));
        assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, lengths[i], &foretold, NULL), TERSE_OK);
        assert_int_equal(report.resident, foretold.resident);
        assert_int_equal(terse_engine_kv_bytes(engine) - before, report.resident);
        terse_session_free(session);
    }
    assert_int_equal(terse_engine_kv_bytes(engine), before);
}

static void a_batch_is_as_its_sessions_alone(void **state) {
    (void)state;
    static const char *const methods[] = {"terse-4", "terse-1.5", "q8_0"};
    struct terse_session *together[3], *alone[3];
    for (size_t i = 0; i < 3; i++) {
        together[i] = session_of(methods[i], PROMPT);
        alone[i] = must_fork(together[i]);
    }
    for (size_t t = 0; t < 40; t++) {
        struct terse_step_item items[3];
        for (size_t i = 0; i < 3; i++) {
            items[i] = (struct terse_step_item){.session = together[i], .tokens = tokens + t + i, .n = 1};
            must_decode(alone[i], tokens + t + i, 1);
        }
        assert_int_equal(terse_engine_step(engine, items, 3, NULL), TERSE_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        check_same_logits(together[i], alone[i]);
        terse_session_free(together[i]);
        terse_session_free(alone[i]);
    }
}

static void forks_states_and_cuts_go_on_alike(void **state) {
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_template("latents-fit", path);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    const struct terse_session_options options = options_of("terse-2");
    struct terse_session *whole = session_of("terse-2", PROMPT + 10), *fork = must_fork(whole);
    must_save(whole, path);
    struct terse_session *loaded = must_load(engine, &options, path);
    check_same_logits(loaded, whole);
    assert_int_equal(report_of(loaded).codes, report_of(whole).codes);
    must_decode(fork, tokens, 70); /* goes its own way first, beyond a page */
    must_decode(whole, tokens + 100, 70);
    must_decode(loaded, tokens + 100, 70);
    check_same_logits(loaded, whole);
    struct terse_session *alone = session_of("terse-2", PROMPT + 10);
    must_decode(alone, tokens, 70);
    check_same_logits(fork, alone);
    must_truncate(fork, PROMPT + 5); /* within the window as it was, whose pages are sealed now */
    must_truncate(whole, PROMPT + 5);
    must_decode(fork, tokens + 7, 2);
    must_decode(whole, tokens + 7, 2);
    check_near_logits(info.vocabulary, "cut", fork, whole, 1e-6);
    must_truncate(fork, 500); /* there is nothing left to fit to */
    assert_int_equal(terse_session_length(fork), 500);
    must_decode(fork, tokens, 3);
    terse_session_free(loaded);
    terse_session_free(alone);
    terse_session_free(fork);
    terse_session_free(whole);
    unlink(path);
}

static void a_prompt_begins_where_another_was_alike(void **state) {
    (void)state;
    const struct terse_session_options options = options_of("terse-2");
    struct terse_session *first = session_of("terse-2", PROMPT), *fresh = new_session("terse-2");
    int32_t text[TOKENS];
    size_t held;
    for (size_t i = 0; i < TOKENS; i++) text[i] = i < PROMPT - 60 ? tokens[i] : (tokens[i] + 5) % (int32_t)info.vocabulary;
    must_keep_prefix(engine, first);
    terse_session_free(first);
    struct terse_session *session = must_open_with_prefix(engine, &options, text, PROMPT + 20, &held);
    assert_in_range(held, FITTED, PROMPT - 60);
    must_prefill(session, text + held, PROMPT + 20 - held);
    must_prefill(fresh, text, PROMPT + 20);
    assert_int_equal(report_of(session).codes, report_of(fresh).codes);
    terse_session_free(session);
    terse_session_free(fresh);
    terse_engine_drop_prefixes(engine);
}

static void pages_are_lowered_where_the_budget_is_spent(void **state) {
    (void)state;
    struct terse_engine *small = must_start(&backend_cpu, model, 1);
    struct terse_session_options options = options_of("terse-6");
    options.cache.least_rate = 2;
    struct terse_session *session = must_open(small, &options);
    must_prefill(session, tokens, PROMPT);
    small->budget.most = terse_engine_kv_bytes(small) + 2000;
    must_decode(session, tokens + PROMPT, TOKENS - PROMPT);
    const struct terse_cache_report report = report_of(session);
    assert_true(report.n_rates > 1 && report.rate_tokens[0] < PROMPT);
    assert_int_equal(report.resident, terse_engine_kv_bytes(small));
    assert_true(report.resident <= small->budget.most);
    terse_session_free(session);
    terse_engine_free(small);
}

/* Random parameters serve short texts, as a learned profile would. */
static void random_profiles_serve_short_texts(void **state) {
    (void)state;
    struct terse_session_options options = options_of("terse-4");
    struct terse_codebook *profile;
    assert_int_equal(terse_codebook_random(model, "terse-4", &profile, NULL), TERSE_OK);
    options.cache.codebook = profile;
    struct terse_session *session = must_open(engine, &options);
    assert_int_equal(terse_session_fill_random(session, 300, 1, NULL), TERSE_OK);
    must_decode(session, tokens, 2);
    assert_true(report_of(session).codes > 0);
    terse_session_free(session);
    terse_codebook_free(profile);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_half_precision), cmocka_unit_test(memory_is_what_is_foretold),
        cmocka_unit_test(a_batch_is_as_its_sessions_alone),        cmocka_unit_test(forks_states_and_cuts_go_on_alike),
        cmocka_unit_test(a_prompt_begins_where_another_was_alike), cmocka_unit_test(pages_are_lowered_where_the_budget_is_spent),
        cmocka_unit_test(random_profiles_serve_short_texts),
    };
    return cmocka_run_group_tests_name("terse-N of latents", tests, make_engine, free_engine);
}
