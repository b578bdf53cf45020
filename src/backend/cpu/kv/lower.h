/* Encodes pages again at another rate: kv_storage.lower (kv/cache.h). */
#ifndef TERSE_BACKEND_CPU_KV_LOWER_H
#define TERSE_BACKEND_CPU_KV_LOWER_H

#include "backend/cpu/kv/state.h"

enum terse_status lower_pages(struct cache *cache, const struct page_set *from, const struct page_set *to);

#endif
