/* Fills a cache with random tokens, for benchmarks at depth. */
#ifndef TERSE_BACKEND_CUDA_KV_FILL_H
#define TERSE_BACKEND_CUDA_KV_FILL_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct cache;

/* Implements kv_ops.fill_random. */
enum terse_status kv_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error);

#endif
