/* Rows of activations. Owns no memory; the arithmetic of one row is the kernels'. */
#include "model/rows.h"

#include "kernels/kernels.h"

void embed_rows(const struct terse_model *model, const int32_t *tokens, size_t n, float *hidden) {
    const struct matrix *e = &model->embedding;
    size_t width = model->width;
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++)
        kernels()->dequantize[e->type]((const char *)e->data + (size_t)tokens[t] * e->row_bytes, hidden + t * width, width);
}

void norm_rows(const float *x, const float *gain, float epsilon, float *out, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) kernels()->rms_norm(x + t * width, gain, epsilon, out + t * width, width);
}

void add_rows(float *x, const float *y, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) kernels()->axpy(1, y + t * width, x + t * width, width);
}

void silu_rows(float *gate, const float *up, size_t n, size_t width) {
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t t = 0; t < n; t++) kernels()->silu_mul(gate + t * width, up + t * width, width);
}
