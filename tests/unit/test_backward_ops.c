/* Gradients of single operations, where the tiny models of test_backward.c do not reach: quantized weights, several tiles, wide heads, extreme
 * numbers. */
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/rows.h"
#include "base/half.h"
#include "base/memory.h"
#include "train/backward_attention.h"
#include "train/backward_ops.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 1;
static uint32_t next_random(void) { return (random_state = random_state * 1664525u + 1013904223u) >> 8; }
static float uniform(void) { return (float)next_random() / (1 << 23) - 1; }

static void check_linear_backward(enum tensor_type type, uint32_t rows, uint32_t columns, size_t n, bool accumulate) {
    size_t row_bytes = (size_t)columns / tensor_type_info(type)->block * tensor_type_info(type)->bytes;
    uint8_t *data = memory_array(rows, row_bytes);
    struct matrix w = {data, type, rows, columns, row_bytes, NULL};
    float *dy = memory_array(n * rows, sizeof *dy), *dx = memory_array(n * columns, sizeof *dx);
    float *plain = memory_array((size_t)rows * columns, sizeof *plain);
    float *scratch = memory_array(linear_backward_scratch(&w), sizeof *scratch);
    assert_true(data && dy && dx && plain && scratch);
    if (type == TENSOR_F32)
        for (size_t i = 0; i < (size_t)rows * columns; i++) ((float *)(void *)data)[i] = uniform();
    else
        for (size_t i = 0; i < rows * row_bytes; i += 34) {
            uint16_t scale = half_from_float(uniform() / 64);
            memcpy(data + i, &scale, 2);
            for (size_t j = 2; j < 34; j++) data[i + j] = (uint8_t)next_random();
        }
    for (uint32_t r = 0; r < rows; r++) weights_ops()->dequantize[type](data + r * row_bytes, plain + (size_t)r * columns, columns);
    for (size_t i = 0; i < n * rows; i++) dy[i] = uniform();
    for (size_t i = 0; i < n * columns; i++) dx[i] = accumulate ? 0.5f : NAN;
    linear_backward(&w, dy, n, accumulate, dx, scratch);
    for (size_t t = 0; t < n; t += 1 + n / 20) {
        for (uint32_t c = 0; c < columns; c += 1 + columns / 60) {
            double sum = accumulate ? 0.5 : 0, size = fabs(sum);
            for (uint32_t r = 0; r < rows; r++) {
                double term = (double)dy[t * rows + r] * (double)plain[(size_t)r * columns + c];
                sum += term;
                size += fabs(term);
            }
            double apart = fabs((double)dx[t * columns + c] - sum);
            if (!(apart <= 1e-5 * size))
                fail_msg("type %d, %ux%u, token %zu, column %u: off by %g", type, rows, columns, t, c, apart);
        }
    }
    void *all[] = {data, dy, dx, plain, scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
}

static void test_linear_backward(void **state) {
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        check_linear_backward(TENSOR_Q8_0, 1100, 1056, 200, accumulate);
        check_linear_backward(TENSOR_Q8_0, 64, 32, 3, accumulate);
        check_linear_backward(TENSOR_F32, 520, 96, 129, accumulate);
    }
}

static void test_silu_backward(void **state) {
    (void)state;
    enum { N = 600 };
    float gate[N], up[N], d[N];
    double d_gate[N], d_up[N];
    for (size_t i = 0; i < N; i++) {
        gate[i] = i % 7 == 0 ? uniform() * 1e4f : uniform() * 12;
        up[i] = uniform();
        d[i] = uniform();
        double x = (double)gate[i], s = 1 / (1 + exp(-x));
        d_gate[i] = (double)d[i] * (double)up[i] * (s + x * s * (1 - s));
        d_up[i] = (double)d[i] * x * s;
    }
    activation_backward(ACTIVATION_SWIGLU, gate, up, d, 2, N / 2);
    for (size_t i = 0; i < N; i++) {
        assert_true(fabs((double)gate[i] - d_gate[i]) <= 1e-5 * fabs(d_gate[i]) + 1e-6);
        assert_true(fabs((double)up[i] - d_up[i]) <= 1e-5 * fabs(d_up[i]) + 1e-6);
    }
}

/* s of gelu.h */
static double share_of_gelu(enum activation activation, double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return activation == ACTIVATION_GELU ? erfc(-x * M_SQRT1_2) / 2 : 1 / (1 + exp(-2 * u));
}

static double slope_of_gelu(enum activation activation, double x) {
    double s = share_of_gelu(activation, x), du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return s + x * (activation == ACTIVATION_GELU ? exp(-x * x / 2) / sqrt(2 * M_PI) : 2 * s * (1 - s) * du);
}

/* Inputs of every size, among them such that exponentials overflow or vanish; rows of 2 pieces and a rest. */
static void test_gelu(void **state) {
    (void)state;
    enum { ROWS = 9, WIDTH = 601, N = ROWS * WIDTH };
    static float x[N], y[N], d[N];
    for (int exact = 0; exact < 2; exact++) {
        enum activation activation = exact ? ACTIVATION_GELU : ACTIVATION_GELU_TANH;
        for (size_t i = 0; i < N; i++) {
            y[i] = x[i] = uniform() * (i % 5 == 0 ? 60 : i % 7 == 0 ? 1e-4f : 6);
            d[i] = uniform();
        }
        activate_rows(activation, y, NULL, ROWS, WIDTH);
        for (size_t i = 0; i < N; i++) {
            double v = (double)x[i], expected = v * share_of_gelu(activation, v);
            if (!(fabs((double)y[i] - expected) <= 3e-7 * fabs(v)))
                fail_msg("GELU of %.9g: %.9g, not %.9g", v, (double)y[i], expected);
            y[i] = x[i];
        }
        activation_backward(activation, y, NULL, d, ROWS, WIDTH);
        for (size_t i = 0; i < N; i++) {
            double v = (double)x[i], expected = (double)d[i] * slope_of_gelu(activation, v);
            if (!(fabs((double)y[i] - expected) <= 1e-6 * fabs((double)d[i])))
                fail_msg("slope of GELU at %.9g: %.9g, not %.9g", v, (double)y[i], expected);
        }
    }
}

/* The slopes of GELU(gate) up, each of them by itself. */
static void test_geglu_backward(void **state) {
    (void)state;
    enum { N = 600 };
    float gate[N], up[N], d[N];
    double d_gate[N], d_up[N];
    for (size_t i = 0; i < N; i++) {
        gate[i] = uniform() * (i % 7 == 0 ? 40 : 5);
        up[i] = uniform();
        d[i] = uniform();
        d_gate[i] = (double)d[i] * (double)up[i] * slope_of_gelu(ACTIVATION_GELU_TANH, (double)gate[i]);
        d_up[i] = (double)d[i] * (double)gate[i] * share_of_gelu(ACTIVATION_GELU_TANH, (double)gate[i]);
    }
    activation_backward(ACTIVATION_GEGLU, gate, up, d, 2, N / 2);
    for (size_t i = 0; i < N; i++) {
        assert_true(fabs((double)gate[i] - d_gate[i]) <= 2e-6);
        assert_true(fabs((double)up[i] - d_up[i]) <= 1e-6 * fabs(d_up[i]) + 1e-7);
    }
}

static void test_cap_backward(void **state) {
    (void)state;
    enum { ROWS = 9, WIDTH = 300 };
    static float x[ROWS * WIDTH], d[ROWS * WIDTH], dx[ROWS * WIDTH];
    double slope[ROWS * WIDTH];
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++) {
        x[i] = uniform() * (i % 3 ? 60 : 1e4f);
        dx[i] = d[i] = uniform();
        double t = tanh((double)x[i] / 30);
        slope[i] = 1 - t * t;
    }
    cap_rows(x, 30, ROWS, WIDTH);
    cap_backward(x, 30, dx, ROWS, WIDTH);
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
        assert_true(fabs((double)dx[i] - (double)d[i] * slope[i]) <= 1e-6 * fabs((double)d[i]));
}

/* sum of d_out out of attention in double precision, over queries, keys and values x. */
static double attended_sum(const struct attention *a, const double *const x[3], const double *d_out) {
    size_t hd = a->head_dim, group = a->query_heads / a->kv_heads;
    double sum = 0, *logits = calloc(a->n, sizeof *logits);
    assert_non_null(logits);
    for (size_t row = 0; row < a->n * a->query_heads; row++) {
        size_t t = row / a->query_heads, head = row % a->query_heads / group, first = t >= a->window ? t + 1 - a->window : 0;
        double all = 0, along = 0;
        for (size_t j = first; j <= t; j++) {
            const double *k = x[1] + (j * a->kv_heads + head) * hd, *v = x[2] + (j * a->kv_heads + head) * hd;
            double product = 0, value = 0;
            for (size_t c = 0; c < hd; c++) {
                product += x[0][row * hd + c] * k[c];
                value += d_out[row * hd + c] * v[c];
            }
            double weight = exp((double)a->cap * tanh((double)a->scale * product / (double)a->cap));
            all += weight;
            along += weight * value;
        }
        sum += along / all;
    }
    free(logits);
    return sum;
}

/* Heads of 256 channels, a scale that is not theirs, logits far into the cap, a window that cuts a tile of keys (384). */
static void test_wide_capped_attention(void **state) {
    (void)state;
    enum { N = 420, HQ = 2, HK = 1, HD = 256, WINDOW = 401, Q = N * HQ * HD, KV = N * HK * HD };
    float *q = malloc(Q * sizeof *q), *k = malloc(KV * sizeof *k), *v = malloc(KV * sizeof *v), *out = malloc(Q * sizeof *out);
    float *d_out = malloc(Q * sizeof *d_out), *dk = malloc(KV * sizeof *dk), *dv = malloc(KV * sizeof *dv), log_sum[N * HQ];
    double *x[3] = {malloc(Q * sizeof **x), malloc(KV * sizeof **x), malloc(KV * sizeof **x)}, *d = malloc(Q * sizeof *d);
    assert_true(q && k && v && out && d_out && dk && dv && x[0] && x[1] && x[2] && d);
    struct attention a = {HQ, HK, HD, N, 0.3f, 5, NULL, NULL, WINDOW, q, k, v};
    uint32_t threads = (uint32_t)omp_get_max_threads();
    for (size_t i = 0; i < Q; i++) x[0][i] = (double)(q[i] = uniform()), d[i] = (double)(d_out[i] = uniform());
    for (size_t i = 0; i < KV; i++) x[1][i] = (double)(k[i] = uniform()), x[2][i] = (double)(v[i] = uniform());
    float *scratch = memory_array(attention_scratch(&a, threads), sizeof *scratch);
    assert_non_null(scratch);
    attention_forward(&a, out, log_sum, threads, scratch);
    attention_backward(&a, out, log_sum, d_out, dk, dv, true, threads, scratch);
    const float *gradients[3] = {q, dk, dv};
    for (int of = 0; of < 3; of++) {
        double size = 0;
        for (size_t i = 0; i < (of ? KV : Q); i++) size = fmax(size, fabs((double)gradients[of][i]));
        for (int sample = 0; sample < 6; sample++) {
            size_t at = next_random() % (of ? KV : Q);
            double before = x[of][at], sum[2];
            for (int up = 0; up < 2; up++) {
                x[of][at] = before + (up ? 1e-4 : -1e-4);
                sum[up] = attended_sum(&a, (const double *const *)x, d);
            }
            x[of][at] = before;
            double slope = (sum[1] - sum[0]) / 2e-4, apart = fabs((double)gradients[of][at] - slope);
            if (!(apart <= 2e-5 * size))
                fail_msg("%d, %zu: %g, not %g; the largest is %g", of, at, (double)gradients[of][at], slope, size);
        }
    }
    memory_free(scratch);
    void *all[] = {q, k, v, out, d_out, dk, dv, x[0], x[1], x[2], d};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* sum_i dy_i y_i of a norm in double precision. */
static double normed_sum(const struct norm *norm, size_t row, const double *x, const float *dy, size_t width) {
    const float *gain = norm->gain + (norm->heads ? row % norm->heads * width : 0);
    double mean = 0, square = 0, sum = 0;
    for (size_t i = 0; i < width && norm->kind == NORM_LAYER; i++) mean += x[i] / (double)width;
    for (size_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean) / (double)width;
    for (size_t i = 0; i < width; i++)
        sum += (double)dy[i] * ((double)gain[i] * (x[i] - mean) / sqrt(square + (double)norm->epsilon) + (double)norm->bias[i]);
    return sum;
}

/* Against central differences, also where the mean is much larger than what is left without it, and where heads have gains of their own. */
static void test_norm_backward(void **state) {
    (void)state;
    enum { WIDTH = 530, ROWS = 2 };
    float gain[ROWS * WIDTH], bias[WIDTH], x[ROWS * WIDTH], dy[ROWS * WIDTH], dx[ROWS * WIDTH];
    double moved[WIDTH];
    for (int kind = 0; kind < 4; kind++) {
        struct norm norm = {kind % 2 ? NORM_LAYER : NORM_RMS, 1e-5f, gain, bias, kind < 2 ? 0 : ROWS};
        for (size_t i = 0; i < ROWS * WIDTH; i++) gain[i] = 1 + uniform();
        for (size_t i = 0; i < WIDTH; i++) bias[i] = uniform();
        for (size_t i = 0; i < ROWS * WIDTH; i++) {
            x[i] = uniform() + (i < WIDTH ? 0 : 50);
            dx[i] = dy[i] = uniform();
        }
        norm_backward(&norm, x, dx, ROWS, WIDTH);
        for (size_t row = 0; row < ROWS; row++) {
            for (size_t i = 0; i < WIDTH; i++) moved[i] = (double)x[row * WIDTH + i];
            for (size_t i = 0; i < WIDTH; i += 13) {
                double at = moved[i], sum[2];
                for (int up = 0; up < 2; up++) {
                    moved[i] = at + (up ? 1e-5 : -1e-5);
                    sum[up] = normed_sum(&norm, row, moved, dy + row * WIDTH, WIDTH);
                }
                moved[i] = at;
                double slope = (sum[1] - sum[0]) / 2e-5, apart = fabs((double)dx[row * WIDTH + i] - slope);
                if (!(apart <= 1e-5))
                    fail_msg("norm %d, row %zu, %zu: %g, not %g", kind, row, i, (double)dx[row * WIDTH + i], slope);
            }
        }
    }
}

static void test_cross_entropy_backward(void **state) {
    (void)state;
    enum { VOCABULARY = 50, N = 20 };
    float logits[N * VOCABULARY];
    double before[N * VOCABULARY], loss[N];
    int32_t targets[N];
    for (size_t i = 0; i < (size_t)N * VOCABULARY; i++) before[i] = (double)(logits[i] = uniform() * (i < 500 ? 5e4f : 3));
    for (size_t t = 0; t < N; t++) targets[t] = (int32_t)(next_random() % VOCABULARY);
    cross_entropy_backward(logits, &(struct targets){targets, 0}, N, VOCABULARY, 0.25f, loss);
    for (size_t t = 0; t < N; t++) {
        const double *row = before + t * VOCABULARY;
        double max = -INFINITY, sum = 0;
        for (size_t i = 0; i < VOCABULARY; i++) max = fmax(max, row[i]);
        for (size_t i = 0; i < VOCABULARY; i++) sum += exp(row[i] - max);
        double expected = max + log(sum) - row[targets[t]];
        assert_true(fabs(loss[t] - expected) <= 1e-6 * expected + 1e-6);
        for (size_t i = 0; i < VOCABULARY; i++) {
            double gradient = 0.25 * (exp(row[i] - max) / sum - (i == (size_t)targets[t]));
            assert_true(fabs((double)logits[t * VOCABULARY + i] - gradient) <= 1e-6);
        }
    }
}

/* Labels are drawn as often as the softmax says, and loss and gradient are theirs. */
static void test_drawn_labels(void **state) {
    (void)state;
    enum { VOCABULARY = 5, N = 20000 };
    static float logits[N * VOCABULARY];
    static double loss[N];
    const double probabilities[VOCABULARY] = {0.5, 0.3, 0.15, 0.05, 0};
    size_t drawn[VOCABULARY] = {0};
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < VOCABULARY; i++) logits[t * VOCABULARY + i] = (float)log(probabilities[i]) + 3; /* -inf too */
    cross_entropy_backward(logits, &(struct targets){NULL, 7}, N, VOCABULARY, 1, loss);
    for (size_t t = 0; t < N; t++) {
        const float *row = logits + t * VOCABULARY;
        size_t label = 0;
        for (size_t i = 0; i < VOCABULARY; i++)
            if (row[i] < 0) label = i;
        drawn[label]++;
        assert_true(fabs(loss[t] + log(probabilities[label])) <= 1e-5);
        for (size_t i = 0; i < VOCABULARY; i++) assert_true(fabs((double)row[i] - probabilities[i] + (i == label)) <= 1e-6);
    }
    for (size_t i = 0; i < VOCABULARY; i++) {
        double expected = N * probabilities[i];
        assert_true(fabs((double)drawn[i] - expected) <= 5 * sqrt(expected));
    }
    for (size_t t = 0; t < 100; t++) /* a row's draw does not depend on the rows beside it */
        for (size_t i = 0; i < VOCABULARY; i++) logits[t * VOCABULARY + i] = (float)log(probabilities[i]) + 3;
    double single[100];
    cross_entropy_backward(logits, &(struct targets){NULL, 7}, 100, VOCABULARY, 1, single);
    assert_memory_equal(single, loss, sizeof single);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_backward),
        cmocka_unit_test(test_silu_backward),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_geglu_backward),
        cmocka_unit_test(test_cap_backward),
        cmocka_unit_test(test_wide_capped_attention),
        cmocka_unit_test(test_norm_backward),
        cmocka_unit_test(test_cross_entropy_backward),
        cmocka_unit_test(test_drawn_labels),
    };
    return cmocka_run_group_tests_name("backward_ops", tests, NULL, NULL);
}
