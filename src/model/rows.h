/* Operations on the rows of activations, a token or a head each, over the calling thread's OpenMP threads: what the forward and the
 * backward pass share. */
#ifndef TERSE_MODEL_ROWS_H
#define TERSE_MODEL_ROWS_H

#include "model/model.h"

#define PARALLEL_ROWS 8 /* fewer are not worth waking the threads for */

/* hidden[n][width]: the embeddings of tokens[n], which are in the vocabulary. */
void embed_rows(const struct terse_model *model, const int32_t *tokens, size_t n, float *hidden);
/* out[n][width] = RMSNorm of x[n][width]; out may be x. */
void norm_rows(const float *x, const float *gain, float epsilon, float *out, size_t n, size_t width);
/* x[n][width] += y */
void add_rows(float *x, const float *y, size_t n, size_t width);
/* gate[n][width] = silu(gate) up */
void silu_rows(float *gate, const float *up, size_t n, size_t width);

#endif
