/* Declares the part of kv_storage (kv/cache.h) that writes and reads a cache's bytes in a saved state. */
#ifndef TERSE_BACKEND_CUDA_KV_SAVED_H
#define TERSE_BACKEND_CUDA_KV_SAVED_H

#include "backend/cuda/kv/state.h"

void kv_saved_write(const struct cache *cache, struct state_writer *writer);
enum terse_status kv_saved_read_pages(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                      struct terse_error *error);
enum terse_status kv_saved_read(struct cache *cache, struct state_file *file, struct terse_error *error);

#endif
