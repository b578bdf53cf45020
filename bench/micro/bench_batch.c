/* Times decoding steps of many sessions together beside those of one session, by turns: tokens per second, and the time of
 * attention, by which a step takes longer than one of sessions of 64 tokens. Caches are filled with random keys and values
 * (terse_session_fill_random).
 *
 *     bench_batch MODEL.gguf [SESSIONS [DEPTH [METHOD [THREADS [STEPS [DEVICE]]]]]]       8, 512, f16, 2, 8 steps of each turn, cpu
 *
 * Beside wall time stands processor time, of all threads, which says more where others work on the machine. The fastest of some
 * turns counts. */
#include "base/clock.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SESSIONS_MOST 64
#define TURNS 8
#define SHALLOW 64

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_batch: %s\n", error->message);
    exit(1);
}

/* A `best` is the seconds of a step, the fewest so far. */
struct best {
    double wall, processor;
};

static void keep(double *best, double seconds) {
    if (seconds < *best) *best = seconds;
}

static void run(struct terse_engine *engine, struct terse_session **sessions, size_t n, size_t steps, struct best *best) {
    struct terse_step_item items[SESSIONS_MOST];
    struct terse_error error;
    int32_t token = 17;
    double start = clock_now();
    clock_t processor = clock();
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < n; i++) items[i] = (struct terse_step_item){.session = sessions[i], .tokens = &token, .n = 1};
        must(terse_engine_step(engine, items, n, &error), &error);
    }
    keep(&best->wall, (clock_now() - start) / (double)steps);
    keep(&best->processor, (double)(clock() - processor) / CLOCKS_PER_SEC / (double)steps);
}

static void print(const char *what, size_t n, const struct best *best, const struct best *shallow) {
    printf("%-9s %6.2f ms a step, %6.1f tokens/s; processor %6.2f ms a token, of which attention %6.2f\n", what, 1e3 * best->wall,
           (double)n / best->wall, 1e3 * best->processor / (double)n, 1e3 * (best->processor - shallow->processor) / (double)n);
}

static struct terse_session *new_session(struct terse_engine *engine, const struct terse_session_options *options, size_t depth,
                                         uint64_t seed) {
    struct terse_session *session;
    struct terse_error error;
    must(terse_session_new(engine, options, &session, &error), &error);
    must(terse_session_fill_random(session, depth, seed, &error), &error);
    return session;
}

int main(int argc, char **argv) {
    size_t n = argc > 2 ? (size_t)atoi(argv[2]) : 8, depth = argc > 3 ? (size_t)atoi(argv[3]) : 512;
    size_t steps = argc > 6 ? (size_t)atoi(argv[6]) : 8;
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *sessions[SESSIONS_MOST], *shallow[SESSIONS_MOST];
    struct terse_engine *engine;
    struct terse_model *model;
    struct terse_error error;
    struct best alone = {1e9, 1e9}, together = alone, shallow_alone = alone, shallow_together = alone;
    if (argc < 2 || n < 1 || n > SESSIONS_MOST || steps < 1) {
        fprintf(stderr, "usage: bench_batch MODEL.gguf [SESSIONS [DEPTH [METHOD [THREADS [STEPS [DEVICE]]]]]]\n");
        return 1;
    }
    options.cache.method = argc > 4 ? argv[4] : "f16";
    options.allow_longer_context = true;
    options.context = (uint32_t)(depth + 4 * TURNS * steps + 64);
    engine_options.threads = argc > 5 ? (uint32_t)atoi(argv[5]) : 2;
    engine_options.device = argc > 7 ? argv[7] : "cpu";
    must(terse_model_load(argv[1], &model, &error), &error);
    must(terse_engine_new(model, &engine_options, &engine, &error), &error);
    for (size_t i = 0; i < n; i++) {
        sessions[i] = new_session(engine, &options, depth, i + 1);
        shallow[i] = new_session(engine, &options, SHALLOW, i + 1);
    }
    for (size_t turn = 0; turn < TURNS; turn++) {
        run(engine, sessions + turn % n, 1, steps, &alone);
        run(engine, sessions, n, steps, &together);
        run(engine, shallow + turn % n, 1, steps, &shallow_alone);
        run(engine, shallow, n, steps, &shallow_together);
    }
    printf("%zu sessions at depth %zu, %s, %s, %u threads\n", n, depth, options.cache.method, engine_options.device,
           engine_options.threads);
    print("alone", 1, &alone, &shallow_alone);
    print("together", n, &together, &shallow_together);
    printf("together %.2f times the tokens/s of one, by processor time %.2f\n", (double)n * alone.wall / together.wall,
           (double)n * alone.processor / together.processor);
    for (size_t i = 0; i < n; i++) {
        terse_session_free(sessions[i]);
        terse_session_free(shallow[i]);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}
