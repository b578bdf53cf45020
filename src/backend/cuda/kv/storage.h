/* Declares the memory of a cache on the device: kv_storage (kv/cache.h). */
#ifndef TERSE_BACKEND_CUDA_KV_STORAGE_H
#define TERSE_BACKEND_CUDA_KV_STORAGE_H

#include "kv/cache.h"

extern const struct kv_storage cuda_storage;

/* These are `create` and `destroy` of kv_storage. */
enum terse_status kv_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                            struct terse_error *error);
void kv_destroy(struct cache *cache);

#endif
