/* The rotation frequencies of a model, with what its file says of stretching them. */
#ifndef TERSE_MODEL_ROPE_SCALING_H
#define TERSE_MODEL_ROPE_SCALING_H

#include "gguf/gguf.h"
#include "model/rope.h"

/* Fills frequency[n_rot/2] and *magnitude from metadata `prefix`.rope.* (freq_base; scaling none, linear, yarn) and the tensor
 * rope_freqs.weight (the factors of llama-3 scaling). `context` is the model's, used where yarn's original context is missing. */
enum terse_status rope_scaling_load(const struct gguf *gguf, const char *prefix, uint32_t n_rot, uint32_t context, float *frequency,
                                    float *magnitude, struct terse_error *error);

#endif
