/* Reading tiles: where the keys and values of a tile lie and at which positions they are read. Owns nothing. */
#include "backend/cpu/kv/segment.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

/* ---- Which tiles a step has */

static size_t tiles_of(uint64_t tokens) { return (size_t)((tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS); }

static uint64_t exact_tokens(const struct cache *cache) {
    return cache->sealed_first ? cache->plan.after.exact : cache->plan.before.exact;
}

/* Tokens of which anchors alone stayed, when the step began. */
static size_t kept_tokens(const struct cache *cache) { return cache->method.policy->alone ? cache->anchors.count : 0; }

static size_t sealed_tiles(const struct cache *cache) { return cache->sealed + (cache->sealed_first ? cache->plan.seal : 0); }

static size_t window_tiles(const struct cache *cache) {
    return cache->sealed_first ? 0 : extent_window_blocks(&cache->plan.before);
}

size_t tile_count_rows(const struct cache *cache) { return tiles_of(exact_tokens(cache)) + tiles_of(kept_tokens(cache)); }

size_t tile_count_stored(const struct cache *cache) { return tile_count_rows(cache) + sealed_tiles(cache) + window_tiles(cache); }

size_t tile_count(const struct cache *cache) {
    return tile_count_stored(cache) + (cache->sealed_first ? 0 : tiles_of(cache->plan.n));
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
    size_t exact = tiles_of(exact_tokens(cache)), rows = tile_count_rows(cache), sealed = sealed_tiles(cache);
    size_t stored = tile_count_stored(cache);
    struct tile tile;
    if (i < exact) {
        tile = tile_of(cache, TILE_EXACT, i * BLOCK_TOKENS, exact_tokens(cache));
    } else if (i < rows) {
        tile = tile_of(cache, TILE_KEPT, (i - exact) * BLOCK_TOKENS, kept_tokens(cache));
    } else if (i < rows + sealed) {
        const struct span *span = &cache->spans[i - rows];
        tile = tile_of(cache, TILE_SEALED, span->first, span->first + span->count);
        tile.span = span;
    } else if (i < stored) {
        size_t block = i - rows - sealed;
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
    uint64_t exact = (exact_tokens(cache) + kept_tokens(cache)) * 2 * cache->shape.head_dim * sizeof(uint16_t);
    uint64_t sealed = sealed_tiles(cache) * (cache->key_bytes + cache->value_bytes);
    return cache->shape.kv_heads * (exact + sealed + window_tiles(cache) * 2 * cache->half_bytes);
}

/* ---- Positions. When keys are stored rotated, only new tokens and exact rows are turned, the latter to where they are in the cache,
 * in terms of the other tokens' own positions. Otherwise all positions are relative to the first new token's. */

/* Of the step's tiles that are turned as they are read: exact rows come first. */
static size_t turned_tiles(const struct cache *cache) {
    return cache->turned ? tiles_of(exact_tokens(cache)) : tile_count_stored(cache);
}

size_t tile_bases(const struct cache *cache) { return tiles_of(cache->plan.n) + turned_tiles(cache); }

/* Where positions are by index, exact rows close up to what follows them. */
int64_t tile_position(const struct cache *cache, const struct tile *tile) {
    const struct extent *before = &cache->plan.before;
    bool moved = tile->kind == TILE_EXACT && cache->method.policy->positions_by_index;
    return (int64_t)tile->first + (moved ? (int64_t)extent_evicted(before) : 0) - (int64_t)before->length;
}

void tile_set_bases(struct cache *cache) {
    int64_t start = cache->turned ? (int64_t)cache->plan.before.length : 0; /* the first new token's */
    for (size_t i = 0; i < tiles_of(cache->plan.n); i++) turns_set_base(&cache->turns, i, (int64_t)(i * BLOCK_TOKENS) + start);
    for (size_t i = 0; i < turned_tiles(cache); i++) {
        struct tile tile = tile_at(cache, i);
        turns_set_base(&cache->turns, tile.base, tile_position(cache, &tile) + start);
    }
}

void tile_turn_query(const struct cache *cache, size_t i, float *rows, uint32_t n) {
    turns_rotate(&cache->turns, i / BLOCK_TOKENS, i % BLOCK_TOKENS, rows, n, cache->shape.head_dim);
}

void tile_turn_key(const struct cache *cache, size_t i, size_t slot, float *row) {
    turns_rotate(&cache->turns, tiles_of(cache->plan.n) + tile_count_rows(cache) + i, slot, row, 1, 0);
}

void tile_turn_to_own(const struct cache *cache, float *query) {
    turns_move(&cache->turns, (int64_t)cache->plan.before.length, query, 1, 0);
}

/* ---- Rows */

/* Rows of one side of a tile, indexed by slot, as they are stored. */
struct rows {
    const float *data;
    size_t stride;
};

static const struct codec *side_codec(const struct cache *cache, enum codec_side side) {
    return side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
}

/* The anchors of a sealed tile. */
static struct anchor_range tile_anchors(const struct cache *cache, const struct tile *tile, enum codec_side side, uint32_t head) {
    return anchors_between(cache, side, head, tile->first, tile->first + tile->end);
}

/* The i-th anchor's row, in float. */
static void anchor_row(const struct anchor_range *anchors, size_t i, size_t hd, float *row) {
    kernels()->half_to_float(anchors->rows + i * hd, row, hd);
}

/* A sealed tile's rows[64][hd], anchors in their places. */
static void load_sealed(const struct cache *cache, const struct tile *tile, uint32_t head, enum codec_side side, float *rows) {
    size_t hd = cache->shape.head_dim;
    const uint8_t *block = span_block(cache, tile->span, side, cache->layer, head);
    side_codec(cache, side)->decode(side_shape(cache, side, cache->layer, head, 1), side, block, rows);
    struct anchor_range anchors = tile_anchors(cache, tile, side, head);
    for (size_t i = anchors.from; i < anchors.to; i++) anchor_row(&anchors, i, hd, rows + (anchors.tokens[i] - tile->first) * hd);
}

/* Decodes into room[64][hd], but for new tokens, whose rows are there. */
static struct rows tile_rows(const struct cache *cache, const struct tile *tile, uint32_t head, enum codec_side side, float *room) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    const uint8_t *block;
    switch (tile->kind) {
    case TILE_NEW: {
        const float *rows = side == CODEC_KEYS ? cache->k : cache->v;
        return (struct rows){rows + (tile->first - cache->plan.before.length) * width + head * hd, width};
    }
    case TILE_EXACT: {
        const uint16_t *rows = exact_rows(cache, cache->layer, head);
        if (side == CODEC_VALUES) rows += cache->method.parameters.exact * hd;
        kernels()->half_to_float(rows + tile->first * hd, room, tile->end * hd);
        for (size_t t = 0; side == CODEC_KEYS && cache->turned && t < tile->end; t++)
            turns_rotate(&cache->turns, tile->base, t, room + t * hd, 1, (uint32_t)hd);
        break;
    }
    case TILE_KEPT: {
        struct anchor_range kept = anchors_all(cache, side, head);
        kernels()->half_to_float(kept.rows + tile->first * hd, room, tile->end * hd);
        break;
    }
    case TILE_SEALED: load_sealed(cache, tile, head, side, room); break;
    case TILE_PACKED: break; /* is never read by rows */
    case TILE_WINDOW:
        block = window_block(cache, tile->window, cache->layer, head);
        codec_f16.decode(window_shape(cache, 1), side, block + (side == CODEC_KEYS ? 0 : cache->half_bytes), room);
        break;
    }
    return (struct rows){room, hd};
}

void tile_first_key(const struct cache *cache, uint32_t head, float *key) {
    struct tile tile = tile_at(cache, 0);
    tile.end = 1;
    float room[CODEC_HEAD_DIM_MAX];
    struct rows rows = tile_rows(cache, &tile, head, CODEC_KEYS, room);
    memcpy(key, rows.data, cache->shape.head_dim * sizeof *key);
    if (!cache->turned) turns_rotate(&cache->turns, tile.base, 0, key, 1, 0);
}

void tile_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *room, float *row) {
    const struct extent *before = &cache->plan.before;
    size_t i = token >= before->window_first
                   ? tile_count_stored(cache) - window_tiles(cache) + (size_t)(token - before->window_first) / BLOCK_TOKENS
                   : tile_count_rows(cache);
    if (token >= before->length) i = tile_count_stored(cache) + (size_t)(token - before->length) / BLOCK_TOKENS;
    struct tile tile = tile_at(cache, i);
    while (token >= tile.first + tile.end) tile = tile_at(cache, ++i);
    struct rows rows = tile_rows(cache, &tile, head, side, room);
    memcpy(row, rows.data + (token - tile.first) * rows.stride, cache->shape.head_dim * sizeof *row);
}

/* ---- A few queries: scores and mixes on the codes where they allow it */

size_t tile_room(const struct cache *cache, size_t rows) { return (2 * BLOCK_TOKENS + rows) * cache->shape.head_dim; }

/* logits[rows][64] = <q, key> of the live slots. */
static void score_rows(const struct tile *tile, const float *q, size_t rows, size_t hd, struct rows keys, float *logits) {
    const struct kernels *kernel = kernels();
    for (size_t t = tile->begin; t < tile->end; t++)
        for (size_t m = 0; m < rows; m++) logits[m * BLOCK_TOKENS + t] = kernel->dot(q + m * hd, keys.data + t * keys.stride, hd);
}

/* Logits of anchors in place of what their codes say. */
static void score_anchors(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, size_t rows,
                          float *logits) {
    size_t hd = cache->shape.head_dim;
    float row[CODEC_HEAD_DIM_MAX];
    struct anchor_range anchors = tile_anchors(cache, tile, CODEC_KEYS, head);
    for (size_t i = anchors.from; i < anchors.to; i++) {
        size_t t = anchors.tokens[i] - tile->first;
        anchor_row(&anchors, i, hd, row);
        if (!cache->turned) turns_rotate(&cache->turns, tile->base, t, row, 1, (uint32_t)hd);
        for (size_t m = 0; m < rows; m++) logits[m * BLOCK_TOKENS + t] = kernels()->dot(q + m * hd, row, hd);
    }
}

/* Keys that lie in blocks, on their codes. */
static void score_sealed(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, const float *tables,
                         size_t rows, float *logits) {
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    cache->method.key.codec->score(shape, q, tables, span_block(cache, tile->span, CODEC_KEYS, cache->layer, head), logits);
    score_anchors(cache, tile, head, q, rows, logits);
}

/* Unturned keys by channel, channels[hd][64], zeros where the tile has no tokens; `room` has 64 rows. */
static void load_channels(const struct cache *cache, const struct tile *tile, uint32_t head, float *room, float *channels) {
    size_t hd = cache->shape.head_dim;
    if (tile->kind == TILE_WINDOW) {
        codec_f16.channels(window_shape(cache, 1), window_block(cache, tile->window, cache->layer, head), channels);
    } else if (tile->kind == TILE_SEALED) {
        const uint8_t *block = span_block(cache, tile->span, CODEC_KEYS, cache->layer, head);
        cache->method.key.codec->channels(side_shape(cache, CODEC_KEYS, cache->layer, head, 1), block, channels);
        struct anchor_range anchors = tile_anchors(cache, tile, CODEC_KEYS, head);
        for (size_t i = anchors.from; i < anchors.to; i++) {
            anchor_row(&anchors, i, hd, room);
            for (size_t c = 0; c < hd; c++) channels[c * BLOCK_TOKENS + (anchors.tokens[i] - tile->first)] = room[c];
        }
    } else {
        struct rows keys = tile_rows(cache, tile, head, CODEC_KEYS, room);
        for (size_t t = 0; t < BLOCK_TOKENS; t++)
            for (size_t c = 0; c < hd; c++) channels[c * BLOCK_TOKENS + t] = t < tile->end ? keys.data[t * keys.stride + c] : 0;
    }
}

/* Relativity: instead of turning 64 keys by base + t, turn the queries back by the base and the keys by t. */
static void score_unturned(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, size_t rows,
                           float *room, float *logits) {
    const struct turns *turns = &cache->turns;
    const struct codec *codec = cache->method.key.codec;
    size_t hd = cache->shape.head_dim;
    float *channels = room, *moved = room + BLOCK_TOKENS * hd;
    struct key_turn turn = {.cosine = turns->slots,
                            .sine = turns->slots + turns->pairs * BLOCK_TOKENS,
                            .pairs = turns->pairs,
                            .adjacent = turns->rope->pairing == ROPE_ADJACENT,
                            .words = turns->words,
                            .magnitude = turns->rope->magnitude};
    bool as_codes = tile->kind == TILE_SEALED && codec->score_turned;
    if (!as_codes) load_channels(cache, tile, head, moved, channels);
    memcpy(moved, q, rows * hd * sizeof *moved);
    turns_rotate_back(turns, tile->base, moved, (uint32_t)rows, cache->shape.head_dim);
    if (!as_codes) {
        kernels()->score_turned(&turn, moved, rows, hd, channels, logits);
        return;
    }
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    codec->score_turned(shape, moved, &turn, span_block(cache, tile->span, CODEC_KEYS, cache->layer, head), logits);
    score_anchors(cache, tile, head, q, rows, logits);
}

void tile_score(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, const float *tables, size_t rows,
                float *room, float *logits) {
    if (tile->kind == TILE_PACKED)
        packed_score(cache, tile, head, q, tables, rows, room, logits);
    else if (!cache->turned)
        score_unturned(cache, tile, head, q, rows, room, logits);
    else if (tile->kind == TILE_SEALED)
        score_sealed(cache, tile, head, q, tables, rows, logits);
    else if (tile->kind == TILE_WINDOW)
        codec_f16.score(window_shape(cache, rows), q, NULL, window_block(cache, tile->window, cache->layer, head), logits);
    else
        score_rows(tile, q, rows, cache->shape.head_dim, tile_rows(cache, tile, head, CODEC_KEYS, room), logits);
}

void tile_mix_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc) {
    for (size_t m = 0; m < rows; m++) {
        float *weight = &weights[m * BLOCK_TOKENS + t];
        if (*weight != 0) kernels()->axpy(*weight, value, acc + m * hd, hd);
        *weight = 0;
    }
}

static void mix_sealed(const struct cache *cache, const struct tile *tile, uint32_t head, float *weights, size_t rows,
                       float *tallies, float *acc) {
    size_t hd = cache->shape.head_dim;
    float row[CODEC_HEAD_DIM_MAX];
    const struct codec *codec = cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, CODEC_VALUES, cache->layer, head, rows);
    const uint8_t *block = span_block(cache, tile->span, CODEC_VALUES, cache->layer, head);
    struct anchor_range anchors = tile_anchors(cache, tile, CODEC_VALUES, head);
    for (size_t i = anchors.from; i < anchors.to; i++) {
        anchor_row(&anchors, i, hd, row);
        tile_mix_row(row, (size_t)(anchors.tokens[i] - tile->first), rows, hd, weights, acc);
    }
    if (tallies)
        codec->tally(shape, weights, block, tallies);
    else
        (tile->light ? codec->mix_light : codec->mix)(shape, weights, block, acc);
}

void tile_mix(const struct cache *cache, const struct tile *tile, uint32_t head, float *weights, size_t rows, float *room,
              float *tallies, float *acc) {
    if (tile->kind == TILE_PACKED) {
        packed_mix(cache, tile, head, weights, rows, tallies, acc);
    } else if (tile->kind == TILE_SEALED) {
        mix_sealed(cache, tile, head, weights, rows, tallies, acc);
    } else if (tile->kind == TILE_WINDOW) {
        const uint8_t *block = window_block(cache, tile->window, cache->layer, head) + cache->half_bytes;
        codec_f16.mix(window_shape(cache, rows), weights, block, acc);
    } else {
        struct rows values = tile_rows(cache, tile, head, CODEC_VALUES, room);
        for (size_t t = tile->begin; t < tile->end; t++)
            tile_mix_row(values.data + t * values.stride, t, rows, cache->shape.head_dim, weights, acc);
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
