/* Times sealing on and off the critical path (MILLION, sections III-B and III-C): time per output token of a model at depth when the
 * step that moves a page out of the window encodes it, and when a worker has encoded it ahead. Centroids and the cache's contents are
 * random: the cost of encoding does not depend on them.
 *
 *     bench_sealing [MODEL.gguf [DEPTH [TOKENS]]]
 *     bench_sealing pages                              no model: time to seal a page, by shape and method
 */
#include "backend/backend.h"
#include "backend/cpu/kv/fill.h"
#include "base/clock.h"
#include "model/model.h"
#include "support/llama_rope.h"
#include "support/random_codebook.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good, const char *what, const struct terse_error *error) {
    if (good) return;
    fprintf(stderr, "bench_sealing: %s%s%s\n", what, error ? ": " : "", error ? error->message : "");
    exit(1);
}

static struct method method_of(const struct terse_model *m, const char *name) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    struct terse_error error;
    options.method = name;
    must(!method_resolve(&options, m->head_dim, &method, &error), name, &error);
    must(!random_codebook(&method, m->layers, m->kv_heads, m->head_dim, m->fingerprint, m->rope.pairing == ROPE_ADJACENT, &error),
         "codebook", &error);
    return method;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void decode(struct executor *executor, const struct step_part *part) {
    const struct executor_ops *ops = backend_cpu.executor;
    struct terse_error error;
    struct pass *pass;
    size_t failed;
    must(!ops->begin(executor, &(struct step){part, 1}, &pass, &failed, &error), "decoding", &error);
    for (struct step_progress at = {0, 1}; at.done < at.total; at = ops->progress(pass))
        must(!ops->advance(pass, &error), "decoding", &error);
    ops->end(pass);
}

/* Writes the milliseconds of each of n decoding steps, sorted; returns their mean. */
static double time_tokens(const struct terse_model *m, const struct method *method, bool ahead, size_t depth, size_t n,
                          double *ms) {
    struct terse_error error;
    struct cache *cache;
    struct executor *executor;
    struct cache_shape shape = {m->layers, m->query_heads, m->kv_heads, m->head_dim, 1 / sqrtf((float)m->head_dim),
                                &m->rope,  .slopes = NULL};
    float *logits = malloc(m->vocabulary * sizeof *logits);
    double sum = 0;
    must(logits, "no memory", NULL);
    must(!cache_create(&shape, method, (uint32_t)omp_get_max_threads(), &cache, &error), "cache", &error);
    cache_set_seal_ahead(cache, ahead);
    must(!cache_fill_random(cache, depth, 1, &error), "cache", &error);
    must(!backend_cpu.executor->load(m, backend_cpu.kv, (uint32_t)omp_get_max_threads(), &executor, &error), "executor", &error);
    for (size_t i = 0; i < n + 8; i++) {
        int32_t token = (int32_t)(i * 7919 % m->vocabulary);
        double start = clock_now();
        struct step_part part = {.cache = cache, .kind = CACHE_STEP_DECODE, .tokens = &token, .n = 1, .last_logits = logits};
        decode(executor, &part);
        if (i >= 8) sum += ms[i - 8] = 1e3 * (clock_now() - start); /* the first steps warm up */
    }
    qsort(ms, n, sizeof *ms, ascending);
    backend_cpu.executor->unload(executor);
    cache_destroy(cache);
    free(logits);
    return sum / (double)n;
}

/* ---- Pages alone */

/* Returns the microseconds by which a step that seals a page of every KV head of a layer, keys and values, is longer than one that
 * seals none; the smallest of several measurements. There is no attention and no worker. */
static double time_page(const struct cache_shape *shape, const char *name) {
    enum { PAGES = 6, DEPTH = 1024 };
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    struct cache *cache;
    struct terse_error error;
    size_t width = (size_t)shape->kv_heads * shape->head_dim;
    double best = INFINITY, us[PAGE_TOKENS];
    float *rows = malloc(2 * width * sizeof *rows);
    must(rows, "no memory", NULL);
    options.method = name;
    must(!method_resolve(&options, shape->head_dim, &method, &error), name, &error);
    must(!random_codebook(&method, shape->layers, shape->kv_heads, shape->head_dim, 0, true, &error), "codebook", &error);
    must(!cache_create(shape, &method, (uint32_t)omp_get_max_threads(), &cache, &error), "cache", &error);
    cache_set_seal_ahead(cache, false);
    must(!cache_fill_random(cache, DEPTH, 1, &error), "cache", &error);
    for (int page = 0; page < PAGES; page++) {
        for (size_t i = 0; i < PAGE_TOKENS; i++) {
            for (size_t c = 0; c < 2 * width; c++) rows[c] = sinf((float)(c * (i + 1)));
            double start = clock_now();
            must(!cache_begin(cache, CACHE_STEP_DECODE, 1, &error), "step", &error);
            for (uint32_t layer = 0; layer < shape->layers; layer++) {
                must(!cache_append(cache, layer, rows, rows + width, &error), "step", &error);
                must(!cache_end_layer(cache, &error), "step", &error);
            }
            must(!cache_commit(cache, &error), "step", &error);
            us[i] = 1e6 * (clock_now() - start) / shape->layers;
        }
        qsort(us, PAGE_TOKENS, sizeof *us, ascending);
        best = fmin(best, us[PAGE_TOKENS - 1] - us[PAGE_TOKENS / 2]);
    }
    cache_destroy(cache);
    free(rows);
    return best;
}

static int bench_pages(void) {
    static const char *const methods[] = {"q8_0",    "q4_0",    "kivi-4",  "kivi-2",   "million-4", "million-2",
                                          "antkv-4", "antkv-2", "antkv-1", "commvq-2", "commvq-1",  "selfindex-2"};
    static float frequency64[32], frequency128[64];
    struct rope rope64 = llama_rope(64, frequency64), rope128 = llama_rope(128, frequency128);
    struct cache_shape shapes[] = {{8, 32, 8, 64, 0.125f, &rope64, .slopes = NULL},
                                   {8, 32, 8, 128, 0.0884f, &rope128, .slopes = NULL}};
    printf("sealing, %d threads; a page of 64 tokens of every KV head of a layer\n%-18s %-14s %10s\n", omp_get_max_threads(),
           "shape", "method", "us/layer");
    for (size_t s = 0; s < 2; s++) {
        for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
            printf("%-18s %-14s %10.1f\n", s ? "8B: 32 x 8 x 128" : "1B: 32 x 8 x 64", methods[i],
                   time_page(&shapes[s], methods[i]));
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static const char *const methods[] = {"f16", "q4_0", "million-4", "antkv-1", "antkv-0.375"};
    const char *path = argc > 1 ? argv[1] : PROJECT_DIR "/models/lab-27m-q8_0.gguf";
    size_t depth = argc > 2 ? (size_t)atol(argv[2]) : 8192, n = argc > 3 ? (size_t)atol(argv[3]) : 512;
    struct terse_model *model;
    struct terse_error error;
    if (!strcmp(path, "pages")) return bench_pages();
    must(depth && n, "usage: bench_sealing [MODEL.gguf [DEPTH [TOKENS]] | pages]", NULL);
    must(!terse_model_load(path, &model, &error), "model", &error);
    double *ms = malloc(n * sizeof *ms);
    must(ms, "no memory", NULL);
    printf("%zu tokens one by one after %zu; a page is sealed every 64. Milliseconds per token:\n", n, depth);
    printf("%-14s %-10s %8s %8s %8s %8s\n", "method", "sealing", "mean", "median", "99 %", "most");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct method method = method_of(model, methods[i]);
        for (int ahead = 0; ahead < (method.tail_tokens ? 2 : 1); ahead++) {
            double mean = time_tokens(model, &method, ahead, depth, n, ms);
            printf("%-14s %-10s %8.3f %8.3f %8.3f %8.3f\n", methods[i], ahead ? "ahead" : "in step", mean, ms[n / 2],
                   ms[n * 99 / 100], ms[n - 1]);
            fflush(stdout);
        }
    }
    free(ms);
    terse_model_free(model);
    return 0;
}
