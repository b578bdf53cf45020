/* The search for the nearest centroid: the kernel of every tier against the scalar one and that against double precision, between
 * guard pages; ties, padding, values that are not numbers; then the search made of it, with offsets and scales that single
 * precision alone would not survive. */
#include "backend/cpu/codec/nearest.h"
#include "base/memory.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A row's value for one centroid, and how far rounding may take it. */
static double value_of(const float *x, const float *panel, const float *half, size_t d, size_t width, size_t j, double *slack) {
    double value = half[j], terms = fabs(value);
    for (size_t i = 0; i < d; i++) {
        double product = (double)x[i] * panel[i * width + j];
        value -= product;
        terms += fabs(product);
    }
    *slack = terms * (double)(d + 2) * 0x1p-24;
    return value;
}

static void check_kernel(const struct tier *kernel, struct random *random, size_t n, size_t d, size_t width, enum fill fill) {
    float *x = guard_floats(n * d, GUARD_END), *panel = guard_floats(d * width, GUARD_END), *half = guard_floats(width, GUARD_END);
    float *best = guard_floats(n, GUARD_END);
    uint32_t *code = guard_bytes(n * sizeof *code, GUARD_END);
    fill_floats(random, fill, x, n * d);
    fill_floats(random, fill, panel, d * width);
    fill_floats(random, fill, half, width);
    for (size_t r = 0; r < n; r++) {
        best[r] = r % 5 == 4 ? -INFINITY : INFINITY; /* the latter can be bettered, the former cannot */
        code[r] = 77;
    }
    kernel->pq->nearest(x, n, d, panel, half, width, 1000, best, code);
    for (size_t r = 0; r < n; r++) {
        double least = INFINITY, slack, slacks = 0;
        if (r % 5 == 4) {
            assert_int_equal(code[r], 77);
            continue;
        }
        for (size_t j = 0; j < width; j++) {
            double value = value_of(x + r * d, panel, half, d, width, j, &slack);
            if (value < least) least = value;
            if (slack > slacks) slacks = slack;
        }
        assert_in_range(code[r], 1000, 1000 + width - 1);
        double got = value_of(x + r * d, panel, half, d, width, code[r] - 1000, &slack);
        if (!(got <= least + 2 * slacks) || !(fabs(best[r] - got) <= slack + 1e-40)) {
            fail_msg("%s: %zu x %zu, width %zu, %s, row %zu: code %u has %g (said %g), the least is %g", kernel->name, n, d, width,
                     fill_name(fill), r, code[r], got, (double)best[r], least);
        }
    }
    guard_release();
}

static void kernel_finds_the_least(void **state) {
    (void)state;
    static const size_t channels[] = {1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 130}, rows[] = {1, 3, 4, 6, 8, 13, 21};
    static const enum fill fills[] = {FILL_NORMAL, FILL_ZERO, FILL_SPREAD, FILL_TINY, FILL_LARGE};
    struct random random = {1};
    const struct tier *kernel;
    for (size_t t = 0; (kernel = tier_at(t)); t++) {
        for (size_t c = 0; c < sizeof channels / sizeof channels[0]; c++) {
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                for (size_t f = 0; f < 5; f++)
                    check_kernel(kernel, &random, rows[r], channels[c], 32 + 32 * ((r + c) % 4), fills[f]);
            }
        }
    }
}

/* The same bits whatever rows are given together. */
static void kernel_rows_are_independent(void **state) {
    (void)state;
    enum { N = 37, WIDTH = 96 };
    static const size_t channels[] = {1, 2, 4, 8, 16, 32};
    float x[N * 32], panel[32 * WIDTH], half[WIDTH], together[N], alone[N];
    uint32_t code_together[N], code_alone[N];
    struct random random = {2};
    const struct tier *kernel;
    for (size_t t = 0; (kernel = tier_at(t)); t++) {
        for (size_t c = 0; c < sizeof channels / sizeof channels[0]; c++) {
            const size_t d = channels[c];
            fill_floats(&random, FILL_NORMAL, x, N * d);
            fill_floats(&random, FILL_NORMAL, panel, d * WIDTH);
            fill_floats(&random, FILL_NORMAL, half, WIDTH);
            for (size_t r = 0; r < N; r++) together[r] = alone[r] = INFINITY;
            kernel->pq->nearest(x, N, d, panel, half, WIDTH, 0, together, code_together);
            for (size_t r = 0; r < N; r++) kernel->pq->nearest(x + r * d, 1, d, panel, half, WIDTH, 0, alone + r, code_alone + r);
            assert_memory_equal(together, alone, sizeof together);
            assert_memory_equal(code_together, code_alone, sizeof code_together);
        }
    }
}

static void kernel_takes_the_lowest_of_equals(void **state) {
    (void)state;
    const struct tier *kernel;
    float x[9 * 3], panel[3 * 96], half[96], best[9];
    uint32_t code[9];
    for (size_t t = 0; (kernel = tier_at(t)); t++) {
        for (size_t lowest = 0; lowest < 96; lowest++) {
            for (size_t i = 0; i < 9 * 3; i++) x[i] = 1.5f;
            for (size_t j = 0; j < 96; j++) {
                for (size_t i = 0; i < 3; i++) panel[i * 96 + j] = j < lowest ? -1 : 0.3f;
                half[j] = 0.25f;
            }
            for (size_t r = 0; r < 9; r++) best[r] = INFINITY;
            kernel->pq->nearest(x, 9, 3, panel, half, 96, 0, best, code);
            for (size_t r = 0; r < 9; r++) assert_int_equal(code[r], lowest);
            kernel->pq->nearest(x, 9, 3, panel, half, 96, 500, best, code); /* equal to what is there: no change */
            for (size_t r = 0; r < 9; r++) assert_int_equal(code[r], lowest);
        }
    }
}

static void kernel_passes_over_what_is_no_number(void **state) {
    (void)state;
    const struct tier *kernel;
    float x[2] = {INFINITY, 1}, panel[2 * 32] = {0}, half[32], best[1] = {INFINITY};
    uint32_t code[1] = {7};
    for (size_t j = 0; j < 32; j++) half[j] = INFINITY; /* as padding is: inf - inf * 0 */
    for (size_t t = 0; (kernel = tier_at(t)); t++) {
        kernel->pq->nearest(x, 1, 2, panel, half, 32, 0, best, code);
        assert_int_equal(code[0], 7);
    }
}

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, size_t d) {
    double square = 0;
    for (size_t i = 0; i < d; i++) square += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return square;
}

static void check_search(size_t n, size_t k, size_t d, size_t stride, double offset, double scale) {
    struct random random = {n + k + d};
    float *rows = guard_floats((n - 1) * stride + d, GUARD_END), *centroids = guard_floats(k * d, GUARD_END);
    uint16_t *codes = guard_bytes(n * sizeof *codes, GUARD_END);
    struct nearest nearest;
    for (size_t i = 0; i < (n - 1) * stride + d; i++) {
        rows[i] = i % stride < d ? (float)(offset + scale * (double)random_normal(&random)) : NAN; /* the gaps must not be read */
    }
    for (size_t i = 0; i < k * d; i++) centroids[i] = (float)(offset + scale * (double)random_normal(&random));
    assert_int_equal(nearest_new(k, d, &nearest, NULL), TERSE_OK);
    nearest_set(&nearest, centroids);
    nearest_search(&nearest, rows, n, stride, codes);
    for (size_t r = 0; r < n; r++) {
        double least = INFINITY, furthest = 0;
        for (size_t j = 0; j < k; j++) {
            double square = distance(rows + r * stride, centroids + j * d, d);
            least = square < least ? square : least;
            furthest = square > furthest ? square : furthest;
        }
        assert_in_range(codes[r], 0, k - 1);
        double got = distance(rows + r * stride, centroids + codes[r] * d, d);
        /* Rounding is relative to the spread of rows and centroids, however far from 0 all of them lie. */
        if (!(got <= least + (double)(d + 8) * 0x1p-22 * furthest)) {
            fail_msg("%zu x %zu of %zu, offset %g scale %g: row %zu got %g, the least is %g", n, d, k, offset, scale, r, got,
                     least);
        }
    }
    nearest_free(&nearest);
    guard_release();
}

static void search_equals_brute_force(void **state) {
    (void)state;
    static const size_t shapes[][4] = {{1, 1, 1, 1},        {5, 3, 2, 2},       {300, 33, 2, 64},
                                       {700, 256, 4, 64},   {513, 300, 8, 11},  {40, 4096, 16, 64},
                                       {40, 4097, 32, 128}, {70, 70, 100, 101}, {9, 65, 1024, 1024}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t *v = shapes[s];
        check_search(v[0], v[1], v[2], v[3], 0, 1);
        check_search(v[0], v[1], v[2], v[3], 4096, 0.01);
        check_search(v[0], v[1], v[2], v[3], 0, 1e-30);
        check_search(v[0], v[1], v[2], v[3], -1e36, 1e36);
    }
}

static void search_takes_the_lowest_of_equals(void **state) {
    (void)state;
    enum { K = 3000, D = 8 };
    float *centroids = memory_zeros(K * D, sizeof *centroids), rows[5 * D];
    uint16_t codes[5];
    struct nearest nearest;
    assert_non_null(centroids);
    for (size_t j = 0; j < K; j++) centroids[j * D] = j % 1000 == 997 ? 0.3f : 5 + (float)j;
    for (size_t i = 0; i < 5 * D; i++) rows[i] = 0.1f;
    assert_int_equal(nearest_new(K, D, &nearest, NULL), TERSE_OK);
    nearest_set(&nearest, centroids);
    nearest_search(&nearest, rows, 5, D, codes);
    for (size_t r = 0; r < 5; r++) assert_int_equal(codes[r], 997);
    rows[3] = NAN;
    rows[D] = INFINITY;
    nearest_search(&nearest, rows, 5, D, codes);
    for (size_t r = 0; r < 5; r++) assert_in_range(codes[r], 0, K - 1);
    assert_int_equal(codes[2], 997);
    nearest_free(&nearest);
    memory_free(centroids);
}

static void shapes_beyond_the_limits_are_refused(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{0, 8}, {65537, 8}, {8, 0}, {8, 1025}};
    struct nearest nearest;
    struct terse_error error;
    for (size_t s = 0; s < 4; s++) {
        assert_int_equal(nearest_new(shapes[s][0], shapes[s][1], &nearest, &error), TERSE_E_ARGUMENT);
        assert_non_null(strstr(error.message, "use 1 to"));
        nearest_free(&nearest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernel_finds_the_least),
        cmocka_unit_test(kernel_rows_are_independent),
        cmocka_unit_test(kernel_takes_the_lowest_of_equals),
        cmocka_unit_test(kernel_passes_over_what_is_no_number),
        cmocka_unit_test(search_equals_brute_force),
        cmocka_unit_test(search_takes_the_lowest_of_equals),
        cmocka_unit_test(shapes_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
