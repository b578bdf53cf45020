/* Adds to the logits of a page the part of the keys' mean before rotation (kv/pre_rope.h), which for a given query depends on the
 * position alone. */
#ifndef TERSE_BACKEND_CPU_KV_POSITION_SCORES_H
#define TERSE_BACKEND_CPU_KV_POSITION_SCORES_H

#include "kv/pre_rope.h"

#include <stdint.h>

struct position_scores {
    struct pre_rope pre_rope;
    size_t stride; /* POSITION_STRIDE of its pairs */
    float
        *middle; /* [ROPE_RUN_TOKENS][cosine, sine][stride] from a run's first position to the middle of a page that begins there */
    float *waves; /* [pairs][cosine, sine][POSITION_HALF] from a page's middle to the tokens of its second half */
};

/* Makes position scores. TERSE_E_MEMORY. position_scores_free accepts a zeroed struct. */
enum terse_status position_scores_new(const struct rope *rope, struct position_scores *own, struct terse_error *error);
void position_scores_free(struct position_scores *own);
uint64_t position_scores_bytes(const struct position_scores *own);

/* Writes products[rows][2][stride] of q[rows][hd], rotated back to a rope run, with a mean: pages of the run need nothing more of
 * them. */
void position_products(const struct position_scores *own, const float *mean, const float *q, size_t rows, size_t hd,
                       float *products);

/* Adds to logits[rows][64] the position scores of the page that begins with token `first`. */
void position_scores_add(const struct position_scores *own, const float *products, size_t rows, uint64_t first, float *logits);
/* Does the same for slots[n] of the page, n <= 64: adds to logits[m * 64 + k] for row m and slots[k]. */
void position_scores_add_slots(const struct position_scores *own, const float *products, size_t rows, uint64_t first,
                               const uint8_t *slots, size_t n, float *logits);

#endif
