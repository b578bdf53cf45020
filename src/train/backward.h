/* Computes the next-token loss of one window and its gradients with respect to every key and value.
 *
 * A window's tokens run through the model exactly, in fp32 with full causal attention and no cache. Its loss is the mean over
 * positions 0 to n - 2 of the cross entropy, in nats, against the next token. Weights get no gradients.
 *
 * Memory: the forward sweep keeps of every layer only its input, the output of its attention and a number per query,
 * [layers][n][width + Hq (head_dim + 1)] floats. The rest of a layer is computed again when its gradients are due, except for the
 * last layers, as many as fit into some bytes (learning_ops.staying_bytes). Without gradients there are one layer's rows at a time. */
#ifndef TERSE_TRAIN_BACKWARD_H
#define TERSE_TRAIN_BACKWARD_H

#include "backend/learning.h"

/* A captured layer is given to the sink: hidden [n][width], which enters it, its queries q [n][Hq][hd], and its keys, values and
 * gradients, [n][Hk][hd] each. `q` are the rotated queries, NULL with gradients, which take their memory. Where rows are not in the host's
 * memory, q and k_rotated are NULL, and with gradients hidden. `k` are the keys before
 * rotation (past bias, clamp and norm: rotation is applied to them), and dk is the loss's gradient with respect to them. dk and dv
 * are NULL without gradients. */
struct captured {
    size_t n;
    const float *hidden, *q, *k, *k_rotated, *v;
    const float *dk, *dv;
};

/* A sink is called once per layer that has keys and values, by its number among those, from the last to the first (without gradients: from the first to the last), on the thread that
 * called backward_run; the rows are valid during the call. */
struct backward_sink {
    void (*layer)(void *user, uint32_t layer, const struct captured *rows);
    void *user;
};

struct backward;

/* Reserves memory for windows of up to `tokens` >= 2 tokens. `progress`, which may be NULL, is asked meanwhile whether to go on: TERSE_E_INTERRUPTED. The operations are those of `ops`, or the CPU's where that is NULL or does not
 * support the model. Gradients do not go through recurrent layers: TERSE_E_UNSUPPORTED. Without `gradients` only keys and values are computed, in a third of
 * the time. Later calls use as many OpenMP threads as the calling thread has now (omp_get_max_threads), which must not have grown
 * by then. */
enum terse_status backward_new(const struct learning_ops *ops, const struct terse_model *model, size_t tokens, bool gradients,
                               const struct terse_progress *progress, struct backward **backward, struct terse_error *error);
void backward_free(struct backward *backward);

/* Draws the labels of the loss, from this call on, from the model's own predictions instead of the text's next tokens: the
 * expectation of its squared gradient is the Fisher information, which says how far an error moves the predictions whatever the
 * text says (Kunstner, Balles and Hennig 2019). The seed and a position decide on its label. */
void backward_draw_labels(struct backward *backward, uint64_t seed);

/* Runs one window of n >= 2 tokens: gives every layer to the sink, and writes the loss (without gradients it is not written, and may be NULL).
 * `progress` may be NULL; after an interrupt (TERSE_E_INTERRUPTED, some layers may have been delivered) or another failure the object can
 * run another window. One window at a time. The number of threads changes no bit of the rows. */
enum terse_status backward_run(struct backward *backward, const int32_t *tokens, size_t n, const struct backward_sink *sink,
                               const struct terse_progress *progress, double *loss, struct terse_error *error);

/* Runs the first of these tokens through the whole model, for windows without gradients, which do not go beyond the last layer's keys and
 * values: TERSE_E_FORMAT where the model's numbers are not finite, from which nothing is to be learned. Not for models with recurrent
 * layers. */
enum terse_status backward_look(struct backward *backward, const int32_t *tokens, size_t n, struct terse_error *error);

#endif
