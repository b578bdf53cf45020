/* Rows of a base file: what is read back of the token that follows, however unlikely it was, and that nothing else changes the row. */
#include "kld_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { VOCABULARY = 1001, WORDS = (VOCABULARY + 1) / 2 * 2 + 4 };

/* Logits from 0 down to -40, token by token; returns log(sum(exp(logits))). */
static double make_logits(float *logits) {
    double sum = 0;
    for (int i = 0; i < VOCABULARY; i++) {
        logits[i] = -40.f * (float)i / (VOCABULARY - 1);
        sum += exp((double)logits[i]);
    }
    return log(sum);
}

static void test_the_next_token_is_read_back(void **state) {
    (void)state;
    float logits[VOCABULARY], scale, minimum;
    uint16_t row[WORDS];
    double log_sum = make_logits(logits);
    for (int32_t next = 0; next < VOCABULARY; next++) {
        kld_encode(logits, VOCABULARY, log_sum, next, row);
        assert_true(kld_row_scale(row, &scale, &minimum));
        double read = (double)scale * kld_row_codes(row)[next] + (double)minimum, wanted = (double)logits[next] - log_sum;
        assert_true(fabs(read - wanted) <= (double)scale / 2 + 1e-5);
        assert_true(fabs((double)scale * kld_row_codes(row)[0] + (double)minimum + log_sum) < 1e-4); /* the largest */
    }
}

static void test_rows_are_as_the_format_has_them(void **state) {
    (void)state;
    float logits[VOCABULARY], scale, minimum;
    uint16_t likely[WORDS], other[WORDS];
    double log_sum = make_logits(logits);
    kld_encode(logits, VOCABULARY, log_sum, 0, likely);
    kld_encode(logits, VOCABULARY, log_sum, 400, other); /* at 16 below the largest */
    assert_memory_equal(likely, other, sizeof likely);
    kld_row_scale(likely, &scale, &minimum);
    assert_true(fabs((double)minimum + 16 + log_sum) < 1e-5 && fabs((double)scale * 65535 - 16) < 1e-4);
    assert_int_equal(kld_row_codes(likely)[VOCABULARY - 1], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_next_token_is_read_back),
                                       cmocka_unit_test(test_rows_are_as_the_format_has_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
