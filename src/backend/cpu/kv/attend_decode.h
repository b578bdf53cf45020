/* Computes the attention of a few queries (decoding): reads codes.
 *
 * Each segment is visited once per KV head, scored and accumulated for all queries of the head's group together. Work items are
 * (range of segments, KV head), each with a partial state; the ranges depend on the cache's length alone and partial states merge
 * in their order, so that neither timing nor the number of threads changes a result, beyond rounding. */
#ifndef TERSE_BACKEND_CPU_KV_ATTEND_DECODE_H
#define TERSE_BACKEND_CPU_KV_ATTEND_DECODE_H

#include "backend/cpu/kv/state.h"

/* Returns up to how many new tokens this is the way to attend; more go through attend_prefill. */
size_t attend_decode_tokens(const struct cache *cache);

/* Return the scratch of a step (scratch.h): shared, and of each thread. */
size_t attend_decode_shared_floats(const struct cache *cache);
size_t attend_decode_thread_floats(const struct cache *cache);

/* Computes the outputs out[count][Hq][hd] of the step's new tokens [first, first + count), whose queries are q[count][Hq][hd]
 * before rotation; out may be q. count <= attend_decode_tokens, or any number where select_active: each token then reads the tokens
 * that it chooses for itself. Where exchange_due, exchange_finish writes them. */
void attend_decode(const struct cache *cache, const float *q, size_t first, size_t count, float *out);

#endif
