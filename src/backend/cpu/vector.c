/* Calls kernels by their names. */
#include "backend/cpu/vector.h"

#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kernels/weights/ops.h"

float vector_dot(const float *a, const float *b, size_t n) { return vector_ops()->dot(a, b, n); }
void vector_axpy(float scale, const float *x, float *y, size_t n) { vector_ops()->axpy(scale, x, y, n); }
float vector_max(const float *x, size_t n) { return vector_ops()->max(x, n); }
float vector_exp_sum(float *x, float max, size_t n) { return vector_ops()->exp_sum(x, max, n); }
void vector_half_to_float(const uint16_t *half, float *out, size_t n) { vector_ops()->half_to_float(half, out, n); }
void vector_float_to_half(const float *in, uint16_t *half, size_t n) { vector_ops()->float_to_half(in, half, n); }

void vector_multiply_panel(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out) {
    commvq_ops()->multiply_panel(x, n, d, stride, panel, width, out);
}

void vector_dequantize(enum tensor_type type, const void *row, float *out, size_t n) {
    weights_ops()->dequantize[type](row, out, n);
}
