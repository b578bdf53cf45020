/* The learned encoder that the search is compared with: every gradient against central differences, both losses, training that is
 * reproducible and lowers the loss, and codes that need no noise. */
#include "support/encoder.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { D = 12, CODES = 16, H = 10, N = 9 };

static struct random source = {21};

/* Errors are multiplied by a matrix, as values are by attention weights: half |A e|^2. */
static double accumulated(void *user, const float *errors, size_t n, float *gradient) {
    const float *A = user;
    double loss = 0;
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < D; c++) {
            double sum = 0;
            for (size_t s = 0; s < n; s++) sum += (double)A[t * n + s] * (double)errors[s * D + c];
            loss += 0.5 * sum * sum;
            for (size_t s = 0; s < n; s++) gradient[s * D + c] += (float)(sum * (double)A[t * n + s]);
        }
    }
    return loss;
}

static struct encoder *make(float *rows, float *weights, float *A) {
    float scale[D];
    for (size_t c = 0; c < D; c++) scale[c] = 0.5f + (float)c / D;
    fill_floats(&source, FILL_NORMAL, rows, N * D);
    for (size_t i = 0; i < N; i++) weights[i] = (float)random_unit(&source);
    for (size_t i = 0; i < N * N; i++) A[i] = (float)random_unit(&source) / N;
    struct encoder *e = encoder_new(D, CODES, H, scale, NULL, 3);
    assert_non_null(e);
    size_t n;
    float *numbers = encoder_numbers(e, &n);
    for (size_t i = 0; i < n; i++) numbers[i] += 0.1f * random_normal(&source); /* gains and biases too */
    return e;
}

static void gradients_are_central_differences(void **state) {
    (void)state;
    float rows[N * D], weights[N], A[N * N], gradient[2000];
    struct encoder *e = make(rows, weights, A);
    size_t n;
    float *numbers = encoder_numbers(e, &n);
    assert_true(n <= 2000);
    for (int kind = 0; kind < 3; kind++) {
        struct encoder_batch batch = {rows, N, kind ? weights : NULL, kind == 2 ? 77 : 0, kind == 1 ? accumulated : NULL, A};
        double largest = 0, worst = 0;
        encoder_loss(e, &batch, ENCODER_SOFT);
        memcpy(gradient, encoder_gradient(e), n * sizeof *gradient);
        for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)gradient[i]));
        for (size_t i = 0; i < n; i++) {
            const float step = 4e-3f, kept = numbers[i];
            numbers[i] = kept + step;
            double more = encoder_loss(e, &batch, ENCODER_SOFT), up = (double)numbers[i];
            numbers[i] = kept - step;
            double less = encoder_loss(e, &batch, ENCODER_SOFT), down = (double)numbers[i];
            numbers[i] = kept;
            worst = fmax(worst, fabs((more - less) / (up - down) - (double)gradient[i]));
        }
        assert_true(largest > 1e-3 && worst <= 1e-3 * largest);
    }
    encoder_free(e);
}

/* Forward is hard: with the codebook's gradient that of the sums as they are, and the loss that of bits. */
static void straight_through_is_hard_forward(void **state) {
    (void)state;
    float rows[N * D], weights[N], A[N * N];
    struct encoder *e = make(rows, weights, A);
    struct encoder_batch batch = {rows, N, weights, 0, NULL, NULL};
    uint8_t bits[N * CODES / 8];
    double loss = encoder_loss(e, &batch, ENCODER_STRAIGHT), want = 0;
    const float *C = encoder_codebook(e);
    encoder_find(e, rows, N, bits);
    for (size_t r = 0; r < N; r++) {
        for (size_t c = 0; c < D; c++) {
            double x = (double)rows[r * D + c];
            for (size_t i = 0; i < CODES; i++)
                if (bits[(r * CODES + i) / 8] >> i % 8 & 1) x -= (double)C[i * D + c];
            want += 0.5 * (double)weights[r] * x * x / (N * D);
        }
    }
    assert_true(fabs(loss - want) <= 1e-5 * want);
    encoder_free(e);
}

static void training_lowers_the_loss_and_is_reproducible(void **state) {
    (void)state;
    enum { ROWS = 256, STEPS = 300 };
    float *rows = malloc(ROWS * D * sizeof *rows), scale[D], accumulate[3 * D], kept[4000];
    double first = 0, last = 0;
    fill_floats(&source, FILL_NORMAL, accumulate, 3 * D);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < D; c++) rows[r * D + c] = 0.2f * random_normal(&source);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t k = 0; k < 3; k++) {
            float x = random_normal(&source);
            for (size_t c = 0; c < D; c++) rows[r * D + c] += x * accumulate[k * D + c];
        }
    for (size_t c = 0; c < D; c++) scale[c] = 1;
    for (int repeat = 0; repeat < 2; repeat++) {
        struct encoder *e = encoder_new(D, CODES, 0, scale, NULL, 9);
        size_t n;
        float *numbers = encoder_numbers(e, &n);
        assert_true(n <= 4000 && encoder_network_numbers(e) == n - CODES * D + D);
        for (size_t step = 0; step < STEPS; step++) {
            struct encoder_batch batch = {rows, ROWS, NULL, step + 1, NULL, NULL};
            last = encoder_loss(e, &batch, ENCODER_STRAIGHT);
            if (!step) first = last;
            encoder_step(e, step, STEPS);
        }
        if (!repeat) memcpy(kept, numbers, n * sizeof *kept);
        assert_memory_equal(kept, numbers, n * sizeof *kept);
        encoder_free(e);
    }
    assert_true(last < 0.5 * first);
    free(rows);
}

static void odd_codes_are_refused(void **state) {
    (void)state;
    assert_null(encoder_new(D, 15, 0, (const float[D]){0}, NULL, 1));
    encoder_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_central_differences),
        cmocka_unit_test(straight_through_is_hard_forward),
        cmocka_unit_test(training_lowers_the_loss_and_is_reproducible),
        cmocka_unit_test(odd_codes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
