/* What attention of many queries is made of, for those who walk over the same logits (anchors.c). */
#ifndef TERSE_CACHE_ATTEND_MANY_H
#define TERSE_CACHE_ATTEND_MANY_H

#include "cache/partial.h"
#include "cache/tile.h"

#define QUERY_ROWS 192 /* rows of a tile of queries: the GEMM is near its best from here on */
#define KEY_ROWS 384   /* keys against which they go at a time: rows, keys, values and logits stay in the second-level cache */

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Tokens of a tile of queries. */
size_t many_tokens(const struct cache *cache);

/* rows[count * G][hd]: row m is head m % G of the KV head's group, token m / G of the step's new tokens from `first` on, which are
 * q[count][Hq][hd]; scaled and turned. */
void gather_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows);
/* The other way: out[count][Hq][hd] of one KV head from its rows' states. */
void scatter_outputs(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out);

/* Keys and values of up to KEY_ROWS tokens: first `known` tokens before the step, then new ones in order from the step's `next` on. */
struct group {
    const float *keys, *values;
    size_t stride, count, known, next;
    int64_t position; /* of the first key, relative to the step's first new token; the others follow */
};

/* Tokens of the group that the step's i-th new token sees: always its first ones. */
static inline size_t group_visible(const struct group *group, size_t i) {
    if (i < group->next) return group->known;
    size_t seen = group->known + i + 1 - group->next;
    return seen < group->count ? seen : group->count;
}

/* The group that begins with tile *i < end, which is moved on; decoded into room[2][KEY_ROWS][hd] unless it is read in place. */
struct group group_at(const struct cache *cache, uint32_t head, size_t *i, size_t end, float *room);

/* Logits of queries[rows][hd] against a group, ALiBi included, in logits[rows][KEY_ROWS], as far as the last query sees; the first query
 * is the step's i-th new token. */
void group_logits(const struct cache *cache, const struct group *group, uint32_t head, const float *queries, size_t i, size_t rows,
                  float *logits);

/* ALiBi: row[c] += slope (from + c), `from` the first key's position less the query's. */
static inline void add_slope(float slope, int64_t from, float *row, size_t n) {
    for (size_t c = 0; c < n; c++) row[c] += slope * (float)(from + (int64_t)c);
}

#endif
