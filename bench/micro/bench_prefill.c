/* Times the prefill of a prompt against the GEMM library computing the same matrix products, on full-precision matrices, and nothing
 * else, in one run.
 *
 *     bench_prefill MODEL.gguf [TOKENS [THREADS]]
 */
#include "backend/cpu/gemm.h"
#include "base/memory.h"
#include "model/model.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

struct timing {
    double seconds;
    double operations;
};

static float *random_floats(size_t n) {
    float *x = memory_array(n, sizeof *x);
    if (!x) {
        fprintf(stderr, "bench_prefill: no memory for %zu floats: use fewer tokens\n", n);
        exit(1);
    }
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / (1 << 24) - 0.5f;
    }
    return x;
}

static struct timing time_gemm(const struct matrix *w, size_t tokens) {
    float *x = random_floats(tokens * w->columns), *weights = random_floats((size_t)w->rows * w->columns);
    float *y = random_floats(tokens * w->rows);
    struct timing best = {.operations = 2.0 * (double)tokens * w->rows * w->columns};
    for (int round = 0; round < 3; round++) { /* the first one warms up */
        double start = omp_get_wtime();
        gemm(true, tokens, w->rows, w->columns, x, w->columns, weights, w->columns, false, y, w->rows);
        double seconds = omp_get_wtime() - start;
        if (round == 1 || (round > 1 && seconds < best.seconds)) best.seconds = seconds;
    }
    memory_free(x);
    memory_free(weights);
    memory_free(y);
    return best;
}

/* Times all products of one layer, times the number of layers. */
static struct timing time_layers(const struct terse_model *m, size_t tokens) {
    const struct layer *l = &m->layer[0];
    const struct matrix *matrices[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    struct timing sum = {0};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        if (!matrices[i]->data) continue; /* not every architecture has a gate */
        struct timing t = time_gemm(matrices[i], tokens);
        sum.seconds += t.seconds * m->layers;
        sum.operations += t.operations * m->layers;
    }
    return sum;
}

static double time_prefill(const struct terse_model *model, size_t tokens, uint32_t threads) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_engine *engine = NULL;
    struct terse_session *session = NULL;
    struct terse_error error;
    struct terse_counters counters;
    double best = 0;
    int32_t *prompt = memory_array(tokens, sizeof *prompt);
    engine_options.threads = threads;
    if (!prompt || terse_engine_new(model, &engine_options, &engine, &error)) goto fail;
    if (terse_session_new(engine, &options, &session, &error)) goto fail;
    for (size_t i = 0; i < tokens; i++) prompt[i] = (int32_t)((i * 7919) % model->vocabulary);
    for (int round = 0; round < 3; round++) {
        terse_session_reset(session);
        if (terse_session_prefill(session, prompt, tokens, NULL, &error)) goto fail;
        terse_session_counters(session, &counters, true);
        if (round == 1 || (round > 1 && counters.prefill_seconds < best)) best = counters.prefill_seconds;
    }
    memory_free(prompt);
    terse_session_free(session);
    terse_engine_free(engine);
    return best;
fail:
    fprintf(stderr, "bench_prefill: %s\n", prompt ? error.message : "no memory");
    exit(1);
}

int main(int argc, char **argv) {
    struct terse_model *model;
    struct terse_error error;
    size_t tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 2048;
    uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : (uint32_t)omp_get_num_procs();
    if (argc < 2 || !tokens || !threads) {
        fprintf(stderr, "usage: bench_prefill MODEL.gguf [TOKENS [THREADS]]\n");
        return 1;
    }
    if (terse_model_load(argv[1], &model, &error)) {
        fprintf(stderr, "bench_prefill: %s\n", error.message);
        return 1;
    }
    omp_set_num_threads((int)threads);
    struct timing alone = time_layers(model, tokens);
    double prefill = time_prefill(model, tokens, threads);
    printf("%zu tokens, %u threads\n", tokens, threads);
    printf("GEMM alone   %8.3f s  %7.1f GFLOP/s\n", alone.seconds, alone.operations / alone.seconds / 1e9);
    printf("prefill      %8.3f s  %7.1f GFLOP/s of the same products  %7.1f tokens/s\n", prefill, alone.operations / prefill / 1e9,
           (double)tokens / prefill);
    printf("ratio        %8.2f\n", alone.seconds / prefill);
    terse_model_free(model);
    return 0;
}
