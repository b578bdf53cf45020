/* Computes the gradients of feed-forward layers of experts (backend/cpu/experts.h). The choice of experts for a row counts as
 * given: it has no derivative. */
#ifndef TERSE_TRAIN_BACKWARD_EXPERTS_H
#define TERSE_TRAIN_BACKWARD_EXPERTS_H

#include "backend/cpu/experts.h"

/* A backward_experts is the memory for a panel. */
struct backward_experts {
    const struct terse_model *model;
    struct routes routes;
    float *inner, *factor, *active, *d_active; /* [rows][feed_forward] */
    float *dx;                                 /* [rows][width] */
    float *d_share;                            /* [rows][experts_used] */
};

/* Reserves memory for panels of up to `rows` rows; TERSE_E_MEMORY. */
enum terse_status backward_experts_reserve(struct backward_experts *e, const struct terse_model *model, size_t rows,
                                           struct terse_error *error);
void backward_experts_free(struct backward_experts *e);

/* Adds the layer's output for x[n][width] to out[n][width]. `scratch` must suffice for linear_scratch() and
 * linear_backward_scratch() of all its matrices. */
void backward_experts_forward(struct backward_experts *e, const struct layer *layer, const float *x, size_t n, float *out,
                              float *scratch);
/* Computes the gradient with respect to x, which takes the place of x, from d[n][width], the gradient with respect to the layer's output. */
void backward_experts_run(struct backward_experts *e, const struct layer *layer, float *x, const float *d, size_t n,
                          float *scratch);

#endif
