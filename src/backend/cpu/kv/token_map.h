/* What became of each part of a sequence: for people who want to see it. Between steps. */
#ifndef TERSE_BACKEND_CPU_KV_TOKEN_MAP_H
#define TERSE_BACKEND_CPU_KV_TOKEN_MAP_H

#include "backend/cpu/kv/state.h"

/* As terse_session_map, of all layers of the model: of the next part's too. */
void cache_map(const struct cache *cache, struct terse_token_share *shares, size_t n);

#endif
