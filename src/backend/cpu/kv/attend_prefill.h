/* Computes the attention of many queries (prefill): reads rows, through matrix products.
 *
 * Tiles of queries, the G heads of a KV head stacked, meet groups of keys that are decoded once for all of them, with a running
 * maximum between groups (Dao et al. 2022, FlashAttention, algorithm 1). New tokens are read in place, their keys rotated once. */
#ifndef TERSE_BACKEND_CPU_KV_ATTEND_PREFILL_H
#define TERSE_BACKEND_CPU_KV_ATTEND_PREFILL_H

#include "backend/cpu/kv/state.h"

/* Returns the scratch of a step, of each thread (scratch.h). */
size_t attend_prefill_thread_floats(const struct cache *cache);

/* Computes the outputs out[count][Hq][hd], unless `out` is NULL, of the step's new tokens [first, first + count), whose queries are
 * q[count][Hq][hd] before rotation; out may be q. It adds to the Anchor Scores what these queries contribute (anchor_scores.h).
 * Where exchange_due, exchange_finish writes the outputs. */
void attend_prefill(struct cache *cache, const float *q, size_t first, size_t count, float *out);
/* Does a piece of that work (piece.h), after which the same call, or attend_prefill, must follow. Returns false, and does nothing,
 * where no more than one piece is left. */
bool attend_prefill_some(struct cache *cache, const float *q, size_t first, size_t count, float *out);

#endif
