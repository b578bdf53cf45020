/* The KV caches of sequences on the device: pages in a pool, exact rows, a window; and attention over them. What kv_ops says of a cache
 * (backend/backend.h) holds; here is what the executor of the same backend calls instead, with everything on the device and for several
 * caches at once. All work is queued on device_stream() (device.h), in order; pages of a window that is full are encoded meanwhile on
 * device_background(), of lower priority.
 *
 * A step of one cache goes begin (kv_ops.begin), then one of two ways, then commit (kv_ops.commit):
 *
 *     decoding, few tokens of each of some caches, which cache_decodes():
 *         batch_begin(batch, caches, n)                        uploads what the kernels read: where everything lies, lengths, positions
 *         for each layer, kernels alone, so that they can be captured in a graph and replayed while batch_key() stays the same:
 *             batch_append(batch, layer, q, k, v)
 *             batch_attend(batch, layer, q, out)
 *     many tokens of one cache:
 *         for each layer: cache_append_rows for all its tokens, cache_attend_rows for those that are wanted, cache_end_layer_rows
 *
 * Shapes: q[rows][Hq][hd], k, v[rows][Hk][hd], floats on the device, before rotation. One thread.
 */
#ifndef TERSE_BACKEND_CUDA_KV_STEP_H
#define TERSE_BACKEND_CUDA_KV_STEP_H

#include "backend/backend.h"

#include <cuda_runtime_api.h>

extern const struct kv_ops cuda_kv_ops;

/* ---- Decoding */

#define DECODE_TOKENS_MOST 16 /* of one cache in a decoding step */

/* Whether the step that the cache has begun goes the first way. */
bool cache_decodes(const struct cache *cache);

/* Memory on the device for decoding steps, whichever caches they are of. */
struct cache_batch;
enum terse_status batch_new(const struct cache_shape *shape, struct cache_batch **batch, struct terse_error *error);
void batch_free(struct cache_batch *batch); /* accepts NULL */
/* From here on *not_finite, on the device, becomes MODEL_BEHIND(layer) if it is more, where queries, keys or values of a layer are appended that are
 * not finite: attention might hide them. */
void batch_watch(struct cache_batch *batch, uint32_t *not_finite);

/* Rows of the step are the tokens of caches[0], then of caches[1], ..., as many as each has begun. */
enum terse_status batch_begin(struct cache_batch *batch, struct cache *const *caches, size_t n, struct terse_error *error);
/* Two steps with the same key launch the same kernels on the same memory. */
uint64_t batch_key(const struct cache_batch *batch);
/* Rotates the queries in place and the keys on their way into the caches. */
enum terse_status batch_append(struct cache_batch *batch, uint32_t layer, float *q, const float *k, const float *v,
                               struct terse_error *error);
/* out[rows][Hq][hd], which may be q. */
enum terse_status batch_attend(struct cache_batch *batch, uint32_t layer, const float *q, float *out, struct terse_error *error);

/* ---- Many tokens */

/* Keys and values of the step's tokens first .. first + count - 1, in order; all of a layer's before any are attended to. */
enum terse_status cache_append_rows(struct cache *cache, uint32_t layer, size_t first, size_t count, const float *k, const float *v,
                                    struct terse_error *error);
/* Queries of the same, rotated in place; out[count][Hq][hd], which may be q. */
enum terse_status cache_attend_rows(struct cache *cache, uint32_t layer, size_t first, size_t count, float *q, float *out,
                                    struct terse_error *error);
/* The first of the step's queries that must be attended with, when outputs are wanted from token `needed` on. */
size_t cache_first_query(const struct cache *cache, size_t needed);
/* Of queries whose outputs nobody wants: rotates them in place. */
enum terse_status cache_observe_rows(struct cache *cache, size_t first, size_t count, float *q, struct terse_error *error);
enum terse_status cache_end_layer_rows(struct cache *cache, uint32_t layer, struct terse_error *error);

#endif
