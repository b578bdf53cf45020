/* A cache as the sections of a saved state (docs/state-format.md): STATE_CACHE and those after it. */
#ifndef TERSE_BACKEND_CPU_KV_SAVED_H
#define TERSE_BACKEND_CPU_KV_SAVED_H

#include "backend/cpu/kv/cache.h"
#include "kv/state_file.h"

/* Between steps. Failures are the writer's. */
void cache_save(const struct cache *cache, struct state_writer *writer);

/* Into a new cache of the same shape and method, with the same codebook. Sealed pages stay in the file, of which the cache becomes an owner;
 * all else is copied. TERSE_E_FORMAT where what the sections say cannot be, whatever is in them: the cache is then to be destroyed. */
enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error);

#endif
