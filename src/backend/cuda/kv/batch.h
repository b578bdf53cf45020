/* Decoding steps of several caches: step.h says in which order. */
#ifndef TERSE_BACKEND_CUDA_KV_BATCH_H
#define TERSE_BACKEND_CUDA_KV_BATCH_H

#include "base/status.h"
#include "kv/shape.h"

#include <stddef.h>

struct cache;

/* Memory on the device for decoding steps, whichever caches they are of. */
struct cache_batch;
enum terse_status batch_new(const struct cache_shape *shape, struct cache_batch **batch, struct terse_error *error);
void batch_free(struct cache_batch *batch); /* accepts NULL */
/* Makes the batch watch for numbers that are not finite, which attention might hide: *not_finite, on the device, becomes MODEL_BEHIND(layer) if
 * that is more, when queries, keys or values of a layer are appended that are not finite. */
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

#endif
