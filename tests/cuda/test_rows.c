/* Norms, activation functions and the like against the CPU's. */
#include "backend/cpu/rows.h"
#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"
#include "base/memory.h"
#include "no_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 9, WIDTH = 1000, PADDED = 1024, HEAD = 96 };

static uint32_t random_state = 1;
static float uniform(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1;
}

static float x[ROWS * WIDTH], factor[ROWS * WIDTH], gain[WIDTH], bias[WIDTH], want[ROWS * WIDTH], got[ROWS * WIDTH];

static float *on_device(const float *from, size_t n) {
    float *memory;
    assert_int_equal(cudaMalloc((void **)&memory, n * sizeof *memory), cudaSuccess);
    assert_int_equal(device_send(memory, from, n * sizeof *memory), cudaSuccess);
    return memory;
}

static void read_back(const float *from, size_t n) { assert_int_equal(device_fetch(got, from, n * sizeof *got), cudaSuccess); }

static int fill(void **state) {
    (void)state;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = uniform() * (i % 7 ? 3 : 12);
        factor[i] = uniform();
    }
    for (int i = 0; i < WIDTH; i++) {
        gain[i] = 1 + uniform();
        bias[i] = uniform();
    }
    return 0;
}

static void compare(const char *what, size_t n, double bound) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * (1 + fabs((double)want[i]))))
            fail_msg("%s: number %zu is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

/* Applies the form to x and writes the sum of its thirds to `got`. */
static void prepare(struct row_form form) {
    static uint16_t thirds[3][PADDED / 32][EACH_ROWS][32];
    static const int place[8] = {0, 2, 1, 3, 8, 10, 9, 11}; /* of the numbers 0 to 7 of a group; 16 numbers further on, 4 places */
    float *from = on_device(x, ROWS * WIDTH), *with = on_device(factor, ROWS * WIDTH);
    struct device_vectors to = {0};
    assert_int_equal(cudaMalloc(&to.thirds, sizeof thirds), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(to.thirds, 0, sizeof thirds, device_stream()), cudaSuccess); /* rows from ROWS on stay so */
    assert_int_equal(rows_prepare(form, from, with, ROWS, WIDTH, &to, device_stream()), cudaSuccess);
    assert_int_equal(device_fetch(thirds, to.thirds, sizeof thirds), cudaSuccess);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < PADDED; i++) {
            float sum = 0;
            for (int third = 3; third-- > 0;) {
                uint32_t bits = (uint32_t)thirds[third][i / 32][row][place[i % 8] + i % 16 / 8 * 16 + i % 32 / 16 * 4] << 16;
                float number;
                memcpy(&number, &bits, sizeof number);
                sum += number;
            }
            if (i < WIDTH) got[row * WIDTH + i] = sum;
            if (i >= WIDTH) assert_float_equal(sum, 0, 0);
        }
    cudaFree(from);
    cudaFree(with);
    cudaFree(to.thirds);
}

static void norms(void **state) {
    (void)state;
    float *device_gain = on_device(gain, WIDTH), *device_bias = on_device(bias, WIDTH);
    for (int kind = 0; kind < 2; kind++)
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            struct norm norm = {
                .kind = kind ? NORM_LAYER : NORM_RMS, .epsilon = 1e-5f, .gain = gain, .bias = with_bias ? bias : NULL};
            norm_rows(&norm, x, want, ROWS, WIDTH);
            norm.gain = device_gain;
            norm.bias = with_bias ? device_bias : NULL;
            prepare((struct row_form){.kind = ROW_NORM, .norm = norm});
            compare("a norm", ROWS * WIDTH, 2e-6);
        }
    cudaFree(device_gain);
    cudaFree(device_bias);
}

static void activations(void **state) {
    (void)state;
    static const enum activation all[] = {ACTIVATION_SWIGLU, ACTIVATION_GELU_TANH, ACTIVATION_GELU, ACTIVATION_GEGLU};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        memcpy(want, x, sizeof want);
        activate_rows(all[i], want, factor, ROWS, WIDTH);
        prepare((struct row_form){.kind = ROW_ACTIVATION, .activation = all[i]});
        compare("an activation function", ROWS * WIDTH, 2e-6);
    }
}

static void heads(void **state) {
    (void)state;
    enum { N = 37 };
    float *device_gain = on_device(gain, 3 * HEAD);
    for (int clamped = 0; clamped < 2; clamped++) {
        struct norm norm = {.kind = NORM_RMS, .epsilon = 1e-6f, .gain = gain, .heads = clamped ? 0 : 3};
        float *rows = on_device(x, N * HEAD);
        memcpy(want, x, N * HEAD * sizeof *x);
        if (clamped) clamp_rows(want, 2, N, HEAD);
        norm_rows(&norm, want, want, N, HEAD);
        norm.gain = device_gain;
        assert_int_equal(rows_norm(norm, rows, N, HEAD, clamped ? 2 : 0, device_stream()), cudaSuccess);
        read_back(rows, N * HEAD);
        compare("a head's norm", N * HEAD, 2e-6);
        cudaFree(rows);
    }
    cudaFree(device_gain);
}

static void norms_are_added(void **state) {
    (void)state;
    float *device_gain = on_device(gain, WIDTH), *device_bias = on_device(bias, WIDTH), *from = on_device(x, ROWS * WIDTH);
    for (uint32_t width = WIDTH; width >= WIDTH - 1; width--) { /* whole quads, or not */
        const uint32_t n = ROWS * WIDTH / width;
        struct norm norm = {.kind = NORM_LAYER, .epsilon = 1e-5f, .gain = gain, .bias = bias};
        float *to = on_device(factor, ROWS * WIDTH);
        norm_rows(&norm, x, want, n, width);
        add_rows(want, factor, n, width);
        norm.gain = device_gain;
        norm.bias = device_bias;
        assert_int_equal(rows_add_norm(norm, from, n, width, to, device_stream()), cudaSuccess);
        read_back(to, n * width);
        compare("a norm that is added", n * width, 2e-6);
        cudaFree(to);
    }
    cudaFree(device_gain);
    cudaFree(device_bias);
    cudaFree(from);
}

static void changes(void **state) {
    (void)state;
    static const char *const names[] = {"a clamp", "a cap", "a factor"};
    for (int i = 0; i < 3; i++) {
        float *rows = on_device(x, ROWS * WIDTH);
        memcpy(want, x, sizeof want);
        if (i == 0) clamp_rows(want, 1.5f, ROWS, WIDTH);
        if (i == 1) cap_rows(want, 2.5f, ROWS, WIDTH);
        for (size_t at = 0; i == 2 && at < ROWS * WIDTH; at++) want[at] *= 1.25f;
        const size_t n = ROWS * WIDTH;
        const cudaError_t result = i == 0   ? rows_clamp(rows, 1.5f, n, device_stream())
                                   : i == 1 ? rows_cap(rows, 2.5f, n, device_stream())
                                            : rows_scale(rows, 1.25f, n, device_stream());
        assert_int_equal(result, cudaSuccess);
        read_back(rows, n);
        compare(names[i], n, i == 1 ? 1e-6 : 0);
        cudaFree(rows);
    }
}

static void finishing_and_picking(void **state) {
    (void)state;
    static const uint32_t ids[] = {8, 0, 3, 3};
    const float sizes[ROWS] = {1, 2, 0.5f, 4, 1, 1, 8, 0.25f, 1};
    float *y = on_device(x, ROWS * WIDTH), *to = on_device(factor, ROWS * WIDTH), *device_sizes = on_device(sizes, ROWS),
          *device_bias = on_device(bias, WIDTH), *device_ids = on_device((const float *)(const void *)ids, 4);
    assert_int_equal(rows_finish(y, ROWS, WIDTH, WIDTH, device_sizes, device_bias, to, WIDTH, true, device_stream()), cudaSuccess);
    for (int i = 0; i < ROWS * WIDTH; i++) want[i] = factor[i] + (x[i] * sizes[i / WIDTH] + bias[i % WIDTH]);
    read_back(to, ROWS * WIDTH);
    compare("a product's end", ROWS * WIDTH, 1e-6);
    assert_int_equal(rows_pick(y, (const uint32_t *)(const void *)device_ids, 4, WIDTH, to, device_stream()), cudaSuccess);
    for (int i = 0; i < 4; i++) memcpy(want + i * WIDTH, x + ids[i] * WIDTH, WIDTH * sizeof *x);
    read_back(to, 4 * WIDTH);
    compare("picked rows", 4 * WIDTH, 0);
    float *all[] = {y, to, device_sizes, device_bias, device_ids};
    for (int i = 0; i < 5; i++) cudaFree(all[i]);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms),   cmocka_unit_test(activations),
                                       cmocka_unit_test(heads),   cmocka_unit_test(norms_are_added),
                                       cmocka_unit_test(changes), cmocka_unit_test(finishing_and_picking)};
    return cmocka_run_group_tests(tests, fill, NULL);
}
