/* Offers vector kernels of the CPU to code that must not include kernel headers (learning): each function is the chosen instruction
 * set's kernel of that name, whose contract is there (kernels/vector/ops.h, kernels/weights/ops.h). */
#ifndef TERSE_BACKEND_CPU_VECTOR_H
#define TERSE_BACKEND_CPU_VECTOR_H

#include "gguf/gguf.h"

#include <stddef.h>
#include <stdint.h>

float vector_dot(const float *a, const float *b, size_t n);
/* Computes y += scale x. */
void vector_axpy(float scale, const float *x, float *y, size_t n);
/* Returns the largest, passing over NaN; -INFINITY when n = 0. */
float vector_max(const float *x, size_t n);
/* Computes x[i] = exp(x[i] - max) in place; returns their sum. */
float vector_exp_sum(float *x, float max, size_t n);
void vector_half_to_float(const uint16_t *half, float *out, size_t n);
void vector_float_to_half(const float *in, uint16_t *half, size_t n);

/* Computes out[n][width] = x[n][d], rows `stride` apart, times panel[d][width], width a multiple of VECTOR_PANEL; each inner
 * product is summed in order of d. */
#define VECTOR_PANEL 32
void vector_multiply_panel(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out);

/* Dequantizes a row of n weights as the model's file stores them. */
void vector_dequantize(enum tensor_type type, const void *row, float *out, size_t n);

#endif
