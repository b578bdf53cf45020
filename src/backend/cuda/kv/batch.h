/* Decoding steps of several caches: step.h says in which order. */
#ifndef TERSE_BACKEND_CUDA_KV_BATCH_H
#define TERSE_BACKEND_CUDA_KV_BATCH_H

#include "backend/backend.h"

/* Memory on the device for decoding steps, whichever caches they are of. */
struct batch_memory;
enum terse_status batch_new(const struct cache_shape *shape, struct batch_memory **batch, struct terse_error *error);
void batch_free(struct batch_memory *batch); /* accepts NULL */
/* Makes the batch watch for numbers that are not finite, which attention might hide: *not_finite, on the device, becomes MODEL_BEHIND(layer) if
 * that is more, when queries, keys or values of a layer are appended that are not finite. */
void batch_watch(struct batch_memory *batch, uint32_t *not_finite);

/* Rows of the step are the tokens of caches[0], then of caches[1], ..., as many as each has begun. */
enum terse_status batch_begin(struct batch_memory *batch, struct cache *const *caches, size_t n, struct terse_error *error);
/* Two steps with the same key launch the same kernels on the same memory. */
uint64_t batch_key(const struct batch_memory *batch);
/* Kernels alone, which can be captured in a graph and replayed. Appending rotates the queries in place, if they come with the keys; else attending does
 * it. */
enum terse_status batch_append(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error);
enum terse_status batch_attend(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error);

#endif
