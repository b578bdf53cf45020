/* Keeps exact rows: the first tokens of a sequence beside pages of codes (SINKS), and what methods that evict keep of the tokens
 * that leave the window. They are rows of each layer and KV head in half precision, keys before rotation, in order of age. Their
 * positions are 0, 1, ..., however many tokens were evicted, so their keys are rotated where they are read (segment_read.c).
 *
 * At first they are the first tokens. Where the plan replaces them (MAT), a token that leaves the window may take the place of
 * one of them. method_victim decides by the logits of each token's own queries to token 0, taken when the token is new, at the
 * positions that both have then; ALiBi is left out, since it depends only on their distance. Beside the rows lie
 *     exact_logits[layers][Hk][exact + recent], recent = budget - exact
 * of the exact rows, in their order, and of token t in the window at exact + t % recent.
 *
 * Order within a layer: exact_store_first before keys are rotated; exact_observe for all queries of the step; exact_replace. */
#ifndef TERSE_BACKEND_CPU_KV_EXACT_H
#define TERSE_BACKEND_CPU_KV_EXACT_H

#include "backend/cpu/kv/state.h"

/* Reserves memory for what a step of n tokens observes. */
enum terse_status exact_reserve(struct cache *cache, size_t n, struct terse_error *error);

/* Returns whether the queries of a step must be shown to exact_observe. */
static inline bool exact_observes(const struct cache *cache) { return cache->base.plan.replaces; }

/* Stores those of the step's tokens that are among the first; nothing reads them before the step's end. */
void exact_store_first(struct cache *cache);
/* Observes q[count][Hq][hd] of the new tokens from `first` on, before rotation. */
void exact_observe(struct cache *cache, const float *q, size_t first, size_t count);
/* Updates a KV head's rows and logits to what they are after the step; rows[64][hd] is scratch. It must precede the writing of the
 * window and of the pages that tokens leave for. */
void exact_replace(struct cache *cache, uint32_t head, float *rows);

#endif
