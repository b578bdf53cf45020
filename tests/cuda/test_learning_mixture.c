/* E steps of complex tables on the GPU: counts, sums, codes and errors are those of double precision, and fits with them end where the CPU's do. */
#include "backend/cpu/codec/commvq_search.h"
#include "backend/cuda/learning.h"
#include "no_device.h"
#include "train/em.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define K COMMVQ_ENTRIES

static uint32_t random_state = 1;
static float uniform(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1;
}

static float *random_numbers(size_t n) {
    float *numbers = malloc(n * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < n; i++) numbers[i] = (1 + (float)(i % 5)) * uniform() * uniform();
    return numbers;
}

/* The step in double precision, of the points `ids`: everything but the error of ties is compared. */
struct wanted {
    double counts[K * K], *sums;
};

static void expect(const float *rows, const float *weights, const struct expectation *e, const float *table, size_t g,
                   struct wanted *wanted) {
    double *values = malloc(K * K * sizeof *values);
    memset(wanted->counts, 0, sizeof wanted->counts);
    memset(wanted->sums, 0, K * 2 * g * sizeof *wanted->sums);
    for (size_t i = 0; i < e->n; i++) {
        const float *x = rows + e->ids[i] * 2 * g;
        double least = INFINITY, sum = 0, w = (double)weights[e->ids[i]];
        for (size_t cell = 0; cell < K * K; cell++) {
            const float *a = table + cell / K * 2 * g, *b = table + cell % K * 2 * g;
            values[cell] = 0;
            for (size_t j = 0; j < g; j++) {
                const double re = (double)x[j] - (double)a[j] + (double)b[g + j],
                             im = (double)x[g + j] - (double)a[g + j] - (double)b[j];
                values[cell] += re * re + im * im;
            }
            least = fmin(least, values[cell]);
        }
        const size_t code = e->codes[i] % K * K + e->codes[i] / K;
        assert_true(values[code] <= least * (1 + 1e-4) + 1e-4);
        assert_true(fabs((double)e->errors[i] - w * least) <= w * (1e-4 * least + 1e-3));
        for (size_t cell = 0; cell < K * K; cell++) {
            const double apart = values[cell] - least, part = apart / fmax(e->temperature, 1e-300);
            values[cell] = e->temperature > 0 ? part < e->faint ? exp(-part) : 0 : cell == code;
            sum += values[cell];
        }
        for (size_t cell = 0; cell < K * K; cell++) {
            const double share = w * values[cell] / sum;
            double *a = wanted->sums + cell / K * 2 * g, *b = wanted->sums + cell % K * 2 * g;
            wanted->counts[cell] += share;
            for (size_t j = 0; j < g && share > 0; j++) {
                a[j] += share * (double)x[j];
                a[g + j] += share * (double)x[g + j];
                b[j] += share * (double)x[g + j];
                b[g + j] -= share * (double)x[j];
            }
        }
    }
    free(values);
}

static void check_close(const char *what, const double *got, const double *want, size_t n) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow(got[i] - want[i], 2);
        size += want[i] * want[i];
    }
    if (!(sqrt(apart) <= 2e-3 * sqrt(size))) fail_msg("%s are %g of their length apart", what, sqrt(apart / size));
}

static void check_step(size_t g, size_t n, size_t every, double temperature) {
    float *rows = random_numbers(n * 2 * g), *weights = random_numbers(n), *table = random_numbers(K * 2 * g);
    uint32_t *ids = malloc(n * sizeof *ids);
    struct commvq_search search;
    struct wanted wanted = {.sums = malloc(K * 2 * g * sizeof(double))};
    struct terse_error error;
    size_t count = 0;
    for (size_t p = every / 2; p < n; p += every) ids[count++] = (uint32_t)p;
    for (size_t p = 0; p < n; p++) weights[p] = p % 9 ? fabsf(weights[p]) : 0;
    for (size_t i = 0; i < K * 2 * g; i++) table[i] *= 0.5f;
    assert_int_equal(commvq_search_new(g, K, &search, &error), TERSE_OK);
    commvq_search_set(&search, table);
    struct expectation e = {.ids = ids,
                            .n = count,
                            .panel = search.panel,
                            .half = search.half,
                            .temperature = temperature,
                            .faint = 6,
                            .codes = malloc(count * sizeof(uint16_t)),
                            .errors = malloc(count * sizeof(float)),
                            .counts = malloc(K * K * sizeof(double)),
                            .sums = malloc(K * 2 * g * sizeof(double))};
    struct mixture *mixture = learning_mixture_open(rows, weights, n, g, K);
    assert_non_null(mixture);
    if (learning_mixture_expect(mixture, &e, &error)) fail_msg("%s", error.message);
    expect(rows, weights, &e, table, g, &wanted);
    check_close("counts", e.counts, wanted.counts, K * K);
    check_close("sums", e.sums, wanted.sums, K * 2 * g);
    learning_mixture_close(mixture);
    commvq_search_free(&search);
    free(rows), free(weights), free(table), free(ids), free(wanted.sums);
    free(e.codes), free(e.errors), free(e.counts), free(e.sums);
}

static void steps_are_those_of_double_precision(void **state) {
    (void)state;
    check_step(16, 150, 1, 4);
    check_step(64, 90, 2, 20);
    check_step(24, 70, 1, 0);                                  /* the nearest alone */
    assert_null(learning_mixture_open(NULL, NULL, 1, 16, 32)); /* tables of another size are the CPU's */
}

static void fits_end_where_the_cpus_do(void **state) {
    (void)state;
    enum { G = 16, N = 300, ROUNDS = 2 };
    float *rows = random_numbers(N * 2 * G), *weights = random_numbers(N), *tables[3];
    struct em_result result[3];
    struct terse_error error;
    for (size_t p = 0; p < N; p++) weights[p] = 0.1f + fabsf(weights[p]);
    for (size_t i = 0; i < N * 2 * G; i++) rows[i] += (float)(i / (2 * G) % 11) * (float)(i % 3);
    for (int turn = 0; turn < 3; turn++) {
        struct em_options options = em_options_defaults();
        options.iterations = 8;
        options.ops = turn ? &cuda_learning_ops : NULL;
        assert_non_null(tables[turn] = malloc(ROUNDS * K * 2 * G * sizeof(float)));
        if (em_fit(&(struct em_points){rows, N, 2 * G, weights}, (struct em_shape){G, K, ROUNDS}, &options, tables[turn], NULL,
                   &result[turn], &error))
            fail_msg("%s", error.message);
    }
    print_message("error %g, the CPU's %g\n", result[1].error, result[0].error);
    assert_true(result[1].error <= result[0].error * 1.01);
    assert_memory_equal(tables[1], tables[2], ROUNDS * K * 2 * G * sizeof(float));
    for (int turn = 0; turn < 3; turn++) free(tables[turn]);
    free(rows);
    free(weights);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_those_of_double_precision),
                                       cmocka_unit_test(fits_end_where_the_cpus_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
