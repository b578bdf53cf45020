/* Every allocation of forking, saving and loading a session is refused once: nothing is lost, nothing leaks, and ranks do not wait for each
 * other. */
#include "engine/session.h"
#include "support/fixture_model.h"
#include "support/refusing_memory.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "support/thread_ranks.h"
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

enum { PROMPT = 2200, CONTEXT = 3000 }; /* more than terse-2 waits for before it fits */

static struct terse_model *model;
static struct terse_engine *engine;
static char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 8], part[TEMPORARY_PATH + 16];

struct trial {
    struct terse_session_options options;
    struct terse_session *session, *made;
};

static enum terse_status fork_it(struct trial *t, struct terse_error *error) {
    return terse_session_fork(t->session, &t->made, error);
}

static enum terse_status save_it(struct trial *t, struct terse_error *error) { return terse_session_save(t->session, path, error); }

static enum terse_status load_it(struct trial *t, struct terse_error *error) {
    return terse_session_load(engine, &t->options, path, &t->made, error);
}

/* Refuses one allocation after another until the call succeeds; returns how many it makes. */
static long refuse_each(enum terse_status (*call)(struct trial *t, struct terse_error *error), struct trial *t) {
    for (long i = 0;; i++) {
        struct terse_error error = {0};
        long before = blocks;
        asked = 0;
        allowed = i;
        enum terse_status status = call(t, &error);
        allowed = -1;
        if (!status) return i;
        assert_int_equal(status, TERSE_E_MEMORY);
        assert_int_equal(error.code, TERSE_E_MEMORY);
        assert_null(t->made);
        assert_int_equal(blocks, before);
        assert_int_equal(terse_session_length(t->session), PROMPT);
        assert_int_equal(access(part, F_OK), -1);
    }
}

static void check_goes_on(struct terse_session *session, const float *logits, uint32_t vocabulary) {
    int32_t token;
    assert_int_equal(terse_session_length(session), PROMPT);
    assert_memory_equal(terse_session_logits(session), logits, vocabulary * sizeof *logits);
    assert_int_equal(terse_session_sample(session, &token, NULL), TERSE_OK);
    assert_int_equal(terse_session_decode(session, &token, 1, NULL, NULL), TERSE_OK);
}

static void every_refused_allocation_is_survived(void **state) {
    (void)state;
    static const char *const methods[] = {"q4_0", "terse-2", "mat-128", "snapkv-128", "quest-64"};
    struct terse_model_info info;
    terse_model_describe(model, &info);
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct trial t = {.options = short_session_options(methods[m], 0)};
        t.options.context = CONTEXT;
        const struct terse_sampling defaults = terse_sampling_defaults();
        struct terse_sampling sampling = defaults;
        int32_t tokens[PROMPT];
        for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
        sampling.biases = &(struct terse_logit_bias){3, 1};
        sampling.n_biases = 1;
        assert_int_equal(terse_session_new(engine, &t.options, &t.session, NULL), TERSE_OK);
        assert_int_equal(terse_session_set_sampling(t.session, &sampling, NULL), TERSE_OK);
        assert_int_equal(terse_session_prefill(t.session, tokens, PROMPT, NULL, NULL), TERSE_OK);
        const float *logits = terse_session_logits(t.session);

        long forks = refuse_each(fork_it, &t);
        check_goes_on(t.made, logits, info.vocabulary);
        terse_session_free(t.made);
        t.made = NULL;

        assert_int_equal(terse_session_save(t.session, path, NULL), TERSE_OK);
        long saves = refuse_each(save_it, &t); /* over the old file */
        long loads = refuse_each(load_it, &t);
        check_goes_on(t.made, logits, info.vocabulary);
        terse_session_free(t.made);
        print_message("%s: %ld allocations of a fork, %ld of saving, %ld of loading\n", methods[m], forks, saves, loads);
        assert_true(forks > 8 && saves >= 3 && loads > 10);
        check_goes_on(t.session, logits, info.vocabulary);
        terse_session_free(t.session);
    }
}

/* ---- Over ranks */

/* The writer's buffer is refused, then the memory in which ranks gather pages: to both of two ranks, to the one that asks later, to none. */
static void save_over_ranks(struct terse_session *session) {
    int32_t tokens[PROMPT];
    long refusals = 0;
    write_text(tokens, PROMPT, model_of(session)->vocabulary);
    if (terse_session_prefill(session, tokens, PROMPT, NULL, NULL)) abort();
    small = 100000;
    for (enum terse_status status = TERSE_E_MEMORY; status; refusals++) {
        asked = 0;
        allowed = refusals;
        status = terse_session_save(session, path, NULL);
        allowed = -1;
        if (status && (status != TERSE_E_MEMORY || access(part, F_OK) == 0)) abort();
    }
    small = 0;
    if (refusals != 4 || terse_session_decode(session, tokens, 1, NULL, NULL)) abort();
}

static void run_rank(struct collective *ranks, void *user) {
    struct terse_session_options options = short_session_options("f16", 0);
    struct terse_session *session;
    struct terse_engine *own = must_start(&backend_cpu, model, 1);
    (void)user;
    options.context = CONTEXT;
    if (engine_join(own, ranks, NULL)) abort();
    if (ranks->rank) {
        if (terse_engine_follow(own, NULL)) abort();
    } else {
        if (terse_session_new(own, &options, &session, NULL)) abort();
        save_over_ranks(session);
        terse_session_free(session);
    }
    terse_engine_free(own);
}

static void memory_refused_to_one_rank_fails_on_all(void **state) {
    (void)state;
    const long before = blocks;
    thread_ranks_run(2, run_rank, NULL);
    assert_int_equal(blocks, before);
}

static int make_engine(void **state) {
    (void)state;
    struct terse_engine_options options = terse_engine_options_defaults();
    options.threads = 1;
    model = fixture_model("qwen3");
    temporary_template("memory", folder);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/state", folder);
    snprintf(part, sizeof part, "%s.part", path);
    return terse_engine_new(model, &options, &engine, NULL) ? -1 : 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_refused_allocation_is_survived),
                                       cmocka_unit_test(memory_refused_to_one_rank_fails_on_all)};
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
