/* Linear layers against sums in double precision, on both sides of the choice between matrix-vector kernels and the GEMM library. */
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cpu/linear.h"
#include "base/half.h"
#include "base/memory.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COLUMNS = 512 };

static uint32_t random_state = 1;
static uint32_t next_random(void) { return random_state = random_state * 1664525u + 1013904223u; }
static float uniform(void) { return (float)(next_random() >> 8) / (1 << 23) - 1; }

/* A matrix of random codes, whose blocks get modest scales. */
static struct matrix new_matrix(enum tensor_type type, uint32_t rows) {
    size_t row_bytes = (size_t)COLUMNS / tensor_type_info(type)->block * tensor_type_info(type)->bytes;
    uint8_t *data = memory_array(rows, row_bytes);
    assert_non_null(data);
    if (type == TENSOR_F32)
        for (size_t i = 0; i < (size_t)rows * COLUMNS; i++) ((float *)(void *)data)[i] = uniform();
    else
        for (size_t i = 0; i < rows * row_bytes; i += tensor_type_info(type)->bytes) {
            uint16_t scale = half_from_float(uniform() / 64);
            for (size_t j = 0; j < tensor_type_info(type)->bytes; j++) data[i + j] = (uint8_t)(next_random() >> 24);
            memcpy(data + i + (type == TENSOR_Q6_K ? 208 : 0), &scale, 2);
            if (type == TENSOR_Q4_K) memcpy(data + i + 2, &scale, 2);
        }
    return (struct matrix){data, type, rows, COLUMNS, row_bytes, NULL};
}

static void check_product(const struct linear_op *p, const float *x, size_t n) {
    float row[COLUMNS];
    for (uint32_t r = 0; r < p->w->rows; r++) {
        weights_ops()->dequantize[p->w->type]((const char *)p->w->data + r * p->w->row_bytes, row, COLUMNS);
        for (size_t t = 0; t < n; t++) {
            double sum = p->w->bias ? (double)p->w->bias[r] : 0, size = fabs(sum), weights = 0;
            for (size_t i = 0; i < COLUMNS; i++) {
                sum += (double)row[i] * (double)x[t * COLUMNS + i];
                size += fabs((double)row[i] * (double)x[t * COLUMNS + i]);
                weights += fabs((double)row[i]); /* x is at most 1, and fixed point for few tokens */
            }
            double error = fabs((double)p->out[t * p->w->rows + r] - sum);
            double fixed = p->w->type == TENSOR_Q4_K ? 1.0 / 253 : 0x1p-15;
            if (!(error <= 1e-5 * size + fixed * weights + 1e-30)) fail_msg("row %u of token %zu is off by %g", r, t, error);
        }
    }
}

/* `types`: of three products that share their input. */
static void check_products(const enum tensor_type types[3]) {
    static const size_t counts[] = {1, 2, 5, 6, 7, 11, 12, 16, 33};
    const uint32_t rows[3] = {1, 257, 64};
    struct matrix w[3];
    float bias[257];
    size_t floats = 0;
    for (int i = 0; i < 3; i++) {
        w[i] = new_matrix(types[i], rows[i]);
        if (linear_scratch(&w[i], 3) > floats) floats = linear_scratch(&w[i], 3);
    }
    for (int i = 0; i < 257; i++) bias[i] = uniform();
    w[1].bias = bias;
    float *scratch = memory_array(floats, sizeof *scratch);
    for (int threads = 1; threads <= 3; threads += 2) {
        omp_set_num_threads(threads);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            size_t n = counts[c];
            struct linear_op products[3];
            float *x = memory_array(n * COLUMNS, sizeof *x);
            for (size_t i = 0; i < n * COLUMNS; i++) x[i] = uniform();
            for (int i = 0; i < 3; i++) products[i] = (struct linear_op){&w[i], memory_array(n * rows[i], sizeof(float))};
            linear(products, 3, x, n, scratch);
            for (int i = 0; i < 3; i++) {
                check_product(&products[i], x, n);
                memory_free(products[i].out);
            }
            memory_free(x);
        }
    }
    memory_free(scratch);
    for (int i = 0; i < 3; i++) memory_free((void *)w[i].data);
}

static void test_products(void **state) {
    (void)state;
    check_products((const enum tensor_type[]){TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0});
}

static void test_products_of_several_types(void **state) {
    (void)state;
    check_products((const enum tensor_type[]){TENSOR_Q8_0, TENSOR_F32, TENSOR_Q8_0});
    check_products((const enum tensor_type[]){TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0}); /* inputs in forms of different lengths */
    check_products((const enum tensor_type[]){TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_K});
    check_products((const enum tensor_type[]){TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q6_K});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_products_of_several_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
