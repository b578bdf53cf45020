/* The forward pass: tokens through all layers, layer by layer, with the KV cache as its only memory. */
#ifndef TERSE_BACKEND_CPU_EXECUTOR_H
#define TERSE_BACKEND_CPU_EXECUTOR_H

#include "backend/cpu/kv/cache.h"
#include "model/model.h"

/* Activations. Grown by forward() to the step's size, shrunk again after a long one, so that a long prompt's memory does not stay. */
struct workspace {
    size_t tokens;  /* capacity of hidden, k, v */
    size_t panel;   /* tokens that pass through a layer at a time */
    float *hidden;  /* [tokens][width] */
    float *k, *v;   /* [tokens][Hk][hd] */
    float *normed;  /* [panel][width] */
    float *q, *out; /* [panel][Hq][hd] */
    float *inner;   /* [panel][feed_forward] */
    float *factor;  /* the same; empty without a gate */
    float *logits;  /* [logit_rows][vocabulary] */
    float *tile;    /* linear()'s scratch */
};
void workspace_free(struct workspace *workspace);

struct forward {
    const struct terse_model *model;
    struct cache *cache;
    struct workspace *workspace;
    enum cache_step_kind kind;
    const struct terse_logits_sink *sink;  /* or NULL */
    const struct terse_progress *progress; /* or NULL */
    float *last_logits;                    /* [vocabulary] of the last token */
};

/* One step of tokens[n]. When it fails before any layer is finished the cache is as before; TERSE_E_INTERRUPTED may come later, and
 * then the cache must be reset. */
enum terse_status forward(const struct forward *f, const int32_t *tokens, size_t n, struct terse_error *error);

#endif
