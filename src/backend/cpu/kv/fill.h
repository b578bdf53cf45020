/* Fills a cache with random tokens, for benchmarks at depth. */
#ifndef TERSE_BACKEND_CPU_KV_FILL_H
#define TERSE_BACKEND_CPU_KV_FILL_H

#include "backend/cpu/kv/step.h"

/* Appends n tokens of normally distributed keys and values, whose channels fall in size, sealed as the method would. In an empty cache that evicts nothing, one layer
 * is sealed and the others become its copies, and in a long one without anchors pages repeat: what is read lies in as much memory as
 * after a prefill, and is written in a part of the time. After a failure only the first of the tokens are there. */
enum terse_status cache_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error);

#endif
