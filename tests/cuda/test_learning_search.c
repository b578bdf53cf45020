/* Nearest centroids on the GPU: those of double precision, the lowest of equals; and k-means with this search ends where the CPU's does. */
#include "backend/cuda/learning.h"
#include "no_device.h"
#include "train/kmeans.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 1;
static float uniform(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1;
}

/* Returns numbers of some clusters around an offset, as keys have one. */
static float *random_rows(size_t n, size_t d, float offset) {
    float *rows = malloc(n * d * sizeof *rows);
    assert_non_null(rows);
    for (size_t r = 0; r < n; r++) {
        const float size = 1 + (float)(r % 7), way = (float)(r % 3);
        for (size_t i = 0; i < d; i++) rows[r * d + i] = offset + way * (float)(i % 2) + size * uniform() * uniform();
    }
    return rows;
}

static double square(const float *x, const float *c, size_t d) {
    double sum = 0;
    for (size_t i = 0; i < d; i++) sum += pow((double)x[i] - (double)c[i], 2);
    return sum;
}

static void check_search(size_t n, size_t d, size_t stride, size_t k) {
    float *rows = random_rows(n, stride, 5), *centroids = random_rows(k, d, 5);
    uint16_t *codes = malloc(n * sizeof *codes);
    struct terse_error error;
    assert_non_null(codes);
    memcpy(centroids + (k - 1) * d, centroids, d * sizeof *centroids); /* equal to the first */
    memcpy(rows, centroids, d * sizeof *rows);
    struct search *search = learning_search_open(rows, n, d, stride, k);
    assert_non_null(search);
    for (int turn = 0; turn < 2; turn++) { /* the second time with other centroids */
        if (learning_search_find(search, centroids, codes, &error)) fail_msg("%s", error.message);
        if (!turn && k > 1) assert_int_equal(codes[0], 0);
        for (size_t r = 0; r < n; r++) {
            const float *x = rows + r * stride;
            double least = INFINITY;
            for (size_t c = 0; c < k; c++) least = fmin(least, square(x, centroids + c * d, d));
            assert_true(codes[r] < k);
            const double found = square(x, centroids + codes[r] * d, d);
            if (!(found <= least + 1e-5 * (least + 1e-3)))
                fail_msg("%zu of %zu x %zu, %zu centroids: %g, not %g", r, n, d, k, found, least);
        }
        for (size_t i = 0; i < k * d; i++) centroids[i] += uniform() / 4;
    }
    learning_search_close(search);
    free(rows);
    free(centroids);
    free(codes);
}

static void the_nearest_is_found(void **state) {
    (void)state;
    check_search(700, 2, 2, 256);
    check_search(513, 4, 7, 100);
    check_search(600, 8, 8, 600); /* more than a tile of centroids */
    check_search(300, 16, 16, 300);
    check_search(200, 32, 40, 130);
    check_search(300, 3, 3, 17); /* as many channels as the kernel has no form for */
    check_search(100, 12, 12, 1);
    float row[33] = {0};
    assert_null(learning_search_open(row, 1, 33, 33, 2));
}

/* The same seed starts from the same centroids; what is left differs by points near a border. */
static void fits_end_where_the_cpus_do(void **state) {
    (void)state;
    static const struct {
        size_t n, d, k;
        double above;                                          /* the CPU's objective, at most */
    } rows[] = {{20000, 4, 256, 1e-2}, {9000, 2, 1024, 1e-2}}; /* from 1024 on the CPU compares with those nearby alone */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const size_t n = rows[i].n, d = rows[i].d, k = rows[i].k;
        float *points = random_rows(n, d, 3), *weights = malloc(n * sizeof *weights), *centroids[3];
        struct kmeans_result result[3];
        struct terse_error error;
        assert_non_null(weights);
        for (size_t r = 0; r < n; r++) weights[r] = 0.1f + fabsf(uniform());
        const struct kmeans_points all = {points, n, d, d, weights};
        for (int turn = 0; turn < 3; turn++) {
            const struct kmeans_options options = {
                .rounds = 4, .tolerance = 2e-3, .seed = 1, .ops = turn ? &cuda_learning_ops : NULL};
            assert_non_null(centroids[turn] = malloc(k * d * sizeof(float)));
            if (kmeans_fit(&all, k, &options, centroids[turn], &result[turn], &error)) fail_msg("%s", error.message);
        }
        print_message("%zu x %zu, %zu centroids: objective %g, the CPU's %g\n", n, d, k, result[1].objective, result[0].objective);
        assert_true(result[1].objective <= result[0].objective * (1 + rows[i].above));
        assert_memory_equal(centroids[1], centroids[2], k * d * sizeof(float));
        for (int turn = 0; turn < 3; turn++) free(centroids[turn]);
        free(points);
        free(weights);
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_nearest_is_found), cmocka_unit_test(fits_end_where_the_cpus_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
