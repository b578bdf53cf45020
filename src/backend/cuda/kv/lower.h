/* Declares how a page set is encoded again in fewer bits (kv/lower.h). */
#ifndef TERSE_BACKEND_CUDA_KV_LOWER_H
#define TERSE_BACKEND_CUDA_KV_LOWER_H

#include "backend/cuda/kv/state.h"

/* Implements kv_storage's `lower`. */
enum terse_status kv_lower(struct cache *cache, const struct page_set *from, const struct page_set *to);

#endif
