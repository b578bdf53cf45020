/* How far two rows of logits are apart: against sums over a few tokens that are written out here. */
#include "score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ASSERT_NEAR(found, wanted) assert_true(fabs((found) - (wanted)) < 1e-6)

static void equal_rows_are_no_distance_apart(void **state) {
    (void)state;
    const float row[] = {3, -1.25f, 0.5f, 40, -200};
    struct row_divergence found = score_divergence(row, row, 5);
    assert_true(found.kld == 0);
}

static void rows_of_known_probabilities(void **state) {
    (void)state;
    const float base[] = {logf(0.75f) + 7, logf(0.25f) + 7}, logits[] = {-3, -3};
    struct row_divergence found = score_divergence(base, logits, 2);
    ASSERT_NEAR(found.kld, 0.75 * log(0.75 / 0.5) + 0.25 * log(0.25 / 0.5));
    ASSERT_NEAR(found.base_entropy, -0.75 * log(0.75) - 0.25 * log(0.25));
    ASSERT_NEAR(found.base_log_sum, 7);
}

/* A token that the base holds for impossible counts for nothing, however likely it is in the other row. */
static void impossible_tokens(void **state) {
    (void)state;
    const float base[] = {0, -INFINITY, -2000, 0}, logits[] = {1, 1, 1, 1};
    struct row_divergence found = score_divergence(base, logits, 4);
    ASSERT_NEAR(found.kld, log(2));
    ASSERT_NEAR(found.base_entropy, log(2));
    ASSERT_NEAR(found.base_log_sum, log(2));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_rows_are_no_distance_apart),
                                       cmocka_unit_test(rows_of_known_probabilities), cmocka_unit_test(impossible_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
