/* Computes second moments that a model's weights imply without any text: what an error in a value costs, and how large keys,
 * queries and values are in each direction if hidden states, as they leave the norm, are alike in all directions. All are in double
 * precision. */
#ifndef TERSE_BACKEND_CPU_WEIGHT_MOMENTS_H
#define TERSE_BACKEND_CPU_WEIGHT_MOMENTS_H

#include "model/model.h"

/* Errors of keys matter less than they seem to. With terse-2 of a sequence's own transforms this takes 7 % off the divergence of
 * Qwen2.5-Coder-0.5B and 10 % off that of SmolLM2-135M. */
#define KEYS_IMPORTANCE (-0.67)

/* Returns how many floats of scratch every function of a model below needs. */
size_t weight_moments_scratch(const struct terse_model *model);

/* Adds to sums[hd][hd] the outer products of rows[n][hd] with themselves, n at most WEIGHT_TILE.
 * scratch[weight_products_scratch]. */
#define WEIGHT_TILE 256
size_t weight_products_scratch(size_t hd);
void weight_add_products(const float *rows, size_t n, size_t hd, float *scratch, double *sums);

/* Computes covariance[WEIGHT_PADDED(n)][...] = W diag(g)^2 W^T of n rows W of a matrix, from the first-th on, g the gain of the norm
 * before it; it is 0 beyond n. */
#define WEIGHT_PADDED(n) (((size_t)(n) + 31) / 32 * 32)
void weight_row_covariance(const struct matrix *w, const struct norm *norm, size_t first, size_t n, float *scratch,
                           double *covariance);
/* Computes metric[heads / group][WEIGHT_PADDED(n)][...], the sums over `group` heads of W^T W, W the n columns of a head of an output
 * projection, from the first-th head on. */
void weight_output_metrics(const struct matrix *o, size_t n, size_t first, size_t heads, size_t group, float *scratch,
                           double *metric);
/* Returns how many floats of scratch these two need, of a matrix with so many columns. */
size_t weight_rows_scratch(size_t n, size_t columns);

/* Computes metric[heads][hd][hd] of KV heads [first, first + heads): the sum over the G query heads that share one of W^T W, W the
 * columns of the output projection that read the head. The mean squared change of the layer's output is d^T metric d for a value's
 * error d. */
void weight_value_metrics(const struct terse_model *model, uint32_t layer, uint32_t first, uint32_t heads, float *scratch,
                          double *metric);

/* Computes covariance[hd][hd] of a KV head's keys before rotation, or of its values: W diag(g)^2 W^T, g the gain of the norm before
 * the projection W; where keys are normalized (QK norm), after that norm. */
void weight_key_covariance(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *covariance);
void weight_value_covariance(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *covariance);
/* Computes power[hd], the mean squares of the queries that share a KV head, biases included; it is the same for the two channels of
 * a RoPE pair. */
void weight_query_power(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *power);

#endif
