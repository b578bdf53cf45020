/* Reading chosen tokens: where the method has an index (backend/cpu/codec/index.h), a decoding step scores the tokens of a prompt by it, takes the
 * best of them out of their blocks and reads these alone. Read as ever is everything else: exact rows, what the sequence has
 * brought forth itself since (each token of it may matter to the next), the window and the new tokens.
 *
 * Candidates are tokens of sealed blocks that a prompt's steps sealed. Of them a KV head reads, shared by its G queries, its exact
 * anchors and on top of these the `read_count` or `read_percent` best. They are packed into blocks of 64 by codec->take and read by
 * score and mix as any block; where keys cannot leave their block, the block is scored and the logits picked.
 *
 * Each token of a step chooses for itself. Order within a layer and token: select_prepare for each KV head; select_score, any ranges;
 * select_top_k for each KV head; then tiles. Threads: calls for different KV heads, and select_score for different ranges, may run at
 * once.
 */
#ifndef TERSE_BACKEND_CPU_KV_SELECT_H
#define TERSE_BACKEND_CPU_KV_SELECT_H

#include "backend/cpu/kv/segment.h"

/* Bytes of a block that the index has beside the codec's own, and of what the codec's keys and the index learn while they run, of
 * one layer and KV head. */
size_t index_page_bytes(const struct method *method, uint32_t head_dim);
size_t fitted_key_bytes(const struct method *method, uint32_t head_dim);
size_t fitted_bytes(const struct method *method, uint32_t head_dim);

/* Whether the step in progress reads chosen tokens. */
static inline bool select_active(const struct cache *cache) { return cache->selection.candidates > 0; }

/* What the plan's step reads, and room for choosing. */
enum terse_status select_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);
void select_free(struct cache *cache);

/* ---- Learning and encoding, as blocks are sealed */

/* Learns from the first tokens that are sealed: those of the step's that are new, evenly at most FIT_ROWS of them where keys must
 * be turned first, or where they are few, the first block's, rows[64][hd]. */
#define FIT_ROWS 4096
void select_fit(struct cache *cache, uint32_t head, const float *rows);
/* Encodes the index of a block from its keys rows[n][hd] as the codec takes them; scratch[64][hd]. */
void select_encode_index(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head, const float *rows,
                         size_t n, float *scratch);

/* ---- A step's one token: q[G][hd] scaled and turned as for segment_score */

void select_prepare(const struct cache *cache, uint32_t head, const float *q);
/* Candidates come in ranges, select_ranges of them. */
size_t select_ranges(const struct cache *cache);
void select_score(const struct cache *cache, uint32_t head, size_t range);
void select_top_k(const struct cache *cache, uint32_t head);

/* The tiles that are read: SEGMENT_PACKED, as many for each KV head, the last of which may be empty; then all others. */
size_t select_segment_count(const struct cache *cache);
struct segment select_segment_at(const struct cache *cache, uint32_t head, size_t i);
/* Stored bytes that one token's reading visits in a layer, over all KV heads. */
uint64_t select_bytes(const struct cache *cache);

/* segment_score and segment_accumulate of a SEGMENT_PACKED. */
void packed_score(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, const float *tables,
                  size_t rows, float *workspace, float *logits);
void packed_accumulate(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                       float *code_sums, float *acc);
/* The i-th token of a SEGMENT_PACKED. */
uint64_t packed_token(const struct cache *cache, const struct segment *segment, size_t i);

#endif
