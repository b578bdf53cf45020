/* Attention of a step's queries over everything the step's tokens may see. Two ways, one result:
 *
 * A few queries (decoding) read codes: each tile is visited once per KV head, scored and mixed for all queries of the head's group
 * together. Work items are (range of tiles, KV head), each with a partial state; ranges depend on the cache's length alone and
 * partial states merge in their order, so that neither timing nor the number of threads changes a result.
 *
 * Many queries (prefill) read rows: tiles of queries, the G heads of a KV head stacked, against groups of keys decoded once for
 * all of them, through the GEMM, with a running maximum between (Dao et al. 2022, FlashAttention, algorithm 1). New tokens are
 * read in place.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "cache/partial.h"
#include "cache/tile.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define FEW_ROWS 96    /* queries times G up to which reading codes was measured to be the faster way */
#define RUN_LOGITS 128 /* tiles times rows that share one update of the running maximum */
#define ITEMS 128      /* of work that a few queries are split into, at most */
#define ITEM_ROWS 4096 /* rows of all their partial states: bounds the memory */
#define ITEM_TILES 4   /* least tiles of an item */
#define WAKE_TILES 16  /* tiles times KV heads for which waking the threads pays */
#define QUERY_ROWS 192 /* rows of a tile of queries: the GEMM is near its best from here on */
#define KEY_ROWS 384   /* keys against which they go at a time: rows, keys, values and logits stay in the second-level cache */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Row m of a query tile is head m % G of the group, token m / G. Scaled and turned. */
static void gather_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows) {
    size_t hd = cache->shape.head_dim, G = cache->group, width = cache->shape.query_heads * hd;
    for (size_t i = 0; i < count; i++) {
        const float *from = q + i * width + head * G * hd;
        float *to = rows + i * G * hd;
        for (size_t c = 0; c < G * hd; c++) to[c] = cache->shape.scale * from[c];
        tile_turn_query(cache, first + i, to, (uint32_t)G);
    }
}

static void scatter_outputs(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out) {
    size_t hd = cache->shape.head_dim, G = cache->group, width = cache->shape.query_heads * hd;
    for (size_t m = 0; m < count * G; m++) partial_finish(partial, m, out + m / G * width + (head * G + m % G) * hd);
}

/* ---- A few queries */

/* Tokens that are a few. Keys to be turned are decoded either way, so then one is the limit. */
static size_t few_tokens(const struct cache *cache) { return cache->turned ? larger(FEW_ROWS / cache->group, 1) : 1; }

/* Most rows of a step, from which its memory and the way work is split are decided. */
static size_t few_rows(const struct cache *cache) { return smaller(cache->plan.n, few_tokens(cache)) * cache->group; }

static size_t few_splits(const struct cache *cache) {
    size_t most = smaller(ITEMS, ITEM_ROWS / few_rows(cache)) / cache->shape.kv_heads;
    return larger(smaller(tile_count(cache) / ITEM_TILES, most), 1);
}

static size_t few_shared(const struct cache *cache) {
    size_t rows = few_rows(cache), hd = cache->shape.head_dim, heads = cache->shape.kv_heads;
    return heads * (rows * hd + few_splits(cache) * partial_floats(rows, hd));
}

static size_t few_scratch(const struct cache *cache) {
    size_t rows = few_rows(cache);
    return larger(RUN_LOGITS, rows) * BLOCK_TOKENS + tile_room(cache, rows);
}

struct few {
    const struct cache *cache;
    size_t first, rows;
    size_t tiles, splits;
    float *queries;  /* [Hk][rows][hd] */
    float *partials; /* [splits][Hk] of partial_floats(rows, hd) */
};

static struct partial few_partial(const struct few *few, size_t split, uint32_t head) {
    size_t hd = few->cache->shape.head_dim, item = split * few->cache->shape.kv_heads + head;
    return partial_at(few->partials + item * partial_floats(few->rows, hd), few->rows, hd);
}

/* Turns logits[n][rows][64] of a run of tiles into weights, row by row under one running maximum. */
static void weigh_run(const struct few *few, const struct tile *tiles, size_t n, float *logits, struct partial *partial) {
    const struct kernels *kernel = kernels();
    size_t step = few->rows * BLOCK_TOKENS;
    for (size_t m = 0; m < few->rows; m++) {
        size_t token = few->first + m / few->cache->group;
        float *row = logits + m * BLOCK_TOKENS, max = -INFINITY;
        for (size_t r = 0; r < n; r++) {
            uint32_t begin = tiles[r].begin, end = tile_visible(few->cache, &tiles[r], token);
            float most = kernel->max(row + r * step + begin, end - begin);
            max = most > max ? most : max;
        }
        max = partial_raise(partial, m, max);
        for (size_t r = 0; r < n; r++) {
            uint32_t begin = tiles[r].begin, end = tile_visible(few->cache, &tiles[r], token);
            float *weights = row + r * step;
            if (begin) memset(weights, 0, begin * sizeof *weights);
            partial->sum[m] += kernel->exp_sum(weights + begin, max, end - begin);
            if (end < BLOCK_TOKENS) memset(weights + end, 0, (BLOCK_TOKENS - end) * sizeof *weights);
        }
    }
}

/* One work item. */
static void read_tiles(const struct few *few, size_t split, uint32_t head, float *scratch) {
    const struct cache *cache = few->cache;
    size_t rows = few->rows, run = larger(RUN_LOGITS / rows, 1);
    size_t end = (split + 1) * few->tiles / few->splits;
    const float *q = few->queries + head * rows * cache->shape.head_dim;
    float *logits = scratch, *room = scratch + larger(RUN_LOGITS, rows) * BLOCK_TOKENS;
    struct partial partial = few_partial(few, split, head);
    struct tile tiles[RUN_LOGITS];
    partial_clear(&partial);
    for (size_t first = split * few->tiles / few->splits; first < end; first += run) {
        size_t n = smaller(run, end - first);
        for (size_t r = 0; r < n; r++) {
            tiles[r] = tile_at(cache, first + r);
            tile_score(cache, &tiles[r], head, q, rows, room, logits + r * rows * BLOCK_TOKENS);
        }
        weigh_run(few, tiles, n, logits, &partial);
        for (size_t r = 0; r < n; r++) tile_mix(cache, &tiles[r], head, logits + r * rows * BLOCK_TOKENS, rows, room, partial.acc);
    }
}

static void attend_few(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    uint32_t heads = cache->shape.kv_heads;
    size_t rows = count * cache->group, hd = cache->shape.head_dim, tiles = tile_count_seen(cache, first + count - 1);
    struct few few = {cache, first, rows, tiles, few_splits(cache), cache->scratch, cache->scratch + heads * rows * hd};
    /* A thread goes on where its last item ended: what the kernels prefetched there is near. Yet nobody waits long for the last. */
    size_t items = few.splits * heads, chunk = larger(items / (4 * (size_t)cache->threads), 1);
#pragma omp parallel num_threads(cache->threads) if (tiles * heads >= WAKE_TILES)
    {
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < heads; head++) gather_queries(cache, q, head, first, count, few.queries + head * rows * hd);
#pragma omp for schedule(dynamic, chunk)
        for (size_t item = 0; item < items; item++)
            read_tiles(&few, item % few.splits, (uint32_t)(item / few.splits), attend_thread_scratch(cache));
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < heads; head++) {
            struct partial whole = few_partial(&few, 0, head);
            for (size_t split = 1; split < few.splits; split++) {
                struct partial part = few_partial(&few, split, head);
                partial_merge(&whole, &part);
            }
            scatter_outputs(cache, &whole, head, count, out);
        }
    }
}

/* ---- Many queries */

static size_t many_tokens(const struct cache *cache) { return larger(QUERY_ROWS / cache->group, 1); }

static size_t many_scratch(const struct cache *cache) {
    size_t rows = many_tokens(cache) * cache->group, hd = cache->shape.head_dim;
    return rows * hd + rows * KEY_ROWS + partial_floats(rows, hd) + 2 * KEY_ROWS * hd;
}

/* Keys and values of up to KEY_ROWS tokens: first `known` tokens before the step, then new ones in order from the step's
 * `next` on. */
struct group {
    const float *keys, *values;
    size_t stride, count, known, next;
};

/* Tokens of the group that the step's i-th new token sees: always its first ones. */
static size_t group_visible(const struct group *group, size_t i) {
    if (i < group->next) return group->known;
    return smaller(group->known + i + 1 - group->next, group->count);
}

/* The group that begins with tile *i < end, which is moved on; decoded into room[2][KEY_ROWS][hd] unless it is read in place. */
static struct group group_at(const struct cache *cache, uint32_t head, size_t *i, size_t end, float *room) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd, stored = tile_count_stored(cache);
    if (cache->turned && *i >= stored) {
        size_t next = (*i - stored) * BLOCK_TOKENS, at = next * width + head * hd;
        *i += KEY_ROWS / BLOCK_TOKENS;
        return (struct group){cache->k + at, cache->v + at, width, smaller(KEY_ROWS, cache->plan.n - next), 0, next};
    }
    struct group group = {room, room + KEY_ROWS * hd, hd, 0, 0, 0};
    uint64_t length = cache->plan.before.length;
    for (; *i < (cache->turned ? smaller(stored, end) : end) && group.count + BLOCK_TOKENS <= KEY_ROWS; ++*i) {
        struct tile tile = tile_at(cache, *i);
        uint64_t first = tile.first + tile.begin, last = tile.first + tile.end;
        tile_load(cache, &tile, head, room + group.count * hd, room + (KEY_ROWS + group.count) * hd);
        if (group.known == group.count && last > length) group.next = first > length ? (size_t)(first - length) : 0;
        if (first < length) group.known += (size_t)((last < length ? last : length) - first);
        group.count += (size_t)(last - first);
    }
    return group;
}

/* One work item: queries [first, first + count) of a KV head. */
static void attend_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *out,
                           float *scratch) {
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
        gemm(true, rows, n, hd, queries, hd, group.keys, group.stride, false, logits, KEY_ROWS);
        for (size_t m = 0; m < rows; m++) {
            float *row = logits + m * KEY_ROWS;
            size_t visible = group_visible(&group, first + m / G);
            float max = partial_raise(&partial, m, kernel->max(row, visible));
            partial.sum[m] += kernel->exp_sum(row, max, visible);
            memset(row + visible, 0, (n - visible) * sizeof *row);
        }
        gemm(false, rows, hd, n, logits, KEY_ROWS, group.values, group.stride, true, partial.acc, hd);
    }
    scatter_outputs(cache, &partial, head, count, out);
}

static void attend_many(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    size_t heads = cache->shape.kv_heads, width = cache->shape.query_heads * cache->shape.head_dim;
    size_t tokens = many_tokens(cache), parts = (count + tokens - 1) / tokens;
    /* The last queries see most: they go first. */
#pragma omp parallel for schedule(dynamic, 1) num_threads(cache->threads)
    for (size_t item = 0; item < parts * heads; item++) {
        size_t part = (parts - 1 - item / heads) * tokens;
        attend_queries(cache, q + part * width, (uint32_t)(item % heads), first + part, smaller(tokens, count - part),
                       out + part * width, attend_thread_scratch(cache));
    }
}

/* ---- Both */

static size_t thread_floats(const struct cache *cache) {
    size_t floats = larger(few_scratch(cache), 2 * BLOCK_TOKENS * cache->shape.head_dim);
    if (cache->plan.n > few_tokens(cache)) floats = larger(floats, many_scratch(cache));
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

size_t attend_scratch(const struct cache *cache) {
    return memory_round_up(few_shared(cache), MEMORY_ALIGN / sizeof(float)) + (size_t)cache->threads * thread_floats(cache);
}

float *attend_thread_scratch(const struct cache *cache) {
    size_t shared = memory_round_up(few_shared(cache), MEMORY_ALIGN / sizeof(float));
    return cache->scratch + shared + (size_t)omp_get_thread_num() * thread_floats(cache);
}

void cache_layer_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    double start = clock_now();
    if (count <= few_tokens(cache))
        attend_few(cache, q, first, count, out);
    else
        attend_many(cache, q, first, count, out);
    cache->counters.seconds += clock_now() - start;
    cache->counters.bytes += tile_bytes(cache);
}
