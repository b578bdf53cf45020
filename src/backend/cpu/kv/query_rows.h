/* Arranges a step's queries as the rows that attention computes with, one KV head at a time, and their outputs in the layer's order
 * again. */
#ifndef TERSE_BACKEND_CPU_KV_QUERY_ROWS_H
#define TERSE_BACKEND_CPU_KV_QUERY_ROWS_H

#include "backend/cpu/kv/state.h"
#include "backend/cpu/partial.h"

/* Writes rows[count * G][hd], scaled, and rotated as segment_read.h expects them. Row m is head m % G of the KV head's group, and
 * token m / G of the step's new tokens from `first` on, whose queries are q[count][Hq][hd]. */
void query_rows_load(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows);
/* Adds the learned sink of each row's query head, where the model has such, to partial states that have not seen it: rows are
 * [tokens][n] of query heads [first, first + n). */
void query_rows_add_sinks(const struct cache *cache, struct partial *partial, uint32_t first, uint32_t n);
/* Writes the KV head's part of out[count][Hq][hd], from the partial states of its rows. */
void query_rows_finish(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out);

/* Adds ALiBi: logits[c] += slope (from + c), `from` the first key's position less the query's. */
static inline void add_alibi(float slope, int64_t from, float *logits, size_t n) {
    for (size_t c = 0; c < n; c++) logits[c] += slope * (float)(from + (int64_t)c);
}

#endif
