/* Computes the causal attention of one window over itself and its gradients, tile by tile: the matrix of all queries by all keys
 * never exists.
 *
 * The forward pass leaves, beside its outputs, the logarithm of each query's sum of exponentials; from it the backward pass
 * computes the weights of any tile again (Dao et al. 2022, FlashAttention, algorithm 4): with P the weights, O the outputs,
 *
 *     dV = P^T dO,   dP = dO V^T,   dS = P (dP - D),   D = rowsum(dO O),   dQ = dS K,   dK = dS^T Q.
 *
 * Where logits are capped, dS is multiplied by the slope of the cap. Query heads of a KV head are rows of one matrix, so that dK
 * and dV are summed over them. */
#ifndef TERSE_TRAIN_BACKWARD_ATTENTION_H
#define TERSE_TRAIN_BACKWARD_ATTENTION_H

#include "backend/learning.h"

/* Returns how many floats of scratch both functions need with `threads` threads. */
size_t attention_scratch(const struct attention *a, uint32_t threads);

/* Computes out[n][Hq][hd] and log_sum[n][Hq]. It uses the calling thread's OpenMP threads, at most `threads`. */
void attention_forward(const struct attention *a, float *out, float *log_sum, uint32_t threads, float *scratch);

/* Computes the gradients dk and dv [n][Hk][hd] from out, log_sum and d_out[n][Hq][hd]; with `queries` it also replaces q by
 * dL/dq. */
void attention_backward(const struct attention *a, const float *out, const float *log_sum, const float *d_out, float *dk, float *dv,
                        bool queries, uint32_t threads, float *scratch);

#endif
