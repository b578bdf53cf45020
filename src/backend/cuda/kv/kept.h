/* Declares exact rows, and the choice of the tokens of a prompt that become exact rows (kept.c). */
#ifndef TERSE_BACKEND_CUDA_KV_KEPT_H
#define TERSE_BACKEND_CUDA_KV_KEPT_H

#include "backend/cuda/kv/state.h"

/* Returns the bytes that n anchors in a cache of so many page sets add to the exact rows, and what rows that may be replaced have
 * besides. */
size_t kept_bytes(const struct cache_shape *shape, const struct method *method, size_t n, size_t pages);
/* Allocates rows for the first tokens and n anchors, and queues writing zeros to them; exact_free frees them, also after a
 * failure. */
enum terse_status exact_new(const struct cache *cache, size_t n, size_t pages, struct exact_rows *exact, struct terse_error *error);
void exact_free(const struct cache *cache, struct exact_rows *exact);
/* Allocates exact rows like the cache's own and queues copying these. A failure leaves nothing allocated. */
enum terse_status exact_copy(const struct cache *cache, struct exact_rows *copy, struct terse_error *error);
/* Sets where the arrays lie that follow `rows`, on the device or in a copy on the host, and returns the bytes of all. */
size_t exact_lay_out(const struct cache *cache, struct exact_rows *exact);
/* Makes room for exact rows of n anchors in place of the old rows, whose numbers are lost. */
enum terse_status kept_resize(struct cache *cache, size_t n, struct terse_error *error);
/* Queues the copy of another cache's exact rows. */
enum terse_status kept_copy(struct cache *cache, const struct cache *from, struct terse_error *error);
void kept_reset(struct cache *cache); /* keeps the memory */
void kept_free(struct cache *cache);
/* Reserves, if the plan's step ranks tokens, the memory that it needs for so many rows that its queries may read; kept_release gives
 * back the memory of any choice. */
enum terse_status kept_reserve(struct cache *cache, size_t rows, struct terse_error *error);
void kept_release(struct cache *cache);
/* Queues the copy of those of queries q[count][Hq][hd] of the step's tokens from `first` on, rotated, that rank tokens. */
cudaError_t kept_observe(const struct cache *cache, const float *q, size_t first, size_t count);
/* Queues the choice of the layer's tokens, by rank, among the tokens that the step seals, which are rows from `first` on of k, v[rows_before
 * + plan.n][Hk][hd], and the copy of their rows, unless they are anchors beside codes: of these it leaves the marks that a
 * struct anchor_union takes. */
cudaError_t kept_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v, size_t rows_before,
                        size_t first);
/* Returns the marks of the layer that has chosen last. */
uint64_t *kept_marks(const struct cache *cache);
/* Puts the tokens that were chosen in place of the exact rows; cache_advance counts them. */
enum terse_status kept_commit(struct cache *cache, struct terse_error *error);

#endif
