/* Computes second moments that the weights of latent attention imply without any text, for the codec transform of rows that are cut into
 * slices (method_latent_slices): slice 0 is the rotated key, the others are the latent.
 *
 * A latent is key and value. An error d in it changes a head's value by V d, V its value matrix, which costs |O V d|^2 after the output
 * projection O. It also changes the head's logits by the product with its absorbed queries, K^T q, and so moves weight between values,
 * as an error of a key does. Both costs are quadratic forms in d and add up:
 *
 *     metric = sum over heads h of  (O V)^T (O V)  +  v s^2 2^KEYS_IMPORTANCE K^T E[q q^T] K
 *
 * with v the mean square of the head's values after O, and s the scale of logits. A slice's metric is its block of this. That of the
 * rotated slice, which is a key alone, has v s^2 2^KEYS_IMPORTANCE E[q q^T] of its queries, a diagonal. */
#ifndef TERSE_BACKEND_CPU_WEIGHT_LATENTS_H
#define TERSE_BACKEND_CPU_WEIGHT_LATENTS_H

#include "base/status.h"
#include "model/model.h"

struct weight_latents {
    double *covariance; /* [slices][width][width] of rows, the rotated one's before rotation */
    double *metric;     /* [slices][width][width] */
    double values;      /* sum over heads of v */
};

/* Computes these of a layer, with means left out. weight_latents_free releases them. TERSE_E_MEMORY. */
enum terse_status weight_latents_new(const struct terse_model *model, uint32_t layer, struct weight_latents *own,
                                     struct terse_error *error);
void weight_latents_free(struct weight_latents *own);

#endif
