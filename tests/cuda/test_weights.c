/* Products with weights as they are stored, and with weights as halves, against sums in double precision of what the CPU takes the weights for;
 * rows of an embedding against the same, bit for bit. */
#include "backend/cpu/kernels/weights/ops.h"
#include "backend/cuda/device.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/weights.h"
#include "base/half.h"
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

#define MOST_ROWS 128 /* of x */

static uint32_t random_state = 1;
static uint32_t next_random(void) { return random_state = random_state * 1664525u + 1013904223u; }
static float uniform(void) { return (float)(next_random() >> 8) / (1 << 23) - 1; }

static void *on_device(const void *from, size_t bytes) {
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes ? bytes : 1), cudaSuccess);
    if (from) assert_int_equal(device_send(memory, from, bytes), cudaSuccess);
    return memory;
}

static void from_device(void *to, const void *from, size_t bytes) { assert_int_equal(device_fetch(to, from, bytes), cudaSuccess); }

/* A matrix of random codes, on the host and on the device. */
struct sample {
    struct matrix host;
    struct device_matrix device;
    float *numbers; /* [rows][columns] */
};

static void put_half(uint8_t *at, float x) {
    uint16_t half = half_from_float(x);
    memcpy(at, &half, 2);
}

/* Random bytes with modest scales where a block has them. */
static void fill_row(enum tensor_type type, uint8_t *row, uint32_t columns, size_t row_bytes) {
    const struct tensor_type_info *info = tensor_type_info(type);
    for (size_t i = 0; i < row_bytes; i++) row[i] = (uint8_t)(next_random() >> 24);
    for (uint32_t b = 0; b < columns / info->block; b++) {
        uint8_t *block = row + b * info->bytes;
        float scale = uniform() / 64;
        uint32_t bits;
        switch (type) {
        case TENSOR_F32: memcpy(block, &scale, 4); break;
        case TENSOR_F16: put_half(block, scale); break;
        case TENSOR_BF16:
            memcpy(&bits, &scale, 4);
            memcpy(block, (uint8_t *)&bits + 2, 2);
            break;
        case TENSOR_Q6_K: put_half(block + 208, scale / 32); break;
        case TENSOR_Q3_K: put_half(block + 108, scale / 32); break;
        case TENSOR_IQ4_XS: put_half(block, scale / 32); break;
        case TENSOR_MXFP4: block[0] = (uint8_t)(112 + block[0] % 8); break;
        case TENSOR_Q2_K:
            put_half(block + 80, scale);
            put_half(block + 82, uniform() / 64);
            break;
        case TENSOR_Q4_1:
        case TENSOR_Q5_1:
        case TENSOR_Q4_K:
        case TENSOR_Q5_K: put_half(block + 2, uniform() / 64); /* fall through */
        default: put_half(block, scale);
        }
    }
}

static struct sample sample_new(enum tensor_type type, uint32_t rows, uint32_t columns, bool bias) {
    const struct tensor_type_info *info = tensor_type_info(type);
    size_t row_bytes = (size_t)columns / info->block * info->bytes, bytes = rows * row_bytes;
    uint8_t *data = memory_array(bytes, 1);
    float *numbers = memory_array((size_t)rows * columns, sizeof *numbers),
          *biases = bias ? memory_array(rows, sizeof *biases) : NULL;
    for (uint32_t r = 0; r < rows; r++) {
        fill_row(type, data + r * row_bytes, columns, row_bytes);
        weights_ops()->dequantize[type](data + r * row_bytes, numbers + (size_t)r * columns, columns);
        if (bias) biases[r] = uniform();
    }
    struct sample s = {{data, type, rows, columns, row_bytes, biases}, {.type = type, .rows = rows, .columns = columns}, numbers};
    s.device.bytes = weights_bytes(type, rows, columns);
    s.device.data = on_device(NULL, s.device.bytes);
    assert_int_equal(cudaMemsetAsync(s.device.data, 0xff, s.device.bytes, device_stream()), cudaSuccess);
    if (bias) s.device.bias = on_device(biases, rows * sizeof *biases);
    void *staged = on_device(data, bytes);
    uint32_t first = rows > 32 ? 32 : rows; /* in two parts */
    assert_int_equal(weights_pack(&s.device, staged, row_bytes, 0, first, device_stream()), cudaSuccess);
    assert_int_equal(
        weights_pack(&s.device, (uint8_t *)staged + first * row_bytes, row_bytes, first, rows - first, device_stream()),
        cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(staged);
    return s;
}

static void sample_free(struct sample *s) {
    cudaFree(s->device.data);
    cudaFree(s->device.bias);
    memory_free((void *)s->host.data);
    memory_free((void *)s->host.bias);
    memory_free(s->numbers);
}

/* x on the device, in every form. */
static struct device_vectors vectors_new(const float *x, uint32_t n, uint32_t columns, bool each) {
    size_t padded = memory_round_up(columns, WIDTH_STEP);
    struct device_vectors v = {.sizes = on_device(NULL, MOST_ROWS * sizeof(float)),
                               .halves = on_device(NULL, n * memory_round_up(columns, 32) * 2)};
    if (each) {
        const size_t apart = ROWS_APART(n);
        v.high = on_device(NULL, padded * apart * 2);
        v.low = on_device(NULL, padded * apart * 2);
        v.sums = on_device(NULL, padded / 32 * GROUP_SUMS * apart * sizeof(float));
        v.thirds = on_device(NULL, padded * apart * 3 * 2);
    }
    float *plain = on_device(x, (size_t)n * columns * sizeof *x);
    assert_int_equal(rows_prepare((struct row_form){.kind = ROW_PLAIN}, plain, NULL, n, columns, &v, device_stream()), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(plain);
    return v;
}

static void vectors_free(struct device_vectors *v) {
    void *all[] = {v->high, v->low, v->sums, v->thirds, v->halves, v->sizes};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) cudaFree(all[i]);
}

/* Checks a product, which may be off by `of_x` of each number of x and by the rounding of sums in single precision. */
static void check_product(const struct sample *s, const float *x, uint32_t n, const float *y, float before, double of_x,
                          const char *what) {
    /* Q2_K has the most sums in a row, 32 of 512 columns, each of which tensor cores cut off, and mins that come off them. */
    const double of_sums = s->host.type == TENSOR_Q2_K ? 4e-6 : 2e-6;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t r = 0; r < s->host.rows; r++) {
            double bias = s->host.bias ? (double)s->host.bias[r] : 0, sum = before + bias, size = fabs((double)before) + fabs(bias),
                   offset = 0;
            for (uint32_t i = 0; i < s->host.columns; i++) {
                double w = (double)s->numbers[(size_t)r * s->host.columns + i], number = (double)x[(size_t)t * s->host.columns + i];
                sum += w * number;
                size += fabs(w * number);
                offset += fabs(number);
            }
            /* codes are taken unsigned, their offset comes off the sum: with Q6_K 32 of |q| <= 32, with Q8_0 128, of which scales are below 1/64 */
            double bound = of_x * size + of_sums * (size + 2 * offset) + 1e-30,
                   off = fabs((double)y[(size_t)t * s->host.rows + r] - sum);
            if (!(off <= bound))
                fail_msg("%s, %s, %u columns: row %u of vector %u of %u is %g, not %g: off by %g, %g allowed",
                         tensor_type_info(s->host.type)->name, what, s->host.columns, r, t, n,
                         (double)y[(size_t)t * s->host.rows + r], sum, off, bound);
        }
}

/* Rows of very different sizes, one of them of zeros. */
static float *vectors_of(uint32_t n, uint32_t columns) {
    float *x = memory_array((size_t)n * columns, sizeof *x);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < columns; i++)
            x[(size_t)t * columns + i] = t == 3 ? 0
                                                : uniform() * (i == 5 ? 100.f : 1) *
                                                      (t % 4 == 1   ? 1e6f
                                                       : t % 4 == 2 ? 1e-6f
                                                                    : 1);
    return x;
}

static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_F16,    TENSOR_BF16,   TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                         TENSOR_Q5_1, TENSOR_Q8_0,   TENSOR_Q4_K,   TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_Q2_K,
                                         TENSOR_Q3_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4};
enum { N_TYPES = sizeof types / sizeof types[0], OTHER_TYPES = 11 };

/* Returns whether a number of rows is tried. In emulation the last types, which share most of their code with others, take some numbers alone. */
static bool tries(int type, uint32_t n) {
#ifdef TERSE_EMULATED_CUDA
    return type < OTHER_TYPES || n == 1 || n == 7 || n == EACH_ROWS;
#else
    (void)type, (void)n;
    return true;
#endif
}

static const uint32_t widths[] = {48, 96, 512, 2304};

static bool fits(enum tensor_type type, uint32_t columns) { return columns % tensor_type_info(type)->block == 0; }

static void every_type_that_the_cpu_reads_is_multiplied(void **state) {
    (void)state;
    for (int type = 0; type < TENSOR_TYPES; type++)
        assert_true(!weights_ops()->dequantize[type] == !weights_bytes((enum tensor_type)type, 1, 1));
}

/* Two matrices of each type and one of another, each number of rows from 1 to 16; the result of a row is the same bits whatever
 * other rows there are. */
static void few_rows(void **state) {
    (void)state;
    for (int i = 0; i < N_TYPES; i++)
        for (size_t c = 0; c < sizeof widths / sizeof widths[0]; c++) {
            uint32_t columns = widths[c];
            if (!fits(types[i], columns)) continue;
            struct sample s[3] = {sample_new(types[i], 40, columns, true), sample_new(types[i], 5, columns, false),
                                  sample_new(TENSOR_F16, 33, columns, true)};
            float *x = vectors_of(EACH_ROWS, columns), first[40];
            for (uint32_t n = 1; n <= EACH_ROWS; n++) {
                if (!tries(i, n)) continue;
                struct device_vectors v = vectors_new(x, n, columns, true);
                struct device_product products[3];
                float y[EACH_ROWS * 40];
                for (int k = 0; k < 3; k++) {
                    for (size_t j = 0; j < EACH_ROWS * 40; j++) y[j] = 0.5f;
                    products[k] = (struct device_product){&s[k].device, on_device(y, sizeof y)};
                }
                bool add = n % 2 == 0;
                assert_int_equal(weights_each(products, 3, &v, n, add, device_stream()), cudaSuccess);
                const double parts[] = {[ONE_HALF] = 0x1p-11, [TWO_HALVES] = 0x1p-20, [THIRDS] = 0};
                double of_x = parts[weights_form(types[i])];
                for (int k = 0; k < 3; k++) {
                    from_device(y, products[k].out, sizeof y);
                    check_product(&s[k], x, n, y, add ? 0.5f : 0, k == 2 ? 0x1p-20 : of_x, "few rows");
                    if (k == 0 && n == 1) memcpy(first, y, sizeof first);
                    if (k == 0 && n > 1 && !add) assert_memory_equal(first, y, sizeof first);
                    for (size_t j = (size_t)n * s[k].host.rows; j < EACH_ROWS * 40; j++) assert_float_equal(y[j], 0.5, 0);
                    cudaFree(products[k].out);
                }
                vectors_free(&v);
            }
            memory_free(x);
            for (int k = 0; k < 3; k++) sample_free(&s[k]);
        }
}

/* Rows so long that not even the sums of 16 vectors fit a multiprocessor. */
static void long_rows(void **state) {
    (void)state;
    enum { COLUMNS = 40960, ROWS = 17 };
    struct sample s = sample_new(TENSOR_Q6_K, ROWS, COLUMNS, true);
    float *x = vectors_of(EACH_ROWS, COLUMNS), y[EACH_ROWS * ROWS], first[ROWS];
    void *out = on_device(NULL, sizeof y);
    for (uint32_t n = 1; n <= EACH_ROWS; n += EACH_ROWS - 1) {
        struct device_vectors v = vectors_new(x, n, COLUMNS, true);
        assert_int_equal(weights_each(&(struct device_product){&s.device, out}, 1, &v, n, false, device_stream()), cudaSuccess);
        from_device(y, out, (size_t)n * ROWS * sizeof *y);
        check_product(&s, x, n, y, 0, 0x1p-20, "long rows");
        if (n == 1) memcpy(first, y, sizeof first);
        assert_memory_equal(first, y, sizeof first);
        vectors_free(&v);
    }
    cudaFree(out);
    memory_free(x);
    sample_free(&s);
}

/* Multiplies rows of x as a step does: up to EACH_MOST in a call. out and more: [n][matrix's rows], 0.5 before. */
static void multiply_step(const struct sample s[2], const float *x, uint32_t n, bool add, float *out, float *more) {
    const uint32_t rows[2] = {s[0].host.rows, s[1].host.rows};
    float *const y[2] = {out, more}, *device[2];
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < (size_t)n * rows[k]; i++) y[k][i] = 0.5f;
        device[k] = on_device(y[k], (size_t)n * rows[k] * sizeof(float));
    }
    for (uint32_t first = 0; first < n; first += EACH_MOST) {
        const uint32_t count = n - first < EACH_MOST ? n - first : EACH_MOST, columns = s[0].host.columns;
        struct device_vectors v = vectors_new(x + (size_t)first * columns, count, columns, true);
        const struct device_product products[2] = {{&s[0].device, device[0] + (size_t)first * rows[0]},
                                                   {&s[1].device, device[1] + (size_t)first * rows[1]}};
        assert_int_equal(weights_each(products, 2, &v, count, add, device_stream()), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        vectors_free(&v);
    }
    for (int k = 0; k < 2; k++) {
        from_device(y[k], device[k], (size_t)n * rows[k] * sizeof(float));
        cudaFree(device[k]);
    }
}

/* Checks that each of so many rows of x has the bits that it has where `few` of them are multiplied at once, in products with a matrix
 * and with a second one of 5 rows. */
static void check_step(enum tensor_type type, uint32_t rows, uint32_t columns, uint32_t few, const uint32_t *counts,
                       size_t n_counts) {
    const uint32_t most = counts[n_counts - 1];
    struct sample s[2] = {sample_new(type, rows, columns, true), sample_new(type, 5, columns, false)};
    float *x = vectors_of(most, columns), *y[4];
    for (int i = 0; i < 4; i++) y[i] = memory_array((size_t)most * (i % 2 ? 5 : rows), sizeof(float));
    for (uint32_t t = 0; t < most; t += few)
        multiply_step(s, x + (size_t)t * columns, most - t < few ? most - t : few, false, y[0] + (size_t)t * rows,
                      y[1] + (size_t)t * 5);
    for (size_t c = 0; c < n_counts; c++) {
        const bool add = c % 2;
        multiply_step(s, x, counts[c], add, y[2], y[3]);
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < (size_t)counts[c] * s[k].host.rows; i++)
                if (y[2 + k][i] != (add ? 0.5f + y[k][i] : y[k][i]))
                    fail_msg("%s, %u x %u, %u rows of x: number %zu of product %d is %g, among fewer %g",
                             tensor_type_info(type)->name, rows, columns, counts[c], i, k, (double)y[2 + k][i], (double)y[k][i]);
    }
    for (int i = 0; i < 4; i++) memory_free(y[i]);
    memory_free(x);
    for (int k = 0; k < 2; k++) sample_free(&s[k]);
}

/* Returns rows of a matrix, so many for each multiprocessor: a unit is 16. */
static uint32_t units(uint32_t each) {
    int multiprocessors = 0;
    assert_int_equal(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    return each * 16 * (uint32_t)multiprocessors;
}

/* More rows than EACH_ROWS. A block of threads has one unit of 16 rows of the matrix, or several; more than it has warps; more than
 * have room at once; and rows so long that fewer vectors are multiplied at once. */
static void rows_of_a_step(void **state) {
    (void)state;
    static const uint32_t counts[] = {16, 17, 32, 33, 64, 65}, most[] = {33, 64};
    for (int i = 0; i < N_TYPES; i++) {
        check_step(types[i], 40, 512, 1, counts, 6);
        check_step(types[i], units(4) + 1, 256, EACH_ROWS, most, 2);
    }
    check_step(TENSOR_Q4_K, units(3) + 5, 2304, EACH_ROWS, most, 1);
    check_step(TENSOR_F16, units(17) + 12, 48, EACH_ROWS, counts + 1, 1);
    check_step(TENSOR_Q6_K, units(2) + 1, 14592, EACH_ROWS, counts + 1, 1);
    check_step(TENSOR_Q6_K, 17, 40960, EACH_ROWS, counts + 1, 1);
}

static void many_rows(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 17, MOST_ROWS};
    struct gemm *gemm;
    struct terse_error error;
    if (gemm_new(&gemm, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < N_TYPES; i++)
        for (size_t c = 0; c < sizeof widths / sizeof widths[0]; c++) {
            uint32_t columns = widths[c], rows = 50;
            if (!fits(types[i], columns)) continue;
            struct sample s = sample_new(types[i], rows, columns, c % 2 == 0);
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
                uint32_t n = counts[k];
                float *x = vectors_of(n, columns), *y = memory_zeros((size_t)n * rows, sizeof *y);
                struct device_vectors v = vectors_new(x, n, columns, false);
                float *out = on_device(y, (size_t)n * rows * sizeof *y), *scratch = on_device(NULL, (size_t)n * rows * sizeof *y);
                for (int twice = 0; twice < 2; twice++)
                    if (gemm_multiply(gemm, &s.device, &v, n, out, k == 1, scratch, device_stream(), &error))
                        fail_msg("%s", error.message);
                from_device(y, out, (size_t)n * rows * sizeof *y);
                for (size_t j = 0; k == 1 && j < (size_t)n * rows; j++) y[j] /= 2; /* added twice */
                check_product(&s, x, n, y, 0, 0x1p-10, "many rows");
                cudaFree(out);
                cudaFree(scratch);
                vectors_free(&v);
                memory_free(x);
                memory_free(y);
            }
            sample_free(&s);
        }
    gemm_free(gemm);
}

static void embeddings(void **state) {
    (void)state;
    const int32_t ids[] = {0, 39, 7, 8, 16, 31, 7};
    enum { N = sizeof ids / sizeof ids[0] };
    int32_t *device_ids = on_device(ids, sizeof ids);
    for (int i = 0; i < N_TYPES; i++)
        for (size_t c = 0; c < sizeof widths / sizeof widths[0]; c++) {
            uint32_t columns = widths[c];
            if (!fits(types[i], columns)) continue;
            struct sample s = sample_new(types[i], 40, columns, false);
            float *out = on_device(NULL, (size_t)N * columns * sizeof *out), *y = memory_array((size_t)N * columns, sizeof *y);
            for (int add = 0; add < 2; add++) {
                assert_int_equal(weights_gather(&s.device, device_ids, N, out, add, device_stream()), cudaSuccess);
                from_device(y, out, (size_t)N * columns * sizeof *y);
                for (size_t j = 0; j < (size_t)N * columns; j++) {
                    float want = s.numbers[(size_t)ids[j / columns] * columns + j % columns];
                    if (y[j] != (add ? want + want : want))
                        fail_msg("%s: number %zu is %g, not %g", tensor_type_info(types[i])->name, j, (double)y[j], (double)want);
                }
            }
            cudaFree(out);
            memory_free(y);
            sample_free(&s);
        }
    cudaFree(device_ids);
}

static void what_is_not_finite_shows(void **state) {
    (void)state;
    struct sample s = sample_new(TENSOR_Q4_K, 16, 512, false);
    float *x = vectors_of(2, 512), *out = on_device(NULL, 2 * 16 * sizeof *out), y[2 * 16];
    x[512 + 300] = INFINITY;
    struct device_vectors v = vectors_new(x, 2, 512, true);
    assert_int_equal(weights_each(&(struct device_product){&s.device, out}, 1, &v, 2, false, device_stream()), cudaSuccess);
    from_device(y, out, sizeof y);
    for (int r = 0; r < 16; r++) assert_true(isfinite(y[r]) && !isfinite(y[16 + r]));
    cudaFree(out);
    vectors_free(&v);
    memory_free(x);
    sample_free(&s);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_that_the_cpu_reads_is_multiplied),
                                       cmocka_unit_test(few_rows),
                                       cmocka_unit_test(long_rows),
                                       cmocka_unit_test(rows_of_a_step),
                                       cmocka_unit_test(many_rows),
                                       cmocka_unit_test(embeddings),
                                       cmocka_unit_test(what_is_not_finite_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
