/* Reading the tokens that select.h chose: they are copied out of their pages into pages of 64 (codec->gather_tokens) and read on
 * their codes as any page. Where a codec's keys cannot leave their page, the page is scored whole and the logits are picked.
 *
 * Threads: each thread packs into a page of its own.
 */
#ifndef TERSE_BACKEND_CPU_KV_GATHER_H
#define TERSE_BACKEND_CPU_KV_GATHER_H

#include "backend/cpu/kv/segment_read.h"

/* Memory for packed pages, where the step chooses tokens (select_reserve has decided). */
enum terse_status gather_reserve(struct cache *cache, struct terse_error *error);
void gather_free(struct cache *cache);

/* The segments of a step that chooses tokens, instead of segment.h's: first SEGMENT_GATHERED, as many for each KV head, of which the
 * last may hold fewer than 64 tokens or none; then all that do not lie in candidate pages. */
size_t gather_segment_count(const struct cache *cache);
struct segment gather_segment_at(const struct cache *cache, uint32_t head, size_t i);
/* Stored bytes that one token's reading visits in a layer, the index included, over all KV heads. */
uint64_t gather_bytes(const struct cache *cache);

/* The i-th token of a SEGMENT_GATHERED. */
uint64_t gather_token(const struct cache *cache, const struct segment *segment, size_t i);

/* segment_score and segment_accumulate of a SEGMENT_GATHERED. */
void gather_score(struct head_reader *reader, const struct segment *segment, float *logits);
void gather_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                       float *acc);

#endif
