/* Gradients of single operations. Owns the tiling of products with dequantized weights; no memory. */
#include "model/backward_ops.h"

#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "model/rows.h"

#include <math.h>

/* ---- Linear layers */

#define TILE_ROWS 512      /* rows of weights dequantized at a time, by all threads for all: the depth of one product */
#define SHARE_TOKENS 128   /* by */
#define SHARE_COLUMNS 1024 /* numbers of dx are one thread's share of it */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

size_t linear_backward_scratch(const struct matrix *w) { return smaller(w->rows, TILE_ROWS) * w->columns; }

void linear_backward(const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx, float *scratch) {
    size_t across = (w->columns + SHARE_COLUMNS - 1) / SHARE_COLUMNS, down = (n + SHARE_TOKENS - 1) / SHARE_TOKENS;
    bool plain = w->type == TENSOR_F32;
#pragma omp parallel if (n >= PARALLEL_ROWS)
    for (size_t first = 0; first < w->rows; first += TILE_ROWS) {
        size_t rows = smaller(TILE_ROWS, w->rows - first);
        const char *stored = (const char *)w->data + first * w->row_bytes;
        const float *weights = plain ? (const float *)(const void *)stored : scratch;
        if (!plain) {
#pragma omp for
            for (size_t r = 0; r < rows; r++)
                kernels()->dequantize[w->type](stored + r * w->row_bytes, scratch + r * w->columns, w->columns);
        }
#pragma omp for schedule(dynamic, 1)
        for (size_t item = 0; item < across * down; item++) {
            size_t t = item / across * SHARE_TOKENS, c = item % across * SHARE_COLUMNS;
            gemm(false, smaller(SHARE_TOKENS, n - t), smaller(SHARE_COLUMNS, w->columns - c), rows, dy + t * w->rows + first,
                 w->rows, weights + c, w->columns, accumulate || first > 0, dx + t * w->columns + c, w->columns);
        }
    }
}

/* ---- Rows */

/* y_i = gain_i x_i r with r = (mean x^2 + epsilon)^-1/2, so dx_i = r (gain_i dy_i - x_i r^2 mean_j(gain_j dy_j x_j)). */
void norm_backward(const float *x, const float *gain, float epsilon, float *d, size_t n, size_t width) {
    const struct kernels *kernel = kernels();
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        const float *in = x + t * width;
        float *row = d + t * width;
        float square = 1 / (kernel->dot(in, in, width) / (float)width + epsilon), r = sqrtf(square);
        for (size_t i = 0; i < width; i++) row[i] *= gain[i] * r;
        kernel->axpy(-square * kernel->dot(row, in, width) / (float)width, in, row, width);
    }
}

#define SILU_PIECE 256 /* numbers whose sigmoid lies on the stack */

/* With s the sigmoid of gate: d silu/d gate = s (1 + gate (1 - s)). */
static void silu_backward_row(float *gate, float *up, const float *d, size_t width) {
    float s[SILU_PIECE];
    for (size_t first = 0; first < width; first += SILU_PIECE, gate += SILU_PIECE, up += SILU_PIECE, d += SILU_PIECE) {
        size_t n = smaller(SILU_PIECE, width - first);
        for (size_t i = 0; i < n; i++) s[i] = -gate[i];
        kernels()->exp_sum(s, 0, n);
        for (size_t i = 0; i < n; i++) {
            float sigmoid = 1 / (1 + s[i]), x = gate[i];
            gate[i] = d[i] * up[i] * sigmoid * (1 + x * (1 - sigmoid));
            up[i] = d[i] * x * sigmoid;
        }
    }
}

void silu_backward(float *gate, float *up, const float *d, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) silu_backward_row(gate + t * width, up + t * width, d + t * width, width);
}

void cross_entropy_backward(float *logits, const int32_t *targets, size_t n, size_t vocabulary, float scale, double *loss) {
    const struct kernels *kernel = kernels();
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) {
        float *row = logits + t * vocabulary, *target = row + targets[t];
        float max = kernel->max(row, vocabulary);
        double above = (double)max - (double)*target;
        float sum = kernel->exp_sum(row, max, vocabulary), factor = scale / sum;
        loss[t] = above + log((double)sum);
        for (size_t i = 0; i < vocabulary; i++) row[i] *= factor;
        *target -= scale;
    }
}
