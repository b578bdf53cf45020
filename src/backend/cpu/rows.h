/* Computes on the rows of activations, a token or a head each, over the calling thread's OpenMP threads. The forward and the
 * backward pass share these functions. */
#ifndef TERSE_BACKEND_CPU_ROWS_H
#define TERSE_BACKEND_CPU_ROWS_H

#include "model/model.h"

#define PARALLEL_ROWS 8 /* fewer are not worth waking the threads for */

/* Returns the sum of x[n]. */
float sum_row(const float *x, size_t n);

/* Writes hidden[n][width]: the embeddings of tokens[n], which are in the vocabulary, the first of them at `position`. Learned
 * positions, where the model has them, must not end before the last token. */
void embed_rows(const struct terse_model *model, const int32_t *tokens, size_t n, uint64_t position, float *hidden);
/* Computes out[n][width], the norm of x[n][width]; out may be x. */
void norm_rows(const struct norm *norm, const float *x, float *out, size_t n, size_t width);
/* Computes x[n][width] += y. */
void add_rows(float *x, const float *y, size_t n, size_t width);
/* Limits x[n][width] to [-most, most]. */
void clamp_rows(float *x, float most, size_t n, size_t width);
/* Parts heads[n], each hd numbers and the gate of each behind them, into x[n][hd] and gate[n][hd]. */
void split_gates(const float *heads, size_t n, size_t hd, float *x, float *gate);
/* Multiplies x[n][width] by the sigmoids of gate[n][width]. */
void apply_gates(float *x, const float *gate, size_t n, size_t width);
/* Replaces x[n][width] by cap tanh(x / cap). */
void cap_rows(float *x, float cap, size_t n, size_t width);
/* Computes the inner activations of a feed-forward layer: x[n][width] becomes its GELU, or, being the gate of SwiGLU or GeGLU,
 * silu(x) up or GELU(x) up, or clamped SwiGLU (model.h) of both. It reads `up` for these alone. */
void activate_rows(enum activation activation, float *x, const float *up, size_t n, size_t width);

/* Returns the sum of log2 of the mean squares of x[n][width], each rounded to a multiple of `unit`, in units, so that it is the
 * same for any number of threads. */
int64_t sum_log_squares(const float *x, size_t n, size_t width, double unit);

/* Checks that all of x[n][width], which the model has at `place` (model.h), are finite numbers; returns model_not_finite() if they
 * are not. It reads them once. */
enum terse_status rows_check_finite(const struct terse_model *model, uint32_t place, const float *x, size_t n, size_t width,
                                    struct terse_error *error);

#endif
