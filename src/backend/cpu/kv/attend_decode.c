/* Attention of a step's queries over everything the step's tokens may see. Two ways, one result; the choice and the first are here:
 *
 * A few queries (decoding) read codes: each tile is visited once per KV head, scored and mixed for all queries of the head's group
 * together. Work items are (range of tiles, KV head), each with a partial state; ranges depend on the cache's length alone and
 * partial states merge in their order, so that neither timing nor the number of threads changes a result.
 *
 * Many queries (prefill) read rows, through matrix products: attend_many.c.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "kv/partial.h"
#include "backend/cpu/kv/select.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define FEW_ROWS 96    /* queries times G up to which reading codes was measured to be the faster way */
#define RUN_LOGITS 128 /* tiles times rows that share one update of the running maximum */
#define ITEMS 128      /* of work that a few queries are split into, at most */
#define ITEM_ROWS 4096 /* rows of all their partial states: bounds the memory */
#define ITEM_TILES 4   /* least tiles of an item */
#define TURNS 16       /* runs of items that a thread takes, about */
#define WAKE_TILES 16  /* tiles times KV heads for which waking the threads pays */

/* ---- A few queries */

/* Tokens that are a few. Keys to be turned are decoded either way, so then one is the limit. */
static size_t few_tokens(const struct cache *cache) { return cache->turned ? larger(FEW_ROWS / cache->group, 1) : 1; }

/* Most rows of a step, from which its memory and the way work is split are decided. */
static size_t few_rows(const struct cache *cache) { return smaller(cache->plan.n, few_tokens(cache)) * cache->group; }

static size_t few_splits(const struct cache *cache) {
    size_t most = smaller(ITEMS, ITEM_ROWS / few_rows(cache)) / cache->shape.kv_heads;
    return larger(smaller(tile_count(cache) / ITEM_TILES, most), 1);
}

/* Floats of a key codec's look-up tables for `rows` queries of a KV head; they are of use where keys meet queries as they lie. */
static size_t table_floats(const struct cache *cache, size_t rows) {
    const struct codec *codec = cache->method.key.codec;
    size_t floats = cache->turned && codec->prepared ? codec->prepared(side_shape(cache, CODEC_KEYS, 0, 0, rows)) : 0;
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

/* Floats in which a value codec adds weights up by code, for a run of tiles. */
static size_t tally_floats(const struct cache *cache, size_t rows) {
    const struct codec *codec = cache->method.value.codec;
    return codec->tallies ? codec->tallies(side_shape(cache, CODEC_VALUES, 0, 0, rows)) : 0;
}

/* A step may ask for fewer rows than its most, and a codec may then want more for its tables. */
static size_t most_floats(const struct cache *cache, size_t (*floats)(const struct cache *cache, size_t rows)) {
    size_t most = 0;
    for (size_t rows = cache->group; rows <= few_rows(cache); rows += cache->group) most = larger(most, floats(cache, rows));
    return most;
}

static size_t few_shared(const struct cache *cache) {
    size_t rows = few_rows(cache), hd = cache->shape.head_dim, heads = cache->shape.kv_heads;
    return heads * (rows * hd + most_floats(cache, table_floats) + few_splits(cache) * partial_floats(rows, hd));
}

static size_t few_scratch(const struct cache *cache) {
    size_t rows = few_rows(cache);
    return larger(RUN_LOGITS, rows) * BLOCK_TOKENS + tile_room(cache, rows) + most_floats(cache, tally_floats);
}

struct few {
    const struct cache *cache;
    size_t first, rows;
    size_t tiles, splits;
    float *queries; /* [Hk][rows][hd] */
    size_t table_floats;
    float *tables;   /* [Hk][table_floats] */
    float *partials; /* [splits][Hk] of partial_floats(rows, hd) */
};

static struct partial few_partial(const struct few *few, size_t split, uint32_t head) {
    size_t hd = few->cache->shape.head_dim, item = split * few->cache->shape.kv_heads + head;
    return partial_at(few->partials + item * partial_floats(few->rows, hd), few->rows, hd);
}

/* The end of the whole tiles from the r-th on. */
static size_t whole_tiles(const struct tile *tiles, size_t r, size_t n, const uint32_t *end) {
    while (r < n && !tiles[r].begin && end[r] == BLOCK_TOKENS) r++;
    return r;
}

/* The largest logit of one row of logits[n][rows][64], of each tile in its slots [begin, end[n]). Whole tiles are looked at together. */
static float largest_logit(const struct few *few, const struct tile *tiles, size_t n, const uint32_t *end, const float *row) {
    const struct kernels *kernel = kernels();
    size_t step = few->rows * BLOCK_TOKENS;
    float max = -INFINITY;
    for (size_t r = 0, next; r < n; r = next) {
        next = whole_tiles(tiles, r, n, end);
        float most = next > r ? kernel->max_tiles(row + r * step, next - r, step)
                              : kernel->max(row + r * step + tiles[r].begin, end[r] - tiles[r].begin);
        if (next == r) next++;
        max = most > max ? most : max;
    }
    return max;
}

/* That row's logits to weights under one maximum, 0 outside these slots; returns their sum. */
static float weigh_row(const struct few *few, const struct tile *tiles, size_t n, const uint32_t *end, float max, float *row) {
    const struct kernels *kernel = kernels();
    size_t step = few->rows * BLOCK_TOKENS;
    float sum = 0;
    for (size_t r = 0, next; r < n; r = next) {
        next = whole_tiles(tiles, r, n, end);
        if (next > r) {
            sum += kernel->exp_tiles(row + r * step, max, next - r, step);
            continue;
        }
        float *weights = row + r * step;
        uint32_t begin = tiles[r].begin;
        memset(weights, 0, begin * sizeof *weights);
        sum += kernel->exp_sum(weights + begin, max, end[r] - begin);
        memset(weights + end[r], 0, (BLOCK_TOKENS - end[r]) * sizeof *weights);
        next++;
    }
    return sum;
}

/* Turns logits[n][rows][64] of a run of tiles into weights, row by row under one running maximum. */
static void weigh_run(const struct few *few, uint32_t head, const struct tile *tiles, size_t n, float *logits,
                      struct partial *partial) {
    const float *slopes = few->cache->shape.slopes ? few->cache->shape.slopes + head * few->cache->group : NULL;
    size_t step = few->rows * BLOCK_TOKENS;
    uint32_t end[RUN_LOGITS];
    for (size_t m = 0; m < few->rows; m++) {
        size_t token = few->first + m / few->cache->group;
        float *row = logits + m * BLOCK_TOKENS;
        for (size_t r = 0; r < n; r++) {
            uint32_t begin = tiles[r].begin;
            end[r] = tile_visible(few->cache, &tiles[r], token);
            if (slopes) /* no method that chooses tokens is offered with ALiBi */
                add_slope(slopes[m % few->cache->group], tile_position(few->cache, &tiles[r]) + begin - (int64_t)token,
                          row + r * step + begin, end[r] - begin);
        }
        float max = partial_raise(partial, m, largest_logit(few, tiles, n, end, row));
        partial->sum[m] += weigh_row(few, tiles, n, end, max, row);
    }
}

/* Whether no weight of a tile is more than a small part of what its query has seen so far, of which more is yet to come. */
static bool is_light(const struct partial *partial, const float *weights, size_t rows) {
    for (size_t m = 0; m < rows; m++)
        if (!(kernels()->max(weights + m * BLOCK_TOKENS, BLOCK_TOKENS) <= CODEC_LIGHT * partial->sum[m])) return false;
    return true;
}

/* partial->acc += weights times the values of a run of tiles, of which partial->sum has the weights. */
static void mix_run(const struct few *few, uint32_t head, struct tile *tiles, size_t n, float *weights, float *room, float *tallies,
                    struct partial *partial) {
    const struct cache *cache = few->cache;
    const struct codec *codec = cache->method.value.codec;
    size_t rows = few->rows, floats = tally_floats(cache, rows);
    bool tallied = false, lights = codec->mix_light && kernels()->light_is_faster;
    for (size_t r = 0; r < n; r++) {
        float *own = weights + r * rows * BLOCK_TOKENS;
        bool coded = tiles[r].kind == TILE_SEALED || tiles[r].kind == TILE_PACKED, tally = floats && coded;
        if (tally && !tallied) memset(tallies, 0, floats * sizeof *tallies);
        tallied |= tally;
        tiles[r].light = coded && !tally && lights && is_light(partial, own, rows);
        tile_mix(cache, &tiles[r], head, own, rows, room, tally ? tallies : NULL, partial->acc);
    }
    if (tallied) codec->finish(side_shape(cache, CODEC_VALUES, cache->layer, head, rows), tallies, partial->acc);
}

/* Of a KV head; NULL where its codebook is read without tables, or with larger ones than those that room was made for: heads may
 * differ in what was learned. */
static float *tables_of(const struct few *few, uint32_t head) {
    const struct cache *cache = few->cache;
    if (!few->table_floats) return NULL;
    size_t floats = cache->method.key.codec->prepared(side_shape(cache, CODEC_KEYS, cache->layer, head, few->rows));
    return floats && floats <= few->table_floats ? few->tables + head * few->table_floats : NULL;
}

/* To be called where a thread comes to another KV head. */
static void approach_head(const struct few *few, uint32_t head) {
    const struct cache *cache = few->cache;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct codec *codec = (side == CODEC_KEYS ? &cache->method.key : &cache->method.value)->codec;
        if (codec->approach) codec->approach(side_shape(cache, side, cache->layer, head, few->rows), side, few->tiles);
    }
}

/* One work item. */
static void read_tiles(const struct few *few, size_t split, uint32_t head, float *scratch) {
    const struct cache *cache = few->cache;
    size_t rows = few->rows, run = larger(RUN_LOGITS / rows, 1);
    size_t end = (split + 1) * few->tiles / few->splits;
    const float *q = few->queries + head * rows * cache->shape.head_dim;
    const float *tables = tables_of(few, head);
    float *logits = scratch, *room = scratch + larger(RUN_LOGITS, rows) * BLOCK_TOKENS, *tallies = room + tile_room(cache, rows);
    struct partial partial = few_partial(few, split, head);
    struct tile tiles[RUN_LOGITS];
    partial_clear(&partial);
    for (size_t first = split * few->tiles / few->splits; first < end; first += run) {
        size_t n = smaller(run, end - first);
        for (size_t r = 0; r < n; r++) {
            tiles[r] = read_sparse(cache) ? read_tile_at(cache, head, first + r) : tile_at(cache, first + r);
            tile_score(cache, &tiles[r], head, q, tables, rows, room, logits + r * rows * BLOCK_TOKENS);
        }
        weigh_run(few, head, tiles, n, logits, &partial);
        mix_run(few, head, tiles, n, logits, room, tallies, &partial);
    }
}

/* Scaled and turned, and the key codec's tables of them. */
static void prepare_queries(const struct few *few, const float *q, uint32_t head, size_t count) {
    const struct cache *cache = few->cache;
    float *queries = few->queries + head * few->rows * cache->shape.head_dim;
    gather_queries(cache, q, head, few->first, count, queries);
    float *tables = tables_of(few, head);
    if (read_sparse(cache)) read_prepare(cache, head, queries);
    if (tables) cache->method.key.codec->prepare(side_shape(cache, CODEC_KEYS, cache->layer, head, few->rows), queries, tables);
}

/* What a KV head reads of a prompt. */
static void choose_tokens(const struct cache *cache, uint32_t head) {
    for (size_t range = 0; range < read_ranges(cache); range++) read_score(cache, head, range);
    read_choose(cache, head);
}

static void attend_few(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    uint32_t heads = cache->shape.kv_heads;
    bool sparse = read_sparse(cache);
    size_t rows = count * cache->group, hd = cache->shape.head_dim;
    size_t tiles = sparse ? read_tile_count(cache) : tile_count_seen(cache, first + count - 1),
           ranges = sparse ? read_ranges(cache) : 0;
    struct few few = {.cache = cache, .first = first, .rows = rows, .tiles = tiles};
    /* With a head for every thread each goes its way from scores to outputs: what it scored is near when it reads. */
    bool apart = sparse && heads >= (uint32_t)cache->threads;
    few.splits = apart ? 1 : smaller(few_splits(cache), larger(tiles / ITEM_TILES, 1));
    few.table_floats = table_floats(cache, rows);
    few.queries = cache->scratch;
    few.tables = few.queries + heads * rows * hd;
    few.partials = few.tables + heads * few.table_floats;
    size_t items = few.splits * heads, chunk = larger(items / (TURNS * (size_t)cache->threads), 1);
#pragma omp parallel num_threads(cache->threads) if (tiles * heads >= WAKE_TILES)
    {
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < heads; head++) prepare_queries(&few, q, head, count);
        if (sparse && !apart) {
#pragma omp for schedule(static)
            for (size_t item = 0; item < ranges * heads; item++) read_score(cache, (uint32_t)(item / ranges), item % ranges);
#pragma omp for schedule(static)
            for (uint32_t head = 0; head < heads; head++) read_choose(cache, head);
        }
        /* A thread goes on where its last item ended: what the kernels prefetched there is near. Yet nobody waits long for the last:
         * threads are not equally fast, and a guided schedule would give the first one half of all. */
        uint32_t near = UINT32_MAX; /* the KV head whose tables are */
#pragma omp for schedule(dynamic, chunk)
        for (size_t item = 0; item < items; item++) {
            uint32_t head = (uint32_t)(item / few.splits);
            if (apart) choose_tokens(cache, head);
            if (head != near) approach_head(&few, head);
            near = head;
            read_tiles(&few, item % few.splits, head, attend_thread_scratch(cache));
        }
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

/* ---- Both */

static bool has_many(const struct cache *cache) { return cache->plan.n > few_tokens(cache) || cache->plan.anchors; }

static size_t thread_floats(const struct cache *cache) {
    size_t floats = larger(few_scratch(cache), 2 * BLOCK_TOKENS * cache->shape.head_dim);
    if (has_many(cache)) floats = larger(floats, many_scratch(cache));
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

static size_t before_new_keys(const struct cache *cache) {
    return memory_round_up(few_shared(cache), MEMORY_ALIGN / sizeof(float)) + (size_t)cache->threads * thread_floats(cache);
}

size_t attend_scratch(const struct cache *cache) {
    size_t keys = has_many(cache) && !cache->turned ? cache->plan.n * cache->shape.kv_heads * cache->shape.head_dim : 0;
    return before_new_keys(cache) + keys;
}

float *attend_new_keys(const struct cache *cache) {
    return has_many(cache) && !cache->turned ? cache->scratch + before_new_keys(cache) : NULL;
}

float *attend_thread_scratch(const struct cache *cache) {
    size_t shared = memory_round_up(few_shared(cache), MEMORY_ALIGN / sizeof(float));
    return cache->scratch + shared + (size_t)omp_get_thread_num() * thread_floats(cache);
}

void cache_layer_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    double start = clock_now();
    exact_observe(cache, q, first, count);
    if (read_sparse(cache)) {
        size_t width = cache->shape.query_heads * cache->shape.head_dim;
        for (size_t i = 0; i < count; i++) attend_few(cache, q + i * width, first + i, 1, out + i * width);
    } else if (count <= few_tokens(cache) && !anchors_listen(cache, first, count))
        attend_few(cache, q, first, count, out);
    else
        attend_many(cache, q, first, count, out);
    cache->counters.seconds += clock_now() - start;
    cache->counters.bytes += read_sparse(cache) ? count * read_bytes(cache) : tile_bytes(cache);
}
