/* Where there is no room for all kept prefixes, those leave that are needed last: of conversations that take turns, of one-off prompts
 * between them, of the ends of earlier turns. */
#include "support/session_steps.h"
#include "terse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LONGEST = 7500, TURN = 40, CONVERSATIONS = 4 };

static struct terse_model *model;
static struct terse_model_info info;

static int make_model(void **state) {
    struct terse_engine *engine;
    (void)state;
    must_start_fixture("qwen3", 2, &model, &engine, &info);
    terse_engine_free(engine);
    return 0;
}

static int free_model(void **state) {
    (void)state;
    terse_model_free(model);
    return 0;
}

static struct terse_engine *start(uint32_t prefixes) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    options.threads = 2;
    options.prefixes = prefixes;
    assert_int_equal(terse_engine_new(model, &options, &engine, NULL), TERSE_OK);
    return engine;
}

static struct terse_session_options options_of(const char *method) {
    struct terse_session_options options = short_session_options(method, 64);
    options.context = LONGEST + 100;
    return options;
}

/* Conversations differ from their first tokens on. */
static const int32_t *tokens_of(uint64_t conversation) {
    static int32_t tokens[LONGEST];
    random_tokens(tokens, LONGEST, info.vocabulary, conversation + 1);
    return tokens;
}

/* Plays a turn as a server does: the prompt of n tokens is kept when it is read, and again with its reply of 10. Returns how many tokens need not
 * be read. */
static size_t play(struct terse_engine *engine, const struct terse_session_options *options, uint64_t conversation, size_t n) {
    const int32_t *tokens = tokens_of(conversation);
    size_t held;
    struct terse_session *session = must_open_with_prefix(engine, options, tokens, n, &held);
    must_prefill(session, tokens + held, n - held);
    (void)terse_engine_keep_prefix(engine, session, NULL); /* what there is no room for is read again */
    must_decode(session, tokens + n, 10);
    (void)terse_engine_keep_prefix(engine, session, NULL);
    terse_session_free(session);
    return held;
}

/* Returns what half as many conversations as `halves`, of so many tokens, take, with the two windows that a turn has beside its prefix's. */
static uint64_t room_for(const struct terse_session_options *options, size_t halves, size_t n_tokens) {
    struct terse_engine *engine = start(1);
    struct terse_session *session = must_open(engine, options);
    must_prefill(session, tokens_of(0), n_tokens);
    const uint64_t one = terse_engine_kv_bytes(engine);
    struct terse_session *copy = must_fork(session), *other = must_fork(session);
    const uint64_t windows = terse_engine_kv_bytes(engine) - one;
    terse_session_free(copy);
    terse_session_free(other);
    terse_session_free(session);
    terse_engine_free(engine);
    return one * halves / 2 + windows;
}

enum { ROUNDS = 6, LAST = 3 };

/* Plays conversations that take turns, from `begin` tokens on, and returns how often in the last rounds one found its prefix. */
static int hits(struct terse_engine *engine, const struct terse_session_options *options, size_t begin) {
    int found = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (uint64_t i = 0; i < CONVERSATIONS; i++) {
            const size_t held = play(engine, options, i, begin + TURN * (size_t)round);
            found += round >= ROUNDS - LAST && held >= begin;
            assert_true(terse_engine_kv_bytes(engine) <= engine->budget.most);
        }
    return found;
}

/* Four have room for three: the one used last leaves when another needs its room, so that two of three turns find theirs. By least recent use none
 * would. */
static void conversations_take_turns(void **state) {
    const struct terse_session_options options = options_of("q8_0");
    struct terse_engine *engine = start(32);
    (void)state;
    engine->budget.most = room_for(&options, 2 * (CONVERSATIONS - 1), 500 + TURN * ROUNDS);
    assert_true(hits(engine, &options, 500) >= LAST * CONVERSATIONS * 2 / 3);
    terse_engine_free(engine);
    engine = start(32);
    engine->budget.most = room_for(&options, 2 * CONVERSATIONS + 1, 500 + TURN * ROUNDS);
    assert_int_equal(hits(engine, &options, 500), LAST * CONVERSATIONS);
    terse_engine_free(engine);
}

/* The same where the number of prefixes is the limit. */
static void their_number_is_limited(void **state) {
    const struct terse_session_options options = options_of("q8_0");
    struct terse_engine *engine = start(CONVERSATIONS - 1);
    (void)state;
    assert_true(hits(engine, &options, 1000) >= LAST * CONVERSATIONS * 2 / 3);
    terse_engine_free(engine);
}

/* Where pages can be lowered, those of conversations that have come back are, and all four find theirs; but not below 3 bits. */
static void pages_are_lowered_for_them(void **state) {
    struct terse_session_options options = options_of("terse-4");
    struct terse_engine *engine = start(32);
    struct terse_cache_report report;
    size_t held;
    (void)state;
    options.cache.least_rate = 1.5;
    engine->budget.most = room_for(&options, 7, 7000 + TURN * ROUNDS);
    assert_int_equal(hits(engine, &options, 7000), LAST * CONVERSATIONS);
    for (uint64_t i = 0; i < CONVERSATIONS; i++) {
        struct terse_session *session = must_open_with_prefix(engine, &options, tokens_of(i), 7400, &held);
        report = report_of(session);
        for (uint32_t rate = 0; rate < report.n_rates; rate++) assert_true(report.rates[rate] >= 3 || !report.rate_tokens[rate]);
        assert_true(held > 7000);
        terse_session_free(session);
    }
    terse_engine_free(engine);
}

/* Prompts that come once pass by the conversations that come back, and a conversation that has ended makes room. */
static void prompts_that_come_once_pass(void **state) {
    const struct terse_session_options options = options_of("q8_0");
    struct terse_engine *engine = start(3);
    size_t held = 0;
    (void)state;
    for (uint64_t turn = 0; turn < 8; turn++) {
        for (uint64_t i = 0; i < 2; i++) {
            held = play(engine, &options, i, 1000 + TURN * turn);
            if (turn > 2) assert_true(held >= 1000);
        }
        play(engine, &options, 100 + 2 * turn, 1000);
        play(engine, &options, 101 + 2 * turn, 1000);
    }
    for (uint64_t turn = 0; turn < 12; turn++) /* of the two neither comes back: three others have their room */
        for (uint64_t i = 200; i < 203; i++) held = play(engine, &options, i, 1000 + TURN * turn);
    assert_true(held >= 1000);
    assert_true(play(engine, &options, 200, 1500) >= 1000);
    assert_true(play(engine, &options, 201, 1500) >= 1000);
    terse_engine_free(engine);
}

/* The end of an earlier turn leaves before another conversation's only prefix, though that was used longer ago. */
static void earlier_turns_leave_first(void **state) {
    const struct terse_session_options options = options_of("q8_0");
    struct terse_engine *engine = start(4);
    (void)state;
    play(engine, &options, 0, 1000);
    for (size_t turn = 0; turn < 6; turn++) play(engine, &options, 1, 1000 + TURN * turn);
    assert_true(play(engine, &options, 0, 1100) >= 1000);
    terse_engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_take_turns),   cmocka_unit_test(their_number_is_limited),
        cmocka_unit_test(pages_are_lowered_for_them), cmocka_unit_test(prompts_that_come_once_pass),
        cmocka_unit_test(earlier_turns_leave_first),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
