/* Declares exact rows, and the choice of the tokens of a prompt that become exact rows (kept.c). */
#ifndef TERSE_BACKEND_CUDA_KV_KEPT_H
#define TERSE_BACKEND_CUDA_KV_KEPT_H

#include "backend/cuda/kv/state.h"

/* Returns the bytes of one anchor in all layers, heads and sides. */
size_t anchor_bytes(const struct cache_shape *shape);
/* Makes room for exact rows of n anchors in place of the old rows, whose numbers are lost. */
enum terse_status kept_resize(struct cache *cache, size_t n, struct terse_error *error);
/* Queues the copy of another cache's exact rows. */
enum terse_status kept_copy(struct cache *cache, const struct cache *from, struct terse_error *error);
void kept_reset(struct cache *cache); /* keeps the memory */
void kept_free(struct cache *cache);
/* Reserves, if the plan's step chooses, the memory that it needs for so many rows that its queries may read; kept_release gives it
 * back. */
enum terse_status kept_reserve(struct cache *cache, size_t rows, struct terse_error *error);
void kept_release(struct cache *cache);
/* Queues the copy of those of queries q[count][Hq][hd] of the step's tokens from `first` on, rotated, that rank tokens. */
cudaError_t kept_observe(const struct cache *cache, const float *q, size_t first, size_t count);
/* Queues the choice of the layer's anchors among the tokens that the step seals, which are rows from `first` on of k, v[rows_before
 * + plan.n][Hk][hd]. */
cudaError_t kept_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v, size_t rows_before,
                        size_t first);
/* Puts the tokens that were chosen in place of the exact rows; cache_advance counts them. */
enum terse_status kept_commit(struct cache *cache, struct terse_error *error);

#endif
