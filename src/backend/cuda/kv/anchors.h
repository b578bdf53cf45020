/* Declares anchors (AnTKV, section 3.3): tokens of a prompt whose keys or values stay exact beside their codes, chosen by Anchor
 * Score times error, or both by rank (kept.h). Where a step chooses none, the functions of a step return at once. */
#ifndef TERSE_BACKEND_CUDA_KV_ANCHORS_H
#define TERSE_BACKEND_CUDA_KV_ANCHORS_H

#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/state.h"

/* Reserves what the plan's step needs, if it chooses anchors; kept_release (kept.h) gives it back. */
enum terse_status kv_anchors_reserve(struct cache *cache, struct terse_error *error);
/* Lists anew where the step's pages lie, after kv_anchors_reserve. */
enum terse_status kv_anchors_list_pages(struct cache *cache, struct terse_error *error);
/* Queues forgetting the scores of the layer before. */
cudaError_t kv_anchors_begin_layer(const struct cache *cache);
/* Queues a prompt's attention, and adds what its queries contribute to the scores. */
cudaError_t kv_anchors_attend(const struct cache *cache, const struct attend_prefill *attend);
/* Queues the choice of the layer's anchors, whose pages are encoded; of those by rank, which kept_choose has marked, the copy alone.
 * Rows k, v[plan.sealed][Hk][hd] are those of the tokens that the step seals. Ranks to which pages are dealt call it together. */
enum terse_status kv_anchors_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v,
                                    struct terse_error *error);
/* Queues the copy of the layer's anchors to the rows of their tokens, rows[side][rows][Hk][hd]: of those that the cache has, and of those
 * that it will have after the step, whose choice is queued. Of several ranks each copies those of its own pages. */
cudaError_t kv_anchors_spread(const struct cache *cache, uint32_t layer, device_half *const rows[2]);
cudaError_t kv_anchors_spread_chosen(const struct cache *cache, uint32_t layer, device_half *const rows[2]);

/* Decodes the pages of a cache whose anchors were loaded, and queues the copy of rows of sides that are no anchors. */
enum terse_status kv_anchors_complete(struct cache *cache, struct terse_error *error);
/* Queues forgetting the anchors of tokens and page sets that are no longer sealed. */
void kv_anchors_forget(struct cache *cache);

/* A walk goes through the anchors of a layer and KV head in order of their tokens, of which a host's copy of exact rows has some in the first
 * places and others in the last (struct anchor_view). */
struct anchor_walk {
    const uint32_t *tokens;
    uint32_t front, front_end; /* places of those that are here */
    uint32_t back, back_end;   /* the place behind the next one of those that are elsewhere, and the last one's */
};
struct anchor_walk anchors_walk(const struct cache *cache, const struct exact_rows *exact, size_t head);
/* Returns in *place that of the next token; false: there is none. */
bool anchors_next(struct anchor_walk *walk, uint32_t *place);

/* Fetches the anchors of a KV head and side, to tokens[n_anchors]; false where that fails. */
bool kv_anchors_fetch(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens);
/* Counts the anchors of tokens before `end`. Returns false if the layers, KV heads and sides differ in that number, or if they
 * cannot be fetched. */
bool kv_anchors_before(const struct cache *cache, uint64_t end, size_t *n);

#endif
