/* The layers of a step of several sequences: what kv_ops has of batches. step.h has the same for one cache.
 *
 * A sequence that alone is the share of a thread is worked on by all threads; the others, for which waking the threads would not pay or would pay
 * less, by one thread each. */
#ifndef TERSE_BACKEND_CPU_KV_BATCH_H
#define TERSE_BACKEND_CPU_KV_BATCH_H

#include "backend/backend.h"

enum terse_status caches_join(const struct kv_batch *batch, struct terse_error *error);
enum terse_status caches_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
size_t caches_queries_to_observe(const struct kv_batch *batch, size_t needed, size_t *first);
enum terse_status caches_observe(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
enum terse_status caches_attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
/* False for several caches, whose tokens are few. */
bool caches_attend_some(const struct kv_batch *batch, const struct kv_rows *rows);
bool caches_seal_some(const struct kv_batch *batch);
enum terse_status caches_seal(const struct kv_batch *batch, uint32_t layer, struct terse_error *error);

#endif
