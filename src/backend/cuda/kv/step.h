/* Declares the KV caches of sequences on the device: pages in a pool, exact rows, a window; and attention over them. The contracts
 * are those of kv_ops for a cache and for a batch (backend/backend.h). All work is queued on device_stream() (device.h), in order;
 * pages of a window that is full are encoded meanwhile on device_background(), of lower priority.
 *
 * A batch goes one of two ways:
 *
 *     few tokens of each of some caches, which cache_decodes() (batch.h): join uploads what the kernels read (where everything
 *         lies, lengths, positions) to the batch's memory; append and attend are kernels alone, so that they can be captured in a
 *         graph and replayed while batch_key() stays the same; commit seals
 *     many tokens of one cache (prompt.h): rows as they come
 *
 * One thread at a time calls these functions. */
#ifndef TERSE_BACKEND_CUDA_KV_STEP_H
#define TERSE_BACKEND_CUDA_KV_STEP_H

#include "backend/backend.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/prompt.h"

/* These implement kv_ops. */
enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status kv_join(const struct kv_batch *batch, struct terse_error *error);
enum terse_status kv_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
size_t kv_queries_to_observe(const struct kv_batch *batch, size_t needed, size_t *first);
enum terse_status kv_observe(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
enum terse_status kv_attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
enum terse_status kv_seal(const struct kv_batch *batch, uint32_t layer, struct terse_error *error);
enum terse_status kv_commit(struct cache *cache, struct terse_error *error);

/* Returns whether the step that the cache has begun can go together with others of which this returns true; if not, it is a batch
 * by itself. */
bool cache_decodes(const struct cache *cache);

#endif
