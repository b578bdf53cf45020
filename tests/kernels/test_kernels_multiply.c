/* Products in 16 bits and scores of positions of every tier against double precision, between inaccessible pages. */
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TINIEST 0x1p-149

/* ---- multiply_i16 ---------------------------------------------------------------------------------------------------------- */

/* Returns where the i-th number of column c lies, of columns of k numbers. */
static size_t at_column(size_t k, size_t c, size_t i) { return c / 16 * 16 * k + i / 2 * 32 + c % 16 * 2 + i % 2; }

/* Columns and rows whose products are the largest there are: what sums in 32 bits must bear. Guards stand behind every array. */
static void check_multiply_i16(const struct tier *t, struct random *random, size_t m, size_t k, size_t n, enum fill fill,
                               bool alike) {
    size_t lda = k + m % 3, ldo = n + 1;
    int16_t *b = guard_bytes(k * n * sizeof *b, GUARD_END);
    float *a = guard_floats((m - 1) * lda + k, GUARD_END), *scales = guard_floats(n, GUARD_END),
          *out = guard_floats(m * ldo - 1, GUARD_END);
    fill_floats(random, fill, a, (m - 1) * lda + k);
    for (size_t c = 0; c < n; c++) {
        double norm = 0, column[I16_DEPTH];
        for (size_t i = 0; i < k; i++) column[i] = alike && c == 0 ? a[i] : random_normal(random);
        for (size_t i = 0; i < k; i++) norm += column[i] * column[i];
        scales[c] = (float)(1 + c) / 64;
        for (size_t i = 0; i < k; i++)
            b[at_column(k, c, i)] = norm > 0 ? (int16_t)lrint(column[i] * (double)I16_NORM / sqrt(norm)) : 0;
    }
    t->vector->multiply_i16(a, m, k, lda, b, n, scales, out, ldo);
    for (size_t r = 0; r < m; r++) {
        double norm = 0;
        for (size_t i = 0; i < k; i++) norm += (double)a[r * lda + i] * a[r * lda + i];
        for (size_t c = 0; c < n; c++) {
            double want = 0;
            for (size_t i = 0; i < k; i++) want += (double)a[r * lda + i] * b[at_column(k, c, i)] * scales[c];
            double scale = sqrt(norm) * (double)I16_NORM * scales[c];
            check_close(out[r * ldo + c], want, scale, 0.6 * sqrt((double)k) / (double)I16_NORM, TINIEST, "%s row %zu of %zu x %zu",
                        t->name, r, k, n);
        }
    }
    guard_release();
}

static void products_in_16_bits(void **state) {
    (void)state;
    struct random random = {5};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t m = 1; m <= 9; m += m < 4 ? 1 : 4)
            for (size_t n = 16; n <= 128; n += 16) check_multiply_i16(k, &random, m, 2 * n, n, FILL_NORMAL, true);
        check_multiply_i16(k, &random, 4, 34, 48, FILL_OUTLIER, true);
        check_multiply_i16(k, &random, 4, 128, 16, FILL_ZERO, false);
        check_multiply_i16(k, &random, 5, 64, 16, FILL_LARGE, true);
        float row[2] = {NAN, 1}, scale[16] = {1}, out[16];
        int16_t b[32] = {1, 1};
        k->vector->multiply_i16(row, 1, 2, 2, b, 16, scale, out, 16);
        assert_true(isnan(out[0]));
    }
}

static void columns_become_floats(void **state) {
    (void)state;
    struct random random = {6};
    const struct tier *t;
    for (size_t tier = 0; (t = tier_at(tier)); tier++) {
        for (size_t k = 2; k <= I16_DEPTH; k += k < 36 ? 2 : 44) {
            const size_t n = 16 + k % 3 * 16, ldo = k + k % 4;
            int16_t *b = guard_bytes(k * n * sizeof *b, GUARD_END);
            float *scales = guard_floats(n, GUARD_END), *out = guard_floats((n - 1) * ldo + k, GUARD_END);
            for (size_t i = 0; i < k * n; i++) b[i] = (int16_t)(uint16_t)(random_bits(&random) >> 48);
            fill_floats(&random, FILL_NORMAL, scales, n);
            t->vector->columns_to_float(b, k, n, scales, out, ldo);
            for (size_t c = 0; c < n; c++)
                for (size_t i = 0; i < k; i++) assert_true(out[c * ldo + i] == scales[c] * (float)b[at_column(k, c, i)]);
            guard_release();
        }
    }
}

/* ---- Scores of positions ---------------------------------------------------------------------------------------------------- */

static void check_positions(const struct tier *t, struct random *random, size_t rows, size_t pairs) {
    const size_t stride = POSITION_STRIDE(pairs);
    float *products = guard_floats(2 * rows * stride, GUARD_END), *turn = guard_floats(2 * stride, GUARD_END),
          *waves = guard_floats(2 * pairs * POSITION_HALF, GUARD_END), *logits = guard_floats(2 * rows * POSITION_HALF, GUARD_END);
    fill_floats(random, FILL_NORMAL, products, 2 * rows * stride);
    fill_floats(random, FILL_NORMAL, turn, 2 * stride);
    fill_floats(random, FILL_NORMAL, waves, 2 * pairs * POSITION_HALF);
    for (size_t i = 0; i < 2 * rows * POSITION_HALF; i++) logits[i] = (float)(i % 7);
    t->vector->score_positions(products, rows, pairs, turn, waves, logits);
    for (size_t m = 0; m < rows; m++) {
        for (size_t j = 0; j < POSITION_HALF; j++) {
            double sums[2] = {0}, size = 1;
            for (size_t i = 0; i < pairs; i++) {
                const double even = (double)products[2 * m * stride + i], odd = (double)products[(2 * m + 1) * stride + i],
                             c = (double)turn[i], s = (double)turn[stride + i];
                const double cosine = (double)waves[2 * i * POSITION_HALF + j],
                             sine = (double)waves[(2 * i + 1) * POSITION_HALF + j];
                sums[0] += (even * c + odd * s) * cosine;
                sums[1] += (odd * c - even * s) * sine;
                size += (fabs(even) + fabs(odd)) * (fabs(c) + fabs(s)) * (fabs(cosine) + fabs(sine));
            }
            const size_t after = 2 * m * POSITION_HALF + POSITION_HALF + j, before = 2 * m * POSITION_HALF + POSITION_HALF - 1 - j;
            check_close(logits[after], sums[0] + sums[1] + (double)(after % 7), size, 1e-6, TINIEST, "%s row %zu after %zu",
                        t->name, m, j);
            check_close(logits[before], sums[0] - sums[1] + (double)(before % 7), size, 1e-6, TINIEST, "%s row %zu before %zu",
                        t->name, m, j);
        }
    }
    guard_release();
}

static void check_position_slots(const struct tier *t, struct random *random, size_t rows, size_t pairs) {
    const size_t stride = POSITION_STRIDE(pairs), n = 1 + pairs % 5, offsets = 2 * PAGE_TOKENS * pairs;
    const uint8_t all[] = {PAGE_TOKENS - 1, 0, 17, 18, 3};
    uint8_t *slots = guard_bytes(n, GUARD_END);
    float *products = guard_floats(2 * rows * stride, GUARD_END), *angles = guard_floats(offsets + POSITION_SLACK, GUARD_END),
          *logits = guard_floats((rows - 1) * PAGE_TOKENS + n, GUARD_END);
    memcpy(slots, all, n);
    fill_floats(random, FILL_NORMAL, products, 2 * rows * stride);
    fill_floats(random, FILL_NORMAL, angles, offsets + POSITION_SLACK);
    for (size_t i = 0; i < 2 * rows * stride; i++) products[i] = i % stride < pairs ? products[i] : 0;
    for (size_t i = 0; i < (rows - 1) * PAGE_TOKENS + n; i++) logits[i] = (float)(i % 7);
    t->vector->score_position_slots(products, rows, pairs, angles, slots, n, logits);
    for (size_t m = 0; m < rows; m++) {
        for (size_t k = 0; k < n; k++) {
            double sum = (double)((m * PAGE_TOKENS + k) % 7), size = sum + 1;
            for (size_t i = 0; i < 2 * pairs; i++) {
                const double term =
                    (double)products[2 * m * stride + i / pairs * stride + i % pairs] * (double)angles[2 * slots[k] * pairs + i];
                sum += term;
                size += fabs(term);
            }
            check_close(logits[m * PAGE_TOKENS + k], sum, size, 1e-6, TINIEST, "%s row %zu slot %zu", t->name, m, k);
        }
        for (size_t k = n; k < PAGE_TOKENS && m + 1 < rows; k++)
            assert_true(logits[m * PAGE_TOKENS + k] == (float)((m * PAGE_TOKENS + k) % 7));
    }
    guard_release();
}

static void positions_are_scored(void **state) {
    (void)state;
    struct random random = {8};
    const struct tier *t;
    for (size_t tier = 0; (t = tier_at(tier)); tier++)
        for (size_t rows = 1; rows <= 7; rows++)
            for (size_t pairs = 1; pairs <= POSITION_PAIRS_MAX; pairs += pairs < 34 ? 1 : 47) {
                check_positions(t, &random, rows, pairs);
                check_position_slots(t, &random, rows, pairs);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_in_16_bits),
        cmocka_unit_test(columns_become_floats),
        cmocka_unit_test(positions_are_scored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
