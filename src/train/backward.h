/* The backward pass: the next-token loss of one window and its gradients with respect to every key and value.
 *
 * A window's tokens run through the model exactly, in fp32 with full causal attention and no cache. Its loss is the mean over
 * positions 0 to n - 2 of the cross entropy, in nats, against the next token. Weights get no gradients.
 *
 * Memory: of every layer only what enters it, what its attention gives and a number per query stay from the forward sweep,
 * [layers][n][width + Hq (head_dim + 1)] floats; the rest of a layer is made again when its gradients are due, but for the last
 * layers, as many as fit into half a gigabyte, of which it stays. Without gradients there are one layer's rows at a time.
 */
#ifndef TERSE_TRAIN_BACKWARD_H
#define TERSE_TRAIN_BACKWARD_H

#include "model/model.h"

/* These enter one layer: hidden [n][width], and its queries, keys, values and gradients: q [n][Hq][hd], the others [n][Hk][hd]. `q` are the rotated queries, NULL with
 * gradients, which take their memory. `k` are the keys before rotation (past bias, clamp and norm: what rotation is applied to), dk
 * is the loss's gradient with respect to them. dk and dv are NULL without gradients. */
struct captured {
    size_t n;
    const float *hidden, *q, *k, *k_rotated, *v;
    const float *dk, *dv;
};

/* Called once per layer, from the last to the first (without gradients: from the first to the last), on the thread that called
 * backward_run; the rows are valid during the call. */
struct backward_sink {
    void (*layer)(void *user, uint32_t layer, const struct captured *rows);
    void *user;
};

struct backward;

/* Memory for windows of up to `tokens` >= 2 tokens; without `gradients`, only keys and values are made, in a third of the time.
 * The calling thread's number of OpenMP threads (omp_get_max_threads) is what later calls will use, and must not have grown by
 * then. */
enum terse_status backward_new(const struct terse_model *model, size_t tokens, bool gradients, struct backward **backward,
                               struct terse_error *error);
void backward_free(struct backward *backward);

/* Makes the loss from this call on that of labels drawn from the model's own predictions, not of the text's next tokens: the expectation of
 * its squared gradient is the Fisher information, which says how far an error moves the predictions whatever the text says
 * (Kunstner, Balles and Hennig 2019). The seed and a position decide on its label. */
void backward_draw_labels(struct backward *backward, uint64_t seed);

/* Runs one window of n >= 2 tokens: gives every layer to the sink, and writes the loss (without gradients it is not written, and may be NULL).
 * `progress` may be NULL; after an interrupt (TERSE_E_INTERRUPTED, some layers may have been delivered) or another failure the object can
 * run another window. One window at a time. The number of threads changes no bit of the rows. */
enum terse_status backward_run(struct backward *backward, const int32_t *tokens, size_t n, const struct backward_sink *sink,
                               const struct terse_progress *progress, double *loss, struct terse_error *error);

#endif
