/* Manages the scratch memory of a step's attention and sealing: it is reserved when the step begins, and holds no keys and values
 * between steps. */
#ifndef TERSE_BACKEND_CPU_KV_SCRATCH_H
#define TERSE_BACKEND_CPU_KV_SCRATCH_H

#include "backend/cpu/kv/state.h"

/* Reserves memory for `shared` floats, `of_thread` floats for each of the cache's threads, and new_keys[`new_keys`] behind them. */
enum terse_status scratch_reserve(struct cache *cache, size_t shared, size_t of_thread, size_t new_keys, struct terse_error *error);
void scratch_free(struct cache *cache);

static inline float *scratch_shared(const struct cache *cache) { return cache->scratch.memory; }
/* Returns the calling thread's part. */
float *scratch_of_thread(const struct cache *cache);
float *scratch_new_keys(const struct cache *cache);

#endif
