/* Captures the samples that codebooks are learned from. Windows of a text run through a model, which gives keys, values and the
 * norms of the loss's gradients with respect to them for every layer and KV head.
 *
 * Rows stay in half precision, norms of gradients in bfloat16, so the memory of the lab model's 128 windows of 2048 tokens is 3.6
 * GB. Where the tokens of all windows would take more than the budget, they are kept at regular intervals: their number depends
 * only on the shape and the budget, and the choice of them only on their number. */
#ifndef TERSE_TRAIN_CAPTURE_H
#define TERSE_TRAIN_CAPTURE_H

#include "format/codec.h"
#include "model/model.h"

struct capture_side {
    bool kept;
    bool rotated;        /* keys after rotation, and their gradients, as they would be at `positions` */
    uint32_t norm_width; /* channels of which one norm is kept, divides head_dim; 0: no norms */
};

struct capture_options {
    struct capture_side side[2]; /* by enum codec_side; gradients are made where one of them wants norms */
    uint32_t window;             /* tokens of a window, 2 to the model's context */
    uint32_t windows;            /* at most so many, taken evenly from the text; 0: all that it has */
    /* Windows begin at positions spread evenly over so many, since the caches that they stand for are longer than a window. Where a
     * window begins changes only the rotation of its rotated keys. */
    uint32_t positions;
    uint32_t run;  /* 0, or rotated keys are as they would be at their place in the window modulo `run`, whatever `positions` */
    uint32_t skip; /* first tokens of each window that are no samples */
    bool residual; /* capture_residual will be asked for; not where gradients are made */
    bool drawn;    /* gradients of labels drawn from the model's predictions (backward_draw_labels), not the text's */
    uint64_t seed; /* of the draws */
    size_t budget; /* bytes of rows, norms and factors */
    struct terse_progress progress; /* "gradients" or "keys and values", in passes over a layer */
    const struct learning_ops *ops; /* by which windows run; NULL: the CPU's */
};

struct capture;

/* Runs the windows of tokens[n], BOS in place of the first token of each where the model's file asks for one. TERSE_E_ARGUMENT when
 * the text has not even one window. It uses the calling thread's OpenMP threads, whose number changes no bit of the samples. */
enum terse_status capture_new(const struct terse_model *model, const struct capture_options *options, const int32_t *tokens,
                              size_t n, struct capture **capture, struct terse_error *error);
void capture_free(struct capture *capture);

/* Return how many tokens were run, and how many of them stay as samples of each layer and KV head. */
uint64_t capture_tokens(const struct capture *capture);
size_t capture_samples(const struct capture *capture);

/* Returns the place of the i-th sample's token in its window. */
size_t capture_place(const struct capture *capture, size_t i);

/* A reading selects the samples first, first + step, ..., `count` of them, of one side of a KV head. Any number of threads may read at once. */
struct capture_reading {
    enum codec_side side;
    uint32_t layer, head;
    size_t first, step, count;
};
/* Reads the samples' channels [channel, channel + width) to rows[count][width]. */
void capture_rows(const struct capture *capture, const struct capture_reading *reading, size_t channel, size_t width, float *rows);
/* Writes norms[count], the Euclidean norms of the loss's gradient (mean over a window's predictions) with respect to these
 * channels, both multiples of norm_width; ones where no norms are kept. */
void capture_norms(const struct capture *capture, const struct capture_reading *reading, size_t channel, size_t width,
                   float *norms);
/* Writes factors[count]: what capture_normalize was returned for the row, or ones. */
void capture_factors(const struct capture *capture, const struct capture_reading *reading, float *factors);

/* Returns log2 of the mean square of a hidden state as it enters the layer, the mean over all tokens that were run, as a cache's is over all
 * that it read (kv/fitted.h). */
float capture_residual(const struct capture *capture, uint32_t layer);

/* Normalizes all samples of a layer, KV head and side in place, for good: `normalize` changes row[hd] and returns the factor by which an
 * error grows when the normalization is undone, which capture_factors returns from then on. Several threads call `normalize` at once. */
void capture_normalize(struct capture *capture, enum codec_side side, uint32_t layer, uint32_t head,
                       float (*normalize)(const void *user, float *row), const void *user);

#endif
