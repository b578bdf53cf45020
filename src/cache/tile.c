/* Reading tiles: where the keys and values of a tile lie and at which positions they are read. Owns nothing. */
#include "cache/tile.h"

#include "kernels/kernels.h"

#include <string.h>

/* ---- Which tiles a step has */

static size_t tiles_of(uint64_t tokens) { return (size_t)((tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS); }

static bool sealed_first(const struct cache *cache) { return cache->plan.kind == CACHE_STEP_PAPER; }

static uint64_t exact_tokens(const struct cache *cache) {
    return sealed_first(cache) ? cache->plan.after.sinks : cache->plan.before.sinks;
}

static size_t sealed_tiles(const struct cache *cache) { return cache->sealed + (sealed_first(cache) ? cache->plan.seal : 0); }

static size_t window_tiles(const struct cache *cache) {
    return sealed_first(cache) ? 0 : extent_window_blocks(&cache->plan.before);
}

size_t tile_count_stored(const struct cache *cache) {
    return tiles_of(exact_tokens(cache)) + sealed_tiles(cache) + window_tiles(cache);
}

size_t tile_count(const struct cache *cache) {
    return tile_count_stored(cache) + (sealed_first(cache) ? 0 : tiles_of(cache->plan.n));
}

static struct tile tile_of(const struct cache *cache, int kind, uint64_t first, uint64_t end_token) {
    uint64_t live = kind == TILE_SEALED || kind == TILE_WINDOW ? cache->plan.before.first : 0;
    uint64_t count = end_token - first < BLOCK_TOKENS ? end_token - first : BLOCK_TOKENS;
    uint64_t begin = live > first ? live - first : 0;
    struct tile tile = {.first = first, .end = (uint32_t)count, .begin = (uint32_t)(begin < count ? begin : count)};
    tile.kind = kind;
    return tile;
}

struct tile tile_at(const struct cache *cache, size_t i) {
    const struct extent *before = &cache->plan.before;
    size_t exact = tiles_of(exact_tokens(cache)), sealed = sealed_tiles(cache), stored = tile_count_stored(cache);
    struct tile tile;
    if (i < exact) {
        tile = tile_of(cache, TILE_EXACT, i * BLOCK_TOKENS, exact_tokens(cache));
    } else if (i < exact + sealed) {
        const struct span *span = &cache->spans[i - exact];
        tile = tile_of(cache, TILE_SEALED, span->first, span->first + span->count);
        tile.span = span;
    } else if (i < stored) {
        size_t block = i - exact - sealed;
        tile = tile_of(cache, TILE_WINDOW, before->window_first + block * BLOCK_TOKENS, before->length);
        tile.window = cache->windows[block];
    } else {
        tile = tile_of(cache, TILE_NEW, before->length + (i - stored) * BLOCK_TOKENS, before->length + cache->plan.n);
    }
    tile.base = i < stored ? tiles_of(cache->plan.n) + i : i - stored;
    return tile;
}

size_t tile_count_seen(const struct cache *cache, size_t i) {
    size_t n = tile_count(cache);
    while (tile_at(cache, n - 1).first > cache->plan.before.length + i) n--;
    return n;
}

uint64_t tile_bytes(const struct cache *cache) {
    uint64_t exact = exact_tokens(cache) * 2 * cache->shape.head_dim * sizeof(uint16_t);
    uint64_t sealed = sealed_tiles(cache) * (cache->key_bytes + cache->value_bytes);
    return cache->shape.kv_heads * (exact + sealed + window_tiles(cache) * 2 * cache->half_bytes);
}

/* ---- Positions. When keys are stored rotated, only new tokens are turned, to their own positions. Otherwise all positions are
 * relative to the first new token's. */

size_t tile_bases(const struct cache *cache) { return tiles_of(cache->plan.n) + (cache->turned ? 0 : tile_count_stored(cache)); }

void tile_set_bases(struct cache *cache) {
    const struct extent *before = &cache->plan.before;
    for (size_t i = 0; i < tiles_of(cache->plan.n); i++)
        turns_set_base(&cache->turns, i, (int64_t)(i * BLOCK_TOKENS) + (cache->turned ? (int64_t)before->length : 0));
    if (cache->turned) return;
    uint64_t evicted = cache->method.policy->positions_by_index ? extent_evicted(before) : 0;
    for (size_t i = 0; i < tile_count_stored(cache); i++) {
        struct tile tile = tile_at(cache, i);
        int64_t shift = tile.kind == TILE_EXACT ? (int64_t)evicted : 0; /* exact rows close up to what follows them */
        turns_set_base(&cache->turns, tile.base, (int64_t)tile.first + shift - (int64_t)before->length);
    }
}

void tile_turn_query(const struct cache *cache, size_t i, float *rows, uint32_t n) {
    turns_rotate(&cache->turns, i / BLOCK_TOKENS, i % BLOCK_TOKENS, rows, n, cache->shape.head_dim);
}

/* ---- Rows */

/* Rows of one side of a tile, indexed by slot, as they are stored. */
struct rows {
    const float *data;
    size_t stride;
};

/* Decodes into room[64][hd], but for new tokens, whose rows are there. */
static struct rows tile_rows(const struct cache *cache, const struct tile *tile, uint32_t head, enum codec_side side, float *room) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    struct codec_shape shape = {cache->shape.head_dim, cache->group};
    const uint8_t *block;
    switch (tile->kind) {
    case TILE_NEW: {
        const float *rows = side == CODEC_KEYS ? cache->k : cache->v;
        return (struct rows){rows + (tile->first - cache->plan.before.length) * width + head * hd, width};
    }
    case TILE_EXACT: {
        const uint16_t *rows = exact_rows(cache, cache->layer, head);
        if (side == CODEC_VALUES) rows += cache->method.parameters.sinks * hd;
        kernels()->half_to_float(rows + tile->first * hd, room, tile->end * hd);
        break;
    }
    case TILE_SEALED:
        block = span_block(cache, tile->span, side, cache->layer, head);
        (side == CODEC_KEYS ? cache->method.key : cache->method.value)->decode(shape, side, block, room);
        break;
    case TILE_WINDOW:
        block = window_block(cache, tile->window, cache->layer, head);
        codec_f16.decode(shape, side, block + (side == CODEC_KEYS ? 0 : cache->half_bytes), room);
        break;
    }
    return (struct rows){room, hd};
}

/* ---- A few queries: scores and mixes on the codes where they allow it */

size_t tile_room(const struct cache *cache, size_t rows) { return (BLOCK_TOKENS + rows) * cache->shape.head_dim; }

/* logits[rows][64] = <q, key> of the live slots. */
static void score_rows(const struct tile *tile, const float *q, size_t rows, size_t hd, struct rows keys, float *logits) {
    const struct kernels *kernel = kernels();
    for (size_t t = tile->begin; t < tile->end; t++)
        for (size_t m = 0; m < rows; m++) logits[m * BLOCK_TOKENS + t] = kernel->dot(q + m * hd, keys.data + t * keys.stride, hd);
}

/* Relativity: instead of turning 64 keys by base + t, turn the queries back by the base and the keys by t. */
static void score_unturned(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, size_t rows,
                           float *room, float *logits) {
    size_t hd = cache->shape.head_dim;
    float *turned = room, *moved = room + BLOCK_TOKENS * hd;
    struct rows keys = tile_rows(cache, tile, head, CODEC_KEYS, turned);
    for (size_t t = tile->begin; t < tile->end; t++) {
        if (keys.data != turned) memcpy(turned + t * hd, keys.data + t * keys.stride, hd * sizeof *turned);
        turns_rotate_within(&cache->turns, t, turned + t * hd);
    }
    memcpy(moved, q, rows * hd * sizeof *moved);
    turns_rotate_back(&cache->turns, tile->base, moved, (uint32_t)rows, cache->shape.head_dim);
    score_rows(tile, moved, rows, hd, (struct rows){turned, hd}, logits);
}

void tile_score(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, size_t rows, float *room,
                float *logits) {
    struct codec_shape shape = {cache->shape.head_dim, (uint32_t)rows};
    if (!cache->turned)
        score_unturned(cache, tile, head, q, rows, room, logits);
    else if (tile->kind == TILE_SEALED)
        cache->method.key->score(shape, q, span_block(cache, tile->span, CODEC_KEYS, cache->layer, head), logits);
    else if (tile->kind == TILE_WINDOW)
        codec_f16.score(shape, q, window_block(cache, tile->window, cache->layer, head), logits);
    else
        score_rows(tile, q, rows, shape.head_dim, tile_rows(cache, tile, head, CODEC_KEYS, room), logits);
}

void tile_mix(const struct cache *cache, const struct tile *tile, uint32_t head, const float *weights, size_t rows, float *room,
              float *acc) {
    struct codec_shape shape = {cache->shape.head_dim, (uint32_t)rows};
    if (tile->kind == TILE_SEALED) {
        cache->method.value->mix(shape, weights, span_block(cache, tile->span, CODEC_VALUES, cache->layer, head), acc);
        return;
    }
    if (tile->kind == TILE_WINDOW) {
        codec_f16.mix(shape, weights, window_block(cache, tile->window, cache->layer, head) + cache->half_bytes, acc);
        return;
    }
    const struct kernels *kernel = kernels();
    struct rows values = tile_rows(cache, tile, head, CODEC_VALUES, room);
    for (size_t t = tile->begin; t < tile->end; t++) {
        for (size_t m = 0; m < rows; m++) {
            float weight = weights[m * BLOCK_TOKENS + t];
            if (weight != 0) kernel->axpy(weight, values.data + t * values.stride, acc + m * shape.head_dim, shape.head_dim);
        }
    }
}

/* ---- Many queries: the rows themselves, for a matrix product */

/* Brings the live rows to the front of to[64][hd], where they may be already. */
static void gather_rows(const struct tile *tile, struct rows from, size_t hd, float *to) {
    size_t n = tile->end - tile->begin;
    if (from.data == to) {
        if (tile->begin) memmove(to, to + tile->begin * hd, n * hd * sizeof *to);
        return;
    }
    for (size_t t = 0; t < n; t++) memcpy(to + t * hd, from.data + (tile->begin + t) * from.stride, hd * sizeof *to);
}

void tile_load(const struct cache *cache, const struct tile *tile, uint32_t head, float *keys, float *values) {
    size_t hd = cache->shape.head_dim;
    gather_rows(tile, tile_rows(cache, tile, head, CODEC_KEYS, keys), hd, keys);
    gather_rows(tile, tile_rows(cache, tile, head, CODEC_VALUES, values), hd, values);
    if (cache->turned) return;
    for (size_t t = tile->begin; t < tile->end; t++)
        turns_rotate(&cache->turns, tile->base, t, keys + (t - tile->begin) * hd, 1, 0);
}
