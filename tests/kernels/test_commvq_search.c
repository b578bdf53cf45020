/* The search for CommVQ's codes: its kernels against their definition on every tier, and the whole of it against brute force. */
#include "backend/cpu/codec/commvq_search.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct random source = {11};

static float normal(void) { return random_normal(&source); }

static void check_products(const struct tier *k, size_t n, size_t d, size_t stride, size_t width, enum guard_side side) {
    float *x = guard_floats((n - 1) * stride + d, side), *panel = guard_floats(d * width, side),
          *out = guard_floats(n * width, side);
    fill_floats(&source, FILL_NORMAL, x, (n - 1) * stride + d);
    fill_floats(&source, FILL_OUTLIER, panel, d * width);
    k->commvq->multiply_panel(x, n, d, stride, panel, width, out);
    for (size_t r = 0; r < n; r++) {
        for (size_t j = 0; j < width; j++) {
            double want = 0, terms = 0;
            for (size_t i = 0; i < d; i++) {
                want += (double)x[r * stride + i] * (double)panel[i * width + j];
                terms += fabs((double)x[r * stride + i] * (double)panel[i * width + j]);
            }
            check_close((double)out[r * width + j], want, terms, 1e-7 * (double)(d + 2), 1e-40, "%s products n %zu d %zu width %zu",
                        k->name, n, d, width);
        }
        float *alone = guard_floats(width, side);
        k->commvq->multiply_panel(x + r * stride, 1, d, d, panel, width, alone);
        assert_memory_equal(alone, out + r * width, width * sizeof(float));
    }
    guard_release();
}

static void check_least(const struct tier *k, size_t entries, bool ties, enum guard_side side) {
    size_t columns = (entries + 15) / 16 * 16;
    float *half = guard_floats(entries * columns, side), *products = guard_floats(2 * columns, side), least;
    for (size_t i = 0; i < 2 * columns; i++) products[i] = ties ? (float)(random_bits(&source) % 3) : normal();
    for (size_t i = 0; i < entries * columns; i++)
        half[i] = i % columns >= entries ? INFINITY : ties ? (float)(random_bits(&source) % 4) : 3 * normal();
    uint32_t at = 0, got = k->commvq->nearest(half, entries, columns, products, &least);
    float want = INFINITY;
    for (size_t i = 0; i < entries * columns; i++) {
        float value = half[i] - products[columns + i % columns] - products[i / columns];
        if (value < want) want = value, at = (uint32_t)i;
    }
    assert_int_equal(got, at);
    assert_true(least == want);
    uint32_t *cells = guard_bytes(entries * sizeof *cells, side);
    float *values = guard_floats(entries, side), limit = want + (ties ? 1 : 2);
    size_t found = k->commvq->within(half, entries, columns, products, limit, entries, cells, values), seen = 0;
    for (size_t i = 0; i < entries * columns; i++) {
        float value = half[i] - products[columns + i % columns] - products[i / columns];
        if (!(value < limit)) continue;
        if (seen < entries) {
            assert_int_equal(cells[seen], i);
            assert_true(values[seen] == value);
        }
        seen++;
    }
    assert_int_equal(found, seen);
    assert_true(k->commvq->within(half, entries, columns, products, want, entries, cells, values) == 0);
    for (size_t i = 0; i < columns; i++) products[i] = NAN; /* a row of NaN: some cell, and no other harm */
    assert_true(k->commvq->nearest(half, entries, columns, products, &least) < entries * columns);
    assert_int_equal(k->commvq->within(half, entries, columns, products, 1, entries, cells, values), 0);
    guard_release();
}

static void searching_equals_its_definition(void **state) {
    (void)state;
    static const size_t rows[] = {1, 3, 4, 5, 16}, numbers[] = {2, 6, 32, 128}, entries[] = {1, 2, 5, 16, 31, 33, 64};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t i = 0; i < 5; i++)
            for (size_t j = 0; j < 4; j++)
                for (size_t width = 32; width <= 128; width += 32)
                    check_products(k, rows[i], numbers[j], numbers[j] + 3 * (i % 2), width, (i + j) % 2 ? GUARD_START : GUARD_END);
        for (size_t i = 0; i < 7; i++)
            for (int repeat = 0; repeat < 4; repeat++) check_least(k, entries[i], repeat / 2, repeat % 2 ? GUARD_START : GUARD_END);
    }
}

static double distance_to(const float *x, const float *table, size_t g, size_t entries, unsigned code) {
    const float *a = table + code % entries * 2 * g, *b = table + code / entries * 2 * g;
    double sum = 0;
    for (size_t j = 0; j < g; j++) {
        double re = (double)x[j] - (double)a[j] + (double)b[g + j], im = (double)x[g + j] - (double)a[g + j] - (double)b[j];
        sum += re * re + im * im;
    }
    return sum;
}

static void the_fast_search_finds_what_brute_force_finds(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{64, 64}, {32, 64}, {1, 2}, {5, 7}, {16, 16}, {40, 33}};
    for (size_t i = 0; i < 6; i++) {
        enum { N = 37 };
        size_t g = sizes[i][0], entries = sizes[i][1], stride = 2 * g + 3;
        float *table = malloc(entries * 2 * g * sizeof *table), *x = malloc(N * stride * sizeof *x);
        struct commvq_search search;
        struct terse_error error;
        uint16_t codes[N];
        fill_floats(&source, FILL_NORMAL, table, entries * 2 * g);
        fill_floats(&source, FILL_NORMAL, x, N * stride);
        assert_int_equal(commvq_search_new(g, entries, &search, &error), TERSE_OK);
        commvq_search_set(&search, table);
        commvq_search_nearest(&search, x, N, stride, codes);
        for (size_t r = 0; r < N; r++) {
            double least = INFINITY, got = distance_to(x + r * stride, table, g, entries, codes[r]);
            unsigned best = 0;
            for (unsigned code = 0; code < entries * entries; code++) {
                double distance = distance_to(x + r * stride, table, g, entries, code);
                if (distance < least) least = distance, best = code;
            }
            assert_true(codes[r] < entries * entries);
            if (codes[r] != best) assert_true(got <= least + 1e-5 * (least + 1)); /* as good but for rounding */
        }
        float *left = malloc(N * stride * sizeof *left);
        memcpy(left, x, N * stride * sizeof *left);
        commvq_subtract(table, g, entries, codes, N, left, stride);
        for (size_t r = 0; r < N; r++) {
            double square = 0, want = distance_to(x + r * stride, table, g, entries, codes[r]);
            for (size_t j = 0; j < 2 * g; j++) square += (double)left[r * stride + j] * (double)left[r * stride + j];
            assert_true(fabs(square - want) <= 1e-5 * (want + 1));
        }
        commvq_search_free(&search);
        free(left);
        free(table);
        free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(searching_equals_its_definition),
        cmocka_unit_test(the_fast_search_finds_what_brute_force_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
