/* k-means of many points, whose first rounds run on samples, and of many centroids, which are compared with points by groups: results are
 * held to exact searches in double precision, and are the same for any number of threads. */
#include "base/memory.h"
#include "support/kernel_check.h"
#include "train/kmeans.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A mixture of `clusters` normal ones of heavy-tailed weight; released by data_free. */
struct data {
    float *rows, *weights;
    struct kmeans_points points;
};

static struct data data_new(size_t n, size_t d, size_t clusters, uint64_t seed) {
    struct data data = {memory_array(n * d, sizeof(float)), memory_array(n, sizeof(float)), {0}};
    struct random random = {seed};
    float *centers = memory_array(clusters * d, sizeof *centers);
    assert_true(data.rows && data.weights && centers);
    for (size_t i = 0; i < clusters * d; i++) centers[i] = 4 * random_normal(&random);
    for (size_t r = 0; r < n; r++) {
        const float *center = centers + random_bits(&random) % clusters * d;
        for (size_t i = 0; i < d; i++) data.rows[r * d + i] = center[i] + random_normal(&random);
        data.weights[r] = expf(2 * random_normal(&random));
    }
    memory_free(centers);
    data.points = (struct kmeans_points){.rows = data.rows, .n = n, .d = d, .stride = d, .weights = data.weights};
    return data;
}

static void data_free(struct data *data) {
    memory_free(data->rows);
    memory_free(data->weights);
}

static struct kmeans_result fit(const struct kmeans_points *points, size_t k, const struct kmeans_options *options,
                                float *centroids) {
    struct kmeans_result result;
    struct terse_error error;
    if (kmeans_fit(points, k, options, centroids, &result, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < k * points->d; i++) assert_true(isfinite(centroids[i]));
    return result;
}

/* Returns the sum over all points of the squared distance to the nearest centroid, weighted. */
static double exact_objective(const struct kmeans_points *points, const float *centroids, size_t k) {
    double sum = 0;
    for (size_t r = 0; r < points->n; r++) {
        double least = INFINITY;
        for (size_t c = 0; c < k; c++) {
            double square = 0;
            for (size_t i = 0; i < points->d; i++) {
                double difference = (double)points->rows[r * points->stride + i] - (double)centroids[c * points->d + i];
                square += difference * difference;
            }
            least = square < least ? square : least;
        }
        sum += (points->weights ? (double)points->weights[r] : 1) * least;
    }
    return sum;
}

/* ---- Many points */

struct reports {
    uint64_t calls, stop_after, last_done, total;
    double objective; /* the last that was named */
    bool rises;       /* one named was larger than that before it, though of the same points */
};

static bool count_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct reports *reports = user;
    double objective;
    assert_true(done >= reports->last_done && done <= total);
    if (sscanf(what, "k-means, objective %lf", &objective) == 1) {
        if (done > 0 && objective > reports->objective * 1.00001) reports->rises = true;
        reports->objective = objective;
    }
    reports->last_done = done;
    reports->total = total;
    return ++reports->calls < reports->stop_after;
}

/* Two rounds over all points come near to where fifty lead, since samples of them had theirs before; what is reported is the objective
 * of all points, and only rounds over all of them count. */
static void many_points_begin_with_a_sample(void **state) {
    (void)state;
    enum { N = 70000, D = 4, K = 64 };
    struct data data = data_new(N, D, 1, 111);
    float start[K * D], few[K * D], many[K * D];
    struct reports reports = {.stop_after = UINT64_MAX};
    struct kmeans_options options = {.rounds = 50, .initial = start};
    struct kmeans_points first = data.points;
    first.n = 16384; /* enough for a start, not for a sample */
    fit(&first, K, &(struct kmeans_options){.rounds = 0, .seed = 5}, start);
    double best = fit(&data.points, K, &options, many).objective;
    options = (struct kmeans_options){.rounds = 2, .initial = start};
    double without = fit(&data.points, K, &options, few).objective;
    options = (struct kmeans_options){.rounds = 2, .seed = 5, .progress = {count_report, &reports}};
    struct kmeans_result result = fit(&data.points, K, &options, few);
    assert_int_equal(result.rounds, 2);
    assert_int_equal(reports.total, 2);
    assert_int_equal(reports.last_done, 2);
    assert_true(reports.calls > 8); /* the draws and the sample's rounds are reports too */
    assert_true(without > 1.05 * best && result.objective < 1.03 * best);
    check_close(result.objective, exact_objective(&data.points, few, K), result.objective, 1e-6, 0, "objective");
    for (uint64_t stop = 1; stop < reports.calls; stop += 3) {
        struct terse_error error = {0};
        struct reports again = {.stop_after = stop};
        options.progress.user = &again;
        assert_int_equal(kmeans_fit(&data.points, K, &options, few, NULL, &error), TERSE_E_INTERRUPTED);
        assert_int_equal(again.calls, stop);
    }
    data_free(&data);
}

/* ---- Many centroids */

/* The assignment found is nearly the best one, and rounds go on from it downwards. */
static void many_centroids_are_compared_by_groups(void **state) {
    (void)state;
    enum { N = 20000, D = 6, K = 1200 };
    struct data data = data_new(N, D, 1, 121); /* without gaps between clusters, so that groups have many neighbours */
    float *centroids = memory_array(K, D * sizeof *centroids);
    struct reports reports = {.stop_after = UINT64_MAX};
    struct kmeans_options options = {.rounds = 8, .seed = 3, .progress = {count_report, &reports}};
    struct kmeans_result result = fit(&data.points, K, &options, centroids);
    double exact = exact_objective(&data.points, centroids, K);
    assert_true(result.objective >= exact * 0.999999);
    if (!(result.objective < exact * 1.02)) fail_msg("objective %g, but %g is possible", result.objective, exact);
    assert_false(reports.rises);
    options = (struct kmeans_options){.rounds = 0, .seed = 3};
    assert_true(fit(&data.points, K, &options, centroids).objective > 1.1 * result.objective);
    /* Fifty rounds of half as many centroids do worse. */
    options = (struct kmeans_options){.rounds = 50, .seed = 3};
    assert_true(fit(&data.points, K / 2, &options, centroids).objective > 1.1 * result.objective);
    memory_free(centroids);
    data_free(&data);
}

/* Against fifty exact rounds of as many centroids as just take the other way. */
static void many_centroids_do_as_well_as_few(void **state) {
    (void)state;
    enum { N = 16000, D = 8, FEW = 1023, MANY = 1024 };
    struct data data = data_new(N, D, 1, 131);
    float *centroids = memory_array(MANY, D * sizeof *centroids);
    struct kmeans_options options = {.rounds = 20, .seed = 7};
    double exact = fit(&data.points, FEW, &options, centroids).objective;
    double near = fit(&data.points, MANY, &options, centroids).objective;
    if (!(near < 1.05 * exact)) fail_msg("%g, where exact rounds come to %g", near, exact);
    memory_free(centroids);
    data_free(&data);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    enum { N = 40000, D = 3, K = 1100 };
    struct data data = data_new(N, D, 100, 141);
    float *one = memory_array(K, D * sizeof *one), *more = memory_array(K, D * sizeof *more);
    struct kmeans_options options = {.rounds = 3, .seed = 9};
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    struct kmeans_result first = fit(&data.points, K, &options, one);
    for (int t = 2; t <= 5; t += 3) {
        omp_set_num_threads(t);
        struct kmeans_result again = fit(&data.points, K, &options, more);
        assert_memory_equal(one, more, K * D * sizeof *one);
        assert_memory_equal(&first, &again, sizeof first);
    }
    omp_set_num_threads(threads);
    options.seed++;
    fit(&data.points, K, &options, more);
    assert_memory_not_equal(one, more, K * D * sizeof *one);
    memory_free(one);
    memory_free(more);
    data_free(&data);
}

/* With as many centroids as there are different points, or more, no error is left, not even with numbers at the end of their range. */
static void enough_centroids_leave_no_error(void **state) {
    (void)state;
    enum { N = 6000, D = 2, DISTINCT = 1030, K = 1300 };
    struct data data = data_new(N, D, 1, 151);
    float *centroids = memory_array(K, D * sizeof *centroids);
    struct kmeans_options options = kmeans_options_defaults();
    for (size_t r = 0; r < N; r++) { /* a grid: single precision can tell its points apart */
        data.rows[r * D] = (float)(r % DISTINCT % 32);
        data.rows[r * D + 1] = (float)(r % DISTINCT / 32);
    }
    assert_true(fit(&data.points, K, &options, centroids).objective == 0);
    struct kmeans_points few = data.points;
    few.n = 700;
    assert_true(fit(&few, K, &options, centroids).objective == 0);
    few.n = 1;
    assert_true(fit(&few, K, &options, centroids).objective == 0);
    for (size_t r = 0; r < N * D; r++) data.rows[r] *= 3e36f;
    data.points.weights = NULL;
    assert_true(fit(&data.points, K, &options, centroids).objective == 0);
    memory_free(centroids);
    data_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_points_begin_with_a_sample),  cmocka_unit_test(many_centroids_are_compared_by_groups),
        cmocka_unit_test(many_centroids_do_as_well_as_few), cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(enough_centroids_leave_no_error),
    };
    return cmocka_run_group_tests_name("k-means of many", tests, NULL, NULL);
}
