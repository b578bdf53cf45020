/* Arranges the queries of a group of heads token by token. */
#include "backend/cpu/kv/query_rows.h"

#include "backend/cpu/kv/segment.h"

#include <math.h>

void query_rows_load(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows) {
    size_t hd = cache->base.shape.head_dim, G = cache->group, width = cache->base.shape.query_heads * hd;
    for (size_t i = 0; i < count; i++) {
        const float *from = q + i * width + head * G * hd;
        float *to = rows + i * G * hd;
        for (size_t c = 0; c < G * hd; c++) to[c] = cache->base.shape.scale * from[c];
        segment_rotate_query(cache, first + i, to, (uint32_t)G);
    }
}

void query_rows_add_sinks(const struct cache *cache, struct partial *partial, uint32_t first, uint32_t n) {
    if (!cache->base.shape.sinks) return;
    const size_t layer = cache_shape_number(&cache->base.shape, cache->base.layer);
    const float *sinks = cache->base.shape.sinks + layer * cache->base.shape.query_heads + first;
    for (size_t m = 0; m < partial->rows; m++) {
        float sink = sinks[m % n], max = partial_raise(partial, m, sink);
        partial->sum[m] += expf(sink - max);
    }
}

void query_rows_finish(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out) {
    size_t hd = cache->base.shape.head_dim, G = cache->group, width = cache->base.shape.query_heads * hd;
    for (size_t m = 0; m < count * G; m++) partial_finish(partial, m, out + m / G * width + (head * G + m % G) * hd);
}
