/* Capture: what codebooks are learned from. Windows of a text run through a model, and of every layer and KV head stay keys, values and
 * how much the loss minds an error in each of them.
 *
 * Rows stay in half precision, norms of gradients in bfloat16, so the memory of the lab model's 128 windows of 2048 tokens is 3.6 GB.
 * Where the tokens of all windows would take more than the budget, every so-manieth of them stays: how many depends on the shape and
 * the budget alone, which ones on their number.
 */
#ifndef TERSE_LEARN_CAPTURE_H
#define TERSE_LEARN_CAPTURE_H

#include "codec/codec.h"
#include "model/model.h"

struct capture_side {
    uint32_t width; /* channels of a sub-vector, divides head_dim; 0: nothing of this side is kept */
    bool rotated;   /* keys after rotation, and their gradients, as they would be at `positions` */
};

struct capture_options {
    struct capture_side side[2];    /* by enum codec_side */
    enum terse_weighting weighting; /* but for DEFAULT; NONE: no gradients are made */
    uint32_t window;                /* tokens of a window, 2 to the model's context */
    uint32_t windows;               /* at most so many, taken evenly from the text; 0: all that it has */
    /* Windows begin at positions spread evenly over so many: where a window lies turns its rotated keys and changes nothing else, and
     * the caches that they stand for are longer than a window. */
    uint32_t positions;
    bool drawn;    /* gradients of labels drawn from the model's predictions (backward_draw_labels), not the text's */
    uint64_t seed; /* of the draws */
    size_t budget; /* bytes of rows and norms */
    struct terse_progress progress; /* "gradients" or "keys and values", in passes over a layer */
};

struct capture;

/* Runs the windows of tokens[n], BOS in place of the first token of each where the model's file asks for one. TERSE_E_ARGUMENT when
 * the text has not even one window. Uses the calling thread's OpenMP threads, whose number changes no bit of the samples. */
enum terse_status capture_new(const struct terse_model *model, const struct capture_options *options, const int32_t *tokens,
                              size_t n, struct capture **capture, struct terse_error *error);
void capture_free(struct capture *capture);

/* Tokens that were run, and those of them that stay as samples of each layer and KV head. */
uint64_t capture_tokens(const struct capture *capture);
size_t capture_samples(const struct capture *capture);

/* Samples first, first + step, ... of one sub-vector: rows[count][width], and where they are not NULL norms[count], the Euclidean
 * norm of the loss's gradient (mean over a window's predictions) with respect to the sub-vector, or with TERSE_WEIGHTING_ROW the
 * whole head's row, with TERSE_WEIGHTING_NONE ones; and factors[count], what capture_enter was told of the row, or ones. Any number of
 * threads may read at once. */
void capture_read(const struct capture *capture, enum codec_side side, uint32_t layer, uint32_t head, uint32_t part, size_t first,
                  size_t step, size_t count, float *rows, float *norms, float *factors);

/* Whole rows of the same samples: rows[count][hd]. */
void capture_rows(const struct capture *capture, enum codec_side side, uint32_t layer, uint32_t head, size_t first, size_t step,
                  size_t count, float *rows);

/* Takes all samples of a layer, KV head and side to another frame, for good: `enter` changes row[hd] in place and returns a factor that
 * capture_read hands out from then on. `enter` is called by several threads at once. */
void capture_enter(struct capture *capture, enum codec_side side, uint32_t layer, uint32_t head,
                   float (*enter)(const void *user, float *row), const void *user);

#endif
