/* Attention of many queries at once (prefill): tiles of queries, the G heads of a KV head stacked, against groups of keys decoded
 * once for all of them, through the GEMM, with a running maximum between (Dao et al. 2022, FlashAttention, algorithm 1). New tokens
 * are read in place. */
#include "cache/attend_many.h"

#include "cache/anchors.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

void gather_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows) {
    size_t hd = cache->shape.head_dim, G = cache->group, width = cache->shape.query_heads * hd;
    for (size_t i = 0; i < count; i++) {
        const float *from = q + i * width + head * G * hd;
        float *to = rows + i * G * hd;
        for (size_t c = 0; c < G * hd; c++) to[c] = cache->shape.scale * from[c];
        tile_turn_query(cache, first + i, to, (uint32_t)G);
    }
}

void scatter_outputs(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out) {
    size_t hd = cache->shape.head_dim, G = cache->group, width = cache->shape.query_heads * hd;
    for (size_t m = 0; m < count * G; m++) partial_finish(partial, m, out + m / G * width + (head * G + m % G) * hd);
}

size_t many_tokens(const struct cache *cache) { return larger(QUERY_ROWS / cache->group, 1); }

size_t many_scratch(const struct cache *cache) {
    size_t rows = many_tokens(cache) * cache->group, hd = cache->shape.head_dim;
    return rows * hd + rows * KEY_ROWS + partial_floats(rows, hd) + 2 * KEY_ROWS * hd;
}

struct group group_at(const struct cache *cache, uint32_t head, size_t *i, size_t end, float *room) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd, stored = tile_count_stored(cache);
    if (cache->turned && *i >= stored) {
        size_t next = (*i - stored) * BLOCK_TOKENS, at = next * width + head * hd;
        *i += KEY_ROWS / BLOCK_TOKENS;
        return (struct group){cache->k + at, cache->v + at, width, smaller(KEY_ROWS, cache->plan.n - next), 0, next, (int64_t)next};
    }
    struct group group = {room, room + KEY_ROWS * hd, hd, 0, 0, 0, 0};
    uint64_t length = cache->plan.before.length;
    for (; *i < (cache->turned ? smaller(stored, end) : end) && group.count + BLOCK_TOKENS <= KEY_ROWS; ++*i) {
        struct tile tile = tile_at(cache, *i);
        uint64_t first = tile.first + tile.begin, last = tile.first + tile.end;
        if (!group.count) group.position = tile_position(cache, &tile) + tile.begin;
        tile_load(cache, &tile, head, room + group.count * hd, room + (KEY_ROWS + group.count) * hd);
        if (group.known == group.count && last > length) group.next = first > length ? (size_t)(first - length) : 0;
        if (first < length) group.known += (size_t)((last < length ? last : length) - first);
        group.count += (size_t)(last - first);
    }
    return group;
}

/* Logits of a tile of queries against a group, ALiBi included, in logits[rows][KEY_ROWS]; the first query is the step's i-th token. */
void group_logits(const struct cache *cache, const struct group *group, uint32_t head, const float *queries, size_t i, size_t rows,
                  float *logits) {
    size_t hd = cache->shape.head_dim, G = cache->group, n = group_visible(group, i + (rows - 1) / G);
    gemm(true, rows, n, hd, queries, hd, group->keys, group->stride, false, logits, KEY_ROWS);
    if (!cache->shape.slopes) return;
    for (size_t m = 0; m < rows; m++)
        add_slope(cache->shape.slopes[head * G + m % G], group->position - (int64_t)(i + m / G), logits + m * KEY_ROWS, n);
}

/* One work item: queries [first, first + count) of a KV head. */
static void attend_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *out,
                           const struct row_statistics *statistics, float *scratch) {
    const struct kernels *kernel = kernels();
    size_t G = cache->group, hd = cache->shape.head_dim, rows = count * G, tiles = tile_count_seen(cache, first + count - 1);
    float *queries = scratch, *logits = queries + rows * hd, *states = logits + rows * KEY_ROWS;
    float *room = states + partial_floats(rows, hd);
    struct partial partial = partial_at(states, rows, hd);
    partial_clear(&partial);
    gather_queries(cache, q, head, first, count, queries);
    for (size_t i = 0; i < tiles;) {
        struct group group = group_at(cache, head, &i, tiles, room);
        size_t n = group_visible(&group, first + count - 1);
        group_logits(cache, &group, head, queries, first, rows, logits);
        for (size_t m = 0; m < rows; m++) {
            float *row = logits + m * KEY_ROWS;
            size_t visible = group_visible(&group, first + m / G);
            float max = partial_raise(&partial, m, kernel->max(row, visible));
            partial.sum[m] += kernel->exp_sum(row, max, visible);
            memset(row + visible, 0, (n - visible) * sizeof *row);
        }
        if (out) gemm(false, rows, hd, n, logits, KEY_ROWS, group.values, group.stride, true, partial.acc, hd);
    }
    if (out) scatter_outputs(cache, &partial, head, count, out);
    for (size_t m = 0; statistics && m < rows; m++) {
        size_t at = m / G * cache->shape.query_heads + head * G + m % G;
        statistics->max[at] = partial.max[m];
        statistics->sum[at] = partial.sum[m];
    }
}

void attend_many(const struct cache *cache, const float *q, size_t first, size_t count, float *out,
                 const struct row_statistics *statistics) {
    size_t heads = cache->shape.kv_heads, width = cache->shape.query_heads * cache->shape.head_dim;
    size_t tokens = many_tokens(cache), parts = (count + tokens - 1) / tokens;
    /* The last queries see most: they go first. */
#pragma omp parallel for schedule(dynamic, 1) num_threads(cache->threads)
    for (size_t item = 0; item < parts * heads; item++) {
        size_t part = (parts - 1 - item / heads) * tokens, rows = part * cache->shape.query_heads;
        struct row_statistics those = {0};
        if (statistics) those = (struct row_statistics){statistics->max + rows, statistics->sum + rows};
        attend_queries(cache, q + part * width, (uint32_t)(item % heads), first + part, smaller(tokens, count - part),
                       out ? out + part * width : NULL, statistics ? &those : NULL, attend_thread_scratch(cache));
    }
}
