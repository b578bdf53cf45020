/* Computes GELU of a row and its gradient: GELU(x) = x s(x), where s is the normal distribution's P(N(0, 1) <= x) or, as GPT-2
 * approximates it, 1/(1 + exp(-2 u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is (1 + tanh u)/2 (Hendrycks and Gimpel
 * 2016). */
#ifndef TERSE_BACKEND_CPU_GELU_H
#define TERSE_BACKEND_CPU_GELU_H

#include "model/model.h"

/* Replaces x[n] by its GELU, within 3e-7 |x|. `activation` is one of the two, or ACTIVATION_GEGLU for that of GPT-2. */
void gelu_row(enum activation activation, float *x, size_t n);
/* Replaces x by the gradient with respect to itself; d[n] is the gradient of gelu_row's result. */
void gelu_backward_row(enum activation activation, float *x, const float *d, size_t n);

#endif
