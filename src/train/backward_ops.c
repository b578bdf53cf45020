/* Computes the gradients of single operations. Products with quantized weights dequantize them tile by tile, into the caller's
 * scratch. */
#include "train/backward_ops.h"

#include "base/random.h"

#include "backend/cpu/gelu.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vector.h"
#include "base/size.h"

#include <math.h>

/* ---- Linear layers */

#define TILE_ROWS 512      /* rows of weights dequantized at a time, by all threads for all: the depth of one product */
#define SHARE_TOKENS 128   /* by */
#define SHARE_COLUMNS 1024 /* numbers of dx are one thread's share of it */

size_t linear_backward_scratch(const struct matrix *w) { return size_min(w->rows, TILE_ROWS) * linear_tile_stride(w); }

void linear_backward(const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx, float *scratch) {
    size_t across = (w->columns + SHARE_COLUMNS - 1) / SHARE_COLUMNS, down = (n + SHARE_TOKENS - 1) / SHARE_TOKENS;
    bool plain = w->type == TENSOR_F32;
    size_t stride = plain ? w->columns : linear_tile_stride(w);
#pragma omp parallel if (n >= PARALLEL_ROWS)
    for (size_t first = 0; first < w->rows; first += TILE_ROWS) {
        size_t rows = size_min(TILE_ROWS, w->rows - first);
        const char *stored = (const char *)w->data + first * w->row_bytes;
        const float *weights = plain ? (const float *)(const void *)stored : scratch;
        if (!plain) {
#pragma omp for
            for (size_t r = 0; r < rows; r++)
                vector_dequantize(w->type, stored + r * w->row_bytes, scratch + r * stride, w->columns);
        }
#pragma omp for schedule(dynamic, 1)
        for (size_t item = 0; item < across * down; item++) {
            size_t t = item / across * SHARE_TOKENS, c = item % across * SHARE_COLUMNS;
            gemm(false, size_min(SHARE_TOKENS, n - t), size_min(SHARE_COLUMNS, w->columns - c), rows, dy + t * w->rows + first,
                 w->rows, weights + c, stride, accumulate || first > 0, dx + t * w->columns + c, w->columns);
        }
    }
}

/* ---- Rows */

#define PIECE 256 /* numbers at a time, on the stack */

/* With c = x - mean (LayerNorm; RMSNorm: c = x) and r = (mean c^2 + epsilon)^-1/2: y_i = gain_i c_i r, so
 *     dc_i = r (gain_i dy_i - c_i r^2 mean_j(gain_j dy_j c_j)),   dx_i = dc_i - mean_j(dc_j)   (RMSNorm: dx = dc);
 * the mean of dc is that of r gain dy, as the mean of c is 0. */
static void norm_backward_row(const struct norm *norm, const float *gain, const float *x, float *d, size_t width) {
    float n = (float)width, mean = norm->kind == NORM_LAYER ? sum_row(x, width) / n : 0;
    float c[PIECE], squares = 0, along = 0;
    for (size_t i = 0; i < width; i++) d[i] *= gain[i];
    for (size_t first = 0; first < width; first += PIECE) {
        size_t count = size_min(PIECE, width - first);
        for (size_t i = 0; i < count; i++) c[i] = x[first + i] - mean;
        squares += vector_dot(c, c, count);
        along += vector_dot(c, d + first, count);
    }
    float square = 1 / (squares / n + norm->epsilon), r = sqrtf(square),
          mean_d = norm->kind == NORM_LAYER ? sum_row(d, width) / n : 0;
    for (size_t i = 0; i < width; i++) d[i] = r * (d[i] - mean_d - (x[i] - mean) * square * along / n);
}

void norm_backward(const struct norm *norm, const float *x, float *d, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        const float *gain = norm->heads ? norm->gain + t % norm->heads * width : norm->gain;
        norm_backward_row(norm, gain, x + t * width, d + t * width, width);
    }
}

void clamp_backward(const float *x, float most, float *d, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++)
        for (size_t i = t * width; i < (t + 1) * width; i++) d[i] = fabsf(x[i]) < most ? d[i] : 0;
}

/* The slope of cap tanh(x / cap) is 1 - tanh(x / cap)^2, from the outputs. */
void cap_backward(const float *capped, float cap, float *d, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++)
        for (size_t i = t * width; i < (t + 1) * width; i++) d[i] *= 1 - capped[i] / cap * (capped[i] / cap);
}

/* With s the sigmoid of gate: d silu/d gate = s (1 + gate (1 - s)). */
static void silu_backward_row(float *gate, float *up, const float *d, size_t width) {
    float s[PIECE];
    for (size_t first = 0; first < width; first += PIECE, gate += PIECE, up += PIECE, d += PIECE) {
        size_t n = size_min(PIECE, width - first);
        for (size_t i = 0; i < n; i++) s[i] = -gate[i];
        vector_exp_sum(s, 0, n);
        for (size_t i = 0; i < n; i++) {
            float sigmoid = 1 / (1 + s[i]), x = gate[i];
            gate[i] = d[i] * up[i] * sigmoid * (1 + x * (1 - sigmoid));
            up[i] = d[i] * x * sigmoid;
        }
    }
}

/* With g' = min(g, 7), u' = u within [-7, 7], plus 1, and s the sigmoid of a g': d/dg = u' s (1 + a g' (1 - s)) below 7, d/du = g' s within. */
static void clamped_backward_row(float *gate, float *up, const float *d, size_t width) {
    const float most = SWIGLU_CLAMP, a = SWIGLU_GAIN;
    for (size_t i = 0; i < width; i++) {
        float g = fminf(gate[i], most), u = fmaxf(fminf(up[i], most), -most) + 1, s = 1 / (1 + expf(-a * g));
        float d_gate = gate[i] < most ? d[i] * u * s * (1 + a * g * (1 - s)) : 0;
        up[i] = fabsf(up[i]) < most ? d[i] * g * s : 0;
        gate[i] = d_gate;
    }
}

static void geglu_backward_row(float *gate, float *up, const float *d, size_t width) {
    float active[PIECE], d_active[PIECE];
    for (size_t first = 0; first < width; first += PIECE, gate += PIECE, up += PIECE, d += PIECE) {
        size_t n = size_min(PIECE, width - first);
        for (size_t i = 0; i < n; i++) {
            active[i] = gate[i];
            d_active[i] = d[i] * up[i];
        }
        gelu_row(ACTIVATION_GEGLU, active, n);
        gelu_backward_row(ACTIVATION_GEGLU, gate, d_active, n);
        for (size_t i = 0; i < n; i++) up[i] = d[i] * active[i];
    }
}

void activation_backward(enum activation activation, float *x, float *up, const float *d, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        if (activation == ACTIVATION_SWIGLU_CLAMPED)
            clamped_backward_row(x + t * width, up + t * width, d + t * width, width);
        else if (activation == ACTIVATION_SWIGLU)
            silu_backward_row(x + t * width, up + t * width, d + t * width, width);
        else if (activation == ACTIVATION_GEGLU)
            geglu_backward_row(x + t * width, up + t * width, d + t * width, width);
        else
            gelu_backward_row(activation, x + t * width, d + t * width, width);
    }
}

/* Returns the first entry at which the running sum of weights[n] passes the part `u` of their sum. */
static size_t draw(const float *weights, size_t n, double sum, double u) {
    double left = u * sum;
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        if (weights[i] > 0) last = i;
        left -= (double)weights[i];
        if (left < 0) return i;
    }
    return last;
}

void cross_entropy_backward(float *logits, const struct targets *targets, size_t n, size_t vocabulary, float scale, double *loss) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        float *row = logits + t * vocabulary;
        size_t target = targets->tokens ? (size_t)targets->tokens[t] : 0;
        double logit = (double)row[target];
        float max = vector_max(row, vocabulary), sum = vector_exp_sum(row, max, vocabulary), factor = scale / sum;
        if (!targets->tokens) {
            target = draw(row, vocabulary, (double)sum, random_uniform(random_mix(targets->seed + t * RANDOM_STEP)));
            logit = (double)max + log((double)row[target]);
        }
        loss[t] = (double)max - logit + log((double)sum);
        for (size_t i = 0; i < vocabulary; i++) row[i] *= factor;
        row[target] -= scale;
    }
}
