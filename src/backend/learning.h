/* Declares the operations by which a backend does the heavy part of learning (src/train): on the rows of whole windows, exact and
 * without a cache, and searches among centroids. train/window_ops.c implements them on the CPU, whose table is the reference.
 *
 * Rows are floats in memory of the backend, made by `reserve`: a token or a head each. Operations are queued or done at once, in the
 * order of the calls; what fails is told by the next `fetch` or `check_finite`. Matrices and norms are those of the learner's model, as
 * pointers into it. One thread at a time uses a learner; the number of threads that compute changes no bit. */
#ifndef TERSE_BACKEND_LEARNING_H
#define TERSE_BACKEND_LEARNING_H

#include "model/model.h"

struct learner; /* a model on a backend, and memory for windows */
struct search;  /* points on a backend, that are compared with centroids */
struct mixture; /* points on a backend, that a table of complex numbers is fitted to (train/em.h) */

/* A linear_op is one product of several that share their input. */
struct linear_op {
    const struct matrix *w;
    float *out; /* [n][rows] */
};

/* Rows are rotated in three ways: as keys and queries are; back, which takes gradients with respect to rotated rows to gradients with respect to
 * the rows; or as gradients with respect to rows, which are taken to those with respect to the rotated rows. With R a rotation and m RoPE's
 * magnitude, a key k is stored as m R k, so the three are m R, its transpose m R^T, and the transpose of its inverse, R / m. */
enum window_turn { WINDOW_TURN_ROWS, WINDOW_TURN_BACK, WINDOW_TURN_GRADIENTS };

/* This is the attention of a window's tokens over the window. */
struct attention {
    uint32_t query_heads, kv_heads, head_dim;
    size_t n;
    float scale;         /* of the logits */
    float cap;           /* logits become cap tanh(logits / cap) after the scale; 0: they do not */
    const float *slopes; /* [Hq] of ALiBi, in the host's memory, added after scale and cap as backend/cpu/kv/step.h says; or NULL */
    const float *sinks;  /* [Hq], in the host's memory: the logit of a key without a value, which queries see besides; or NULL */
    size_t window;       /* queries see so many keys, their own the last; 0: all before them */
    float *q;            /* [n][Hq][hd], rotated */
    const float *k, *v;  /* [n][Hk][hd], rotated */
};

/* The targets of rows of logits are given tokens, or where they are NULL a token for each row, drawn from its own softmax. */
struct targets {
    const int32_t *tokens; /* in the host's memory */
    uint64_t seed;         /* of the first row's draw */
};

/* This is an E step (train/em.h): what points are looked at, by what table, and what comes of it, all in the host's memory. */
struct expectation {
    const uint32_t *ids; /* [n] points */
    size_t n;
    const float *panel, *half; /* [2 pairs][2 entries], [entries][entries]: as of backend/cpu/codec/commvq_search.h */
    double temperature;        /* T; 0: a point's nearest codeword has all of its weight */
    double faint;              /* weights below exp(-faint) of the nearest's are left out */
    uint16_t *codes;           /* [n] the nearest codeword, a + entries b */
    float *errors;             /* [n] w times its squared distance */
    double *counts, *sums;     /* [entries][entries], [entries][2 pairs]: what em_solve takes */
};

struct learning_ops {
    size_t panel;         /* tokens of wide rows that are computed together */
    size_t logit_bytes;   /* of a panel of logits, unless that were very few tokens */
    size_t staying_bytes; /* of rows that may stay for the backward sweep */
    /* Returns TERSE_OK if windows of such models go through these operations. */
    enum terse_status (*supports)(const struct terse_model *model, struct terse_error *error);
    /* Takes a model that is supported, and outlives the learner, for windows of up to `tokens` tokens. It asks `progress` now and then
     * whether to go on: TERSE_E_INTERRUPTED. */
    enum terse_status (*open)(const struct terse_model *model, size_t tokens, const struct terse_progress *progress,
                              struct learner **learner, struct terse_error *error);
    void (*close)(struct learner *learner); /* accepts NULL */
    /* Returns memory for count x each floats, which `release` frees; NULL with the error of TERSE_E_MEMORY. */
    float *(*reserve)(struct learner *learner, size_t count, size_t each, struct terse_error *error);
    void (*release)(struct learner *learner, float *rows); /* accepts NULL */
    /* Returns memory of the host for count x each floats that `fetch` writes quickly, which `unstage` frees; NULL with the error of
     * TERSE_E_MEMORY. Both are NULL where rows are in the host's memory: nothing need be fetched. */
    float *(*stage)(struct learner *learner, size_t count, size_t each, struct terse_error *error);
    void (*unstage)(struct learner *learner, float *memory); /* accepts NULL */
    /* Copies n floats to the host's memory, once all that was called before is done. */
    enum terse_status (*fetch)(struct learner *learner, const float *from, size_t n, float *to, struct terse_error *error);
    /* Returns model_not_finite() if some of x[n][width], which the model has at `place`, are not finite. */
    enum terse_status (*check_finite)(struct learner *learner, uint32_t place, const float *x, size_t n, size_t width,
                                      struct terse_error *error);

    /* These compute what backend/cpu/rows.h says of embed_rows from position 0, norm_rows, add_rows and so on. */
    void (*embed)(struct learner *learner, const int32_t *tokens, size_t n, float *hidden);
    void (*norm)(struct learner *learner, const struct norm *norm, const float *x, float *out, size_t n, size_t width);
    void (*copy)(struct learner *learner, float *to, const float *from, size_t n, size_t width); /* `to` may be `from` */
    void (*clear)(struct learner *learner, float *x, size_t n);
    void (*add)(struct learner *learner, float *x, const float *y, size_t n, size_t width);
    void (*clamp)(struct learner *learner, float *x, float most, size_t n, size_t width);
    void (*cap)(struct learner *learner, float *x, float cap, size_t n, size_t width);
    void (*activate)(struct learner *learner, enum activation activation, float *x, const float *up, size_t n, size_t width);
    /* Rotates rows[n][heads][head_dim] of a layer, whose token t is at position t. */
    void (*turn)(struct learner *learner, uint32_t layer, enum window_turn turn, float *rows, size_t n, uint32_t heads);
    /* Computes out[n][rows] = x[n][columns] w^T + the matrix's bias for each product. */
    void (*linear)(struct learner *learner, const struct linear_op *ops, size_t n_ops, const float *x, size_t n);
    /* Computes out[n][Hq][hd] and log_sum[n][Hq], the logarithm of each query's sum of exponentials. */
    void (*attend)(struct learner *learner, const struct attention *attention, float *out, float *log_sum);

    /* These are the gradients of single operations; train/backward_ops.h and train/backward_attention.h say what they compute. */
    void (*linear_backward)(struct learner *learner, const struct matrix *w, const float *dy, size_t n, bool accumulate, float *dx);
    void (*norm_backward)(struct learner *learner, const struct norm *norm, const float *x, float *d, size_t n, size_t width);
    void (*clamp_backward)(struct learner *learner, const float *x, float most, float *d, size_t n, size_t width);
    void (*cap_backward)(struct learner *learner, const float *capped, float cap, float *d, size_t n, size_t width);
    void (*activation_backward)(struct learner *learner, enum activation activation, float *x, float *up, const float *d, size_t n,
                                size_t width);
    void (*cross_entropy)(struct learner *learner, float *logits, const struct targets *targets, size_t n, float scale,
                          double *loss); /* of the model's vocabulary; loss[n] is the host's */
    void (*attend_backward)(struct learner *learner, const struct attention *attention, const float *out, const float *log_sum,
                            const float *d_out, float *dk, float *dv, bool queries);

    /* Copies rows[n][d], `stride` floats apart and at most 1e15 in size, to compare them with k centroids at a time. Returns NULL where
     * there is no memory, or d is more than it serves: the caller searches by itself. Any thread may have a search, and several at once. NULL:
     * there are no searches. */
    struct search *(*open_search)(const float *rows, size_t n, size_t d, size_t stride, size_t k);
    /* Writes codes[n], the nearest of centroids[k][d], the lowest of equally near ones, the same in every run. */
    enum terse_status (*find)(struct search *search, const float *centroids, uint16_t *codes, struct terse_error *error);
    void (*close_search)(struct search *search); /* accepts NULL */

    /* Copies rows[n][2 pairs] and weights[n] for E steps with tables of so many entries. The rest is as of open_search. */
    struct mixture *(*open_mixture)(const float *rows, const float *weights, size_t n, size_t pairs, size_t entries);
    enum terse_status (*expect)(struct mixture *mixture, const struct expectation *expectation, struct terse_error *error);
    void (*close_mixture)(struct mixture *mixture); /* accepts NULL */
};

#endif
