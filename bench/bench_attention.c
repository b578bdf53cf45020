/* Attention alone, as ratios in one run: decoding at depth against the machine's own read bandwidth, and the attention of a prompt
 * against the GEMM library.
 *
 *     bench_attention [THREADS [DEPTH...]]        depths 8192 and 32768
 */
#include "base/memory.h"
#include "cache/cache.h"
#include "kernels/gemm.h"
#include "support/kernel_check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 16
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
    struct terse_error error;
    struct method method;
    struct cache *cache;
    options.method = name;
    must(method_resolve(&options, shape->head_dim, &method, &error), &error);
    must(cache_new(shape, &method, &cache, &error), &error);
    return cache;
}

/* One token through all layers, the fastest of twenty: seconds in attention and bytes read. */
static struct cache_counters decode_token(struct cache *cache, const struct cache_shape *shape) {
    size_t k_width = (size_t)shape->kv_heads * shape->head_dim, q_width = (size_t)shape->query_heads * shape->head_dim;
    float *k = random_floats(k_width), *q = random_floats(q_width), *out = random_floats(q_width);
    struct cache_counters best = {.seconds = INFINITY}, each;
    struct terse_error error;
    for (int run = 0; run < 20; run++) {
        must(cache_step_begin(cache, CACHE_STEP_DECODE, 1, &error), &error);
        cache_counters(cache, &each, true);
        for (uint32_t layer = 0; layer < shape->layers; layer++) {
            cache_layer_begin(cache, layer, k, k);
            cache_layer_attend(cache, q, 0, 1, out);
            cache_layer_end(cache);
        }
        cache_step_end(cache);
        cache_counters(cache, &each, true);
        if (each.seconds < best.seconds) best = each;
    }
    memory_free(k);
    memory_free(q);
    memory_free(out);
    return best;
}

static void bench_decode(const char *title, const struct cache_shape *shape, const size_t *depths, size_t n_depths) {
    static const char *const methods[] = {"f16", "q8_0", "q4_0", "streaming-2048"};
    char *memory = allocate(BANDWIDTH_BYTES, 1);
    for (size_t i = 0; i < BANDWIDTH_BYTES; i += 4096) memory[i] = 1;
    printf("\n%-16s %-14s %7s %11s %10s %8s %12s %6s\n", title, "method", "depth", "us/layer", "MB/layer", "GB/s", "machine GB/s",
           "ratio");
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        for (size_t d = 0; d < n_depths; d++) {
            struct cache *cache = make_cache(shape, methods[m]);
            struct terse_error error;
            must(cache_fill_random(cache, depths[d], 1, &error), &error);
            double machine = read_bandwidth(memory, BANDWIDTH_BYTES, threads);
            struct cache_counters c = decode_token(cache, shape);
            machine = fmax(machine, read_bandwidth(memory, BANDWIDTH_BYTES, threads));
            double rate = (double)c.bytes / c.seconds;
            printf("%-16s %-14s %7zu %11.1f %10.2f %8.2f %12.2f %6.2f\n", "", methods[m], depths[d],
                   1e6 * c.seconds / shape->layers, (double)c.bytes / 1e6 / shape->layers, rate / 1e9, machine / 1e9,
                   rate / machine);
            fflush(stdout);
            cache_free(cache);
        }
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

/* `past` tokens are in the cache; `n` more are read at once. */
static void bench_prompt(const char *title, struct cache_shape shape, const char *method, size_t past, size_t n) {
    shape.layers = 1;
    struct cache *cache = make_cache(&shape, method);
    struct terse_error error;
    size_t k_width = (size_t)shape.kv_heads * shape.head_dim, q_width = (size_t)shape.query_heads * shape.head_dim;
    float *k = random_floats(n * k_width), *v = random_floats(n * k_width), *q = random_floats(n * q_width),
          *out = random_floats(n * q_width);
    double best = INFINITY, machine = gemm_rate();
    if (past) must(cache_fill_random(cache, past, 1, &error), &error);
    must(cache_step_begin(cache, CACHE_STEP_PREFILL, n, &error), &error);
    cache_layer_begin(cache, 0, k, v);
    for (int run = 0; run < 5; run++) {
        double start = clock_seconds();
        cache_layer_attend(cache, q, 0, n, out);
        best = fmin(best, clock_seconds() - start);
    }
    machine = fmax(machine, gemm_rate());
    double pairs = (double)n * ((double)past + ((double)n + 1) / 2), work = 4.0 * pairs * shape.head_dim * shape.query_heads;
    printf("%-16s %-14s %7zu %7zu %11.1f %10.0f %15.0f %6.2f\n", title, method, past, n, 1e3 * best, work / best / 1e9,
           machine / 1e9, work / best / machine);
    fflush(stdout);
    cache_free(cache);
    memory_free(k);
    memory_free(v);
    memory_free(q);
    memory_free(out);
}

int main(int argc, char **argv) {
    size_t depths[16] = {8192, 32768}, n_depths = 2;
    threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
    if (threads < 1 || argc > 18) {
        fprintf(stderr, "usage: bench_attention [THREADS [DEPTH...]] (at most 16 depths)\n");
        return 1;
    }
    omp_set_num_threads(threads);
    if (argc > 2) n_depths = 0;
    for (int i = 2; i < argc; i++) depths[n_depths++] = (size_t)atol(argv[i]);

    static float frequency[64];
    for (int i = 0; i < 64; i++) frequency[i] = powf(500000, -(float)i / 64);
    struct rope rope64 = {ROPE_ADJACENT, 64, 64, frequency, 1}, rope128 = {ROPE_ADJACENT, 128, 128, frequency, 1};
    struct cache_shape b1 = {LAYERS, 32, 8, 64, 0.125f, &rope64, NULL}, b8 = {LAYERS, 32, 8, 128, 0.0884f, &rope128, NULL},
                       lab = {1, 6, 2, 128, 0.0884f, &rope128, NULL};
    printf("decode attention, %d threads, %s kernels; one token, %d layers in turn\n", threads, kernels()->name, LAYERS);
    bench_decode("1B: 32 x 8 x 64", &b1, depths, n_depths);
    bench_decode("8B: 32 x 8 x 128", &b8, depths, n_depths);

    printf("\nprompt attention, one layer\n%-16s %-14s %7s %7s %11s %10s %15s %6s\n", "shape", "method", "past", "tokens", "ms",
           "GFLOP/s", "GEMM GFLOP/s", "ratio");
    bench_prompt("lab: 6 x 2 x 128", lab, "f16", 0, 2048);
    bench_prompt("lab: 6 x 2 x 128", lab, "f16", 0, 16384);
    bench_prompt("1B: 32 x 8 x 64", b1, "f16", 0, 2048);
    bench_prompt("8B: 32 x 8 x 128", b8, "f16", 0, 2048);
    static const char *const later[] = {"f16", "q8_0", "q4_0"};
    for (size_t i = 0; i < 3; i++) bench_prompt("8B: 32 x 8 x 128", b8, later[i], 8192, 512);
    bench_prompt("1B: 32 x 8 x 64", b1, "streaming-2048", 0, 2048);
    return 0;
}
