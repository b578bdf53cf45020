/* Measures what a long prompt costs the sessions that decode beside it: prints the gaps between two of their tokens, mean and longest, and how long
 * the prompt takes, as lines of a table.
 *
 *     bench_prompt MODEL.gguf [TOKENS [METHOD [THREADS [SESSIONS [DEPTH]]]]]       4096, f16, 2, 1 session that decodes at depth 512
 *
 * Ways to read the prompt: alone; under way (terse_session_begin_prompt) with some values of prompt_ms; and, in its place, in chunks that attend to
 * f16 pages of those before (a compressed prefill of method f16), a chunk beside each token, as much work as there is before pages would be
 * sealed. Then the length of single pieces, and how soon a prompt ends that another thread cancels at random times.
 */
#include "base/clock.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SESSIONS_MOST 64
#define CANCELS 60

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_prompt: %s\n", error->message);
    exit(1);
}

/* A `times` is times of one kind, in seconds. */
struct times {
    size_t n;
    double sum, longest;
};

static void add(struct times *t, double seconds) {
    t->n++;
    t->sum += seconds;
    if (seconds > t->longest) t->longest = seconds;
}

static double mean(const struct times *t) { return t->n ? t->sum / (double)t->n : 0; }

struct bench {
    struct terse_model *model;
    struct terse_model_info info;
    const char *method;
    uint32_t threads;
    size_t n, sessions, depth;
    int32_t *prompt; /* [n] */
    double alone;    /* seconds of the prompt */
};

static struct terse_engine *new_engine(const struct bench *b, uint32_t prompt_ms) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_error error;
    options.threads = b->threads;
    options.prompt_ms = prompt_ms;
    must(terse_engine_new(b->model, &options, &engine, &error), &error);
    return engine;
}

/* Makes a session; batch 0 means an exact prefill. */
static struct terse_session *new_session(const struct bench *b, struct terse_engine *engine, const char *method, uint32_t batch) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = method;
    options.allow_longer_context = true;
    options.context = (uint32_t)(b->n + b->depth) + (1u << 20);
    if (batch) options.prefill = TERSE_PREFILL_COMPRESSED;
    if (batch) options.batch = batch;
    must(terse_session_new(engine, &options, &session, &error), &error);
    return session;
}

static uint64_t layers_done(const struct terse_session *session) {
    uint64_t done, total;
    terse_session_prompt(session, &done, &total);
    return total ? done : UINT64_MAX;
}

static bool under_way(const struct terse_session *session) { return layers_done(session) != UINT64_MAX; }

static void step(struct terse_engine *engine, struct terse_step_item *items, size_t n) {
    struct terse_error error;
    must(terse_engine_step(engine, items, n, &error), &error);
    for (size_t i = 0; i < n; i++) must(items[i].status, &error);
}

/* ---- Gaps */

/* Times the step of a token of all sessions and, if there is a prompt, of the part of it that goes with them: with a batch, a chunk
 * of so many tokens. */
static double gap(struct terse_engine *engine, struct terse_session **sessions, size_t n, struct terse_session *prompt,
                  uint64_t chunk) {
    struct terse_step_item items[SESSIONS_MOST + 1];
    static const int32_t token = 17;
    double start = clock_now();
    uint64_t end = prompt && chunk ? layers_done(prompt) / chunk * chunk + chunk : 0;
    for (size_t i = 0; i < n; i++) items[i] = (struct terse_step_item){.session = sessions[i], .tokens = &token, .n = 1};
    if (prompt) items[n] = (struct terse_step_item){.session = prompt};
    step(engine, items, n + (prompt != NULL));
    while (prompt && under_way(prompt) && layers_done(prompt) < end) step(engine, &(struct terse_step_item){.session = prompt}, 1);
    return clock_now() - start;
}

static void print(const struct bench *b, const char *way, const struct times *gaps, double seconds, double mebibytes) {
    printf("| %s | %.1f | %.1f | %zu | %.2f | %.2f | %.0f |\n", way, 1e3 * mean(gaps), 1e3 * gaps->longest, gaps->n, seconds,
           b->alone > 0 ? seconds / b->alone : 1, mebibytes);
    fflush(stdout);
}

/* Return the memory beside the cache that the method makes in the end: rows of one layer and hidden states, or all layers' f16
 * pages. */
static double exact_mebibytes(const struct bench *b) {
    return (double)b->n * (b->info.width + 2.0 * b->info.kv_heads * b->info.head_dim) * 4 / 0x1p20;
}
static double chunk_mebibytes(const struct bench *b, uint32_t chunk) {
    double rows = (double)chunk * (b->info.width + 2.0 * b->info.kv_heads * b->info.head_dim) * 4;
    return ((double)b->n * b->info.layers * 2.0 * b->info.kv_heads * b->info.head_dim * 2 + rows) / 0x1p20;
}

static void prompt_beside_decoding(struct bench *b, const char *way, uint32_t prompt_ms, uint32_t chunk) {
    struct terse_engine *engine = new_engine(b, prompt_ms);
    struct terse_session *sessions[SESSIONS_MOST], *prompt = new_session(b, engine, chunk ? "f16" : b->method, chunk);
    struct times gaps = {0}, quiet = {0};
    struct terse_error error;
    for (size_t i = 0; i < b->sessions; i++) {
        sessions[i] = new_session(b, engine, b->method, 0);
        must(terse_session_fill_random(sessions[i], b->depth, i + 1, &error), &error);
    }
    for (size_t i = 0; i < 20; i++) {
        double seconds = gap(engine, sessions, b->sessions, NULL, 0);
        if (i >= 4) add(&quiet, seconds);
    }
    if (!way) {
        print(b, "none", &quiet, 0, 0);
    } else {
        double start = clock_now();
        must(terse_session_begin_prompt(prompt, b->prompt, b->n, NULL, &error), &error);
        for (bool first = true; under_way(prompt); first = false) {
            double from = first ? start : clock_now(); /* with the first token waits what begins the prompt */
            gap(engine, sessions, b->sessions, prompt, (uint64_t)chunk * b->info.layers);
            add(&gaps, clock_now() - from);
        }
        print(b, way, &gaps, clock_now() - start, chunk ? chunk_mebibytes(b, chunk) : exact_mebibytes(b));
    }
    for (size_t i = 0; i < b->sessions; i++) terse_session_free(sessions[i]);
    terse_session_free(prompt);
    terse_engine_free(engine);
}

static void prompt_alone(struct bench *b) {
    struct terse_engine *engine = new_engine(b, 0);
    struct terse_session *session = new_session(b, engine, b->method, 0);
    struct terse_error error;
    double start = clock_now();
    must(terse_session_prefill(session, b->prompt, b->n, NULL, &error), &error);
    b->alone = clock_now() - start;
    print(b, "alone", &(struct times){0}, b->alone, exact_mebibytes(b));
    terse_session_free(session);
    terse_engine_free(engine);
}

/* ---- Pieces, and the end of a cancelled prompt */

static void pieces(const struct bench *b) {
    struct terse_engine *engine = new_engine(b, 0);
    struct terse_session *prompt = new_session(b, engine, b->method, 0);
    struct times times = {0};
    struct terse_error error;
    must(terse_session_begin_prompt(prompt, b->prompt, b->n, NULL, &error), &error);
    while (under_way(prompt)) {
        double start = clock_now();
        step(engine, &(struct terse_step_item){.session = prompt}, 1);
        add(&times, clock_now() - start);
    }
    printf("%zu pieces: mean %.1f ms, longest %.1f ms\n", times.n, 1e3 * mean(&times), 1e3 * times.longest);
    terse_session_free(prompt);
    terse_engine_free(engine);
}

struct canceller {
    struct terse_session *session;
    double wait, at; /* seconds until it cancels; when it has */
};

static void *cancel(void *user) {
    struct canceller *c = user;
    nanosleep(&(struct timespec){(time_t)c->wait, (long)(1e9 * (c->wait - (double)(time_t)c->wait))}, NULL);
    c->at = clock_now();
    terse_session_cancel(c->session);
    return NULL;
}

static void cancels(const struct bench *b) {
    struct terse_engine *engine = new_engine(b, 0);
    struct terse_session *session = new_session(b, engine, b->method, 0);
    struct times times = {0};
    uint64_t random = 1;
    for (size_t i = 0; i < CANCELS; i++) {
        struct canceller c = {.session = session};
        pthread_t thread;
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        c.wait = (double)(random >> 40) / 0x1p24 * (b->alone < 4 ? b->alone : 4);
        if (pthread_create(&thread, NULL, cancel, &c)) exit(1);
        enum terse_status status = terse_session_prefill(session, b->prompt, b->n, NULL, NULL);
        double end = clock_now();
        pthread_join(thread, NULL);
        if (status == TERSE_E_INTERRUPTED) add(&times, end - c.at);
        terse_session_reset(session);
        if (!status) { /* it was over before: the cancellation ends the next call */
            int32_t token = 1;
            terse_session_prefill(session, &token, 1, NULL, NULL);
        }
    }
    printf("%zu prompts cancelled: they end after %.1f ms, mean, %.1f ms at most\n", times.n, 1e3 * mean(&times),
           1e3 * times.longest);
    terse_session_free(session);
    terse_engine_free(engine);
}

int main(int argc, char **argv) {
    static const uint32_t milliseconds[] = {0, 20, 50, 100}, chunks[] = {64, 256, 512};
    struct bench b = {.n = argc > 2 ? strtoul(argv[2], NULL, 10) : 4096,
                      .method = argc > 3 ? argv[3] : "f16",
                      .threads = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 2,
                      .sessions = argc > 5 ? strtoul(argv[5], NULL, 10) : 1,
                      .depth = argc > 6 ? strtoul(argv[6], NULL, 10) : 512};
    struct terse_error error;
    char way[64];
    if (argc < 2 || !b.n || b.sessions > SESSIONS_MOST || !b.threads) {
        fprintf(stderr, "usage: bench_prompt MODEL.gguf [TOKENS [METHOD [THREADS [SESSIONS [DEPTH]]]]]\n");
        return 1;
    }
    must(terse_model_load(argv[1], &b.model, &error), &error);
    terse_model_describe(b.model, &b.info);
    b.prompt = malloc(b.n * sizeof *b.prompt);
    if (!b.prompt) return 1;
    for (size_t i = 0; i < b.n; i++) b.prompt[i] = (int32_t)(i * 7919 % b.info.vocabulary);
    printf("%s: a prompt of %zu tokens, %s, %u threads, beside %zu sessions at depth %zu\n\n", b.info.name, b.n, b.method,
           b.threads, b.sessions, b.depth);
    printf("| prompt | mean gap, ms | longest, ms | gaps | prompt, s | of alone | MiB beside the cache |\n");
    printf("|---|---:|---:|---:|---:|---:|---:|\n");
    prompt_beside_decoding(&b, NULL, 0, 0);
    prompt_alone(&b);
    for (size_t i = 0; i < sizeof milliseconds / sizeof *milliseconds; i++) {
        snprintf(way, sizeof way, "under way, prompt_ms %u", milliseconds[i]);
        prompt_beside_decoding(&b, way, milliseconds[i], 0);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        snprintf(way, sizeof way, "chunks of %u, f16 pages", chunks[i]);
        prompt_beside_decoding(&b, way, 0, chunks[i]);
    }
    printf("\n");
    pieces(&b);
    cancels(&b);
    free(b.prompt);
    terse_model_free(b.model);
    return 0;
}
