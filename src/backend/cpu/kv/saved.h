/* Writes and reads a cache's bytes in a saved state: its part of kv_storage (kv/cache.h). */
#ifndef TERSE_BACKEND_CPU_KV_SAVED_H
#define TERSE_BACKEND_CPU_KV_SAVED_H

#include "backend/cpu/kv/state.h"

void saved_write(const struct cache *cache, struct state_writer *writer);
/* Maps pages that stay in the file. */
enum terse_status saved_map_pages(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                  struct terse_error *error);
enum terse_status saved_read(struct cache *cache, struct state_file *file, struct terse_error *error);

#endif
