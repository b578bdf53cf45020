/* Caches whose pages are dealt to several ranks on GPUs: all ranks get the same outputs, bit for bit and in every run, close to those of one; each holds
 * its share of the pages; engines over them give the CPU's logits; and what they cannot do together is refused by name. In emulation the ranks are
 * threads; on GPUs they are processes, which exchange by NCCL: tests/cuda/ranks.sh starts them. */
#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/attend_ranks.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
#include "base/memory.h"
#include "engine/session.h"
#include "kv/deal.h"
#include "kv/state_file.h"
#include "method/method.h"
#include "ranks_under_test.h"
#include "support/fit_sample.h"
#include "support/random_codebook.h"
#include "support/random_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "terse_calibrate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Of a difference of outputs, as a part of the largest: partial sums round weights to halves by maxima of their own. */
#define BOUND 2e-3
#define Q_WIDTH (GROUP * WIDTH)

enum {
    MORE = 50,
    LATER = 20,
    FEW = 3,
    BEHIND_CUT = 330,
    ROWS = 2 + MORE + LATER + FEW + 1 + MORE,
    Q_MOST = GROUP * HEADS * HEAD_DIM_MOST
};

/* A rank notes here what it has seen. */
struct seen {
    struct terse_error error;          /* of the first call that failed */
    float out[LAYERS][ROWS][Q_MOST];   /* of all queries */
    size_t n;                          /* of its rows */
    size_t here, sealed;               /* page sets after the first prompt */
    uint64_t step_bytes, step_gathers; /* of a decoding step of one token */
};

struct job {
    char path[TEMPORARY_PATH], shared_path[TEMPORARY_PATH]; /* of a saved state: this process's, and rank 0's, which all read */
    const struct method *method;
    size_t prompt;
    bool loads; /* ranks go on from the saved state */
    bool paper; /* prompts are read by the papers' protocol */
    struct seen seen[THREAD_RANKS_MOST];
};

/* A rank computes with these. */
struct computing {
    struct seen *seen;
    struct batch_memory *batch;
    float *k, *v, *q; /* on the device */
    float *host;      /* [query_rows][Q_MOST] */
};

/* Counts the queries of the longest step that has any. */
static size_t query_rows(const struct job *job) { return job->prompt > MORE ? job->prompt : MORE; }

/* Returns whether a run cuts a sealed page, among whose tokens no anchors may be. */
static bool cuts_pages(const struct job *job) { return sample_shape.slopes && !job->method->policy->anchors; }

static bool went_well(struct seen *seen, enum terse_status status) { return !status && !seen->error.code; }

/* Queries by their places, the same in all runs. */
static void make_queries(float *q, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) q[i] = (float)((i * 2654435761u + seed * 40503u) % 1000) / 1000 - 0.5f;
}

static bool send(float *to, const float *from, size_t floats) { return device_send(to, from, floats * sizeof *to) == cudaSuccess; }

/* Counts the last tokens of n whose queries attend. */
static size_t asked_of(size_t n, bool asks) { return !asks ? 0 : n < MORE ? n : MORE; }

/* A layer of a step of n tokens, of which the last queries attend, or none; where anchors are chosen, all queries, which are observed before. */
static bool take_layer(struct computing *c, const struct kv_batch *batch, uint32_t layer, size_t first, size_t n, bool asks) {
    struct seen *seen = c->seen;
    const size_t at = ((size_t)layer * MOST + first) * WIDTH;
    const bool chooses = cache_base_of(batch->caches[0])->plan.anchors;
    const size_t kept = asked_of(n, asks), asked = chooses ? n : kept;
    make_queries(c->host, asked * Q_WIDTH, first * LAYERS + layer);
    if (!send(c->k, sample_keys + at, n * WIDTH) || !send(c->v, sample_values + at, n * WIDTH)) return false;
    if (asked && !send(c->q, c->host, asked * Q_WIDTH)) return false;
    const struct kv_rows rows = {.layer = layer, .count = n, .k = c->k, .v = c->v},
                         queries = {.layer = layer, .first = n - asked, .count = asked, .q = c->q, .out = c->q};
    if (!went_well(seen, cuda_kv_ops.append(batch, &rows, &seen->error))) return false;
    if (chooses && !went_well(seen, cuda_kv_ops.observe(batch, &queries, &seen->error))) return false;
    if (chooses && asks && !send(c->q, c->host, asked * Q_WIDTH)) return false; /* which observing has rotated */
    if (asks && !went_well(seen, cuda_kv_ops.attend(batch, &queries, &seen->error))) return false;
    if (asks && device_fetch(c->host, c->q, asked * Q_WIDTH * sizeof *c->q) != cudaSuccess) return false;
    for (size_t i = 0; i < kept; i++)
        memcpy(seen->out[layer][seen->n + i], c->host + (asked - kept + i) * Q_WIDTH, Q_WIDTH * sizeof(float));
    return went_well(seen, cuda_kv_ops.seal(batch, layer, &seen->error));
}

static bool take(struct computing *c, struct cache *cache, enum cache_step_kind kind, size_t n, bool asks) {
    struct seen *seen = c->seen;
    const size_t first = cache_length(cache);
    const struct kv_batch batch = {&cache, 1, c->batch};
    bool good =
        went_well(seen, cuda_kv_ops.begin(cache, kind, n, &seen->error)) && went_well(seen, cuda_kv_ops.join(&batch, &seen->error));
    for (uint32_t layer = 0; layer < LAYERS && good; layer++) good = take_layer(c, &batch, layer, first, n, asks);
    seen->n += asked_of(n, asks);
    return good && went_well(seen, cuda_kv_ops.commit(cache, &seen->error));
}

/* Rank 0 saves the cache, to which the others give their pages. */
static enum terse_status save(const struct job *job, struct collective *ranks, const struct cache *cache,
                              struct terse_error *error) {
    static const uint32_t session[16];
    struct state_writer *writer;
    enum terse_status status = TERSE_OK;
    if (ranks->rank)
        parts_save_share(cache);
    else if (!(status = state_writer_new(job->shared_path, &writer, error))) {
        state_writer_begin(writer, STATE_METHOD);
        state_writer_put(writer, job->method->name, strlen(job->method->name));
        state_writer_begin(writer, STATE_SESSION);
        state_writer_put(writer, session, sizeof session);
        state_writer_begin(writer, STATE_TOKENS);
        state_writer_begin(writer, STATE_LOGITS);
        parts_save(cache, writer);
        status = state_writer_finish(writer, &(struct state_identity){0}, error);
    }
    return collective_agree(ranks, status, error);
}

/* Loads what was saved into a cache that takes the place of *cache. */
static enum terse_status load(const struct job *job, const struct cache_shape *shape, struct cache **cache,
                              struct terse_error *error) {
    struct state_file *file;
    parts_destroy(*cache);
    enum terse_status status = parts_create(cuda_kv_ops.storage, shape, job->method, 1, cache, error);
    if (!status) status = state_file_open(job->shared_path, &file, error);
    if (status) return status;
    status = parts_load(*cache, file, error);
    state_file_close(file);
    return status;
}

/* Cuts a fork in its window and goes on; where distances count, too, in a sealed page, behind which others are sealed. */
static void go_on_behind_cut(const struct job *job, struct computing *c, struct cache *fork) {
    struct seen *seen = c->seen;
    if (!went_well(seen, parts_truncate(fork, job->prompt - 40, &seen->error)) || !take(c, fork, CACHE_STEP_DECODE, 1, true) ||
        !cuts_pages(job))
        return;
    if (went_well(seen, parts_truncate(fork, job->prompt - 140, &seen->error)) &&
        take(c, fork, CACHE_STEP_PREFILL, BEHIND_CUT, false))
        take(c, fork, CACHE_STEP_PREFILL, MORE, true);
}

static void work(struct job *job, struct computing *c, struct collective *ranks, struct cache **own) {
    struct seen *seen = c->seen;
    struct cache *cache = *own;
    struct cache *fork = NULL;
    for (size_t n = job->prompt; n;) { /* in the steps that a session takes */
        const size_t some = job->paper ? n : cache_prompt_part(cache, n);
        if (!take(c, cache, job->paper ? CACHE_STEP_PAPER : CACHE_STEP_PREFILL, some, job->paper)) return;
        n -= some;
    }
    const struct cache_shape shape = cache_base_of(cache)->shape;
    if (!went_well(seen, save(job, ranks, cache, &seen->error))) return;
    if (job->loads && !went_well(seen, load(job, &shape, own, &seen->error))) return;
    cache = *own;
    const struct block_table *pages = &cache_base_of(cache)->pages;
    seen->sealed = pages->n_sealed;
    for (size_t i = 0; i < pages->n_sealed; i++) seen->here += page_set_is_here(&pages->sets[i]);
    const struct collective_counters before = ranks->counters;
    if (!take(c, cache, CACHE_STEP_DECODE, 1, true)) return;
    seen->step_bytes = ranks->counters.bytes - before.bytes;
    seen->step_gathers = ranks->counters.gathers - before.gathers;
    const enum cache_step_kind more = job->method->policy->anchors ? CACHE_STEP_CHUNK /* which chooses none */
                                      : job->paper                 ? CACHE_STEP_PAPER
                                                                   : CACHE_STEP_PREFILL;
    if (!take(c, cache, CACHE_STEP_DECODE, 1, true) || !take(c, cache, more, MORE, true)) return;
    if (!take(c, cache, CACHE_STEP_DECODE, LATER, true) || !take(c, cache, CACHE_STEP_DECODE, FEW, true)) return;
    if (went_well(seen, parts_fork(cache, &fork, &seen->error))) go_on_behind_cut(job, c, fork);
    parts_destroy(fork);
}

static void run(struct collective *ranks, void *user) {
    struct job *job = user;
    struct seen *seen = &job->seen[ranks->rank];
    const size_t query_bytes = query_rows(job) * Q_MOST * sizeof(float);
    struct computing c = {.seen = seen, .host = malloc(query_bytes)};
    struct cache_shape shape = sample_shape;
    struct cache *cache = NULL;
    memset(seen, 0, sizeof *seen);
    if (ranks->ranks > 1) shape.ranks = ranks;
    const size_t rows = job->prompt * WIDTH * sizeof(float);
    if ((c.k = device_alloc(NULL, rows, "keys", &seen->error)) && (c.v = device_alloc(NULL, rows, "values", &seen->error)) &&
        (c.q = device_alloc(NULL, query_bytes, "queries", &seen->error)) && c.host &&
        went_well(seen, batch_new(&sample_shape, &c.batch, &seen->error)) &&
        went_well(seen, parts_create(cuda_kv_ops.storage, &shape, job->method, 1, &cache, &seen->error)))
        work(job, &c, ranks, &cache);
    parts_destroy(cache);
    batch_free(c.batch);
    device_free(NULL, c.k, rows);
    device_free(NULL, c.v, rows);
    device_free(NULL, c.q, query_bytes);
    free(c.host);
}

static void run_job(struct job *job, uint32_t n) {
    struct terse_error error;
    memcpy(job->shared_path, job->path, sizeof job->path);
    if (n > 1 && processes && collective_broadcast(processes, job->shared_path, sizeof job->shared_path, &error))
        fail_msg("%s", error.message);
    run_ranks(n, run, job, job->seen, sizeof job->seen[0]);
    for (uint32_t rank = 0; rank < n; rank++) {
        if (job->seen[rank].error.code)
            fail_msg("%s on rank %u of %u: %s", job->method->name, rank, n, job->seen[rank].error.message);
        assert_int_equal(job->seen[rank].n, ROWS - (cuts_pages(job) || job->paper ? 0 : MORE));
    }
}

static void check_close(const struct job *job, uint32_t n, const struct seen *want) {
    double worst = 0, largest = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (size_t row = 0; row < ROWS; row++)
            for (size_t i = 0; i < Q_WIDTH; i++) {
                const double x = (double)want->out[layer][row][i], apart = fabs((double)job->seen[0].out[layer][row][i] - x);
                if (!(apart <= worst)) worst = apart;
                if (fabs(x) > largest) largest = fabs(x);
            }
    print_message("%s: outputs of %u ranks are %.2g of the largest apart from those of one\n", job->method->name, n,
                  worst / largest);
    if (!(worst <= BOUND * largest)) fail_msg("%s: %u ranks", job->method->name, n);
}

static void check_shares(const struct job *job, uint32_t n, const struct seen *alone) {
    size_t here = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        here += job->seen[rank].here;
        assert_true(job->seen[rank].here || processes); /* prompts are long enough for threads */
        assert_int_equal(job->seen[rank].sealed, alone->sealed);
        assert_true(job->seen[rank].here <= alone->sealed / n + DEAL_TOKENS / PAGE_TOKENS);
        assert_int_equal(job->seen[rank].step_gathers, LAYERS);
        assert_int_equal(job->seen[rank].step_bytes,
                         LAYERS * (n - 1) * rank_block_floats(1, GROUP * HEADS, HEAD_DIM) * sizeof(float));
    }
    assert_int_equal(here, alone->sealed);
}

static struct method method_with(const char *name, double anchor_percent, enum terse_anchor_score score) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    struct terse_error error;
    options.method = name;
    if (anchor_percent > 0) options.anchor_percent = anchor_percent;
    options.anchor_score = score;
    if (method_resolve(&options, HEAD_DIM, &method, &error)) fail_msg("%s", error.message);
    if (!method.learned && random_codebook(&method, LAYERS, HEADS, HEAD_DIM, 0, false, &error) == TERSE_E_MEMORY)
        fail_msg("%s", error.message);
    return method;
}

static struct method method_of(const char *name) { return method_with(name, 0, TERSE_ANCHORS_SQUARED); }

static uint8_t *bytes_of(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*n);
    assert_true(bytes && fread(bytes, 1, *n, file) == *n);
    fclose(file);
    return bytes;
}

static void check_method_from(const struct method *method, size_t prompt, uint32_t n, bool again, bool loads, bool paper) {
    struct job *job = calloc(1, sizeof *job);
    struct seen *alone = malloc(sizeof *alone);
    assert_true(job && alone);
    job->method = method;
    job->prompt = prompt;
    job->loads = loads;
    job->paper = paper;
    temporary_template("ranks", job->path);
    const int descriptor = mkstemp(job->path);
    assert_true(descriptor >= 0);
    close(descriptor);
    run_job(job, 1);
    size_t bytes, theirs;
    uint8_t *file = bytes_of(job->path, &bytes);
    *alone = job->seen[0];
    n = ranks_of(n);
    run_job(job, n);
    for (uint32_t rank = 1; rank < n; rank++) assert_memory_equal(job->seen[rank].out, job->seen[0].out, sizeof job->seen[0].out);
    check_close(job, n, alone);
    check_shares(job, n, alone);
    uint8_t *other = bytes_of(job->shared_path, &theirs);
    assert_int_equal(theirs, bytes);
    assert_memory_equal(other, file, bytes);
    free(other);
    *alone = job->seen[0];
    if (again && processes) run_job(job, n); /* emulated kernels compute in one order */
    assert_memory_equal(job->seen[0].out, alone->out, sizeof alone->out);
    struct terse_error error; /* no rank reads the file any more behind this */
    if (processes && collective_agree(processes, TERSE_OK, &error)) fail_msg("%s", error.message);
    unlink(job->path);
    free(file);
    free(job);
    free(alone);
}

static void check_method(const struct method *method, size_t prompt, uint32_t n, bool again) {
    check_method_from(method, prompt, n, again, true, false);
}

static void ranks_attend_as_one_does(void **state) {
    static const struct {
        const char *method;
        size_t prompt;
    } rows[] = {
        {"f16", 800},  {"terse-2", 640}, {"million-4", 640}, {"commvq-2", 512}, /* of each family of kernels one */
#ifndef TERSE_EMULATED_CUDA
        {"q8_0", 640}, {"q4_0", 640},    {"kivi-2", 640} /* other tests have them */
#endif
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct method method = method_of(rows[i].method);
        check_method(&method, rows[i].prompt, i ? 2 : 3, !i);
        release_method(&method, NULL);
    }
}

/* All ranks together count a learned sink once. */
static void learned_sinks_are_read_by_one_rank(void **state) {
    static const char *const names[] = {"q8_0", "terse-2"}; /* of two families of kernels */
    static float sinks[LAYERS * GROUP * HEADS];
    (void)state;
    for (size_t i = 0; i < LAYERS * GROUP * HEADS; i++) sinks[i] = 12 + (float)i / 8;
    sample_shape.sinks = sinks;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct method method = method_of(names[i]);
        check_method(&method, 640, 2, false);
        release_method(&method, NULL);
    }
    sample_shape.sinks = NULL;
}

/* Ranks choose the anchors that one process chooses, as the saved states show, keep all of them, and each reads those of its own pages. */
static void ranks_choose_and_read_anchors(void **state) {
    static const struct {
        const char *method; /* of two families of kernels */
        enum terse_anchor_score score;
    } choices[] = {{"antkv-1", TERSE_ANCHORS_SQUARED}, {"terse-2", TERSE_ANCHORS_SQUARED}, {"q4_0", TERSE_ANCHORS_RANDOM}};
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct method method = method_with(choices[i].method, 40, choices[i].score); /* so that some are in each rank's pages */
        check_method_from(&method, 512, 2, !i, false, false);
        release_method(&method, NULL);
    }
}

/* Ranks count ALiBi's distances in tokens, of which a rank has some alone; anchors are exact tokens at places of their own. */
static void ranks_count_distances_of_alibi(void **state) {
    static const char *const names[] = {"q8_0", "antkv-1"};
    static float slopes[GROUP * HEADS];
    (void)state;
    for (size_t i = 0; i < GROUP * HEADS; i++) slopes[i] = 0.002f * (float)(i + 1);
    sample_shape.slopes = slopes;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct method method = method_of(names[i]);
        check_method(&method, 576, 2, false);
        release_method(&method, NULL);
    }
    sample_shape.slopes = NULL;
}

/* Every token reads codes, of pages that other ranks seal, too: that of the second prompt is rank 1's. */
static void ranks_read_by_the_papers_protocol(void **state) {
    (void)state;
    struct method method = method_of("kivi-2");
    check_method_from(&method, 790, 2, false, true, true);
    release_method(&method, NULL);
}

/* Anchors, which all queries choose before one attends, are read as they are, of pages that other ranks seal, too. The last page, rank 1's, is short. */
static void anchors_are_read_by_the_papers_protocol(void **state) {
    (void)state;
    struct method method = method_with("antkv-1", 40, TERSE_ANCHORS_L1);
    check_method_from(&method, 400, 2, false, false, true);
    release_method(&method, NULL);
}

static void ranks_fit_transforms_to_the_whole_sequence(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    check_method(&method, FITTED + 250, 2, false);
    release_method(&method, NULL);
}

static void what_needs_all_pages_is_refused_by_name(void **state) {
    static const char *const names[] = {"mat-64", "snapkv-128", "streaming-64"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct method method = method_of(names[i]);
        struct collective ranks = {.rank = 0, .ranks = 2};
        struct cache_shape shape = sample_shape;
        struct cache *cache;
        struct terse_error error;
        shape.ranks = &ranks;
        assert_int_equal(parts_create(cuda_kv_ops.storage, &shape, &method, 1, &cache, &error), TERSE_E_UNSUPPORTED);
        if (!strstr(error.message, names[i]) || !strstr(error.message, "ranks")) fail_msg("%s", error.message);
        release_method(&method, NULL);
    }
}

/* ---- Engines */

#define LOGITS_BOUND 2e-2 /* of the largest: products of a prompt round to halves on the GPU */

enum { TEXT = 360, STEPS = 4, FILLED = 300, VOCABULARY = 300 };

struct engine_job {
    const struct backend *backend;
    const struct terse_model *model;
    const char *method;
    struct engine_seen {
        struct terse_error error;
        float logits[STEPS][VOCABULARY];
        size_t n;
        uint64_t length;
    } seen[THREAD_RANKS_MOST];
};

/* Two prompts, then tokens, of which the later ones replay a graph; at last random tokens and one more step. */
static void run_session(struct engine_seen *seen, struct terse_session *session, const int32_t *text) {
    enum terse_status status = terse_session_prefill(session, text, TEXT - 20, NULL, &seen->error);
    if (!status) status = terse_session_prefill(session, text + TEXT - 20, 20, NULL, &seen->error);
    for (int i = 0; i < STEPS && !status; i++) {
        memcpy(seen->logits[seen->n++], terse_session_logits(session), sizeof seen->logits[0]);
        status = terse_session_decode(session, text + i, 1, NULL, &seen->error);
    }
    if (!status) status = terse_session_fill_random(session, FILLED, 7, &seen->error);
    if (!status) status = terse_session_decode(session, text, 1, NULL, &seen->error);
    seen->length = terse_session_length(session);
}

static void run_engine(struct collective *ranks, void *user) {
    struct engine_job *job = user;
    struct engine_seen *seen = &job->seen[ranks->rank];
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_session_options opened = short_session_options(job->method, 16);
    struct terse_engine *engine;
    struct terse_session *session;
    int32_t text[TEXT];
    random_tokens(text, TEXT, VOCABULARY, 5);
    options.threads = 1;
    memset(seen, 0, sizeof *seen);
    if (engine_new(job->backend, job->model, &options, &engine, &seen->error)) return;
    if (engine_join(engine, ranks, &seen->error)) abort();
    if (ranks->rank && terse_engine_follow(engine, &seen->error)) { /* rank 0 would wait for it */
        fprintf(stderr, "rank %u: %s\n", ranks->rank, seen->error.message);
        abort();
    }
    if (!ranks->rank && !terse_session_new(engine, &opened, &session, &seen->error)) {
        run_session(seen, session, text);
        terse_session_free(session);
    }
    terse_engine_free(engine);
}

static void run_engines(struct engine_job *job, const struct backend *backend, uint32_t n) {
    job->backend = backend;
    thread_ranks_run(n, run_engine, job);
    if (job->seen[0].n != STEPS || job->seen[0].length != TEXT + STEPS + FILLED + 1) fail_msg("%s", job->seen[0].error.message);
}

static void engines_give_the_cpus_logits(void **state) {
    static const struct backend cuda = {.name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops};
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct engine_job *job = calloc(1, sizeof *job);
    struct engine_seen *cpus = malloc(sizeof *cpus);
    assert_true(job && cpus);
    job->model = model;
    job->method = "q8_0";
    run_engines(job, &backend_cpu, 2);
    *cpus = job->seen[0];
    run_engines(job, &cuda, 2);
    for (int i = 0; i < STEPS; i++) {
        const double apart = logits_apart(job->seen[0].logits[i], cpus->logits[i], VOCABULARY);
        print_message("step %d: logits are %.2g of the largest apart from the CPU's\n", i, apart);
        if (!(apart <= LOGITS_BOUND)) fail_msg("step %d", i);
    }
    free(job);
    free(cpus);
    terse_model_free(model);
    memory_free(file);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (no_ranks()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_attend_as_one_does),
                                       cmocka_unit_test(learned_sinks_are_read_by_one_rank),
                                       cmocka_unit_test(ranks_choose_and_read_anchors),
                                       cmocka_unit_test(ranks_count_distances_of_alibi),
                                       cmocka_unit_test(ranks_read_by_the_papers_protocol),
                                       cmocka_unit_test(anchors_are_read_by_the_papers_protocol),
                                       cmocka_unit_test(ranks_fit_transforms_to_the_whole_sequence),
                                       cmocka_unit_test(what_needs_all_pages_is_refused_by_name),
                                       cmocka_unit_test(engines_give_the_cpus_logits)};
    const size_t of_threads = 1; /* the last ones */
    return _cmocka_run_group_tests("ranks", tests, sizeof tests / sizeof *tests - (processes ? of_threads : 0), make_rows,
                                   free_rows);
}
