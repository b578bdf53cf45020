/* Gradients of single operations with respect to their inputs. dX stands for dL/dX. Rows are tokens or heads; all use the calling
 * thread's OpenMP threads. Weights are given, so none of them gets a gradient. */
#ifndef TERSE_MODEL_BACKWARD_OPS_H
#define TERSE_MODEL_BACKWARD_OPS_H

#include "model/model.h"

/* Floats of scratch that linear_backward() needs for this matrix. */
size_t linear_backward_scratch(const struct matrix *w);
/* dx[n][columns] = dy[n][rows] w (+ dx if `accumulate`). */
void linear_backward(const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx, float *scratch);

/* Of RMSNorm: d[n][width] enters as the gradient of the outputs and leaves as that of the inputs x. */
void norm_backward(const float *x, const float *gain, float epsilon, float *d, size_t n, size_t width);

/* Of silu(gate) up: d[n][width] is the gradient of the product; those of gate and up take their places. */
void silu_backward(float *gate, float *up, const float *d, size_t n, size_t width);

/* loss[n] = cross entropy, in nats, of logits[n][vocabulary] against targets[n]; each row of logits becomes its loss's gradient times
 * `scale`. */
void cross_entropy_backward(float *logits, const int32_t *targets, size_t n, size_t vocabulary, float scale, double *loss);

#endif
