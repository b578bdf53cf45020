/* Has the reference of the half-float and vector functions: plain loops, compiled without vectorisation. Speed is no aim here; the other
 * tiers are tested against this file, and this file against double precision. */
#include "backend/cpu/kernels/vector/init.h"
#include "base/half.h"
#include "format/page_layout.h"

#include <math.h>
#include <string.h>

static void half_to_float_scalar(const uint16_t *half, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = half_to_float(half[i]);
}

static void float_to_half_scalar(const float *in, uint16_t *half, size_t n) {
    for (size_t i = 0; i < n; i++) half[i] = half_from_float(in[i]);
}

static float dot_scalar(const float *a, const float *b, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void axpy_scalar(float scale, const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += scale * x[i];
}

static void rms_norm_scalar(const float *x, const float *gain, float epsilon, float *out, size_t n) {
    float scale = 1 / sqrtf(dot_scalar(x, x, n) / (float)n + epsilon);
    for (size_t i = 0; i < n; i++) out[i] = x[i] * scale * gain[i];
}

static void silu_mul_scalar(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

static float exp_sum_scalar(float *x, float max, size_t n) {
    if (max == -INFINITY) max = 0; /* an empty partial: every x is -inf, and -inf - -inf would be NaN */
    float sum = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += x[i];
    }
    return sum;
}

static float max_scalar(const float *x, size_t n) {
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (x[i] > max) max = x[i];
    }
    return max;
}

static float max_pages_scalar(const float *x, size_t n, size_t stride) {
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        float most = max_scalar(x + i * stride, PAGE_TOKENS);
        max = most > max ? most : max;
    }
    return max;
}

static float exp_pages_scalar(float *x, float max, size_t n, size_t stride) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp_sum_scalar(x + i * stride, max, PAGE_TOKENS);
    return sum;
}

static void look_up_gains_scalar(const float *table, const uint8_t *codes, float *out) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) out[t] = table[codes[t]];
}

static float scale_weights_scalar(const float *weights, const float *gains, float *scaled) {
    float sum = 0;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        sum += weights[t];
        scaled[t] = weights[t] * gains[t];
    }
    return sum;
}

/* The sums of a row grow side by side, so that none waits for its last product: tests of whole models spend much of their time here. */
static void multiply_scalar(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb, float *out,
                            size_t ldo) {
    for (size_t r = 0; r < m; r++) {
        memset(out + r * ldo, 0, n * sizeof *out);
        for (size_t i = 0; i < k; i++) axpy_scalar(a[r * lda + i], b + i * ldb, out + r * ldo, n);
    }
}

static void multiply_i16_scalar(const float *a, size_t m, size_t k, size_t lda, const int16_t *b, size_t n, const float *scales,
                                float *out, size_t ldo) {
    for (size_t r = 0; r < m; r++) {
        const float *row = a + r * lda, norm = sqrtf(dot_scalar(row, row, k));
        const float inverse = norm > 0 && I16_NORM / norm < INFINITY ? I16_NORM / norm : 0,
                    unit = inverse > 0 ? norm / I16_NORM : norm;
        int32_t integers[I16_DEPTH];
        for (size_t i = 0; i < k; i++) integers[i] = inverse > 0 ? (int32_t)rintf(row[i] * inverse) : 0;
        for (size_t c = 0; c < n; c += I16_STRIP) {
            const int16_t *strip = b + c * k;
            int32_t sums[I16_STRIP] = {0};
            for (size_t i = 0; i < k; i++)
                for (size_t j = 0; j < I16_STRIP; j++) sums[j] += integers[i] * strip[(i / 2 * I16_STRIP + j) * 2 + i % 2];
            for (size_t j = 0; j < I16_STRIP; j++) out[r * ldo + c + j] = (float)sums[j] * (unit * scales[c + j]);
        }
    }
}

static void columns_to_float_scalar(const int16_t *b, size_t k, size_t n, const float *scales, float *out, size_t ldo) {
    for (size_t c = 0; c < n; c++) {
        const int16_t *strip = b + c / I16_STRIP * I16_STRIP * k;
        for (size_t i = 0; i < k; i++) out[c * ldo + i] = scales[c] * (float)strip[(i / 2 * I16_STRIP + c % I16_STRIP) * 2 + i % 2];
    }
}

static void rotate_scalar(float *rows, size_t n, size_t stride, const float *cosine, const float *sine, size_t pairs,
                          bool adjacent) {
    size_t step = adjacent ? 2 : 1, apart = adjacent ? 1 : pairs;
    for (; n > 0; n--, rows += stride) {
        for (size_t i = 0; i < pairs; i++) {
            float a = rows[step * i], b = rows[step * i + apart];
            rows[step * i] = a * cosine[i] - b * sine[i];
            rows[step * i + apart] = a * sine[i] + b * cosine[i];
        }
    }
}

static void score_positions_scalar(const float *products, size_t rows, size_t pairs, const float *rotation, const float *waves,
                                   float *logits) {
    const size_t stride = POSITION_STRIDE(pairs);
    for (size_t m = 0; m < rows; m++, products += 2 * stride, logits += 2 * POSITION_HALF) {
        float sums[2][POSITION_HALF] = {{0}};
        for (size_t i = 0; i < pairs; i++) {
            const float even = products[i] * rotation[i] + products[stride + i] * rotation[stride + i],
                        odd = products[stride + i] * rotation[i] - products[i] * rotation[stride + i];
            const float *cosine = waves + 2 * i * POSITION_HALF, *sine = cosine + POSITION_HALF;
            for (size_t j = 0; j < POSITION_HALF; j++) {
                sums[0][j] += even * cosine[j];
                sums[1][j] += odd * sine[j];
            }
        }
        for (size_t j = 0; j < POSITION_HALF; j++) {
            logits[POSITION_HALF + j] += sums[0][j] + sums[1][j];
            logits[POSITION_HALF - 1 - j] += sums[0][j] - sums[1][j];
        }
    }
}

static void score_position_slots_scalar(const float *products, size_t rows, size_t pairs, const float *angles, const uint8_t *slots,
                                        size_t n, float *logits) {
    const size_t stride = POSITION_STRIDE(pairs);
    for (size_t m = 0; m < rows; m++, products += 2 * stride, logits += 2 * POSITION_HALF) {
        for (size_t k = 0; k < n; k++) {
            const float *cosine = angles + 2 * slots[k] * pairs;
            logits[k] += dot_scalar(products, cosine, pairs) + dot_scalar(products + stride, cosine + pairs, pairs);
        }
    }
}

void vector_init_scalar(struct vector_ops *ops) {
    ops->multiply = multiply_scalar;
    ops->multiply_i16 = multiply_i16_scalar;
    ops->columns_to_float = columns_to_float_scalar;
    ops->rotate = rotate_scalar;
    ops->score_positions = score_positions_scalar;
    ops->score_position_slots = score_position_slots_scalar;
    ops->scale_weights = scale_weights_scalar;
    ops->half_to_float = half_to_float_scalar;
    ops->float_to_half = float_to_half_scalar;
    ops->dot = dot_scalar;
    ops->axpy = axpy_scalar;
    ops->rms_norm = rms_norm_scalar;
    ops->silu_mul = silu_mul_scalar;
    ops->exp_sum = exp_sum_scalar;
    ops->max = max_scalar;
    ops->max_pages = max_pages_scalar;
    ops->exp_pages = exp_pages_scalar;
    ops->look_up_gains = look_up_gains_scalar;
}
