/* Reads the tokens that select.h chose: they are copied out of their pages into pages of 64 (codec->gather_tokens) and read on
 * their codes as any page. Where a codec's keys cannot leave their page, the page is scored whole and the logits are picked.
 *
 * Threads: each thread packs into a page of its own. */
#ifndef TERSE_BACKEND_CPU_KV_GATHER_H
#define TERSE_BACKEND_CPU_KV_GATHER_H

#include "backend/cpu/kv/segment_read.h"

/* Reserves memory for packed pages, where the step chooses tokens (select_reserve has decided). */
enum terse_status gather_reserve(struct cache *cache, struct terse_error *error);
void gather_free(struct cache *cache);

/* Returns how many stored bytes the reading of one token visits in a layer, the index included, over all KV heads. */
uint64_t gather_bytes(const struct cache *cache);

/* These do segment_score and segment_accumulate for a SEGMENT_GATHERED that has tokens. */
void gather_score(struct head_reader *reader, const struct segment *segment, float *logits);
void gather_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                       float *acc);

#endif
