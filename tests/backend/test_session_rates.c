/* Sessions whose pages are lowered where the budget has no room: prompts and replies go on where they would be refused, one alone and several together,
 * within the budget at all times; the report says what is held at which rate; prefixes, forks and saved states go on; what cannot be lowered is
 * refused by name. */
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

enum { FITTED = SINKS + FIT_TOKENS, PROMPT = 3000, TOKENS = 5200, CONTEXT = 6000 };

static struct terse_model *model;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static int make_model(void **state) {
    struct terse_engine *engine;
    (void)state;
    must_start_fixture("qwen3", 2, &model, &engine, &info);
    terse_engine_free(engine);
    random_tokens(tokens, TOKENS, info.vocabulary, 5);
    return 0;
}

static int free_model(void **state) {
    (void)state;
    terse_model_free(model);
    return 0;
}

static struct terse_engine *start_in(uint64_t budget) {
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    engine->budget.most = budget;
    return engine;
}

static struct terse_session_options options_of(double least) {
    struct terse_session_options options = short_session_options("terse-4", TERSE_TAIL_DEFAULT);
    options.context = CONTEXT;
    options.cache.least_rate = least;
    return options;
}

static uint64_t bytes_of(uint64_t n) {
    const struct terse_session_options options = options_of(1.5);
    struct terse_cache_report report;
    assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, n, &report, NULL), TERSE_OK);
    return report.resident;
}

static uint64_t sealed_tokens(const struct terse_cache_report *report) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < report->n_rates; i++) n += report->rate_tokens[i];
    return n;
}

/* Appends tokens [first, end), as a step each of 20; returns how many were appended before one was refused. */
static size_t decode_until(struct terse_engine *engine, struct terse_session *session, size_t first, size_t end) {
    struct terse_error error;
    size_t done = 0;
    for (; first + done < end; done += 20) {
        enum terse_status status = terse_session_decode(session, tokens + first + done, 20, NULL, &error);
        assert_true(terse_engine_kv_bytes(engine) <= engine->budget.most);
        assert_true(!status || status == TERSE_E_MEMORY);
        if (status) break;
    }
    return done;
}

static void replies_go_on_where_the_budget_is_spent(void **state) {
    const struct terse_session_options lowered = options_of(1.5), fixed = options_of(0);
    struct terse_engine *engines[2] = {start_in(UINT64_MAX), start_in(UINT64_MAX)};
    struct terse_session *session = must_open(engines[0], &lowered), *other = must_open(engines[1], &fixed);
    (void)state;
    must_prefill(session, tokens, FITTED + 100);
    must_prefill(other, tokens, FITTED + 100);
    for (size_t i = 0; i < 2; i++) engines[i]->budget.most = terse_engine_kv_bytes(engines[0]) + 30000;
    const size_t more = decode_until(engines[0], session, FITTED + 100, TOKENS - 20),
                 less = decode_until(engines[1], other, FITTED + 100, TOKENS - 20);
    struct terse_cache_report report = report_of(session);
    assert_true(more > less + 500);
    assert_int_equal(report.n_rates, 4);
    assert_int_equal(sealed_tokens(&report) % PAGE_TOKENS, 0);
    assert_true(report.rate_tokens[1] + report.rate_tokens[2] + report.rate_tokens[3] > 500);
    assert_int_equal(report.resident, terse_engine_kv_bytes(engines[0]));
    assert_int_equal(report_of(other).n_rates, 0);
    terse_session_free(session);
    terse_session_free(other);
    terse_engine_free(engines[0]);
    terse_engine_free(engines[1]);
}

static void a_prompt_is_read_at_the_rate_that_fits(void **state) {
    const struct terse_session_options lowered = options_of(1.5), fixed = options_of(0);
    /* A cache of half precision waits for the fit, and the prompt's pages at terse-4 do not fit. */
    const uint64_t budget = bytes_of(FITTED) + 180000;
    struct terse_engine *engine = start_in(budget);
    struct terse_session *session = must_open(engine, &fixed);
    struct terse_error error;
    (void)state;
    assert_int_equal(terse_session_prefill(session, tokens, PROMPT, NULL, &error), TERSE_E_MEMORY);
    assert_int_equal(terse_session_length(session), 0);
    terse_session_free(session);
    session = must_open(engine, &lowered);
    must_prefill(session, tokens, PROMPT);
    assert_true(terse_engine_kv_bytes(engine) <= budget);
    const struct terse_cache_report report = report_of(session);
    assert_int_equal(report.resident, terse_engine_kv_bytes(engine));
    assert_true(report.rate_tokens[0] < sealed_tokens(&report));
    /* Where there is room nothing is lowered. */
    struct terse_engine *large = start_in(UINT64_MAX);
    struct terse_session *whole = must_open(large, &lowered);
    must_prefill(whole, tokens, PROMPT);
    const struct terse_cache_report full = report_of(whole);
    assert_int_equal(full.rate_tokens[0], sealed_tokens(&full));
    assert_int_equal(full.resident, bytes_of(PROMPT));
    assert_true(logits_apart(terse_session_logits(session), terse_session_logits(whole), info.vocabulary) < 0.5);
    terse_session_free(whole);
    terse_engine_free(large);
    terse_session_free(session);
    terse_engine_free(engine);
}

/* A prompt that is fitted to many tokens, where there is room for as many in half precision, is fitted to fewer where there is not. */
static void a_long_prompt_waits_for_what_fits(void **state) {
    const struct terse_session_options options = options_of(0);
    const uint64_t budget = bytes_of(TERSE_FIT_TOKENS_MOST) - 1;
    struct terse_engine *engine = start_in(budget), *large = start_in(UINT64_MAX);
    struct terse_session *session = must_open(engine, &options), *whole = must_open(large, &options);
    (void)state;
    must_prefill(session, tokens, TOKENS);
    must_prefill(whole, tokens, TOKENS);
    assert_true(terse_engine_kv_bytes(engine) <= budget);
    const struct terse_cache_report report = report_of(session), full = report_of(whole);
    assert_int_equal(report.codes, full.codes);
    assert_true(report.codes > 0);
    const double apart = logits_apart(terse_session_logits(session), terse_session_logits(whole), info.vocabulary);
    assert_true(apart > 0 && apart < 0.05); /* by other transforms */
    terse_session_free(whole);
    terse_session_free(session);
    terse_engine_free(large);
    terse_engine_free(engine);
}

/* With room at least rates the same is read as without a budget, bit for bit. */
static void rates_that_are_not_needed_change_nothing(void **state) {
    const struct terse_session_options lowered = options_of(1.5), fixed = options_of(0);
    struct terse_engine *engine = start_in(UINT64_MAX);
    struct terse_session *session = must_open(engine, &lowered), *other = must_open(engine, &fixed);
    (void)state;
    must_prefill(session, tokens, PROMPT);
    must_prefill(other, tokens, PROMPT);
    check_same_logits(session, other);
    terse_session_free(session);
    terse_session_free(other);
    terse_engine_free(engine);
}

static void sessions_share_a_budget(void **state) {
    enum { N = 3 };
    const struct terse_session_options lowered = options_of(1.5);
    struct terse_engine *engine = start_in(UINT64_MAX);
    struct terse_session *sessions[N];
    struct terse_error error;
    (void)state;
    for (size_t i = 0; i < N; i++) {
        sessions[i] = must_open(engine, &lowered);
        must_prefill(sessions[i], tokens + 100 * i, FITTED + 200 + 300 * i);
    }
    engine->budget.most = terse_engine_kv_bytes(engine);
    for (size_t step = 0; step < 40; step++) {
        struct terse_step_item items[N];
        for (size_t i = 0; i < N; i++)
            items[i] = (struct terse_step_item){.session = sessions[i], .tokens = tokens + 20 * step, .n = 20};
        assert_int_equal(terse_engine_step(engine, items, N, &error), TERSE_OK);
        assert_true(terse_engine_kv_bytes(engine) <= engine->budget.most);
    }
    for (size_t i = 0; i < N; i++) {
        const struct terse_cache_report report = report_of(sessions[i]);
        assert_true(report.rate_tokens[0] < sealed_tokens(&report)); /* each has given some */
        terse_session_free(sessions[i]);
    }
    assert_int_equal(terse_engine_kv_bytes(engine), 0);
    terse_engine_free(engine);
}

/* Kept prefixes go before pages are lowered, and none is kept at the cost of pages. */
static void prefixes_make_room_first(void **state) {
    const struct terse_session_options lowered = options_of(1.5);
    struct terse_engine *engine = start_in(UINT64_MAX);
    struct terse_session *session = must_open(engine, &lowered), *again;
    struct terse_error error;
    size_t held;
    (void)state;
    must_prefill(session, tokens, PROMPT);
    must_keep_prefix(engine, session);
    again = must_open_with_prefix(engine, &lowered, tokens, PROMPT + 100, &held);
    assert_int_equal(held, PROMPT);
    engine->budget.most = terse_engine_kv_bytes(engine) + 1000;
    must_decode(again, tokens + PROMPT, 200);
    struct terse_cache_report report = report_of(session);
    assert_int_equal(report.rate_tokens[0], sealed_tokens(&report)); /* the prefix's window was enough */
    engine->budget.most = terse_engine_kv_bytes(engine);
    must_decode(again, tokens + PROMPT + 200, 200);
    report = report_of(session);
    assert_true(report.rate_tokens[0] < sealed_tokens(&report)); /* the pages that both read */
    must_decode(session, tokens + PROMPT, 100);
    const struct terse_cache_report before = report_of(session);
    (void)terse_engine_keep_prefix(engine, session, &error);
    report = report_of(session);
    assert_memory_equal(before.rate_tokens, report.rate_tokens, sizeof before.rate_tokens);
    terse_session_free(session);
    terse_session_free(again);
    terse_engine_free(engine);
}

static void saved_sessions_and_forks_go_on(void **state) {
    const struct terse_session_options lowered = options_of(1.5);
    struct terse_engine *engine = start_in(bytes_of(FITTED) + 180000);
    struct terse_session *session = must_open(engine, &lowered), *copy, *loaded;
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "session_rates-%ld.state", (long)getpid());
    must_prefill(session, tokens, PROMPT);
    const struct terse_cache_report report = report_of(session);
    assert_true(report.rate_tokens[0] < sealed_tokens(&report));
    engine->budget.most = UINT64_MAX;
    must_save(session, path);
    copy = must_fork(session);
    loaded = must_load(engine, &lowered, path);
    unlink(path);
    const struct terse_cache_report from_file = report_of(loaded);
    assert_memory_equal(report.rate_tokens, from_file.rate_tokens, sizeof report.rate_tokens);
    must_decode(session, tokens + PROMPT, 100);
    must_decode(copy, tokens + PROMPT, 100);
    must_decode(loaded, tokens + PROMPT, 100);
    check_same_logits(session, copy);
    check_same_logits(session, loaded);
    must_truncate(session, 2700);
    must_truncate(loaded, 2700);
    must_decode(session, tokens, 100);
    must_decode(loaded, tokens, 100);
    check_same_logits(session, loaded);
    terse_session_free(session);
    terse_session_free(copy);
    terse_session_free(loaded);
    terse_engine_free(engine);
}

static void what_cannot_be_lowered_is_refused(void **state) {
    static const struct {
        const char *method, *value, *evict;
        double least;
        enum terse_status status;
    } cases[] = {{"q8_0", NULL, NULL, 1.5, TERSE_E_UNSUPPORTED},
                 {"terse-4", "terse-3", NULL, 1.5, TERSE_E_UNSUPPORTED},
                 {"terse-4", NULL, "mat-512", 1.5, TERSE_E_UNSUPPORTED},
                 {"terse-4", NULL, NULL, 5, TERSE_E_ARGUMENT},
                 {"terse-4", NULL, NULL, 0.1, TERSE_E_ARGUMENT},
                 {"terse-4", NULL, NULL, -1, TERSE_E_ARGUMENT},
                 {"terse-4", NULL, NULL, 4, TERSE_OK}};
    struct terse_engine *engine = start_in(UINT64_MAX);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct terse_session_options options = options_of(cases[i].least);
        struct terse_session *session;
        struct terse_error error;
        options.cache.method = cases[i].method;
        options.cache.value_type = cases[i].value;
        options.cache.evict = cases[i].evict;
        assert_int_equal(terse_session_new(engine, &options, &session, &error), cases[i].status);
        if (cases[i].status) assert_non_null(strstr(error.message, "lowered"));
        terse_session_free(session);
    }
    terse_engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_go_on_where_the_budget_is_spent),
        cmocka_unit_test(a_prompt_is_read_at_the_rate_that_fits),
        cmocka_unit_test(rates_that_are_not_needed_change_nothing),
        cmocka_unit_test(a_long_prompt_waits_for_what_fits),
        cmocka_unit_test(sessions_share_a_budget),
        cmocka_unit_test(prefixes_make_room_first),
        cmocka_unit_test(saved_sessions_and_forks_go_on),
        cmocka_unit_test(what_cannot_be_lowered_is_refused),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
