/* Computes partial states. Owns no memory. */
#include "backend/cpu/partial.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

static size_t padded(size_t rows) { return memory_round_up(rows, MEMORY_ALIGN / sizeof(float)); }

size_t partial_floats(size_t rows, size_t width) { return 2 * padded(rows) + padded(rows * width); }

struct partial partial_at(float *memory, size_t rows, size_t width) {
    return (struct partial){rows, width, memory, memory + padded(rows), memory + 2 * padded(rows), 0, NULL};
}

size_t partial_code_floats(size_t rows, size_t coded) { return padded(rows * (coded + 1)); }

void partial_keep_codes(struct partial *partial, size_t coded, float *memory) {
    partial->coded = coded;
    partial->by_code = memory;
}

void partial_clear_codes(struct partial *partial) {
    if (partial->coded) memset(partial->by_code, 0, partial->rows * (partial->coded + 1) * sizeof *partial->by_code);
}

void partial_clear(struct partial *partial) {
    for (size_t row = 0; row < partial->rows; row++) partial->max[row] = -INFINITY;
    memset(partial->sum, 0, partial->rows * sizeof *partial->sum);
    memset(partial->acc, 0, partial->rows * partial->width * sizeof *partial->acc);
    partial_clear_codes(partial);
}

static void scale(float *numbers, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) numbers[i] *= factor;
}

float partial_raise(struct partial *partial, size_t row, float max) {
    float old = partial->max[row];
    if (max <= old) return old;
    partial->max[row] = max;
    if (partial->sum[row] != 0) { /* so old is finite */
        float factor = expf(old - max);
        partial->sum[row] *= factor;
        scale(partial->acc + row * partial->width, partial->width, factor);
        if (partial->coded) {
            scale(partial->by_code + row * partial->coded, partial->coded, factor);
            partial->by_code[partial->rows * partial->coded + row] *= factor;
        }
    }
    return max;
}

void partial_merge(struct partial *into, const struct partial *from) {
    for (size_t row = 0; row < into->rows; row++) {
        if (from->sum[row] == 0) continue;
        float factor = expf(from->max[row] - partial_raise(into, row, from->max[row]));
        into->sum[row] += factor * from->sum[row];
        vector_ops()->axpy(factor, from->acc + row * from->width, into->acc + row * into->width, into->width);
        if (!into->coded) continue;
        const size_t at = row * into->coded, weights = into->rows * into->coded + row;
        vector_ops()->axpy(factor, from->by_code + at, into->by_code + at, into->coded);
        into->by_code[weights] += factor * from->by_code[weights];
    }
}

void partial_finish(const struct partial *partial, size_t row, float *out) {
    float factor = partial->sum[row] == 0 ? 0 : 1 / partial->sum[row];
    const float *acc = partial->acc + row * partial->width;
    for (size_t c = 0; c < partial->width; c++) out[c] = acc[c] * factor;
}
