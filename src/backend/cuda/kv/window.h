/* Declares the pages of the window. */
#ifndef TERSE_BACKEND_CUDA_KV_WINDOW_H
#define TERSE_BACKEND_CUDA_KV_WINDOW_H

#include "backend/cuda/kv/state.h"
#include "kv/fit_records.h"

/* Queues the encoding of the pages that the plan's step seals, of a step that decodes. */
enum terse_status window_seal(struct cache *cache, struct terse_error *error);
/* Queues on device_background(), after a step that decodes, the encoding of pages that have become full, into free page sets. */
enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error);
/* Computes the moments (encode_launch.h) of the window's first n tokens, whose pages begin where the plan's step begins to seal, in
 * layers [first, end), to host memory moments[end - first][Hk][sides.n]. */
enum terse_status window_moments(struct cache *cache, size_t n, struct encode_sides sides, struct layer_range layers,
                                 float *moments, struct terse_error *error);
/* Waits until no page of the window is being encoded there. */
void window_wait_ahead(struct cache *cache);

/* Return rows of the ring, a multiple of 64: the least, which a cache that does not wait for tokens to fit to needs for the tokens
 * that stay, a page that is not full and the tokens of a decoding step; and those with which a prompt that comes first leaves a new
 * cache. */
uint32_t window_least_rows(const struct method *method);
uint32_t window_rows_after(const struct method *method, const struct plan *plan);
/* Makes the ring hold the tokens that the plan's step puts there. */
enum terse_status window_reserve(struct cache *cache, struct terse_error *error);
/* Gives back, between steps, the rows that the ring no longer needs once transforms are fitted. */
enum terse_status window_trim(struct cache *cache, struct terse_error *error);
/* Gives the ring of a copy, or of a state that is being loaded, rows for n tokens; what it held is lost. */
enum terse_status window_clear(struct cache *cache, uint64_t n, struct terse_error *error);

#endif
