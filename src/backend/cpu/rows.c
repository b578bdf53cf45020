/* Computes on rows of activations. Owns no memory; kernels compute a row, or parts of it. */
#include "backend/cpu/rows.h"

#include "backend/cpu/cap.h"
#include "backend/cpu/gelu.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "base/finite.h"

#include <math.h>
#include <string.h>

#define SQUARE_LEAST 1e-30 /* of what a logarithm is taken of */
#define LANES 16
#define PIECE 256 /* numbers on the stack: whole blocks of any type */

float sum_row(const float *x, size_t n) {
    float lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) lanes[j] += x[i + j];
    for (; i < n; i++) sum += x[i];
    for (size_t j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

static void add_position(const struct matrix *positions, uint64_t position, float *hidden) {
    const struct tensor_type_info *info = tensor_type_info(positions->type);
    const char *row = (const char *)positions->data + position * positions->row_bytes;
    float piece[PIECE];
    for (size_t first = 0; first < positions->columns; first += PIECE) {
        size_t n = positions->columns - first < PIECE ? positions->columns - first : PIECE;
        weights_ops()->dequantize[positions->type](row + first / info->block * info->bytes, piece, n);
        vector_ops()->axpy(1, piece, hidden + first, n);
    }
}

void embed_rows(const struct terse_model *model, const int32_t *tokens, size_t n, uint64_t position, float *hidden) {
    const struct matrix *e = &model->embedding;
    size_t width = model->width;
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        float *row = hidden + t * width;
        weights_ops()->dequantize[e->type]((const char *)e->data + (size_t)tokens[t] * e->row_bytes, row, width);
        if (model->positions.data) add_position(&model->positions, position + t, row);
        for (size_t i = 0; i < width && model->embedding_scale != 1; i++) row[i] *= model->embedding_scale;
    }
}

/* Normalizes a row: LayerNorm is RMSNorm of the row without its mean. */
static void norm_row(const struct norm *norm, const float *gain, const float *x, float *out, size_t width) {
    if (norm->kind == NORM_LAYER) {
        float mean = sum_row(x, width) / (float)width;
        for (size_t i = 0; i < width; i++) out[i] = x[i] - mean;
        x = out;
    }
    vector_ops()->rms_norm(x, gain, norm->epsilon, out, width);
    if (norm->bias) vector_ops()->axpy(1, norm->bias, out, width);
}

void norm_rows(const struct norm *norm, const float *x, float *out, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        const float *gain = norm->heads ? norm->gain + t % norm->heads * width : norm->gain;
        norm_row(norm, gain, x + t * width, out + t * width, width);
    }
}

int64_t sum_log_squares(const float *x, size_t n, size_t width, double unit) {
    int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        double square = 0;
        for (size_t i = 0; i < width; i++) square += (double)x[t * width + i] * (double)x[t * width + i];
        sum += llrint(log2(fmax(square / (double)width, SQUARE_LEAST)) / unit);
    }
    return sum;
}

void add_rows(float *x, const float *y, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) vector_ops()->axpy(1, y + t * width, x + t * width, width);
}

void clamp_rows(float *x, float most, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++)
        for (float *at = x + t * width; at < x + (t + 1) * width; at++) *at = *at > most ? most : *at < -most ? -most : *at;
}

void split_gates(const float *heads, size_t n, size_t hd, float *x, float *gate) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t head = 0; head < n; head++) {
        memcpy(x + head * hd, heads + 2 * head * hd, hd * sizeof *x);
        memcpy(gate + head * hd, heads + (2 * head + 1) * hd, hd * sizeof *gate);
    }
}

void apply_gates(float *x, const float *gate, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t i = 0; i < n * width; i++) x[i] /= 1 + expf(-gate[i]);
}

void cap_rows(float *x, float cap, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) cap_row(x + t * width, cap, width);
}

/* Computes gate sigmoid(a gate) (up + 1) = silu(a gate) (up + 1) / a; NaN stays NaN. */
static void swiglu_clamped_row(float *gate, const float *up, size_t n) {
    float factor[PIECE];
    for (size_t first = 0; first < n; first += PIECE) {
        size_t count = n - first < PIECE ? n - first : PIECE;
        for (size_t i = 0; i < count; i++) {
            float g = gate[first + i], u = up[first + i];
            gate[first + i] = SWIGLU_GAIN * (g > SWIGLU_CLAMP ? SWIGLU_CLAMP : g);
            factor[i] = ((u > SWIGLU_CLAMP ? SWIGLU_CLAMP : u < -SWIGLU_CLAMP ? -SWIGLU_CLAMP : u) + 1) / SWIGLU_GAIN;
        }
        vector_ops()->silu_mul(gate + first, factor, count);
    }
}

void activate_rows(enum activation activation, float *x, const float *up, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        float *row = x + t * width;
        const float *factor = up + t * width;
        if (activation == ACTIVATION_SWIGLU) {
            vector_ops()->silu_mul(row, factor, width);
        } else if (activation == ACTIVATION_SWIGLU_CLAMPED) {
            swiglu_clamped_row(row, factor, width);
        } else {
            gelu_row(activation, row, width);
            for (size_t i = 0; i < width && activation == ACTIVATION_GEGLU; i++) row[i] *= factor[i];
        }
    }
}

enum terse_status rows_check_finite(const struct terse_model *model, uint32_t place, const float *x, size_t n, size_t width,
                                    struct terse_error *error) {
    bool finite = true;
#pragma omp parallel for reduction(&& : finite) if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) finite = all_finite(x + t * width, width) && finite;
    return finite ? TERSE_OK : model_not_finite(model, place, error);
}
