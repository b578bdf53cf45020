/* Declares the KV cache of one sequence: for each layer and KV head sealed pages, exact rows and a recent window; and attention
 * over them. The rest of the backend sees only this header of the folder; state.h says how its files depend on each other.
 *
 * Every reading ends in partial states (backend/cpu/partial.h) that merge in any order; nothing outside this folder knows how
 * attention is put together. A token is in exactly one of {sealed page and live, exact rows, window}.
 *
 * One step of n new tokens goes:
 *
 *     cache_begin(cache, n)                            the only call that allocates
 *     for each layer, in order:
 *         cache_append(cache, layer, k, v)             k, v [n][Hk][hd] before rotation
 *         cache_observe(cache, q, first, count)        the first cache_queries_to_observe(...) queries, in order, before any attends
 *         cache_attend(cache, q, first, count, out)    any number of times, until every query was asked
 *         cache_end_layer(cache)                       appends to the window, seals full pages, evicts
 *     cache_commit(cache)
 *
 * A step that is not taken to its end is given up by beginning another as long as no cache_end_layer was reached, and by
 * cache_reset (kv/cache.h) after that.
 *
 * The new tokens are exact among themselves (causally) and reach earlier ones through the cache. The cache rotates keys and
 * queries: it alone knows at which positions tokens are read.
 *
 * After a step the newest tokens stay in the window in half precision: at least tail_tokens of them, and up to 63 more that do not
 * fill a page yet; every full page of older ones is sealed. A token that is sealed in the step that brings it is encoded from its
 * float rows, one that was in the window from halves: which of the two depends on where steps end, and on nothing else.
 *
 * While decoding, a worker thread encodes the window's full pages ahead of the step that seals them (seal_ahead.h), into memory
 * that is allocated by then.
 *
 * Memory of keys and values grows in cache_begin by what the step seals; a step that seals less than a 64th of the cache may
 * allocate that much, 16 page sets at most. Scratch of attention (a few MB per thread) and rotation tables hold no keys and values
 * and are not counted.
 *
 * Where keys end with the values (cache_shape.latents), v is k, and outputs begin with channels that mean nothing: rotated ones.
 *
 * Shapes: Hq query heads, Hk KV heads, G = Hq/Hk, hd head_dim; floats, row-major. Threads: one thread drives a cache; work inside
 * is split over as many OpenMP threads as the cache was created with. Results do not depend on their number beyond rounding. */
#ifndef TERSE_BACKEND_CPU_KV_STEP_H
#define TERSE_BACKEND_CPU_KV_STEP_H

#include "backend/cpu/kv/storage.h"

/* Reserves everything that a step of n >= 1 tokens needs: once this has succeeded, the calls below fail only when they are made out
 * of order (TERSE_E_ARGUMENT), and have then changed nothing; but cache_attend fails too where an exchange with other ranks does. */
enum terse_status cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
/* Appends k, v [n][Hk][hd], keys before rotation. k is rotated in place where the method stores rotated keys; both must stay until
 * cache_end_layer. */
enum terse_status cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error);
/* Attends with q[count][Hq][hd] of the new tokens first..first+count-1, before rotation; writes out[count][Hq][hd], which may be
 * q. */
enum terse_status cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                               struct terse_error *error);
/* Does some of what cache_attend would do for the same queries, for callers that must return soon; returns false where little is
 * left. */
bool cache_attend_some(struct cache *cache, const float *q, size_t first, size_t count, float *out);
/* Returns how many of a layer's queries, from the first on, must be shown to cache_observe before others attend. The first `needed`
 * of them will not attend, since their outputs are not wanted. If the step chooses exact tokens by their attention, all queries
 * count. */
size_t cache_queries_to_observe(const struct cache *cache, size_t needed);
/* Shows the cache q as in cache_attend, in order from first 0 on, each new token once. */
enum terse_status cache_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error);
/* Encodes some of the pages that cache_end_layer would encode; returns false where none are left. */
bool cache_seal_some(struct cache *cache);
enum terse_status cache_end_layer(struct cache *cache, struct terse_error *error);
enum terse_status cache_commit(struct cache *cache, struct terse_error *error);

/* Sets whether a worker encodes pages ahead as decoding goes on (the default, where the window is long enough) or the step that seals them encodes
 * them, which takes longer. This is for measuring the difference; the results are the same. */
void cache_set_seal_ahead(struct cache *cache, bool ahead);

#endif
