/* Computes the gradients of single operations with respect to their inputs. dX stands for dL/dX. Rows are tokens or heads; all
 * functions use the calling thread's OpenMP threads. Weights are given, so none of them gets a gradient. */
#ifndef TERSE_TRAIN_BACKWARD_OPS_H
#define TERSE_TRAIN_BACKWARD_OPS_H

#include "backend/learning.h"

/* Returns how many floats of scratch linear_backward() needs for this matrix. */
size_t linear_backward_scratch(const struct matrix *w);
/* Computes dx[n][columns] = dy[n][rows] w (+ dx if `accumulate`). */
void linear_backward(const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx, float *scratch);

/* These replace d[n][width], the gradient of the outputs, by that of the inputs x: of a norm, */
void norm_backward(const struct norm *norm, const float *x, float *d, size_t n, size_t width);
/* of clamp_rows, of which x may be the inputs or the outputs, */
void clamp_backward(const float *x, float most, float *d, size_t n, size_t width);
/* and of cap_rows, of which the outputs are given. */
void cap_backward(const float *capped, float cap, float *d, size_t n, size_t width);

/* Computes the gradient of activate_rows: d[n][width] is the gradient of the outputs; those of x and, for functions that read it,
 * of up replace x and up. */
void activation_backward(enum activation activation, float *x, float *up, const float *d, size_t n, size_t width);

/* Computes loss[n], the cross entropy, in nats, of logits[n][vocabulary] against the targets; replaces each row of logits by its loss's
 * gradient times `scale`. */
void cross_entropy_backward(float *logits, const struct targets *targets, size_t n, size_t vocabulary, float scale, double *loss);

#endif
