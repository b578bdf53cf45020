/* Computes the rotation frequencies of a model, stretched as its file says. */
#ifndef TERSE_MODEL_ROPE_SCALING_H
#define TERSE_MODEL_ROPE_SCALING_H

#include "gguf/gguf.h"
#include "model/architecture.h"
#include "model/rope.h"

/* These tensors hold factors by which frequencies are divided: llama-3's, and longrope's two, for sequences no longer than the
 * original context and for others. */
#define ROPE_FACTORS "rope_freqs.weight"
#define ROPE_FACTORS_SHORT "rope_factors_short.weight"
#define ROPE_FACTORS_LONG "rope_factors_long.weight"

/* Fills frequency[n_rot/2] and *magnitude from metadata ARCHITECTURE.rope.* (freq_base; scaling none, linear, yarn, longrope) and
 * the tensor `factors`, if the file has it. `context` is the model's, used where yarn's original context is missing. `asked`, which
 * is checked here too, replaces what the file says. *logits is left, or becomes what all logits of attention are multiplied by. */
enum terse_status rope_scaling_load(const struct gguf *gguf, const struct architecture *architecture,
                                    const struct terse_model_options *asked, const char *factors, uint32_t n_rot, uint32_t context,
                                    float *frequency, float *magnitude, float *logits, struct terse_error *error);

#endif
