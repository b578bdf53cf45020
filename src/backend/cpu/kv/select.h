/* Chooses which tokens of a prompt a decoding step reads, where the method has an index (codec/index.h).
 *
 * The index scores the tokens of candidate pages, those that a prompt's steps sealed. Of these tokens a KV head reads, for all of
 * its G queries, the anchors and besides them the `read_count` or `read_percent` best. Everything else is read as without an index:
 * exact rows, what was generated since (each token of it may matter to the next), the window and the new tokens.
 *
 * Each token of a step chooses for itself. Order within a layer and token: select_prepare for each KV head; select_score, any
 * ranges; select_top_k for each KV head; then the chosen tokens are read (gather.h). Threads: calls for different KV heads, and
 * select_score for different ranges, may run at once. */
#ifndef TERSE_BACKEND_CPU_KV_SELECT_H
#define TERSE_BACKEND_CPU_KV_SELECT_H

#include "backend/cpu/kv/state.h"

/* Decides whether the plan's step chooses tokens, and reserves memory for it. */
enum terse_status select_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);
void select_free(struct cache *cache);

/* Returns whether the step in progress chooses tokens. */
static inline bool select_active(const struct cache *cache) { return cache->selection.candidates > 0; }

/* Takes q[G][hd] of one token, scaled and rotated as query_rows.h does. */
void select_prepare(const struct cache *cache, uint32_t head, const float *q);
/* Returns in how many ranges the candidate pages are scored. */
size_t select_ranges(const struct cache *cache);
void select_score(const struct cache *cache, uint32_t head, size_t range);
/* Writes the KV head's read list: the pages of chosen tokens, which are live, then the pages that are read whole. */
void select_top_k(const struct cache *cache, uint32_t head);
/* Returns how many stored bytes the scores of a layer visit, over all KV heads. */
uint64_t select_bytes(const struct cache *cache);

const struct page_set *select_candidate(const struct cache *cache, size_t i);

/* Returns, between steps, which part of the i-th candidate's tokens the last step has read, over its tokens, layers and KV
 * heads. */
double select_share_read(const struct cache *cache, size_t i);

#endif
