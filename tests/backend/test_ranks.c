/* Sessions whose pages are dealt to several ranks: all ranks have the same logits, bit for bit and in every run, close to those of one
 * process; each holds its share of the pages and sends what the code says; and what ranks cannot do together is refused by name. The
 * ranks are threads here; tests/cli/cli_ranks.sh has processes. */
#include "backend/cpu/kv/exchange.h"
#include "engine/session.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/thread_ranks.h"
#include "terse_calibrate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Differences of logits, as a part of the largest. Where partial states are summed in another order rows that the window keeps in half
 * precision may be rounded the other way; vector kernels round weights to 8 bits besides, by the sum that a rank has of its own tokens. The
 * scalar ones (TERSE_CPU=scalar) do not. */
#define ROUNDING 3e-4
#define WEIGHTS 2e-2

enum { VOCABULARY = 96, MOST = 3000, FIRST = 5, SECOND = 200, LAST = 4, ROWS = 2 * FIRST + 2 * LAST + 2 };

static int32_t tokens[MOST];

static int make_tokens(void **state) {
    (void)state;
    random_tokens(tokens, MOST, VOCABULARY, 11);
    return 0;
}

/* A rank notes here what it has seen. */
struct seen {
    struct terse_error error; /* of the first call that failed */
    float logits[ROWS][VOCABULARY];
    int32_t sampled[ROWS];
    size_t n;
    struct terse_cache_report report; /* after the first prompt */
    size_t sealed;                    /* page sets then */
    struct collective_counters step;  /* of a decoding step of one token */
};

struct job {
    const struct terse_model *model;
    struct terse_session_options options;
    size_t prompt;
    bool second; /* reads a second prompt */
    bool back;   /* the fork goes back to the first one */
    struct seen seen[THREAD_RANKS_MOST];
};

static bool went_well(struct seen *seen, enum terse_status status) { return !status && !seen->error.code; }

static bool note(struct seen *seen, struct terse_session *session) {
    if (seen->n == ROWS || terse_session_sample(session, &seen->sampled[seen->n], &seen->error)) return false;
    memcpy(seen->logits[seen->n++], terse_session_logits(session), sizeof seen->logits[0]);
    return true;
}

/* Decodes n tokens from the at-th on in both sessions, or in one if there is no other, and notes what follows each. */
static bool decode(struct seen *seen, struct terse_engine *engine, struct terse_session *one, struct terse_session *other,
                   size_t at, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct terse_step_item items[] = {{.session = one, .tokens = tokens + at + i, .n = 1},
                                          {.session = other, .tokens = tokens + at + i + 1, .n = 1}};
        const struct collective_counters before = engine->ranks->counters;
        if (!went_well(seen, terse_engine_step(engine, items, other ? 2 : 1, &seen->error))) return false;
        const struct collective_counters after = engine->ranks->counters;
        if (!other)
            seen->step = (struct collective_counters){after.gathers - before.gathers, after.broadcasts - before.broadcasts,
                                                      after.bytes - before.bytes};
        if (!note(seen, one) || (other && !note(seen, other))) return false;
    }
    return true;
}

/* A prompt, tokens, a second prompt, a fork that goes back, and tokens of both together. */
static bool work(struct job *job, struct seen *seen, struct terse_engine *engine, struct terse_session *session) {
    struct terse_session *fork = NULL;
    struct terse_error *error = &seen->error;
    if (!went_well(seen, terse_session_prefill(session, tokens, job->prompt, NULL, error)) || !note(seen, session)) return false;
    terse_session_cache(session, &seen->report);
    seen->sealed = cache_base_of(session->cache)->pages.n_sealed;
    if (!decode(seen, engine, session, NULL, job->prompt, FIRST)) return false;
    if (job->second && (!went_well(seen, terse_session_prefill(session, tokens, SECOND, NULL, error)) || !note(seen, session)))
        return false;
    bool good = went_well(seen, terse_session_fork(session, &fork, error)) &&
                (!job->back || went_well(seen, terse_session_truncate(fork, job->prompt, error))) &&
                decode(seen, engine, session, fork, 7, LAST) && decode(seen, engine, fork, NULL, 9, FIRST);
    terse_session_free(fork);
    return good;
}

static void run(struct collective *ranks, void *user) {
    struct job *job = user;
    struct seen *seen = &job->seen[ranks->rank];
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_session *session;
    options.threads = 1;
    *seen = (struct seen){0};
    if (engine_new(&backend_cpu, job->model, &options, &engine, &seen->error)) return;
    engine->ranks = ranks;
    if (!terse_session_new(engine, &job->options, &session, &seen->error)) {
        work(job, seen, engine, session);
        terse_session_free(session);
    }
    terse_engine_free(engine);
}

static void run_job(struct job *job, uint32_t n) {
    thread_ranks_run(n, run, job);
    for (uint32_t rank = 0; rank < n; rank++)
        if (job->seen[rank].error.code)
            fail_msg("%s on rank %u of %u: %s", job->options.cache.method, rank, n, job->seen[rank].error.message);
}

static void check_alike(const struct seen *one, const struct seen *other) {
    assert_int_equal(one->n, other->n);
    assert_memory_equal(one->logits, other->logits, sizeof one->logits);
    assert_memory_equal(one->sampled, other->sampled, sizeof one->sampled);
}

/* Checks a rank's part of what one process holds: the ranks' pages are together all of them, and none has many more than others. */
static void check_shares(const struct job *job, uint32_t n, const struct seen *alone) {
    const uint64_t all = alone->report.codes, run_bytes = all / alone->sealed * (DEAL_TOKENS / PAGE_TOKENS);
    uint64_t codes = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        codes += job->seen[rank].report.codes;
        assert_true(job->seen[rank].report.codes <= all / n + run_bytes);
    }
    assert_int_equal(codes, all);
}

/* Checks what a decoding step of one token sends: an exchange in each layer that does not slide. */
static void check_sent(const struct job *job, uint32_t n) {
    const struct cache_shape shape = cache_shape_of(job->model, MOST);
    const uint64_t layers = shape.layers - shape.sliding;
    assert_int_equal(exchange_bytes(&(struct cache_shape){.query_heads = 32, .head_dim = 128}, 1), 16640); /* docs/distributed.md */
    for (uint32_t rank = 0; rank < n; rank++) {
        assert_int_equal(job->seen[rank].step.gathers, layers);
        assert_int_equal(job->seen[rank].step.broadcasts, 0);
        assert_int_equal(job->seen[rank].step.bytes, layers * (n - 1) * exchange_bytes(&shape, 1));
    }
}

static void check_close(const struct seen *got, const struct seen *want, double bound, const char *what, uint32_t n) {
    double worst = 0;
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < got->n; i++) {
        double apart = logits_apart(got->logits[i], want->logits[i], VOCABULARY);
        worst = apart > worst ? apart : worst;
    }
    if (worst > bound) fail_msg("%s: logits of %u ranks are %g of the largest apart from those of one process", what, n, worst);
}

struct row {
    const char *model, *method;
    size_t prompt;
    bool second, halves;
    uint32_t tail;
    enum terse_prefill prefill;
};

static const struct row rows[] = {
    {"qwen3", "f16", 700, true, true, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "f16", 700, true, true, 300, TERSE_PREFILL_COMPRESSED},
    {"qwen3", "q8_0", 900, true, true, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "q4_0", 700, true, true, 0, TERSE_PREFILL_PAPER},
    {"qwen3", "kivi-2", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "terse-2", 2400, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "antkv-1", 700, false, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "cq-1", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "commvq-2", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "kivi-4", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3", "million-2", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"gemma3", "q8_0", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"gpt-oss", "q8_0", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"mpt", "q8_0", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"deepseek2", "q8_0", 700, true, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
    {"qwen3next", "q8_0", 700, false, false, TERSE_TAIL_DEFAULT, TERSE_PREFILL_EXACT},
};

static struct job *job_of(const struct terse_model *model, const char *method, uint32_t tail, struct terse_codebook **codebook) {
    struct job *job = calloc(1, sizeof *job);
    struct terse_error error;
    char name[32];
    assert_non_null(job);
    job->model = model;
    job->options = short_session_options(method, tail);
    job->options.context = MOST;
    *codebook = NULL;
    if (terse_cache_codebook(&job->options.cache, name, sizeof name, &error)) fail_msg("%s", error.message);
    if (name[0] && strcmp(name, "terse") != 0 && terse_codebook_random(model, method, codebook, &error))
        fail_msg("%s", error.message);
    job->options.cache.codebook = *codebook;
    return job;
}

static void ranks_compute_what_one_process_does(void **state) {
    (void)state;
    for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        struct terse_model *model = fixture_model(row->model);
        struct terse_codebook *codebook;
        struct job *job = job_of(model, row->method, row->tail, &codebook);
        char what[64];
        snprintf(what, sizeof what, "%s, %s", row->model, row->method);
        job->prompt = row->prompt;
        job->second = row->second;
        job->back = strcmp(row->model, "qwen3") == 0; /* the others slide, are recurrent or the like */
        job->options.prefill = row->prefill;
        const char *kernels = getenv("TERSE_CPU");
        const bool exact = (kernels && strcmp(kernels, "scalar") == 0) || strcmp(row->method, "f16") == 0;
        run_job(job, 1);
        struct seen *alone = malloc(sizeof *alone), *before = malloc(sizeof *before);
        assert_true(alone && before);
        *alone = job->seen[0];
        assert_int_equal(alone->step.gathers, 0);
        for (uint32_t n = 2; n <= (row->halves ? 4 : 3); n++) {
            run_job(job, n);
            for (uint32_t rank = 1; rank < n; rank++) check_alike(&job->seen[0], &job->seen[rank]);
            check_close(&job->seen[0], alone, exact ? ROUNDING : WEIGHTS, what, n);
            check_sent(job, n);
            if (strcmp(row->model, "qwen3") == 0) check_shares(job, n, alone);
        }
        if (row->halves) {
            *before = job->seen[0];
            run_job(job, 4);
            check_alike(&job->seen[0], before);
        }
        free(alone);
        free(before);
        free(job);
        terse_codebook_free(codebook);
        terse_model_free(model);
    }
}

/* ---- What ranks do not do together */

static void what_needs_all_pages_is_refused_by_name(void **state) {
    static const char *const methods[] = {"mat-64", "snapkv-128", "streaming-64", "quest-64", "selfindex-2"};
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        struct terse_codebook *codebook;
        struct job *job = job_of(model, methods[i], TERSE_TAIL_DEFAULT, &codebook);
        job->prompt = 300;
        thread_ranks_run(2, run, job);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct terse_error *error = &job->seen[rank].error;
            assert_int_equal(error->code, TERSE_E_UNSUPPORTED);
            if (!strstr(error->message, methods[i]) || !strstr(error->message, "ranks")) fail_msg("%s", error->message);
        }
        free(job);
        terse_codebook_free(codebook);
    }
    terse_model_free(model);
}

/* Anchors of a second prompt are chosen by attention to pages that lie elsewhere. */
static void anchors_of_a_second_prompt_are_refused(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    struct terse_codebook *codebook;
    struct job *job = job_of(model, "antkv-1", TERSE_TAIL_DEFAULT, &codebook);
    job->prompt = 700;
    job->second = true;
    thread_ranks_run(2, run, job);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(job->seen[rank].error.code, TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(job->seen[rank].error.message, "antkv-1 chooses exact tokens of a later prompt"));
    }
    free(job);
    terse_codebook_free(codebook);
    terse_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_compute_what_one_process_does),
                                       cmocka_unit_test(what_needs_all_pages_is_refused_by_name),
                                       cmocka_unit_test(anchors_of_a_second_prompt_are_refused)};
    return cmocka_run_group_tests(tests, make_tokens, NULL);
}
