/* Weighted k-means against its definition: a plain Lloyd in double precision, the invariants of weighting (equal weights are none, a
 * weight of three is a point three times), what repairs and few points must come to, the same bits for any number of threads, and
 * input that is refused. */
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

/* Rows and all; released by data_free. */
struct data {
    float *rows, *weights;
    struct kmeans_points points; /* without weights */
};

static struct data data_new(size_t n, size_t d, size_t stride) {
    struct data data = {memory_array(n * stride, sizeof(float)), memory_array(n, sizeof(float)), {0}};
    assert_non_null(data.rows);
    assert_non_null(data.weights);
    for (size_t i = 0; i < n * stride; i++) data.rows[i] = NAN; /* the gaps stay so */
    for (size_t i = 0; i < n; i++) data.weights[i] = 1;
    data.points = (struct kmeans_points){.rows = data.rows, .n = n, .d = d, .stride = stride};
    return data;
}

static void data_free(struct data *data) {
    memory_free(data->rows);
    memory_free(data->weights);
}

static float *row_of(const struct data *data, size_t r) { return data->rows + r * data->points.stride; }

static struct data data_normal(size_t n, size_t d, size_t stride, uint64_t seed) {
    struct data data = data_new(n, d, stride);
    struct random random = {seed};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) row_of(&data, r)[i] = random_normal(&random);
        data.weights[r] = expf(3 * random_normal(&random)); /* heavy-tailed, as squared gradients are */
    }
    return data;
}

static struct kmeans_points weighted(const struct data *data) {
    struct kmeans_points points = data->points;
    points.weights = data->weights;
    return points;
}

static struct kmeans_result fit(struct kmeans_points points, size_t k, const struct kmeans_options *options, float *centroids) {
    struct kmeans_options defaults = kmeans_options_defaults();
    struct kmeans_result result;
    struct terse_error error = {0};
    if (kmeans_fit(&points, k, options ? options : &defaults, centroids, &result, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < k * points.d; i++) assert_true(isfinite(centroids[i]));
    return result;
}

/* ---- The oracle ---------------------------------------------------------------------------------------------------------- */

static double square_of(const float *a, const double *b, size_t d) {
    double square = 0;
    for (size_t i = 0; i < d; i++) square += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return square;
}

/* The objective of centroids[k][d]; writes the nearest ones to codes if it is not NULL. */
static double oracle_objective(const struct kmeans_points *points, const double *centroids, size_t k, size_t *codes) {
    double objective = 0;
    for (size_t r = 0; r < points->n; r++) {
        double least = INFINITY;
        for (size_t j = 0; j < k; j++) {
            double square = square_of(points->rows + r * points->stride, centroids + j * points->d, points->d);
            if (!(square < least)) continue;
            least = square;
            if (codes) codes[r] = j;
        }
        objective += (points->weights ? (double)points->weights[r] : 1) * least;
    }
    return objective;
}

static double objective_of(const struct kmeans_points *points, const float *centroids, size_t k) {
    double *wide = memory_array(k * points->d, sizeof *wide), objective;
    assert_non_null(wide);
    for (size_t i = 0; i < k * points->d; i++) wide[i] = (double)centroids[i];
    objective = oracle_objective(points, wide, k, NULL);
    memory_free(wide);
    return objective;
}

/* `rounds` of Lloyd's iteration from `centroids`, all of whose clusters keep points. */
static void oracle_lloyd(const struct kmeans_points *points, double *centroids, size_t k, size_t rounds) {
    size_t *codes = memory_array(points->n, sizeof *codes);
    double *mass = memory_array(k, sizeof *mass);
    assert_non_null(codes);
    assert_non_null(mass);
    while (rounds--) {
        oracle_objective(points, centroids, k, codes);
        memset(centroids, 0, k * points->d * sizeof *centroids);
        memset(mass, 0, k * sizeof *mass);
        for (size_t r = 0; r < points->n; r++) {
            double w = points->weights ? (double)points->weights[r] : 1;
            mass[codes[r]] += w;
            for (size_t i = 0; i < points->d; i++) {
                centroids[codes[r] * points->d + i] += w * (double)points->rows[r * points->stride + i];
            }
        }
        for (size_t j = 0; j < k; j++) {
            assert_true(mass[j] > 0);
            for (size_t i = 0; i < points->d; i++) centroids[j * points->d + i] /= mass[j];
        }
    }
    memory_free(codes);
    memory_free(mass);
}

/* ---- The definition ------------------------------------------------------------------------------------------------------ */

static void rounds_are_those_of_lloyd(void **state) {
    (void)state;
    enum { N = 2500, K = 12 };
    static const size_t shapes[][2] = {{2, 2}, {2, 64}, {4, 7}, {8, 128}, {16, 16}, {32, 128}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t d = shapes[s][0];
        struct data data = data_normal(N, d, shapes[s][1], 7 + s);
        float initial[K * 32], centroids[K * 32];
        double want[K * 32];
        for (size_t j = 0; j < K; j++) memcpy(initial + j * d, row_of(&data, j), d * sizeof(float));
        for (uint32_t rounds = 0; rounds <= 6; rounds += 3) {
            struct kmeans_options options = kmeans_options_defaults();
            options.rounds = rounds;
            options.tolerance = 0;
            options.initial = initial;
            struct kmeans_points points = weighted(&data);
            for (size_t i = 0; i < K * d; i++) want[i] = (double)initial[i];
            oracle_lloyd(&points, want, K, rounds);
            struct kmeans_result result = fit(points, K, &options, centroids);
            double objective = oracle_objective(&points, want, K, NULL);
            assert_int_equal(result.rounds, rounds);
            assert_int_equal(result.repaired, 0);
            check_close(result.objective, objective, objective, 1e-4, 0, "objective, d %zu after %u", d, rounds);
            check_close(result.objective, objective_of(&points, centroids, K), objective, 1e-6, 0, "objective of its own, d %zu",
                        d);
            for (size_t i = 0; i < K * d; i++) check_close((double)centroids[i], want[i], 1, 1e-3, 0, "d %zu, number %zu", d, i);
        }
        data_free(&data);
    }
}

static void effective_samples_are_counted(void **state) {
    (void)state;
    struct data data = data_normal(100, 2, 2, 3);
    float centroids[4];
    check_close(fit(data.points, 2, NULL, centroids).effective_samples, 100, 100, 1e-12, 0, "no weights");
    for (size_t r = 0; r < 100; r++) data.weights[r] = r < 25 ? 1e-20f : 0;
    check_close(fit(weighted(&data), 2, NULL, centroids).effective_samples, 25, 25, 1e-12, 0, "a quarter");
    data.weights[99] = 1e20f;
    check_close(fit(weighted(&data), 2, NULL, centroids).effective_samples, 1, 1, 1e-12, 0, "one");
    data_free(&data);
}

static void objective_never_rises(void **state) {
    (void)state;
    enum { D = 4, K = 64 };
    struct data data = data_normal(4000, D, D, 11);
    float centroids[K * D];
    double last = INFINITY;
    for (uint32_t rounds = 0; rounds < 24; rounds++) {
        struct kmeans_options options = kmeans_options_defaults();
        options.rounds = rounds;
        options.tolerance = 0;
        struct kmeans_result result = fit(weighted(&data), K, &options, centroids);
        struct kmeans_points points = weighted(&data);
        assert_true(result.objective <= last);
        check_close(result.objective, objective_of(&points, centroids, K), result.objective, 1e-6, 0, "after %u", rounds);
        last = result.objective;
    }
    data_free(&data);
}

/* One point so far off that single precision can no longer tell the others apart well: the search errs, rounds get worse, and what
 * comes back must still be the best that was found. */
static void best_centroids_are_kept(void **state) {
    (void)state;
    enum { D = 2, K = 12, MOST = 30 };
    struct kmeans_options options = kmeans_options_defaults();
    options.tolerance = 0;
    for (size_t s = 0; s < 6; s++) {
        struct data data = data_normal(400, D, D, 130 + s);
        float centroids[K * D];
        double last = INFINITY;
        data.rows[0] = data.rows[1] = 50000;
        for (options.rounds = 0; options.rounds < MOST; options.rounds++) {
            struct kmeans_result result = fit(data.points, K, &options, centroids);
            assert_true(result.objective <= last);
            last = result.objective;
            if (result.rounds < options.rounds) break;
        }
        data_free(&data);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

static void equal_weights_are_no_weights(void **state) {
    (void)state;
    enum { D = 8, K = 40 };
    struct data data = data_normal(20000, D, 64, 5); /* more than the start looks at */
    float with[K * D], without[K * D];
    struct kmeans_result plain = fit(data.points, K, NULL, without);
    for (float w = 0x1p-20f; w < 0x1p21f; w *= 0x1p20f) { /* powers of two: no sum rounds otherwise */
        for (size_t r = 0; r < data.points.n; r++) data.weights[r] = w;
        struct kmeans_result result = fit(weighted(&data), K, NULL, with);
        assert_memory_equal(with, without, sizeof with);
        assert_true(result.objective == (double)w * plain.objective);
        assert_int_equal(result.rounds, plain.rounds);
    }
    data_free(&data);
}

static void integer_weights_are_repeated_points(void **state) {
    (void)state;
    enum { N = 1500, D = 4, K = 20 };
    struct data data = data_normal(N, D, D, 21), repeated = data_new(4 * N, D, 5);
    struct random random = {4};
    float initial[K * D], a[K * D], b[K * D];
    size_t copies = 0;
    for (size_t r = 0; r < N; r++) {
        data.weights[r] = (float)(random_bits(&random) % 5);
        for (size_t i = 0; i < (size_t)data.weights[r]; i++)
            memcpy(row_of(&repeated, copies++), row_of(&data, r), D * sizeof(float));
    }
    repeated.points.n = copies;
    for (size_t j = 0; j < K; j++) memcpy(initial + j * D, row_of(&data, j), D * sizeof(float));
    struct kmeans_options options = kmeans_options_defaults();
    options.initial = initial;
    options.rounds = 12;
    options.tolerance = 0;
    struct kmeans_result weights = fit(weighted(&data), K, &options, a), points = fit(repeated.points, K, &options, b);
    check_close(weights.objective, points.objective, points.objective, 1e-6, 0, "objective");
    for (size_t j = 0; j < K * D; j++) check_close((double)a[j], (double)b[j], 1, 1e-5, 0, "number %zu", j);
    data_free(&data);
    data_free(&repeated);
}

static void points_without_weight_do_not_matter(void **state) {
    (void)state;
    enum { N = 900, D = 4, K = 16 };
    struct data data = data_normal(N, D, D, 31);
    float before[K * D], after[K * D];
    struct kmeans_options options = kmeans_options_defaults();
    for (size_t r = 0; r < N; r += 2) data.weights[r] = 0;
    struct kmeans_result first = fit(weighted(&data), K, &options, before);
    for (size_t r = 0; r < N; r += 2) {
        for (size_t i = 0; i < D; i++) row_of(&data, r)[i] = 1e30f * (float)(r + 1); /* alluring to an unweighted start or repair */
    }
    struct kmeans_result second = fit(weighted(&data), K, &options, after);
    assert_memory_equal(before, after, sizeof before);
    assert_true(first.objective == second.objective);
    data_free(&data);
}

/* A start that ignored weights would seldom choose one of the few points that carry them all. */
static void start_draws_by_weight(void **state) {
    (void)state;
    enum { N = 60000, D = 2, K = 8 };
    struct data data = data_normal(N, D, D, 41);
    float centroids[K * D];
    for (size_t r = 0; r < N; r++) data.weights[r] = 1e-12f;
    for (size_t j = 0; j < K; j++) data.weights[7000 * j + 13] = 1e6f;
    struct kmeans_options options = kmeans_options_defaults();
    options.rounds = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        options.seed = seed;
        struct kmeans_result result = fit(weighted(&data), K, &options, centroids);
        assert_true(result.objective < 1e-6); /* all eight found; the rest weighs 6e-8 */
    }
    data_free(&data);
}

/* Draws of the start come in proportion to w D^2: 3 places on a line, the first at 0 by its weight, the second then by w D^2. */
static void start_draws_in_proportion(void **state) {
    (void)state;
    enum { DRAWS = 4000 };
    struct data data = data_new(3, 1, 1);
    int second[3] = {0}, first[3] = {0};
    memcpy(data.rows, (float[]){0, 1, 2}, 3 * sizeof(float));
    memcpy(data.weights, (float[]){6, 3, 1}, 3 * sizeof(float));
    struct kmeans_options options = kmeans_options_defaults();
    options.rounds = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        float centroids[2];
        options.seed = seed;
        fit(weighted(&data), 2, &options, centroids);
        first[(int)centroids[0]]++;
        if (centroids[0] == 0) second[(int)centroids[1]]++;
    }
    /* By weight 6:3:1; then, with 0 drawn, 3 * 1 to 1 * 4. Five standard deviations. */
    check_close(first[0], 0.6 * DRAWS, 1, 5 * sqrt(DRAWS * 0.6 * 0.4), 0, "first draw");
    check_close(first[1], 0.3 * DRAWS, 1, 5 * sqrt(DRAWS * 0.3 * 0.7), 0, "first draw");
    assert_int_equal(second[0], 0);
    check_close(second[1], 3.0 / 7 * first[0], 1, 5 * sqrt(first[0] * 12.0 / 49), 0, "second draw");
    data_free(&data);
}

static void heavy_tails_get_centroids(void **state) {
    (void)state;
    enum { N = 5000, D = 8, K = 32 };
    struct data data = data_normal(N, D, D, 51);
    float plain[K * D], heavy[K * D];
    for (size_t r = 0; r < N; r++) data.weights[r] = r % 250 == 17 ? 1e30f : 1e-30f * (1 + (float)r);
    struct kmeans_points points = weighted(&data);
    struct kmeans_result result = fit(points, K, NULL, heavy);
    fit(data.points, K, NULL, plain);
    assert_true(result.effective_samples < 20.001 && result.effective_samples > 19.999);
    assert_true(result.objective < 1e-6 * objective_of(&points, plain, K)); /* 20 heavy points, 32 centroids */
    data_free(&data);
}

/* ---- Few points, repairs ------------------------------------------------------------------------------------------------- */

static void enough_centroids_leave_no_error(void **state) {
    (void)state;
    enum { D = 4, DISTINCT = 50, MOST = 70 };
    static const size_t sizes[] = {1, 49, 300, 40000, 70000}; /* more than the start looks at, and enough for rounds on a sample */
    float centroids[MOST * D];
    struct random random = {6};
    for (size_t s = 0; s < 5; s++) {
        struct data data = data_normal(sizes[s], D, D, 61);
        for (size_t r = 0; r < sizes[s]; r++) {
            size_t kind = r % 1000 < 30 ? random_bits(&random) % DISTINCT : r % 3; /* most kinds are rare */
            for (size_t i = 0; i < D; i++) row_of(&data, r)[i] = sinf((float)(kind * D + i)) * 1e3f + 0.1f;
        }
        for (size_t k = DISTINCT; k <= MOST; k += 20) {
            assert_true(fit(data.points, k, NULL, centroids).objective == 0);
            assert_true(fit(weighted(&data), k, NULL, centroids).objective == 0);
        }
        data_free(&data);
    }
}

static void constant_data_is_exact(void **state) {
    (void)state;
    enum { D = 3, K = 5 };
    static const float values[] = {0, 0.1f, -1e38f, 1e-42f, 12345.678f};
    float centroids[K * D];
    for (size_t v = 0; v < 5; v++) {
        struct data data = data_normal(30000, D, 4, 71);
        for (size_t r = 0; r < data.points.n; r++) {
            for (size_t i = 0; i < D; i++) row_of(&data, r)[i] = values[v];
        }
        for (size_t k = 1; k <= K; k += 4) {
            assert_true(fit(weighted(&data), k, NULL, centroids).objective == 0);
            for (size_t i = 0; i < k * D; i++) assert_true(centroids[i] == values[v]);
        }
        data_free(&data);
    }
}

/* Sixteen groups far apart, equally large: in every four channels a group has signs of its own. */
static struct data grouped(size_t n, size_t d) {
    struct data data = data_new(n, d, d);
    struct random random = {8};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) {
            float centre = (r % 16 >> i % 4 & 1 ? 40.0f : -40.0f) * (1 + (float)(i / 4));
            row_of(&data, r)[i] = centre + 0.5f * random_normal(&random);
        }
        data.weights[r] = 0.5f + (float)random_unit(&random);
    }
    return data;
}

static void bad_starts_are_repaired(void **state) {
    (void)state;
    enum { N = 3200, D = 8, K = 16 };
    struct data data = grouped(N, D);
    float initial[K * D], centroids[K * D], best[K * D];
    struct kmeans_options options = kmeans_options_defaults();
    double good = fit(weighted(&data), K, &options, best).objective;
    options.initial = initial;
    for (size_t kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < K * D; i++) { /* all in one place; all but one nowhere; all within one group */
            initial[i] = kind == 0   ? 0
                         : kind == 1 ? (i < D ? 1 : 1e20f + (float)i * 1e19f)
                                     : -40 * (1 + (float)(i % D / 4)) + (float)i * 1e-4f;
        }
        struct kmeans_result result = fit(weighted(&data), K, &options, centroids);
        struct kmeans_points points = weighted(&data);
        uint16_t codes[N];
        bool used[K] = {0};
        assert_int_equal(kmeans_assign(&points, centroids, K, codes, NULL), TERSE_OK);
        for (size_t r = 0; r < N; r++) used[codes[r]] = true;
        for (size_t j = 0; j < K; j++) assert_true(used[j]);
        if (kind < 2) assert_in_range(result.repaired, K - 1, 100 * K);
        assert_true(result.objective < 1e4 * good);
    }
    data_free(&data);
}

/* One repair worked by hand: the lowest index of equals, never the same value twice, never a cluster's only point. */
static void repairs_choose_as_documented(void **state) {
    (void)state;
    enum { N = 8, K = 4 };
    struct data data = data_new(N, 1, 1);
    float centroids[K];
    /* Cluster 0 has 0..5 and cluster 1 only 100; 2 and 3 are empty. Errors of 0..5: 1, 81, 81, 100 and 100, 0. */
    memcpy(data.rows, (float[]){1, 9, 9, -10, 10, 0, 104, 0}, N * sizeof(float));
    struct kmeans_options options = kmeans_options_defaults();
    options.initial = (float[K]){0, 100, 5000, 6000};
    options.rounds = 1;
    struct kmeans_result result = fit(data.points, K, &options, centroids);
    assert_int_equal(result.repaired, 2);
    assert_true(centroids[1] == 104);
    assert_true(centroids[2] == -10); /* the lower index */
    assert_true(centroids[3] == 10);
    assert_true(centroids[0] == (float)(19.0 / 5));
    /* With weight on the nines, the first of them is taken, and then the next point that is not the other nine. */
    memcpy(data.weights, (float[]){1, 2, 2, 1, 1.5f, 1, 1000, 1}, N * sizeof(float));
    result = fit(weighted(&data), K, &options, centroids);
    assert_int_equal(result.repaired, 2);
    assert_true(centroids[1] == 104); /* 16000 of error, but it is the only point of its cluster */
    assert_true(centroids[2] == 9);
    assert_true(centroids[3] == 10);
    assert_true(centroids[0] == (float)((1 + 2 * 9 - 10) / 6.0)); /* 1, the other nine, -10, 0, 0: weights 1 2 1 1 1 */
    data_free(&data);
}

static void clusters_are_recovered(void **state) {
    (void)state;
    enum { D = 8, K = 16 };
    struct data data = grouped(40000, D);
    float centroids[K * D];
    int found = 0;
    struct kmeans_options options = kmeans_options_defaults();
    for (options.seed = 1; options.seed <= 5; options.seed++) {
        double objective = fit(weighted(&data), K, &options, centroids).objective;
        /* The groups' own scatter: variance 1/4 in each channel, mean weight 1. */
        found += fabs(objective / (40000 * D * 0.25) - 1) < 0.02;
    }
    assert_in_range(found, 4, 5); /* k-means++ misses now and then; with 16 groups this far apart, hardly */
    data_free(&data);
}

/* ---- Threads, seeds, progress --------------------------------------------------------------------------------------------- */

static void threads_change_no_bit(void **state) {
    (void)state;
    enum { N = 66000, D = 8, K = 300 }; /* so many that a sample comes first */
    struct data data = data_normal(N, D, 19, 81);
    float one[K * D], more[K * D];
    uint16_t *code_one = memory_array(N, 2), *code_more = memory_array(N, 2);
    struct kmeans_options options = kmeans_options_defaults();
    struct kmeans_points points = weighted(&data);
    int threads = omp_get_max_threads();
    options.rounds = 4;
    omp_set_num_threads(1);
    struct kmeans_result first = fit(points, K, &options, one);
    assert_int_equal(kmeans_assign(&points, one, K, code_one, NULL), TERSE_OK);
    for (int t = 2; t <= 3; t++) {
        omp_set_num_threads(t);
        struct kmeans_result again = fit(points, K, &options, more);
        assert_int_equal(kmeans_assign(&points, more, K, code_more, NULL), TERSE_OK);
        assert_memory_equal(one, more, sizeof one);
        assert_memory_equal(code_one, code_more, N * 2);
        assert_memory_equal(&first.objective, &again.objective, sizeof first.objective);
        assert_int_equal(first.rounds, again.rounds);
        assert_int_equal(first.repaired, again.repaired);
    }
    omp_set_num_threads(threads);
    options.seed++;
    fit(points, K, &options, more);
    assert_memory_not_equal(one, more, sizeof one);
    memory_free(code_one);
    memory_free(code_more);
    data_free(&data);
}

static void assignment_equals_brute_force(void **state) {
    (void)state;
    enum { N = 3000, K = 500 };
    static const size_t channels[] = {2, 4, 8, 16, 32};
    for (size_t c = 0; c < 5; c++) {
        const size_t d = channels[c];
        struct data data = data_normal(N, d, 33, 91 + c);
        struct random random = {c};
        float centroids[K * 32];
        double wide[K * 32];
        uint16_t codes[N];
        size_t want[N], differ = 0;
        for (size_t i = 0; i < K * d; i++) wide[i] = (double)(centroids[i] = random_normal(&random));
        assert_int_equal(kmeans_assign(&data.points, centroids, K, codes, NULL), TERSE_OK);
        oracle_objective(&data.points, wide, K, want);
        for (size_t r = 0; r < N; r++) {
            double least = square_of(row_of(&data, r), wide + want[r] * d, d),
                   got = square_of(row_of(&data, r), wide + codes[r] * d, d);
            differ += codes[r] != want[r];
            assert_true(got <= least + 1e-4);
        }
        assert_in_range(differ, 0, 3);
        data_free(&data);
    }
}

struct reports {
    uint64_t calls, stop_after, last_done, total;
    bool objective_seen;
};

static bool count_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct reports *reports = user;
    assert_true(done >= reports->last_done && done <= total);
    reports->last_done = done;
    reports->total = total;
    if (strstr(what, "objective")) reports->objective_seen = true;
    return ++reports->calls < reports->stop_after;
}

static void progress_may_stop_it(void **state) {
    (void)state;
    enum { D = 4, K = 600 };
    struct data data = data_normal(3000, D, D, 101);
    float centroids[K * D];
    struct reports reports = {.stop_after = UINT64_MAX};
    struct kmeans_options options = kmeans_options_defaults();
    struct kmeans_result result;
    options.rounds = 5;
    options.tolerance = 0;
    options.progress = (struct terse_progress){count_report, &reports};
    fit(weighted(&data), K, &options, centroids);
    assert_true(reports.objective_seen);
    assert_int_equal(reports.total, 5);
    uint64_t calls = reports.calls;
    assert_true(calls >= 5);
    for (uint64_t stop = 1; stop <= calls; stop++) {
        struct kmeans_points points = weighted(&data);
        struct terse_error error = {0};
        reports = (struct reports){.stop_after = stop};
        assert_int_equal(kmeans_fit(&points, K, &options, centroids, &result, &error), TERSE_E_INTERRUPTED);
        assert_int_equal(error.code, TERSE_E_INTERRUPTED);
        assert_int_equal(reports.calls, stop);
    }
    data_free(&data);
}

/* A round of many points asks between pieces of them, not only at its end. */
static void a_long_round_reports(void **state) {
    (void)state;
    enum { D = 2, K = 16, N = 400000 };
    struct data data = data_normal(N, D, D, 103);
    float centroids[K * D], initial[K * D];
    struct reports reports = {.stop_after = UINT64_MAX};
    struct kmeans_options options = kmeans_options_defaults();
    options.rounds = 1;
    memcpy(initial, data.rows, sizeof initial);
    options.initial = initial;
    options.progress = (struct terse_progress){count_report, &reports};
    fit(weighted(&data), K, &options, centroids);
    assert_true(reports.calls >= 6); /* three or more for each evaluation, before and after the round */
    data_free(&data);
}

/* ---- Refusals ------------------------------------------------------------------------------------------------------------ */

static void refused(struct kmeans_points points, size_t k, const struct kmeans_options *options, const char *says) {
    float centroids[8] = {0};
    struct kmeans_result result;
    struct terse_error error = {0};
    assert_int_equal(kmeans_fit(&points, k, options, centroids, &result, &error), TERSE_E_ARGUMENT);
    if (!strstr(error.message, says) || strchr(error.message, '\n')) fail_msg("\"%s\" should say \"%s\"", error.message, says);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    static const float no_numbers[] = {NAN, INFINITY, -INFINITY, 2e38f};
    static const float no_weights[] = {NAN, INFINITY, -1};
    struct data data = data_normal(10, 2, 3, 111);
    struct kmeans_options options = kmeans_options_defaults();
    struct kmeans_points points = weighted(&data);
    uint16_t codes[10];
    float centroids[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        float kept = data.rows[7 * 3 + 1];
        struct terse_error error;
        data.rows[7 * 3 + 1] = no_numbers[i];
        refused(points, 2, &options, "point 7 of k-means");
        assert_int_equal(kmeans_assign(&points, centroids, 2, codes, &error), TERSE_E_ARGUMENT);
        data.rows[7 * 3 + 1] = kept;
        centroids[3] = no_numbers[i];
        assert_int_equal(kmeans_assign(&points, centroids, 2, codes, &error), TERSE_E_ARGUMENT);
        assert_non_null(strstr(error.message, "centroid 1"));
        options.initial = centroids;
        refused(points, 2, &options, "first centroid 1");
        options.initial = NULL;
        centroids[3] = 0;
    }
    for (size_t i = 0; i < 3; i++) {
        data.weights[4] = no_weights[i];
        refused(points, 2, &options, "weight 4");
    }
    for (size_t r = 0; r < 10; r++) data.weights[r] = 0;
    refused(points, 2, &options, "all 10 weights of k-means are 0");
    points.weights = NULL;
    refused(points, 0, &options, "0 centroids");
    refused(points, 65537, &options, "65537 centroids");
    points.stride = 1;
    refused(points, 2, &options, "1 floats apart");
    points.stride = 3;
    points.n = 0;
    refused(points, 2, &options, "0 points");
    points.n = 10;
    options.tolerance = NAN;
    refused(points, 2, &options, "tolerance");
    data_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_those_of_lloyd),
        cmocka_unit_test(effective_samples_are_counted),
        cmocka_unit_test(objective_never_rises),
        cmocka_unit_test(best_centroids_are_kept),
        cmocka_unit_test(equal_weights_are_no_weights),
        cmocka_unit_test(integer_weights_are_repeated_points),
        cmocka_unit_test(points_without_weight_do_not_matter),
        cmocka_unit_test(start_draws_by_weight),
        cmocka_unit_test(start_draws_in_proportion),
        cmocka_unit_test(heavy_tails_get_centroids),
        cmocka_unit_test(enough_centroids_leave_no_error),
        cmocka_unit_test(constant_data_is_exact),
        cmocka_unit_test(bad_starts_are_repaired),
        cmocka_unit_test(repairs_choose_as_documented),
        cmocka_unit_test(clusters_are_recovered),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(assignment_equals_brute_force),
        cmocka_unit_test(progress_may_stop_it),
        cmocka_unit_test(a_long_round_reports),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
