/* Computes the profile that a model's weights imply: what the codec transform (format/transform.h) assumes about a model of which
 * nothing was learned. It takes seconds for a large model, needs no text, and gives the same bits for any number of threads.
 *
 * Hidden states are taken to be alike in all directions as they leave a norm. Then a projection W after a norm of gain g has rows
 * of covariance W diag(g)^2 W^T, which gives bases and sizes. The importance of a side of a layer and KV head is an error's size
 * relative to the residual stream to which the layer's output is added:
 *
 *     of values  v / r,   v = the mean square of a value after the output projection, summed over the query heads
 *     of keys    q v / r, q = the mean square of a logit, times 2^KEYS_IMPORTANCE
 *
 * and of a latent, which is both, as weight_latents.h has it,
 * with r the mean square of the residual stream before the layer: of embeddings, of what the layers before have added for random
 * hidden states, and of a part of their values. A cache fits to its own sequence what only the text can tell, above all means
 * (kv/fit.h). */
#ifndef TERSE_BACKEND_CPU_WEIGHT_PROFILE_H
#define TERSE_BACKEND_CPU_WEIGHT_PROFILE_H

#include "format/codebook.h"
#include "model/model.h"

/* Makes the profile, released by terse_codebook_free. It uses the calling thread's OpenMP threads. TERSE_E_UNSUPPORTED where the
 * codec does not serve the model's heads. */
enum terse_status weight_profile_new(const struct terse_model *model, struct terse_codebook **profile, struct terse_error *error);

#endif
