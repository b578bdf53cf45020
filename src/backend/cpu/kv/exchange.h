/* Exchanges partial states between ranks, where the pages of a sequence are dealt to several (kv/deal.h): of a layer's queries each
 * rank computes what its own tokens contribute; one exchange gathers that of all ranks, and each merges it in the order of ranks.
 * So all have the same outputs, and always the same with as many ranks. */
#ifndef TERSE_BACKEND_CPU_KV_EXCHANGE_H
#define TERSE_BACKEND_CPU_KV_EXCHANGE_H

#include "backend/cpu/kv/state.h"
#include "backend/cpu/partial.h"

/* Reserves memory for the states of `count` queries. */
enum terse_status exchange_reserve(struct cache *cache, size_t count, struct terse_error *error);
/* Puts the states of a KV head's queries, rows as in query_rows.h, the first of them the i-th of those queries. Threads may put
 * different ones side by side. */
void exchange_put(const struct cache *cache, uint32_t head, size_t i, const struct partial *partial);
/* Exchanges the states of all heads of `count` queries, and writes their outputs out[count][Hq][hd]. */
enum terse_status exchange_finish(struct cache *cache, size_t count, float *out, struct terse_error *error);
void exchange_free(struct cache *cache);

/* Returns the bytes that a rank sends to each other one in a layer of a step of n <= EXCHANGE_TOKENS tokens. */
size_t exchange_bytes(const struct cache_shape *shape, size_t n);

#define EXCHANGE_TOKENS 16 /* whose states are exchanged together, at most, which bounds the memory for those of all ranks */

#endif
