/* Prompts that ranks on GPUs share: all have the same logits, bit for bit, near those of one rank, whatever the kind of layer; each query attends on one
 * rank, and those of a rank see as many tokens as those of another; and hidden states are exchanged. In emulation the ranks are threads; on GPUs they
 * are processes, which exchange by NCCL: tests/cuda/ranks.sh starts them. */
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "backend/cuda/pass.h"
#include "base/memory.h"
#include "engine/session.h"
#include "kv/parts.h"
#include "method/method.h"
#include "model/model.h"
#include "ranks_under_test.h"
#include "support/random_model.h"
#include "support/session_steps.h"

#include <math.h>

/* Of a difference of logits, as a part of the largest: products of few rows and of many round otherwise. */
#define BOUND 5e-3

enum { PROMPT = 340, LONG_MOST = THREAD_RANKS_MOST * PANEL_MOST + PROMPT, VOCABULARY_MOST = 300, FEW = 256 };

/* A rank notes here what it has seen. */
struct seen {
    struct terse_error error;              /* of the call that failed */
    float logits[PROMPT][VOCABULARY_MOST]; /* of the last tokens */
    size_t rows;                           /* of logits */
    uint32_t times[LONG_MOST];             /* that a query of the prompt has attended, in all layers */
    double attended;                       /* tokens that all queries have seen, in the first layer */
    uint64_t gathers, bytes;
};

struct job {
    struct terse_model *model, *damaged; /* damaged: of the last rank; NULL: it has the others' */
    const struct method *method;
    size_t before, n; /* tokens of an earlier prompt, or 0, and of the prompt */
    bool paper;       /* which is read by the papers' protocol */
    struct seen seen[THREAD_RANKS_MOST];
};

static _Thread_local struct seen *watched;

/* Attends, and counts what attends. */
static enum terse_status attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    for (size_t i = rows->first; i < rows->first + rows->count; i++) {
        watched->times[i]++;
        if (!rows->layer) watched->attended += (double)i + 1;
    }
    return cuda_kv_ops.attend(batch, rows, error);
}

static size_t first_kept(const struct job *job) { return job->n > PROMPT ? job->n - PROMPT : 0; }

static void keep_rows(void *user, size_t first, size_t count, const float *logits) {
    const struct job *job = user;
    for (size_t i = 0; i < count; i++)
        memcpy(watched->logits[first + i - first_kept(job)], logits + i * job->model->vocabulary,
               job->model->vocabulary * sizeof *logits);
    watched->rows += count;
}

/* Reads the sequence's next n tokens; of the job's prompt also the logits. */
static enum terse_status read_tokens(struct job *job, struct executor *executor, struct cache *cache, size_t n,
                                     struct terse_error *error) {
    const struct executor_ops *ops = &cuda_executor_ops;
    static _Thread_local int32_t tokens[LONG_MOST];
    random_tokens(tokens, n, job->model->vocabulary, 11 + cache_length(cache));
    struct step_part part = {
        .cache = cache, .kind = job->paper ? CACHE_STEP_PAPER : CACHE_STEP_PREFILL, .tokens = tokens, .n = n, .user = job};
    if (cache_length(cache) == job->before) part.rows = keep_rows, part.first_row = first_kept(job);
    memset(watched->times, 0, sizeof watched->times);
    struct pass *pass;
    size_t failed;
    enum terse_status status = ops->begin(executor, &(struct step){&part, 1}, &pass, &failed, error);
    for (struct step_progress at = {0, 1}; !status && at.done < at.total; at = ops->progress(pass))
        status = ops->advance(pass, error);
    ops->end(pass);
    return status;
}

static void run(struct collective *ranks, void *user) {
    struct job *job = user;
    struct seen *seen = watched = &job->seen[ranks->rank];
    struct kv_ops watching = cuda_kv_ops;
    struct cache_shape shape = cache_shape_of(job->model, job->model->context);
    struct executor *executor = NULL;
    struct cache *cache = NULL;
    const struct collective_counters before = ranks->counters;
    memset(seen, 0, sizeof *seen);
    watching.attend = attend;
    if (ranks->ranks > 1) shape.ranks = ranks;
    const struct terse_model *model = job->damaged && ranks->rank + 1 == ranks->ranks ? job->damaged : job->model;
    enum terse_status status = cuda_executor_ops.load(model, &watching, 1, &executor, &seen->error);
    if (!status) status = parts_create(cuda_kv_ops.storage, &shape, job->method, 1, &cache, &seen->error);
    if (!status && job->before) status = read_tokens(job, executor, cache, job->before, &seen->error);
    if (!status) status = read_tokens(job, executor, cache, job->n, &seen->error);
    seen->gathers = ranks->counters.gathers - before.gathers;
    seen->bytes = ranks->counters.bytes - before.bytes;
    parts_destroy(cache);
    cuda_executor_ops.unload(executor);
}

static void run_job(struct job *job, uint32_t n) {
    run_ranks(n, run, job, job->seen, sizeof job->seen[0]);
    for (uint32_t rank = 0; rank < n; rank++)
        if (job->seen[rank].rows != job->n - first_kept(job)) fail_msg("rank %u of %u: %s", rank, n, job->seen[rank].error.message);
}

static double apart(const struct job *job, const struct seen *one, const struct seen *other) {
    double worst = 0;
    for (size_t i = 0; i < one->rows; i++) {
        const double here = logits_apart(one->logits[i], other->logits[i], job->model->vocabulary);
        if (!(here <= worst)) worst = here;
    }
    return worst;
}

/* Every query attends on one rank, but for those of the last layer whose logits are not wanted, which attend on none; no rank's queries see more
 * tokens than are its part, but for what the last strips lack, fewer than 2 n queries. */
static void check_shares(const struct job *job, uint32_t n) {
    const uint32_t layers = job->model->layers;
    double all = 0, most = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        all += job->seen[rank].attended;
        most = fmax(most, job->seen[rank].attended);
    }
    assert_true(most <= all / n + 2 * (double)job->n);
    for (size_t i = 0; i < job->n; i++) {
        uint32_t times = 0, ranks = 0;
        for (uint32_t rank = 0; rank < n; rank++) {
            times += job->seen[rank].times[i];
            ranks += job->seen[rank].times[i] > 0;
        }
        assert_int_equal(times, layers - (i < first_kept(job)));
        assert_true(ranks == 1 || job->n > PROMPT);
    }
}

static struct job *job_with(const struct random_model_spec *spec, const char *name, double anchor_percent, struct method *method,
                            void **file) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct job *job = calloc(1, sizeof *job);
    struct terse_error error;
    assert_non_null(job);
    options.method = name;
    if (anchor_percent > 0) options.anchor_percent = anchor_percent;
    job->model = random_model_new(spec, file);
    job->method = method;
    assert_true(job->model->vocabulary <= VOCABULARY_MOST);
    if (method_resolve(&options, job->model->head_dim, method, &error)) fail_msg("%s", error.message);
    return job;
}

static struct job *job_new(const struct random_model_spec *spec, struct method *method, void **file) {
    return job_with(spec, "q8_0", 0, method, file);
}

static void job_free(struct job *job, void *file) {
    terse_model_free(job->model);
    memory_free(file);
    free(job);
}

/* Runs the job by one rank and by n, and compares. */
static void compare(struct job *job, uint32_t n) {
    struct seen *alone = malloc(sizeof *alone);
    assert_non_null(alone);
    run_job(job, 1);
    *alone = job->seen[0];
    run_job(job, n);
    for (uint32_t rank = 1; rank < n; rank++)
        assert_memory_equal(job->seen[rank].logits, job->seen[0].logits, sizeof alone->logits);
    const double worst = apart(job, &job->seen[0], alone);
    print_message("logits of %u ranks are %.2g of the largest apart from those of one\n", n, worst);
    assert_true(worst <= BOUND);
    free(alone);
}

static void check_exchanges(const struct job *job, uint32_t n) {
    const size_t strip = (job->n + 2 * n - 1) / (2 * n), layers = job->model->layers;
    for (uint32_t rank = 0; rank < n; rank++) {
        assert_int_equal(job->seen[rank].gathers, layers);
        assert_int_equal(job->seen[rank].bytes, layers * (n - 1) * (2 * strip * job->model->width + 4) * sizeof(float));
    }
}

static void prompts_are_shared(void **state) {
    const struct random_model_spec *spec = *state;
    struct method method;
    void *file;
    struct job *job = job_new(spec, &method, &file);
    job->n = PROMPT;
    const uint32_t n = ranks_of(spec == &random_layer_models[0] ? 3 : 2);
    compare(job, n);
    check_shares(job, n);
    check_exchanges(job, n);
    job_free(job, file);
}

#ifndef TERSE_EMULATED_CUDA /* it takes too long there */
/* More tokens than ranks exchange together; the last ones are shared, or too few for that. */
static void long_prompts_are_shared_by_and_by(void **state) {
    (void)state;
    struct method method;
    void *file;
    struct job *job = job_new(&random_models[0], &method, &file);
    const uint32_t n = ranks_of(2);
    job->n = n * PANEL_MOST + PROMPT;
    compare(job, n);
    check_shares(job, n);
    job->n = n * PANEL_MOST + FEW;
    compare(job, n);
    job_free(job, file);
}
#endif

/* Behind sealed pages, which are dealt to ranks, a prompt is shared in layers that slide alone. */
static void layers_that_slide_are_shared_behind_pages(void **state) {
    (void)state;
    struct method method;
    void *file;
    struct job *job = job_new(&random_layer_models[0], &method, &file);
    const uint32_t n = ranks_of(2), sliding = cache_shape_of(job->model, 0).sliding;
    job->before = FEW - 6;
    job->n = FEW + 4;
    assert_true(sliding && sliding < job->model->layers);
    compare(job, n);
    for (size_t i = 0; i < job->n; i++) {
        uint32_t times = 0;
        for (uint32_t rank = 0; rank < n; rank++) times += job->seen[rank].times[i];
        assert_int_equal(times, sliding + n * (job->model->layers - sliding));
    }
    job_free(job, file);
}

/* Where all queries choose anchors, before one attends or as they do, each attends on every rank. */
static void prompts_with_anchors_are_not_shared(void **state) {
    (void)state;
    const uint32_t n = ranks_of(2);
    for (int paper = 0; paper < 2; paper++) {
        struct method method;
        void *file;
        struct job *job = job_with(&random_models[0], "q4_0", 10, &method, &file);
        job->n = PROMPT;
        job->paper = paper;
        compare(job, n);
        for (size_t i = 0; i < job->n; i++)
            for (uint32_t rank = 0; rank < n; rank++) assert_int_equal(job->seen[rank].times[i], job->model->layers);
        assert_true(job->seen[0].gathers);
        job_free(job, file);
    }
}

/* Queries that are not finite, which one rank alone computes and of which attention makes finite numbers, end the prompt on all ranks. */
static void all_ranks_refuse_what_one_of_them_sees(void **state) {
    static const char *const tensors[] = {"blk.0.attn_q.weight", "blk.1.attn_q.weight"}, *const places[] = {"behind layer 0 ",
                                                                                                            "behind layer 1 "};
    (void)state;
    const uint32_t n = ranks_of(2);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        struct method method;
        void *file, *damaged;
        struct job *job = job_new(&random_models[0], &method, &file);
        assert_non_null(job->damaged = random_model_damaged(&random_models[0], tensors[i], INFINITY, &damaged));
        job->n = PROMPT;
        run_ranks(n, run, job, job->seen, sizeof job->seen[0]);
        for (uint32_t rank = 0; rank < n; rank++) {
            assert_int_equal(job->seen[rank].error.code, TERSE_E_FORMAT);
            assert_non_null(strstr(job->seen[rank].error.message, places[i]));
        }
        terse_model_free(job->damaged);
        memory_free(damaged);
        job_free(job, file);
    }
}

/* A prompt of few tokens is read without an exchange, and so with the bits of one rank. */
static void short_prompts_are_not(void **state) {
    (void)state;
    struct method method;
    void *file;
    struct job *job = job_new(&random_layer_models[0], &method, &file);
    struct seen *alone = malloc(sizeof *alone);
    assert_non_null(alone);
    job->n = FEW;
    run_job(job, 1);
    *alone = job->seen[0];
    const uint32_t n = ranks_of(2);
    run_job(job, n);
    for (uint32_t rank = 0; rank < n; rank++) {
        assert_memory_equal(job->seen[rank].logits, alone->logits, sizeof alone->logits);
        assert_int_equal(job->seen[rank].gathers, 0);
    }
    free(alone);
    job_free(job, file);
}

#define TESTS_MOST 16

int main(void) {
    if (no_ranks()) return NO_DEVICE_STATUS;
    struct CMUnitTest tests[TESTS_MOST] = {
        cmocka_unit_test(short_prompts_are_not),
        cmocka_unit_test(layers_that_slide_are_shared_behind_pages),
        cmocka_unit_test(prompts_with_anchors_are_not_shared),
        cmocka_unit_test(all_ranks_refuse_what_one_of_them_sees),
#ifndef TERSE_EMULATED_CUDA
        cmocka_unit_test(long_prompts_are_shared_by_and_by),
#endif
        {random_models[0].architecture, prompts_are_shared, NULL, NULL, (void *)(uintptr_t)&random_models[0]}};
    size_t n = 0;
    while (tests[n].name) n++;
    for (size_t i = 0; i < n_random_layer_models && n < TESTS_MOST; i++) /* windows, caps, norms, experts */
        tests[n++] = (struct CMUnitTest){random_layer_models[i].architecture, prompts_are_shared, NULL, NULL,
                                         (void *)(uintptr_t)&random_layer_models[i]};
    return _cmocka_run_group_tests("prompts of ranks", tests, n, NULL, NULL);
}
