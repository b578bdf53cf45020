/* Manages the memory of a cache on the host: kv_storage (kv/cache.h). */
#ifndef TERSE_BACKEND_CPU_KV_STORAGE_H
#define TERSE_BACKEND_CPU_KV_STORAGE_H

#include "kv/cache.h"

extern const struct kv_storage cpu_storage;

/* Creates a cache that uses `threads` >= 1 threads for its life. TERSE_E_UNSUPPORTED where the method cannot serve the shape. */
enum terse_status cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                               struct terse_error *error);
void cache_destroy(struct cache *cache); /* accepts NULL */

#endif
