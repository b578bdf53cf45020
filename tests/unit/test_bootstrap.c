/* The interval of a mean: against the formula for normal means, where values are independent, and against what is known of values
 * that are not. */
#include "bootstrap.h"
#include "random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BLOCKS = 64, N = BLOCKS * BOOTSTRAP_BLOCK };
static double values[N];

/* A number of the standard normal distribution, by Box and Muller. */
static double normal(uint64_t index) {
    double u = ((double)(random_bits(2 * index) >> 11) + 0.5) * 0x1p-53, v = (double)(random_bits(2 * index + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static struct interval interval_of(size_t n) {
    struct interval found = {0};
    assert_true(bootstrap_mean(values, n, &found));
    return found;
}

static double width(struct interval found) { return found.high - found.low; }

static void equal_inputs_differ_by_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < N; i++) values[i] = 0;
    struct interval found = interval_of(N);
    assert_true(found.mean == 0 && found.low == 0 && found.high == 0);
    assert_true(interval_contains(&found, 0));
}

static void a_constant_shift_is_known_exactly(void **state) {
    (void)state;
    for (size_t i = 0; i < N; i++) values[i] = 0.25;
    struct interval found = interval_of(N - 100); /* the last block is shorter, and weighs less */
    assert_true(found.mean == 0.25 && found.low == 0.25 && found.high == 0.25);
    assert_false(interval_contains(&found, 0));
}

/* A shift moves the interval and does not change its width. */
static void a_shift_of_noise(void **state) {
    (void)state;
    for (size_t i = 0; i < N; i++) values[i] = normal(i);
    struct interval before = interval_of(N);
    for (size_t i = 0; i < N; i++) values[i] += 0.5;
    struct interval after = interval_of(N);
    assert_true(interval_contains(&before, 0) && !interval_contains(&after, 0));
    assert_true(fabs(after.mean - before.mean - 0.5) < 1e-9 && fabs(after.low - before.low - 0.5) < 1e-9);
    assert_true(fabs(width(after) - width(before)) < 1e-9);
}

/* The interval of independent values is that of the normal distribution: 1.96 standard errors to either side. */
static void independent_values(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < N; i++) {
        values[i] = normal(i);
        sum += values[i];
        squares += values[i] * values[i];
    }
    struct interval found = interval_of(N);
    double error = sqrt((squares / N - sum / N * sum / N) / N);
    assert_true(fabs(found.mean - sum / N) < 1e-12);
    assert_true(fabs(width(found) / (2 * 1.96 * error) - 1) < 0.2);
}

/* Values that are the same throughout a block are but one sample each: the interval is sqrt(BOOTSTRAP_BLOCK) = 16 times as wide as if they were
 * independent. */
static void neighbours_that_are_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < N; i++) values[i] = i / BOOTSTRAP_BLOCK % 2 ? 1 : -1;
    double expected = 2 * 1.96 / sqrt(BLOCKS);
    assert_true(fabs(width(interval_of(N)) / expected - 1) < 0.1);
    /* The same values in another order are independent of their neighbours in so far as each block has as many of either. */
    for (size_t i = 0; i < N; i++) values[i] = i % 2 ? 1 : -1;
    assert_true(width(interval_of(N)) == 0);
}

static void results_repeat(void **state) {
    (void)state;
    for (size_t i = 0; i < N; i++) values[i] = normal(i);
    struct interval first = interval_of(N), second = interval_of(N);
    assert_true(first.low == second.low && first.high == second.high);
}

/* Of as few blocks as are permitted, 95 % of the intervals contain the true mean, by 400 trials: their standard error is 1.1 %. */
static void few_blocks(void **state) {
    (void)state;
    enum { TRIALS = 400 };
    int contained = 0;
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        for (size_t b = 0; b < BOOTSTRAP_LEAST_BLOCKS; b++) {
            double value = 3 + normal(trial * BOOTSTRAP_LEAST_BLOCKS + b);
            for (size_t i = 0; i < BOOTSTRAP_BLOCK; i++) values[b * BOOTSTRAP_BLOCK + i] = value;
        }
        struct interval found = interval_of((size_t)BOOTSTRAP_LEAST_BLOCKS * BOOTSTRAP_BLOCK);
        contained += interval_contains(&found, 3);
    }
    print_message("%d of %d intervals contain the mean\n", contained, TRIALS);
    assert_in_range(contained, 0.92 * TRIALS, 0.98 * TRIALS);
}

static void blocks_are_counted(void **state) {
    (void)state;
    assert_int_equal(bootstrap_blocks(0), 0);
    assert_int_equal(bootstrap_blocks(1), 1);
    assert_int_equal(bootstrap_blocks(256), 1);
    assert_int_equal(bootstrap_blocks(257), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_inputs_differ_by_nothing),
        cmocka_unit_test(a_constant_shift_is_known_exactly),
        cmocka_unit_test(a_shift_of_noise),
        cmocka_unit_test(independent_values),
        cmocka_unit_test(neighbours_that_are_alike),
        cmocka_unit_test(results_repeat),
        cmocka_unit_test(few_blocks),
        cmocka_unit_test(blocks_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
