/* Computes recurrent layers: a short convolution over tokens, then linear attention by the gated delta rule (Yang, Kautz and
 * Hatamizadeh 2024, "Gated Delta Networks", eq. 10; Qwen3-Next).
 *
 * The convolution's outputs go through SiLU and are queries q, keys k, both scaled to length 1, and values v. A value head h has the
 * state S[keys][values]. A token makes of it, with the q and k of the key head that h belongs to,
 *
 *     S = decay S,   decay = exp(decay_h softplus(alpha + bias_h))
 *     S = S + k (beta (v - S^T k))^T,   beta = sigmoid(beta's product)
 *     out = norm(S^T q / sqrt(state)) silu(gate) */
#ifndef TERSE_BACKEND_CPU_RECURRENT_H
#define TERSE_BACKEND_CPU_RECURRENT_H

#include "model/model.h"

/* A recurrent_job is n consecutive tokens of a sequence and a layer. */
struct recurrent_job {
    const struct terse_model *model;
    const struct recurrent *layer;
    float *state; /* [model_recurrent_floats]: before the tokens, then after them */
    size_t n;
    float *mixed;              /* [n][model_mixed_width], overwritten */
    float *gate;               /* [n][model_recurrent_width], overwritten */
    const float *beta, *alpha; /* [n][layer->beta.rows]: where alpha's number of a head lies at the same place as beta's */
    float *out;                /* [n][model_recurrent_width] */
};

/* Reads the tokens one after another, over the calling thread's OpenMP threads; neither their number nor how tokens are divided into jobs changes a
 * result. */
void recurrent_read(const struct recurrent_job *job);

#endif
