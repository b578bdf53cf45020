/* Times attention alone, as ratios within one run: a decoding step at depth against f16's and the machine's read bandwidth, and a
 * prompt's attention against the GEMM library.
 *
 *     bench_attention [THREADS [DEPTH|METHOD...]]        depths 8192, 32768 and 131072, all methods, and prompts
 *
 * METHOD/N% reads that share of the prompt. Codebooks are random: the cost of reading does not depend on them. A method's passes
 * alternate with f16's, which evict its codes from the processor caches; the fastest pass of each counts. One thread's passes are
 * measured in processor time, to which other programs on a shared machine add little.
 */
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kv/fill.h"
#include "base/memory.h"
#include "support/kernel_check.h"
#include "support/llama_rope.h"
#include "support/random_codebook.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PASS_BYTES ((size_t)512 << 20) /* least size of f16's keys and values in all layers: exceeds every processor cache */
#define ROUNDS 12
#define MOST_NAMES 32
#define BANDWIDTH_BYTES ((size_t)512 << 20)

static int threads;

static void *allocate(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) return memory;
    fprintf(stderr, "bench_attention: no memory for %zu bytes: use smaller depths\n", count * size);
    exit(1);
}

static float *random_floats(size_t n) {
    float *x = allocate(n, sizeof *x);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = 3 * ((float)(state >> 8) / (1 << 24) - 0.5f);
    }
    return x;
}

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_attention: %s\n", error->message);
    exit(1);
}

static struct cache *make_cache(const struct cache_shape *shape, const char *name) {
    struct terse_cache_options options = terse_cache_options_defaults();
    char plain[64];
    const char *part = strchr(name, '/');
    snprintf(plain, sizeof plain, "%.*s", (int)(part ? part - name : (long)strlen(name)), name);
    if (part) options.read_percent = atof(part + 1);
    struct terse_error error;
    struct method method;
    struct cache *cache;
    options.method = plain;
    must(method_resolve(&options, shape->head_dim, &method, &error), &error);
    must(random_codebook(&method, shape->layers, shape->kv_heads, shape->head_dim, 0, true, &error), &error);
    must(cache_create(shape, &method, (uint32_t)threads, &cache, &error), &error);
    return cache;
}

/* A decoding is a cache at some depth, and one token that is decoded through its layers again and again. */
struct decoding {
    struct cache *cache;
    const struct cache_shape *shape;
    float *k, *q, *out;
    struct cache_counters best; /* of the fastest pass */
};

static struct decoding new_decoding(const struct cache_shape *shape, const char *name, size_t depth) {
    size_t k_width = (size_t)shape->kv_heads * shape->head_dim, q_width = (size_t)shape->query_heads * shape->head_dim;
    struct terse_error error;
    struct decoding d = {make_cache(shape, name), shape, random_floats(k_width), random_floats(q_width), random_floats(q_width),
                         {.seconds = INFINITY}};
    must(cache_fill_random(d.cache, depth, 1, &error), &error);
    return d;
}

static void free_decoding(struct decoding *d) {
    cache_destroy(d->cache);
    memory_free(d->k);
    memory_free(d->q);
    memory_free(d->out);
}

static void pass(struct decoding *d) {
    struct cache_counters each;
    struct terse_error error;
    must(cache_begin(d->cache, CACHE_STEP_DECODE, 1, &error), &error);
    cache_counters(d->cache, &each, true);
    const clock_t start = clock();
    for (uint32_t layer = 0; layer < d->shape->layers; layer++) {
        must(cache_append(d->cache, layer, d->k, d->k, &error), &error);
        must(cache_attend(d->cache, d->q, 0, 1, d->out, &error), &error);
        must(cache_end_layer(d->cache, &error), &error);
    }
    must(cache_commit(d->cache, &error), &error);
    cache_counters(d->cache, &each, true);
    if (threads == 1) each.seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (each.seconds < d->best.seconds) d->best = each;
}

static void print_decoding(const char *name, size_t depth, const struct decoding *d, const struct decoding *half, double machine) {
    double layers = d->shape->layers, rate = (double)d->best.bytes / d->best.seconds;
    printf("%-16s %-16s %7zu %10.1f %10.1f %8.2f %9.2f %8.2f %6.2f\n", "", name, depth, 1e6 * d->best.seconds / layers,
           1e6 * half->best.seconds / layers, half->best.seconds / d->best.seconds, (double)d->best.bytes / 1e6 / layers,
           rate / 1e9, rate / machine);
    fflush(stdout);
}

static void bench_decode(const char *title, struct cache_shape shape, const size_t *depths, size_t n_depths,
                         const char *const *names, size_t n_names) {
    char *memory = allocate(BANDWIDTH_BYTES, 1);
    for (size_t i = 0; i < BANDWIDTH_BYTES; i += 4096) memory[i] = 1;
    printf("\n%-16s %-16s %7s %10s %10s %8s %9s %8s %6s\n", title, "method", "depth", "us/layer", "f16 us", "faster", "MB/layer",
           "GB/s", "of machine");
    for (size_t i = 0; i < n_depths; i++) {
        shape.layers = (uint32_t)(PASS_BYTES / (depths[i] * shape.kv_heads * shape.head_dim * 4) + 1);
        struct decoding half = new_decoding(&shape, "f16", depths[i]);
        double machine = read_bandwidth(memory, BANDWIDTH_BYTES, threads);
        for (int round = 0; round < ROUNDS; round++) pass(&half);
        machine = fmax(machine, read_bandwidth(memory, BANDWIDTH_BYTES, threads));
        printf("%-16s the machine reads %.1f GB/s; %u layers, one after another\n", "", machine / 1e9, shape.layers);
        print_decoding("f16", depths[i], &half, &half, machine);
        for (size_t m = 0; m < n_names; m++) {
            struct decoding d = new_decoding(&shape, names[m], depths[i]);
            half.best.seconds = INFINITY;
            for (int round = 0; round < ROUNDS; round++) {
                pass(&half);
                pass(&d);
            }
            print_decoding(names[m], depths[i], &d, &half, machine);
            free_decoding(&d);
        }
        free_decoding(&half);
    }
    memory_free(memory);
}

static double gemm_rate(void) {
    enum { N = 1024 };
    float *a = random_floats(N * N), *b = random_floats(N * N), *c = random_floats(N * N);
    double best = 0;
    for (int run = 0; run < 20; run++) {
        double start = clock_seconds();
        gemm(false, N, N, N, a, N, b, N, false, c, N);
        best = fmax(best, 2.0 * N * N * N / (clock_seconds() - start));
    }
    memory_free(a);
    memory_free(b);
    memory_free(c);
    return best;
}

/* Prefills n tokens at once after `past` tokens in the cache. */
static void bench_prompt(const char *title, struct cache_shape shape, const char *method, size_t past, size_t n) {
    shape.layers = 1;
    struct cache *cache = make_cache(&shape, method);
    struct terse_error error;
    size_t k_width = (size_t)shape.kv_heads * shape.head_dim, q_width = (size_t)shape.query_heads * shape.head_dim;
    float *k = random_floats(n * k_width), *v = random_floats(n * k_width), *q = random_floats(n * q_width),
          *out = random_floats(n * q_width);
    double best = INFINITY, machine = gemm_rate();
    if (past) must(cache_fill_random(cache, past, 1, &error), &error);
    must(cache_begin(cache, CACHE_STEP_PREFILL, n, &error), &error);
    must(cache_append(cache, 0, k, v, &error), &error);
    for (int run = 0; run < 5; run++) {
        double start = clock_seconds();
        must(cache_attend(cache, q, 0, n, out, &error), &error);
        best = fmin(best, clock_seconds() - start);
    }
    machine = fmax(machine, gemm_rate());
    double pairs = (double)n * ((double)past + ((double)n + 1) / 2), work = 4.0 * pairs * shape.head_dim * shape.query_heads;
    printf("%-16s %-14s %7zu %7zu %11.1f %10.0f %15.0f %6.2f\n", title, method, past, n, 1e3 * best, work / best / 1e9,
           machine / 1e9, work / best / machine);
    fflush(stdout);
    cache_destroy(cache);
    memory_free(k);
    memory_free(v);
    memory_free(q);
    memory_free(out);
}

static void bench_prompts(const struct cache_shape *lab, const struct cache_shape *b1, const struct cache_shape *b8) {
    static const char *const later[] = {"f16", "q8_0", "q4_0"};
    printf("\nprompt attention, one layer\n%-16s %-14s %7s %7s %11s %10s %15s %6s\n", "shape", "method", "past", "tokens", "ms",
           "GFLOP/s", "GEMM GFLOP/s", "ratio");
    bench_prompt("lab: 6 x 2 x 128", *lab, "f16", 0, 2048);
    bench_prompt("lab: 6 x 2 x 128", *lab, "f16", 0, 16384);
    bench_prompt("1B: 32 x 8 x 64", *b1, "f16", 0, 2048);
    bench_prompt("8B: 32 x 8 x 128", *b8, "f16", 0, 2048);
    for (size_t i = 0; i < 3; i++) bench_prompt("8B: 32 x 8 x 128", *b8, later[i], 8192, 512);
    bench_prompt("1B: 32 x 8 x 64", *b1, "streaming-2048", 0, 2048);
}

int main(int argc, char **argv) {
    static const char *const all[] = {
        "q8_0",           "q4_0",     "kivi-4",     "kivi-2",   "million-4",        "million-2",        "antkv-4",
        "antkv-2",        "antkv-1",  "commvq-2",   "commvq-1", "selfindex-2/100%", "selfindex-2/7.5%", "selfindex-16/7.5%",
        "streaming-1024", "mat-1024", "snapkv-1024"};
    static const size_t usual[] = {8192, 32768, 131072};
    const char *names[MOST_NAMES];
    size_t depths[MOST_NAMES], n_depths = 0, n_names = 0;
    threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
    if (threads < 1 || argc > MOST_NAMES) {
        fprintf(stderr, "usage: bench_attention [THREADS [DEPTH|METHOD...]] (at most %d of them)\n", MOST_NAMES - 2);
        return 1;
    }
    omp_set_num_threads(threads);
    for (int i = 2; i < argc; i++) {
        if (atol(argv[i]))
            depths[n_depths++] = (size_t)atol(argv[i]);
        else
            names[n_names++] = argv[i];
    }
    bool whole = argc <= 2;
    if (!n_depths) memcpy(depths, usual, sizeof usual), n_depths = sizeof usual / sizeof *usual;
    if (!n_names) memcpy(names, all, sizeof all), n_names = sizeof all / sizeof *all;

    static float frequency64[32], frequency128[64];
    struct rope rope64 = llama_rope(64, frequency64), rope128 = llama_rope(128, frequency128);
    struct cache_shape b1 = {1, 32, 8, 64, 0.125f, &rope64, .slopes = NULL},
                       b8 = {1, 32, 8, 128, 0.0884f, &rope128, .slopes = NULL},
                       lab = {1, 6, 2, 128, 0.0884f, &rope128, .slopes = NULL};
    printf("decode attention, %d threads, %s kernels; one token\n", threads, cpu_isa_name(cpu_isa()));
    bench_decode("1B: 32 x 8 x 64", b1, depths, n_depths, names, n_names);
    bench_decode("8B: 32 x 8 x 128", b8, depths, n_depths, names, n_names);
    if (whole) bench_prompts(&lab, &b1, &b8);
    return 0;
}
