/* Declares decoding steps of several caches; step.h says in which order. */
#ifndef TERSE_BACKEND_CUDA_KV_BATCH_H
#define TERSE_BACKEND_CUDA_KV_BATCH_H

#include "backend/backend.h"

/* A batch_memory is memory on the device for decoding steps of any caches. */
struct batch_memory;
enum terse_status batch_new(const struct cache_shape *shape, struct batch_memory **batch, struct terse_error *error);
void batch_free(struct batch_memory *batch); /* accepts NULL */
/* Makes the batch watch for numbers that are not finite, which attention might hide: when queries, keys or values of a layer are
 * appended that are not finite, *not_finite, on the device, is lowered to MODEL_BEHIND(layer) unless it is less already. */
void batch_watch(struct batch_memory *batch, uint32_t *not_finite);

/* Begins a step whose rows are the tokens of caches[0], then of caches[1], ..., as many as each has begun. */
enum terse_status batch_begin(struct batch_memory *batch, struct cache *const *caches, size_t n, struct terse_error *error);
/* Returns a key of the step. Two steps with the same key launch the same kernels on the same memory. */
uint64_t batch_key(const struct batch_memory *batch);
/* These launch kernels alone, which can be captured in a graph and replayed. Appending rotates the queries in place, if they come
 * with the keys; else attending does it. */
enum terse_status batch_append(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error);
enum terse_status batch_attend(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error);

#endif
