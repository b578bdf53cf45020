/* Gives and takes a cache's bytes as they are saved: its part of kv_storage (kv/cache.h). */
#ifndef TERSE_BACKEND_CPU_KV_SAVED_H
#define TERSE_BACKEND_CPU_KV_SAVED_H

#include "backend/cpu/kv/state.h"

int saved_export(const struct cache *cache, enum cache_piece piece, const struct cache_sink *sink);
enum terse_status saved_import(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error);

#endif
