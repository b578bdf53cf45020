/* Declares how exact rows are replaced by tokens that leave the window (MAT). The logits by which they compete come with the queries
 * of a step; a decoding step replaces rows when it is committed, a prompt layer by layer, in a copy of the rows that kept_commit
 * puts in their place. For other methods all of these return at once. */
#ifndef TERSE_BACKEND_CUDA_KV_REPLACE_H
#define TERSE_BACKEND_CUDA_KV_REPLACE_H

#include "backend/cuda/kv/state.h"

/* Returns the bytes of what replacing_new allocates. */
size_t replacing_bytes(const struct cache_shape *shape, const struct method *method);
enum terse_status replacing_new(struct cache *cache, struct terse_error *error);
void replacing_free(struct cache *cache);
/* Tells that page sets are others. */
void replacing_forget(struct cache *cache);

/* Queues, in a decoding step's end, the choice and the moves of rows, for all layers. */
enum terse_status replacing_commit(struct cache *cache, struct terse_error *error);

/* Reserves what a prompt's step needs; the copy of the exact rows is kept_release's to give back. */
enum terse_status replacing_reserve(struct cache *cache, struct terse_error *error);
/* Queues forgetting the logits of the layer before. */
cudaError_t replacing_begin_layer(const struct cache *cache);
/* Queues finding the logits of rotated queries q[count][Hq][hd] of the step's tokens from `first` on. */
cudaError_t replacing_observe(const struct cache *cache, const float *q, size_t first, size_t count);
/* Queues the choice and the moves of the layer's rows. Rows k, v[tokens][Hk][hd] begin with the first token that leaves
 * (replacing_first). */
cudaError_t replacing_seal(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v);
uint64_t replacing_first(const struct plan *plan);

#endif
