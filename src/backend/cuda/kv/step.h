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
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/prompt.h"

/* Implement kv_ops.begin and kv_ops.commit. */
enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status kv_commit(struct cache *cache, struct terse_error *error);

/* Returns whether the step that the cache has begun goes the first way. */
bool cache_decodes(const struct cache *cache);

#endif
