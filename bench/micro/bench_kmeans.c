/* Times a round of kmeans_fit (search, sums, new centroids) against the GEMM library computing the same products x[n][d] c[d][k] and
 * nothing else, in one run; and the cost of the initial centroids, in rounds.
 *
 *     bench_kmeans [THREADS]
 */
#include "backend/cpu/gemm.h"
#include "base/memory.h"
#include "train/kmeans.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 262144, REPEATS = 3, ROUNDS = 3, BLOCK = 256 };

static float *random_floats(size_t n) {
    float *x = memory_array(n, sizeof *x);
    if (!x) {
        fprintf(stderr, "bench_kmeans: no memory for %zu floats\n", n);
        exit(1);
    }
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        x[i] = 0;
        for (int part = 0; part < 4; part++) { /* close to normal */
            state = state * 1664525u + 1013904223u;
            x[i] += (float)(state >> 8) / (1 << 24) - 0.5f;
        }
    }
    return x;
}

/* Times the best case of the library: blocks of products that stay in the second-level cache and are overwritten again and
 * again. */
static double time_gemm(const float *x, size_t d, size_t k) {
    float *c = random_floats(k * d);
    double best = 0;
    for (int repeat = 0; repeat <= REPEATS; repeat++) { /* the first one warms up */
        double start = omp_get_wtime();
#pragma omp parallel
        {
            float *products = memory_array((size_t)BLOCK * BLOCK, sizeof *products);
#pragma omp for
            for (size_t row = 0; row < N; row += BLOCK) {
                for (size_t j = 0; products && j < k; j += BLOCK) {
                    gemm(false, BLOCK, BLOCK, d, x + row * d, d, c + j * d, BLOCK, false, products, BLOCK);
                }
            }
            memory_free(products);
        }
        double seconds = omp_get_wtime() - start;
        if (repeat == 1 || (repeat > 1 && seconds < best)) best = seconds;
    }
    memory_free(c);
    return best;
}

static double time_fit(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids) {
    struct kmeans_result result;
    struct terse_error error;
    double best = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = omp_get_wtime();
        if (kmeans_fit(points, k, options, centroids, &result, &error)) {
            fprintf(stderr, "bench_kmeans: %s\n", error.message);
            exit(1);
        }
        double seconds = omp_get_wtime() - start;
        if (repeat == 0 || seconds < best) best = seconds;
    }
    return best;
}

static void bench(size_t d, size_t k) {
    float *x = random_floats((size_t)N * d), *weights = random_floats(N), *centroids = random_floats(k * d);
    float *initial = random_floats(k * d);
    for (size_t i = 0; i < N; i++) weights[i] *= weights[i];
    struct kmeans_points points = {.rows = x, .n = N, .d = d, .stride = d, .weights = weights};
    struct kmeans_options options = kmeans_options_defaults();
    options.tolerance = 0;
    options.rounds = 0;
    double with_start = time_fit(&points, k, &options, centroids);
    for (size_t i = 0; i < k * d; i++)
        initial[i] = centroids[i]; /* good centroids, so that rounds have no empty clusters to repair */
    options.initial = initial;
    double once = time_fit(&points, k, &options, centroids), alone = time_gemm(x, d, k);
    options.rounds = ROUNDS;
    double round = (time_fit(&points, k, &options, centroids) - once) / ROUNDS;
    printf("%6d x %2zu  k %4zu  gemm alone %8.4f s  round %8.4f s  ratio %5.2f  start %7.3f s = %5.1f rounds\n", N, d, k, alone,
           round, round / alone, with_start - once, (with_start - once) / round);
    memory_free(x);
    memory_free(weights);
    memory_free(centroids);
    memory_free(initial);
}

int main(int argc, char **argv) {
    if (argc > 1) omp_set_num_threads(atoi(argv[1]) > 0 ? atoi(argv[1]) : 1);
    printf("%d threads, %s\n", omp_get_max_threads(), terse_cpu_name());
    bench(2, 256);
    bench(4, 256);
    bench(8, 256);
    bench(16, 4096);
    bench(32, 4096);
    return 0;
}
