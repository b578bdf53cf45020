/* The keys' mean before rotation (kv/pre_rope.h) adds to the logits of a page what, for a query, depends on the position alone. */
#ifndef TERSE_BACKEND_CPU_KV_POSITION_SCORES_H
#define TERSE_BACKEND_CPU_KV_POSITION_SCORES_H

#include "kv/pre_rope.h"

#include <stdbool.h>
#include <stdint.h>

#define HALF_PAGE (PAGE_TOKENS / 2)

struct position_scores {
    struct pre_rope pre_rope;
    float *middle;        /* [cosine, sine][pairs] from a page's first position to its middle, 31.5 further */
    float *cosine, *sine; /* [pairs][HALF_PAGE] from there to the tokens of its second half */
};

/* TERSE_E_MEMORY. position_scores_free accepts a zeroed struct. */
enum terse_status position_scores_new(const struct rope *rope, struct position_scores *own, struct terse_error *error);
void position_scores_free(struct position_scores *own);

/* logits[rows][64] += what the page that begins with token `first` adds, for q[rows][hd], rotated back to its run. */
void position_scores_add(const struct position_scores *own, const float *mean, uint64_t first, const float *q, size_t rows,
                         size_t hd, float *logits);
/* The same of one slot of the page: logits[m * 64] += for row m. */
void position_scores_add_slot(const struct position_scores *own, const float *mean, uint64_t first, size_t slot, const float *q,
                              size_t rows, size_t hd, float *logits);
/* Adds them to ranks[64], as codec_ranks counts, for q[hd]. Returns the largest. */
uint16_t position_scores_add_ranks(const struct position_scores *own, const float *mean, uint64_t first, const float *q, size_t hd,
                                   uint16_t *ranks);

#endif
