/* Expectation maximization for commuting tables: the closed form against plain least squares, what both steps promise, planted
 * tables found again, the same bits for any number of threads, few rounds within many, repairs, and input that is refused. */
#include "backend/cpu/codec/commvq_search.h"
#include "base/memory.h"
#include "support/kernel_check.h"
#include "train/em.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct random source = {3};

/* Rows whose numbers go together, as a head's do. */
static float *make_rows(size_t n, size_t g, uint64_t seed) {
    struct random random = {seed};
    float *rows = malloc(n * 2 * g * sizeof *rows), mixing[8 * 256];
    fill_floats(&random, FILL_NORMAL, mixing, 8 * 2 * g);
    for (size_t p = 0; p < n; p++) {
        float hidden[8];
        fill_floats(&random, FILL_NORMAL, hidden, 8);
        for (size_t j = 0; j < 2 * g; j++) {
            float x = 0.3f * random_normal(&random);
            for (size_t k = 0; k < 8; k++) x += hidden[k] * mixing[k * 2 * g + j];
            rows[p * 2 * g + j] = x;
        }
    }
    return rows;
}

static struct em_result fit(const struct em_points *points, struct em_shape shape, uint32_t iterations, float *tables,
                            double *errors) {
    struct em_options options = em_options_defaults();
    struct em_result result;
    struct terse_error error;
    options.iterations = iterations;
    if (em_fit(points, shape, &options, tables, errors, &result, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < shape.rounds * shape.entries * 2 * shape.pairs; i++) assert_true(isfinite(tables[i]));
    return result;
}

/* ---- The M step ---------------------------------------------------------------------------------------------------------------
 */

/* Solves A x = y, A[n][n], by elimination with pivots. */
static void eliminate(double *A, double *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t p = i;
        for (size_t r = i; r < n; r++)
            if (fabs(A[r * n + i]) > fabs(A[p * n + i])) p = r;
        for (size_t c = 0; c < n; c++) {
            double x = A[i * n + c];
            A[i * n + c] = A[p * n + c];
            A[p * n + c] = x;
        }
        double x = y[i];
        y[i] = y[p];
        y[p] = x;
        for (size_t r = 0; r < n; r++) {
            double factor = r == i ? 0 : A[r * n + i] / A[i * n + i];
            for (size_t c = i; factor != 0 && c < n; c++) A[r * n + c] -= factor * A[i * n + c];
            y[r] -= factor * y[i];
        }
    }
    for (size_t i = 0; i < n; i++) y[i] /= A[i * n + i];
}

/* Cells with weights, a part of them without, and means, and what em_solve wants of them. */
struct cells {
    size_t K, g;
    double *counts, *means, *sums, *z; /* [K][K], [K][K][2 g], [K][2 g] twice */
};

static struct cells cells_new(size_t K, size_t g, double empty) {
    struct cells c = {K,
                      g,
                      malloc(K * K * sizeof(double)),
                      malloc(K * K * 2 * g * sizeof(double)),
                      calloc(K * 2 * g, sizeof(double)),
                      malloc(K * 2 * g * sizeof(double))};
    for (size_t i = 0; i < K * K; i++) c.counts[i] = random_unit(&source) < empty ? 0 : 0.1 + 10 * random_unit(&source);
    for (size_t i = 0; i < K * K * 2 * g; i++) c.means[i] = (double)random_normal(&source);
    for (size_t i = 0; i < K * 2 * g; i++) c.z[i] = (double)random_normal(&source);
    for (size_t a = 0; a < K; a++) {
        for (size_t b = 0; b < K; b++) {
            double w = c.counts[a * K + b], *m = c.means + (a * K + b) * 2 * g;
            for (size_t j = 0; j < g; j++) { /* w m to equation a, -i w m to equation b */
                c.sums[a * 2 * g + j] += w * m[j];
                c.sums[a * 2 * g + g + j] += w * m[g + j];
                c.sums[b * 2 * g + j] += w * m[g + j];
                c.sums[b * 2 * g + g + j] -= w * m[j];
            }
        }
    }
    return c;
}

static void cells_free(struct cells *c) {
    free(c->counts);
    free(c->means);
    free(c->sums);
    free(c->z);
}

/* Sum of weights times squared distances to the codewords. */
static double objective(const struct cells *c, const double *z) {
    double sum = 0;
    for (size_t a = 0; a < c->K; a++) {
        for (size_t b = 0; b < c->K; b++) {
            for (size_t j = 0; j < c->g; j++) {
                const double *m = c->means + (a * c->K + b) * 2 * c->g, *x = z + a * 2 * c->g, *y = z + b * 2 * c->g;
                double re = m[j] - x[j] + y[c->g + j], im = m[c->g + j] - x[c->g + j] - y[j];
                sum += c->counts[a * c->K + b] * (re * re + im * im);
            }
        }
    }
    return sum;
}

/* The paper's equation: unknowns x_0, y_0, x_1, ..., rows x_a - y_b and y_a + x_b of T, (T' S T)^-1 T' S m, pair by pair. */
static void the_closed_form_is_the_least_squares_solution(void **state) {
    (void)state;
    for (size_t K = 2; K <= 9; K++) {
        enum { G = 3 };
        struct cells c = cells_new(K, G, 0);
        double A[18 * 18], y[18];
        struct terse_error error;
        assert_int_equal(em_solve((struct em_shape){G, K, 1}, c.counts, c.sums, 1e-9, c.z, &error), TERSE_OK);
        for (size_t j = 0; j < G; j++) {
            memset(A, 0, sizeof A);
            memset(y, 0, sizeof y);
            for (size_t cell = 0; cell < 2 * K * K; cell++) {
                size_t a = cell / 2 / K, b = cell / 2 % K;
                double row[18] = {0}, w = c.counts[cell / 2], m = c.means[cell / 2 * 2 * G + (cell % 2 ? G : 0) + j];
                row[2 * a + cell % 2] += 1;
                row[2 * b + (cell % 2 ? 0 : 1)] += cell % 2 ? 1 : -1;
                for (size_t r = 0; r < 2 * K; r++) {
                    y[r] += w * row[r] * m;
                    for (size_t s = 0; s < 2 * K; s++) A[r * 2 * K + s] += w * row[r] * row[s];
                }
            }
            eliminate(A, y, 2 * K);
            for (size_t k = 0; k < K; k++) {
                assert_true(fabs(c.z[k * 2 * G + j] - y[2 * k]) <= 1e-6 * (1 + fabs(y[2 * k])));
                assert_true(fabs(c.z[k * 2 * G + G + j] - y[2 * k + 1]) <= 1e-6 * (1 + fabs(y[2 * k + 1])));
            }
        }
        cells_free(&c);
    }
}

/* Whatever the ridge, and where cells without weight leave the equations singular. */
static void the_m_step_never_increases_the_error(void **state) {
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct cells c = cells_new(2 + (size_t)i % 15 * 4, 1 + (size_t)i % 4, 0.3);
        double *z = malloc(c.K * 2 * c.g * sizeof *z), ridge = pow(10, -(i % 9));
        struct terse_error error;
        if (i % 3 == 0) { /* hardly a cell has any */
            memset(c.counts, 0, c.K * c.K * sizeof *c.counts);
            memset(c.sums, 0, c.K * 2 * c.g * sizeof *c.sums);
            c.counts[1] = 5;
            for (size_t j = 0; j < c.g; j++) {
                const double *m = c.means + 2 * c.g;
                c.sums[j] = 5 * m[j], c.sums[c.g + j] = 5 * m[c.g + j];
                c.sums[2 * c.g + j] = 5 * m[c.g + j], c.sums[3 * c.g + j] = -5 * m[j];
            }
        }
        memcpy(z, c.z, c.K * 2 * c.g * sizeof *z);
        assert_int_equal(em_solve((struct em_shape){c.g, c.K, 1}, c.counts, c.sums, ridge, c.z, &error), TERSE_OK);
        for (size_t j = 0; j < c.K * 2 * c.g; j++) assert_true(isfinite(c.z[j]));
        double before = objective(&c, z), after = objective(&c, c.z);
        assert_true(after <= before * (1 + 1e-9) + 1e-9);
        assert_true(i % 3 == 0 || after < 0.9 * before); /* random tables can be bettered */
        if (i % 3 == 0 && c.K > 2)                       /* entries without weight stay */
            for (size_t j = 2 * 2 * c.g; j < c.K * 2 * c.g; j++) assert_true(fabs(z[j] - c.z[j]) <= 1e-6 * (1 + fabs(z[j])));
        free(z);
        cells_free(&c);
    }
}

/* ---- Fits ----------------------------------------------------------------------------------------------------------------------
 */

/* The error of greedy rounds by brute force in double precision. */
static double error_by_brute_force(const struct em_points *points, struct em_shape shape, const float *tables) {
    size_t g = shape.pairs, K = shape.entries;
    double left = 0, whole = 0;
    for (size_t p = 0; p < points->n; p++) {
        double x[128], w = points->weights ? (double)points->weights[p] : 1;
        for (size_t j = 0; j < 2 * g; j++) {
            x[j] = (double)points->rows[p * points->stride + j];
            whole += w * x[j] * x[j];
        }
        for (size_t r = 0; r < shape.rounds; r++) {
            const float *table = tables + r * K * 2 * g, *best_a = table, *best_b = table;
            double least = INFINITY;
            for (size_t a = 0; a < K; a++) {
                for (size_t b = 0; b < K; b++) {
                    const float *u = table + a * 2 * g, *v = table + b * 2 * g;
                    double sum = 0;
                    for (size_t j = 0; j < g; j++)
                        sum += pow(x[j] - (double)u[j] + (double)v[g + j], 2) + pow(x[g + j] - (double)u[g + j] - (double)v[j], 2);
                    if (sum < least) least = sum, best_a = u, best_b = v;
                }
            }
            for (size_t j = 0; j < g; j++) {
                x[j] -= (double)best_a[j] - (double)best_b[g + j];
                x[g + j] -= (double)best_a[g + j] + (double)best_b[j];
            }
        }
        for (size_t j = 0; j < 2 * g; j++) left += w * x[j] * x[j];
    }
    return left / whole;
}

/* With 10,000 points iterations read samples of them. */
static void errors_are_those_of_the_tables_and_fall(void **state) {
    (void)state;
    enum { MOST = 10000, G = 6, ROUNDS = 6 };
    const struct em_shape shape = {G, 8, ROUNDS};
    float *rows = make_rows(MOST, G, 21), tables[ROUNDS * 8 * 2 * G], *weights = malloc(MOST * sizeof *weights);
    double errors[ROUNDS];
    for (size_t p = 0; p < MOST; p++) weights[p] = p % 50 == 7 ? 0 : expf(2 * random_normal(&source));
    for (size_t n = 700; n <= MOST; n += MOST - 700) {
        const struct em_points points = {rows, n, 2 * G, weights};
        struct em_result result = fit(&points, shape, 12, tables, errors);
        for (size_t r = 0; r < ROUNDS; r += n == MOST ? ROUNDS - 1 : 1) {
            const struct em_shape some = {G, 8, r + 1};
            assert_true(fabs(errors[r] - error_by_brute_force(&points, some, tables)) <= 1e-4 * errors[r]);
        }
        for (size_t r = 0; r < ROUNDS; r++) assert_true(errors[r] < (r ? errors[r - 1] : 0.7));
        assert_true(result.error == errors[ROUNDS - 1]);
        double sum = 0, squares = 0;
        for (size_t p = 0; p < n; p++) sum += (double)weights[p], squares += (double)weights[p] * (double)weights[p];
        assert_true(fabs(result.effective_samples - sum * sum / squares) <= 1e-6 * (double)n);
    }
    free(weights);
    free(rows);
}

/* Points that are codewords but for a little noise. */
static void planted_tables_are_found(void **state) {
    (void)state;
    enum { N = 3000, G = 8, K = 6 };
    float planted[K * 2 * G], *rows = malloc(N * 2 * G * sizeof *rows), tables[K * 2 * G];
    struct random random = {9};
    double noise = 0, whole = 0;
    fill_floats(&random, FILL_NORMAL, planted, K * 2 * G);
    for (size_t p = 0; p < N; p++) {
        const float *a = planted + random_bits(&random) % K * 2 * G, *b = planted + random_bits(&random) % K * 2 * G;
        for (size_t j = 0; j < 2 * G; j++) {
            float wrong = 0.05f * random_normal(&random), x = j < G ? a[j] - b[G + j] : a[j] + b[j - G];
            rows[p * 2 * G + j] = x + wrong;
            noise += (double)wrong * (double)wrong;
            whole += (double)rows[p * 2 * G + j] * (double)rows[p * 2 * G + j];
        }
    }
    double least = INFINITY;
    for (uint64_t seed = 1; seed <= 12; seed++) { /* from most starts it gets near, from some all the way */
        struct em_options options = em_options_defaults();
        struct em_result result;
        struct terse_error error;
        options.seed = seed;
        options.iterations = 40;
        assert_int_equal(
            em_fit(&(struct em_points){rows, N, 2 * G, NULL}, (struct em_shape){G, K, 1}, &options, tables, NULL, &result, &error),
            TERSE_OK);
        least = fmin(least, result.error);
    }
    assert_true(least <= 1.05 * noise / whole);
    free(rows);
}

/* ---- Invariants ---------------------------------------------------------------------------------------------------------- */

static void threads_change_no_bit(void **state) {
    (void)state;
    enum { N = 3000, G = 16 };
    const struct em_shape shape = {G, 16, 3};
    float *rows = make_rows(N, G, 4), one[3 * 16 * 2 * G], other[3 * 16 * 2 * G];
    const struct em_points points = {rows, N, 2 * G, NULL};
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    fit(&points, shape, 6, one, NULL);
    for (int n = 2; n <= 5; n += 3) {
        omp_set_num_threads(n);
        fit(&points, shape, 6, other, NULL);
        assert_memory_equal(one, other, sizeof one);
    }
    omp_set_num_threads(threads);
    memset(other, 0, sizeof other);
    struct em_options options = em_options_defaults();
    enum terse_status status = TERSE_OK;
    options.iterations = 6;
#pragma omp parallel num_threads(2)
#pragma omp single
    {
        struct terse_error error;
        status = em_fit(&points, shape, &options, other, NULL, NULL, &error);
    }
    assert_int_equal(status, TERSE_OK);
    assert_memory_equal(one, other, sizeof one);
    options.seed = 2;
    struct terse_error error;
    assert_int_equal(em_fit(&points, shape, &options, other, NULL, NULL, &error), TERSE_OK);
    assert_memory_not_equal(one, other, sizeof one);
    free(rows);
}

static void many_rounds_begin_with_few(void **state) {
    (void)state;
    enum { N = 600, G = 4, TABLE = 8 * 2 * G };
    float *rows = make_rows(N, G, 5), many[21 * TABLE], few[11 * TABLE];
    const struct em_points points = {rows, N, 2 * G, NULL};
    fit(&points, (struct em_shape){G, 8, 21}, 4, many, NULL);
    fit(&points, (struct em_shape){G, 8, 11}, 4, few, NULL);
    assert_memory_equal(many, few, sizeof few);
    free(rows);
}

/* Weights count relative to each other; gaps between rows are not looked at; a point of weight 2 is two. */
static void weights_are_copies(void **state) {
    (void)state;
    enum { N = 400, G = 4, TABLE = 4 * 2 * G };
    float *rows = make_rows(N, G, 6), spaced[N * (2 * G + 5)], twice[2 * N * 2 * G], weights[N], a[TABLE], b[TABLE];
    for (size_t p = 0; p < N; p++) {
        weights[p] = 8;
        for (size_t j = 0; j < 2 * G + 5; j++) spaced[p * (2 * G + 5) + j] = j < 2 * G ? rows[p * 2 * G + j] : NAN;
    }
    fit(&(struct em_points){rows, N, 2 * G, NULL}, (struct em_shape){G, 4, 1}, 5, a, NULL);
    fit(&(struct em_points){spaced, N, 2 * G + 5, weights}, (struct em_shape){G, 4, 1}, 5, b, NULL);
    assert_memory_equal(a, b, sizeof a);
    size_t n = 0;
    for (size_t p = 0; p < N; p++) {
        weights[p] = (float)(1 + p % 2);
        for (size_t copy = 0; copy <= p % 2; copy++, n++) memcpy(twice + n * 2 * G, rows + p * 2 * G, 2 * G * sizeof *rows);
    }
    fit(&(struct em_points){rows, N, 2 * G, weights}, (struct em_shape){G, 4, 1}, 2, a, NULL);
    fit(&(struct em_points){twice, n, 2 * G, NULL}, (struct em_shape){G, 4, 1}, 2, b, NULL);
    for (size_t i = 0; i < TABLE; i++) assert_true(fabsf(a[i] - b[i]) <= 1e-3f);
    free(rows);
}

/* Fewer distinct points than entries, and all the same: unused entries are put to use as long as there is something to
 * do. */
static void few_points_are_represented_exactly(void **state) {
    (void)state;
    enum { N = 60, G = 3, K = 8 };
    float rows[N * 2 * G], tables[2 * K * 2 * G];
    for (size_t p = 0; p < N; p++)
        for (size_t j = 0; j < 2 * G; j++) rows[p * 2 * G + j] = sinf((float)(p % 5 * 13 + j * 7));
    const struct em_points points = {rows, N, 2 * G, NULL};
    struct em_result result = fit(&points, (struct em_shape){G, K, 2}, 20, tables, NULL);
    assert_true(result.error <= 1e-9);
    assert_true(result.repaired > 0);
    for (size_t p = 0; p < N; p++) memcpy(rows + p * 2 * G, rows, 2 * G * sizeof *rows);
    assert_true(fit(&points, (struct em_shape){G, K, 2}, 5, tables, NULL).error <= 1e-9);
    for (size_t i = 0; i < N * 2 * G; i++) rows[i] = 1e-20f * sinf((float)i); /* temperatures that floats have no inverse of */
    assert_true(fit(&points, (struct em_shape){G, K, 2}, 5, tables, NULL).error < 1);
    memset(rows, 0, sizeof rows);
    assert_true(fit(&points, (struct em_shape){G, K, 2}, 5, tables, NULL).error == 0);
    assert_true(fit(&(struct em_points){rows, 1, 2 * G, NULL}, (struct em_shape){G, K, 2}, 1, tables, NULL).error == 0);
}

/* ---- Progress and refusals ----------------------------------------------------------------------------------------------- */

struct watched {
    uint64_t calls, stop_at, last, total;
};

static bool watch(void *user, const char *what, uint64_t done, uint64_t total) {
    struct watched *w = user;
    assert_true(strlen(what) > 5);
    assert_true(done < total);
    assert_true(w->calls == 0 || done > w->last);
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void progress_is_reported_and_can_stop_it(void **state) {
    (void)state;
    enum { N = 200, G = 2 };
    float *rows = make_rows(N, G, 8), tables[3 * 4 * 2 * G];
    const struct em_points points = {rows, N, 2 * G, NULL};
    struct em_options options = em_options_defaults();
    struct watched watched = {.stop_at = UINT64_MAX};
    struct em_result result;
    struct terse_error error;
    options.iterations = 5;
    options.progress = (struct terse_progress){watch, &watched};
    assert_int_equal(em_fit(&points, (struct em_shape){G, 4, 3}, &options, tables, NULL, NULL, &error), TERSE_OK);
    assert_int_equal(watched.last + 1, watched.total);
    for (uint64_t stop = 1; stop <= watched.total; stop += 4) {
        watched = (struct watched){.stop_at = stop};
        assert_int_equal(em_fit(&points, (struct em_shape){G, 4, 3}, &options, tables, NULL, &result, &error), TERSE_E_INTERRUPTED);
        assert_int_equal(watched.calls, stop);
        assert_true(result.effective_samples == 0);
    }
    free(rows);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    float rows[10 * 4], weights[10], tables[4 * 4];
    struct terse_error error;
    const struct em_shape good = {2, 4, 1}, bad[] = {{0, 4, 1}, {65, 4, 1}, {2, 1, 1}, {2, 65, 1}, {2, 4, 0}, {2, 4, 65}};
    struct em_options options = em_options_defaults();
    struct em_points points = {rows, 10, 4, weights};
    fill_floats(&source, FILL_NORMAL, rows, 40);
    for (size_t i = 0; i < 10; i++) weights[i] = 1;
    options.iterations = 2;
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(em_fit(&points, bad[i], &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
    const float strange[] = {NAN, INFINITY, -INFINITY, 2e15f};
    for (size_t i = 0; i < 4; i++) {
        rows[17] = strange[i];
        error.message[0] = 0;
        assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
        assert_non_null(strstr(error.message, "point 4"));
    }
    rows[17] = 1e15f;
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_OK);
    for (size_t i = 0; i < 16; i++) assert_true(isfinite(tables[i]));
    const float weighty[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < 3; i++) {
        weights[3] = weighty[i];
        assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
    }
    memset(weights, 0, sizeof weights);
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
    points.weights = NULL;
    points.stride = 3;
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
    points.stride = 4;
    points.n = 0;
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
    points.n = 10;
    options.iterations = 0;
    assert_int_equal(em_fit(&points, good, &options, tables, NULL, NULL, &error), TERSE_E_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_closed_form_is_the_least_squares_solution),
        cmocka_unit_test(the_m_step_never_increases_the_error),
        cmocka_unit_test(errors_are_those_of_the_tables_and_fall),
        cmocka_unit_test(planted_tables_are_found),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(many_rounds_begin_with_few),
        cmocka_unit_test(weights_are_copies),
        cmocka_unit_test(few_points_are_represented_exactly),
        cmocka_unit_test(progress_is_reported_and_can_stop_it),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
