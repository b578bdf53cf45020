/* A model run naively in double precision, one number after the other, from its F32 weights: what tests hold the forward and the
 * backward pass to. Keys (before rotation) and values of any layer can be moved on the way. */
#ifndef TESTS_MODEL_ORACLE_H
#define TESTS_MODEL_ORACLE_H

#include "model/model.h"

enum model_oracle_side { MODEL_ORACLE_KEYS, MODEL_ORACLE_VALUES };

struct model_oracle {
    const struct terse_model *model;
    const int32_t *tokens;
    size_t n;
    double *hidden;   /* [layers + 1][n][width], entering each layer */
    double *sides[2]; /* [layers][n][Hk][hd]: keys before rotation, values */
    double *moves[2]; /* of the same shape, added to them; all 0 at first */
    double *rotated;  /* [layers][n][Hk][hd]: keys after rotation */
    double *logits;   /* [n][vocabulary] */
};

/* Stops the test when the model's embeddings are not F32 or memory lacks. */
struct model_oracle model_oracle_new(const struct terse_model *model, const int32_t *tokens, size_t n);
void model_oracle_free(struct model_oracle *oracle);

/* Runs the layers from `layer` on, for which those before must have been run; returns the mean next-token cross entropy in nats. */
double model_oracle_run(struct model_oracle *oracle, uint32_t layer);

/* The loss's derivative by a central difference: the moves of one layer and side go along direction[n][Hk][hd]. */
double model_oracle_slope(struct model_oracle *oracle, enum model_oracle_side side, uint32_t layer, const double *direction);

#endif
