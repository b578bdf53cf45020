/* Seals: at the end of a layer its new tokens are written to where the plan has them, full pages encoded, the rest appended to the
 * window. Keys are rotated by then, and attention is over. */
#ifndef TERSE_BACKEND_CPU_KV_SEAL_H
#define TERSE_BACKEND_CPU_KV_SEAL_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

/* Returns the scratch that sealing needs of each thread (scratch.h). */
size_t seal_thread_floats(const struct cache *cache);

/* Encodes one side of a page of rows[64][hd], of a layer and KV head, and its index; 64 rows of scratch lie behind them. The rows become
 * those that the codec was given. */
void seal_page(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head, enum codec_side side,
               float *rows);
/* Encodes some of the pages that the step seals in the current layer, those of a few thousand rows; returns false where none are
 * left. */
bool seal_some(struct cache *cache);
/* Writes the step's tokens of the current layer: the pages that are left, the window and the exact rows. */
void seal_layer(struct cache *cache);
/* Makes the plan's end the state of the cache, after the last layer, and drops pages that were evicted. */
void seal_commit(struct cache *cache);

#endif
