/* An engine over several ranks: rank 0 works with its sessions as with those of one process, and gets logits close to those; the others
 * follow whatever it does; what fails on one of them fails on rank 0, which goes on. The ranks are threads here; tests/cli/cli_ranks.sh and
 * tests/serve/test_ranks.py have processes. */
#include "engine/session.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "support/thread_ranks.h"
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

/* Logits of several ranks differ from those of one process by at most so much of the largest; test_ranks.c says why. */
#define WEIGHTS 2e-2

enum { VOCABULARY = 96, MOST = 3000, ROWS = 64 };

static int32_t tokens[MOST];

static int make_tokens(void **state) {
    (void)state;
    random_tokens(tokens, MOST, VOCABULARY, 11);
    return 0;
}

/* A job is what rank 0 does, and what it has seen. */
struct job {
    const struct terse_model *model;
    struct terse_session_options options;
    size_t prompt;
    uint64_t budget;       /* of the limited rank's caches; 0: no limit */
    uint32_t limited_rank; /* 1 but where a test says so */
    bool (*work)(struct job *job, struct terse_engine *engine, struct terse_session *session);
    bool worked;
    struct terse_error errors[THREAD_RANKS_MOST]; /* of the first call that failed on each rank */
    float logits[ROWS][VOCABULARY];
    size_t n;
    const char *path;                /* of a saved state */
    struct collective_counters step; /* of the last decoding step of one token */
    uint64_t prompt_gathers;         /* of a prompt */
    enum terse_status refused;       /* what became of a prompt that may be */
    size_t refused_fits;             /* for want of memory to fit to it, so often */
    uint64_t used, left;             /* bytes of caches: rank 0's on the way, rank 1's when all has ended */
};

static bool note(struct job *job, const struct terse_session *session) {
    assert_true(job->n < ROWS);
    memcpy(job->logits[job->n++], terse_session_logits(session), sizeof job->logits[0]);
    return true;
}

static bool read_prompt(struct job *job, struct terse_session *session, size_t first, size_t n) {
    return !terse_session_prefill(session, tokens + first, n, NULL, job->errors) && note(job, session);
}

static bool decode(struct job *job, struct terse_session *session, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) {
        const struct collective_counters before = session->engine->ranks->counters;
        if (terse_session_decode(session, tokens + i, 1, NULL, job->errors) || !note(job, session)) return false;
        const struct collective_counters after = session->engine->ranks->counters;
        job->step = (struct collective_counters){after.gathers - before.gathers, after.broadcasts - before.broadcasts,
                                                 after.bytes - before.bytes};
    }
    return true;
}

static void run_rank(struct collective *ranks, void *user) {
    struct job *job = user;
    struct terse_error *error = &job->errors[ranks->rank];
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_session *session;
    options.threads = 1;
    options.prompt_ms = 0; /* a piece a step, whatever its time */
    if (ranks->rank == job->limited_rank) options.kv_budget = job->budget;
    if (engine_new(&backend_cpu, job->model, &options, &engine, error)) return;
    if (engine_join(engine, ranks, error)) abort();
    if (ranks->rank) {
        if (terse_engine_follow(engine, error)) { /* rank 0 would wait for it; a process of a job ends the job */
            fprintf(stderr, "rank %u: %s\n", ranks->rank, error->message);
            abort();
        }
        if (ranks->rank == 1) job->left = terse_engine_kv_bytes(engine);
    } else {
        if (!terse_session_new(engine, &job->options, &session, error)) {
            job->worked = job->work(job, engine, session);
            terse_session_free(session);
        }
    }
    terse_engine_free(engine);
}

static void run_job(struct job *job, uint32_t n) {
    memset(job->errors, 0, sizeof job->errors);
    job->n = 0;
    thread_ranks_run(n, run_rank, job);
    for (uint32_t rank = 0; rank < n; rank++)
        if (job->errors[rank].code)
            fail_msg("%s on rank %u of %u: %s", job->options.cache.method, rank, n, job->errors[rank].message);
    assert_true(job->worked);
    if (n > 1) assert_int_equal(job->left, 0);
}

static struct job *job_of(const struct terse_model *model, const char *method, struct terse_codebook **codebook) {
    struct job *job = calloc(1, sizeof *job);
    struct terse_error error;
    char name[32];
    assert_non_null(job);
    job->model = model;
    job->options = short_session_options(method, TERSE_TAIL_DEFAULT);
    job->options.context = MOST;
    job->prompt = 700;
    job->limited_rank = 1;
    *codebook = NULL;
    if (terse_cache_codebook(&job->options.cache, name, sizeof name, &error)) fail_msg("%s", error.message);
    if (name[0] && strcmp(name, "terse") != 0 && terse_codebook_random(model, method, codebook, &error))
        fail_msg("%s", error.message);
    job->options.cache.codebook = *codebook;
    return job;
}

static void free_job(struct job *job, struct terse_codebook *codebook) {
    free(job);
    terse_codebook_free(codebook);
}

/* ---- All that can be done with sessions */

/* A session that begins where the engine has kept another one. */
static bool begin_alike(struct job *job, struct terse_engine *engine, const struct terse_session *session) {
    struct terse_session *alike = NULL;
    size_t held = 0, n = job->prompt + 40;
    bool good = !terse_engine_keep_prefix(engine, session, job->errors) &&
                !terse_session_new_with_prefix(engine, &job->options, tokens, n, &alike, &held, job->errors);
    assert_true(!good || held);
    good = good && read_prompt(job, alike, held, n - held) && decode(job, alike, 3, 2);
    terse_session_free(alike);
    return good;
}

/* A prompt under way beside another session's tokens, and one that is cancelled after its first piece. */
static bool read_beside(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    struct terse_session *other;
    struct terse_error cancelled;
    uint64_t done, total = 1;
    bool good = !terse_session_new(engine, &job->options, &other, job->errors) &&
                !terse_session_begin_prompt(other, tokens + 100, 600, NULL, job->errors);
    for (size_t i = 0; good && total; i++) {
        struct terse_step_item items[] = {{.session = session, .tokens = tokens + i, .n = 1}, {.session = other}};
        good = !terse_engine_step(engine, items, 2, job->errors) && (i >= 2 || note(job, session));
        terse_session_prompt(other, &done, &total);
    }
    struct terse_step_item item = {.session = other};
    good = good && note(job, other) && !terse_session_begin_prompt(other, tokens, 900, NULL, job->errors) &&
           !terse_engine_step(engine, &item, 1, job->errors);
    assert_true(!good || other->prompt); /* a piece is not all */
    terse_session_cancel(other);
    good =
        good && !terse_engine_step(engine, &item, 1, &cancelled) && item.status == TERSE_E_INTERRUPTED && decode(job, other, 11, 2);
    terse_session_free(other);
    return good;
}

static bool do_all(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    struct terse_session *fork = NULL;
    bool good = read_prompt(job, session, 0, job->prompt) && decode(job, session, job->prompt, 3) &&
                begin_alike(job, engine, session) && !terse_session_fork(session, &fork, job->errors) &&
                !terse_session_truncate(fork, job->prompt, job->errors) && decode(job, fork, 7, 3) &&
                read_prompt(job, session, 40, 200);
    struct terse_step_item items[] = {{.session = session, .tokens = tokens, .n = 1}, {.session = fork, .tokens = tokens, .n = 2}};
    good = good && !terse_engine_step(engine, items, 2, job->errors) && note(job, session) && note(job, fork) &&
           read_beside(job, engine, session) && !terse_session_truncate(session, 0, job->errors) &&
           read_prompt(job, session, 5, 300) && !terse_session_fill_random(session, 1000, 7, job->errors) &&
           decode(job, session, 4, 2);
    terse_session_reset(session);
    good = good && read_prompt(job, session, 0, 100);
    terse_session_free(fork);
    return good;
}

static void ranks_follow_all_that_is_done(void **state) {
    static const char *const methods[] = {"f16", "q8_0", "terse-2", "cq-1", "commvq-2"};
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        struct terse_codebook *codebook;
        struct job *job = job_of(model, methods[m], &codebook), *alone = malloc(sizeof *alone);
        assert_non_null(alone);
        job->work = do_all;
        run_job(job, 1);
        *alone = *job;
        for (uint32_t n = 2; n <= 3; n++) {
            run_job(job, n);
            assert_int_equal(job->n, alone->n);
            for (size_t i = 0; i < job->n; i++) {
                const double apart = logits_apart(job->logits[i], alone->logits[i], VOCABULARY);
                if (apart > WEIGHTS) fail_msg("%s, %u ranks: row %zu is %g of the largest apart", methods[m], n, i, apart);
            }
        }
        free(alone);
        free_job(job, codebook);
    }
    terse_model_free(model);
}

/* Of a token rank 0 sends one order and its outcome beside what layers exchange. A prompt of two panels is shared by two ranks: in each layer but the
 * last, of which the last token alone is wanted, they gather the hidden states, as many pieces of a panel as there are ranks. All by
 * docs/distributed.md. */
static bool count_exchanges(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    const uint64_t before = engine->ranks->counters.gathers;
    if (!read_prompt(job, session, 0, job->prompt)) return false;
    job->prompt_gathers = engine->ranks->counters.gathers - before;
    return decode(job, session, 0, 1);
}

static void exchanges_are_as_many_as_documented(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    struct terse_codebook *codebook;
    struct job *job = job_of(model, "q8_0", &codebook);
    const struct cache_shape shape = cache_shape_of(model, MOST);
    job->work = count_exchanges;
    for (uint32_t ranks = 2; ranks <= 3; ranks++) {
        run_job(job, ranks);
        assert_int_equal(job->step.broadcasts, 1);
        assert_int_equal(job->step.gathers, shape.layers + 1);
        assert_int_equal(job->prompt_gathers, (shape.layers - 1) * ranks + 1);
    }
    free_job(job, codebook);
    terse_model_free(model);
}

/* ---- Saved states */

static bool save(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    (void)engine;
    return read_prompt(job, session, 0, job->prompt) && !terse_session_save(session, job->path, job->errors);
}

/* Goes on where a saved session was, and is saved again as it is loaded. */
static bool load(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    struct terse_session *loaded = NULL;
    bool good = !terse_session_load(engine, &job->options, job->path, &loaded, job->errors) && note(job, loaded) &&
                !terse_session_save(loaded, job->path, job->errors) && decode(job, loaded, 9, 5) &&
                (strcmp(job->options.cache.method, "antkv-1") == 0 || read_prompt(job, loaded, 30, 150)) &&
                decode(job, loaded, 5, 2);
    (void)session;
    terse_session_free(loaded);
    return good;
}

static uint8_t *bytes_of(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*n);
    assert_true(bytes && fread(bytes, 1, *n, file) == *n);
    fclose(file);
    return bytes;
}

/* A first prompt is read without exchanges, so what ranks save of it is what one process saves, bit for bit, whoever has loaded it before. */
static void states_are_those_of_one_process(void **state) {
    static const struct {
        const char *model, *method;
        size_t prompt;
    } rows[] = {{"qwen3", "f16", 700},   {"qwen3", "q8_0", 900},     {"qwen3", "terse-2", 2400}, {"qwen3", "antkv-1", 700},
                {"gemma3", "q8_0", 700}, {"deepseek2", "q8_0", 700}, {"qwen3next", "q8_0", 700}};
    char path[TEMPORARY_PATH];
    (void)state;
    temporary_template("lead", path);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct terse_model *model = fixture_model(rows[i].model);
        struct terse_codebook *codebook;
        struct job *job = job_of(model, rows[i].method, &codebook), *alone = malloc(sizeof *alone);
        size_t n, n_alone;
        assert_non_null(alone);
        job->path = path;
        job->prompt = rows[i].prompt;
        job->work = save;
        run_job(job, 1);
        uint8_t *want = bytes_of(path, &n_alone);
        job->work = load;
        run_job(job, 1);
        *alone = *job;
        for (uint32_t ranks = 3; ranks >= 2; ranks--) {
            job->work = ranks == 3 ? save : load; /* that of 3 is loaded by 2 */
            run_job(job, ranks);
            uint8_t *got = bytes_of(path, &n);
            assert_int_equal(n, n_alone);
            assert_memory_equal(got, want, n);
            free(got);
        }
        assert_int_equal(job->n, alone->n);
        for (size_t r = 0; r < job->n; r++) {
            const double apart = logits_apart(job->logits[r], alone->logits[r], VOCABULARY);
            if (apart > WEIGHTS) fail_msg("%s, %s: row %zu is %g of the largest apart", rows[i].model, rows[i].method, r, apart);
        }
        free(want);
        free(alone);
        free_job(job, codebook);
        terse_model_free(model);
    }
    remove(path);
}

/* ---- What fails on one rank */

static bool exceed_elsewhere(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    struct terse_error refused;
    (void)engine;
    if (!read_prompt(job, session, 0, 200) || !decode(job, session, 9, 1)) return false;
    assert_int_equal(terse_session_prefill(session, tokens, 2000, NULL, &refused), TERSE_E_MEMORY);
    if (!strstr(refused.message, "rank 1: ")) fail_msg("%s", refused.message);
    assert_int_equal(terse_session_length(session), 201);
    return decode(job, session, 10, 3);
}

static void a_budget_spent_elsewhere_refuses_the_prompt(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    struct terse_codebook *codebook;
    struct job *job = job_of(model, "f16", &codebook);
    struct terse_cache_report report;
    job->work = exceed_elsewhere;
    assert_int_equal(terse_cache_bytes(model, NULL, &job->options.cache, 900, &report, NULL), TERSE_OK);
    job->budget = report.resident;
    run_job(job, 2);
    free_job(job, codebook);
    terse_model_free(model);
}

/* A rank without memory for the step that fits transforms, before the fit, in it or after it, leaves nobody waiting. The session goes on. */
static bool exceed_in_fit(struct job *job, struct terse_engine *engine, struct terse_session *session) {
    struct terse_error refused;
    if (!read_prompt(job, session, 0, TERSE_FIT_TOKENS)) return false;
    job->used = terse_engine_kv_bytes(engine); /* the window's, which every rank has */
    if (!job->budget) return true;
    job->refused = terse_session_prefill(session, tokens + TERSE_FIT_TOKENS, 300, NULL, &refused);
    if (!job->refused) return decode(job, session, 10, 3);
    assert_int_equal(job->refused, TERSE_E_MEMORY);
    if (!strstr(refused.message, "rank 1: ") != !job->limited_rank) fail_msg("%s", refused.message);
    job->refused_fits += strstr(refused.message, "what the KV cache learns") != NULL;
    assert_int_equal(terse_session_length(session), TERSE_FIT_TOKENS);
    terse_session_reset(session);
    return read_prompt(job, session, 7, 30) && decode(job, session, 10, 3);
}

static void memory_that_one_rank_lacks_where_all_fit_is_refused(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    for (uint32_t n = 2; n <= 3; n++)
        for (uint32_t limited = 0; limited < 2; limited++) {
            struct terse_codebook *codebook;
            struct job *job = job_of(model, "terse-2", &codebook);
            job->work = exceed_in_fit;
            job->limited_rank = limited;
            run_job(job, n);
            uint64_t refused = job->used, served = 8 * job->used; /* budgets */
            while (served - refused > 4000) {                     /* less than a layer's records take */
                job->budget = (refused + served) / 2;
                run_job(job, n);
                *(job->refused ? &refused : &served) = job->budget;
            }
            assert_true(job->refused_fits);
            free_job(job, codebook);
        }
    terse_model_free(model);
}

static void rank_0_cannot_follow(void **state) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_error error;
    (void)state;
    struct terse_model *model = fixture_model("qwen3");
    options.threads = 1;
    options.over_ranks = true; /* of no job: rank 0 of 1 */
    assert_int_equal(terse_engine_new(model, &options, &engine, &error), TERSE_OK);
    assert_int_equal(terse_engine_follow(engine, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "rank 0"));
    terse_engine_free(engine);
    terse_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_follow_all_that_is_done),
                                       cmocka_unit_test(exchanges_are_as_many_as_documented),
                                       cmocka_unit_test(states_are_those_of_one_process),
                                       cmocka_unit_test(a_budget_spent_elsewhere_refuses_the_prompt),
                                       cmocka_unit_test(memory_that_one_rank_lacks_where_all_fit_is_refused),
                                       cmocka_unit_test(rank_0_cannot_follow)};
    return cmocka_run_group_tests(tests, make_tokens, NULL);
}
