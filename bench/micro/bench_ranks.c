/* Measures what each rank of a job does and sends: processor time, exchanges and bytes of a prompt and of a decoded token. The ranks are threads
 * of one process that sleep while they wait for each other, each with one thread to compute; so the processor time is what they compute, on a machine that is
 * busy, too.
 *
 *     bench_ranks MODEL RANKS PROMPT_TOKENS DECODED_TOKENS METHOD */
#include "engine/session.h"
#include "support/thread_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct job {
    const struct terse_model *model;
    struct terse_session_options options;
    size_t prompt, decoded;
};

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_ranks: %s\n", error->message);
    exit(EXIT_FAILURE);
}

/* Returns the processor time of all ranks. */
static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct cost {
    double seconds;
    struct collective_counters sent;
};

static struct cost cost_now(const struct collective *ranks) { return (struct cost){processor_seconds(), ranks->counters}; }

/* Prints rank 0's exchanges and bytes to each other rank, and a rank's share of the processor time, since `before`, of `n` tokens. */
static void print_cost(const char *what, const struct collective *ranks, const struct cost *before, size_t n) {
    const struct cost now = cost_now(ranks);
    const double others = ranks->ranks > 1 ? ranks->ranks - 1 : 1, tokens = (double)n;
    printf("%s: %.3f ms of processor time a rank, %.1f gatherings, %.1f broadcasts, %.0f bytes to each other rank; each a token\n",
           what, 1e3 * (now.seconds - before->seconds) / ranks->ranks / tokens,
           (double)(now.sent.gathers - before->sent.gathers) / tokens,
           (double)(now.sent.broadcasts - before->sent.broadcasts) / tokens,
           (double)(now.sent.bytes - before->sent.bytes) / others / tokens);
}

static void measure(const struct job *job, struct terse_engine *engine) {
    struct terse_error error;
    struct terse_session *session;
    struct terse_model_info info;
    terse_model_describe(job->model, &info);
    int32_t *tokens = malloc(job->prompt * sizeof *tokens);
    if (!tokens) abort();
    for (size_t i = 0; i < job->prompt; i++) tokens[i] = (int32_t)(i * 7919 % info.vocabulary);
    must(terse_session_new(engine, &job->options, &session, &error), &error);
    struct cost before = cost_now(engine->ranks);
    must(terse_session_prefill(session, tokens, job->prompt, NULL, &error), &error);
    print_cost("prompt", engine->ranks, &before, job->prompt);
    before = cost_now(engine->ranks);
    for (size_t i = 0; i < job->decoded; i++)
        must(terse_session_decode(session, tokens + i % job->prompt, 1, NULL, &error), &error);
    print_cost("decoding", engine->ranks, &before, job->decoded);
    terse_session_free(session);
    free(tokens);
}

static void run(struct collective *ranks, void *user) {
    const struct job *job = user;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_error error;
    options.threads = 1;
    must(engine_new(&backend_cpu, job->model, &options, &engine, &error), &error);
    must(engine_join(engine, ranks, &error), &error);
    if (ranks->rank) {
        must(terse_engine_follow(engine, &error), &error);
    } else {
        measure(job, engine);
    }
    terse_engine_free(engine);
}

int main(int argc, char **argv) {
    struct job job = {.options = terse_session_options_defaults()};
    struct terse_model *model;
    struct terse_error error;
    const long ranks = argc == 6 ? strtol(argv[2], NULL, 10) : 0;
    if (argc == 6) job.prompt = strtoull(argv[3], NULL, 10), job.decoded = strtoull(argv[4], NULL, 10);
    if (ranks < 1 || ranks > THREAD_RANKS_MOST || !job.prompt || !job.decoded) {
        fprintf(stderr, "usage: bench_ranks MODEL RANKS PROMPT_TOKENS DECODED_TOKENS METHOD, with 1 to %d ranks\n",
                THREAD_RANKS_MOST);
        return EXIT_FAILURE;
    }
    job.options.cache.method = argv[5];
    job.options.context = (uint32_t)(job.prompt + job.decoded);
    job.options.allow_longer_context = true;
    must(terse_model_load(argv[1], &model, &error), &error);
    job.model = model;
    thread_ranks_run((uint32_t)ranks, run, &job);
    terse_model_free(model);
    return EXIT_SUCCESS;
}
