/* Choosing tokens and reading them packed. */
#include "backend/cpu/kv/select.h"

#include "base/memory.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kv/top_k.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define RANGE_SPANS 32 /* candidates are scored so many blocks at a time */
#define FORCED UINT16_MAX
#define FETCH_AHEAD 3  /* blocks whose rows will be taken */
#define SCORE_AHEAD 12 /* blocks of the index: where they lie within those of keys no prefetcher of the processor follows them */

/* ---- Sizes */

/* Codec sign's blocks of keys, and what it learns, begin with index_sign's. */
static bool index_in_keys(const struct method *method) { return method->index == &index_sign && method->key.codec == &codec_sign; }

size_t index_block_bytes(const struct method *method, uint32_t hd) {
    return method->index && !index_in_keys(method) ? method->index->block_bytes(hd) : 0;
}

size_t fitted_key_bytes(const struct method *method, uint32_t hd) {
    const struct codec *codec = method->key.codec;
    return codec->fitted_bytes
               ? memory_round_up(codec->fitted_bytes(method_shape(method, CODEC_KEYS, hd, 1), CODEC_KEYS), MEMORY_ALIGN)
               : 0;
}

size_t fitted_bytes(const struct method *method, uint32_t hd) {
    size_t own = method->index && !index_in_keys(method) ? method->index->learned_bytes(hd) : 0;
    return fitted_key_bytes(method, hd) + memory_round_up(own, MEMORY_ALIGN);
}

static void *learned_of(const struct cache *cache, uint32_t layer, uint32_t head) {
    uint8_t *fitted = fitted_data(cache, layer, head);
    return index_in_keys(&cache->method) ? fitted : fitted + fitted_key_bytes(&cache->method, cache->shape.head_dim);
}

static const uint8_t *index_block(const struct cache *cache, const struct span *span, uint32_t layer, uint32_t head) {
    return index_in_keys(&cache->method) ? span_block(cache, span, CODEC_KEYS, layer, head) : span_index(cache, span, layer, head);
}

/* ---- Room */

/* Where the parts of reading.memory lie. */
struct room {
    uint16_t *scores; /* [Hk][slots] */
    uint32_t *chosen; /* [Hk][most], places: 64 times the number of a candidate block, plus the slot */
    size_t *count;    /* [Hk] */
    uint8_t *tables;  /* [Hk][table_bytes] */
    float *fit;       /* [Hk][FIT_ROWS][hd] */
};

static size_t slots_of(const struct reading *reading) { return reading->candidates * BLOCK_TOKENS; }

static size_t table_bytes(const struct cache *cache) {
    return memory_round_up(cache->method.index->table_bytes(cache->shape.head_dim), MEMORY_ALIGN);
}

/* Lays `bytes` more out behind *size. */
static size_t part(size_t *size, size_t count, size_t bytes) {
    size_t at = *size;
    *size += memory_round_up(count * bytes, MEMORY_ALIGN);
    return at;
}

static size_t lay_out(const struct cache *cache, const struct plan *plan, const struct reading *reading, struct room *room) {
    size_t heads = cache->shape.kv_heads, size = 0;
    bool fits = unfitted(cache) && plan->seal && !cache->turned, reads = reading->candidates > 0;
    size_t scores = part(&size, reads ? heads * slots_of(reading) : 0, sizeof *room->scores);
    size_t chosen = part(&size, reads ? heads * reading->most : 0, sizeof *room->chosen);
    size_t count = part(&size, reads ? heads : 0, sizeof *room->count);
    size_t tables = part(&size, reads ? heads : 0, reads ? table_bytes(cache) : 0);
    size_t fit = part(&size, fits ? heads * FIT_ROWS : 0, cache->shape.head_dim * sizeof(float));
    uint8_t *memory = reading->memory;
    if (memory && room)
        *room = (struct room){(uint16_t *)(void *)(memory + scores), (uint32_t *)(void *)(memory + chosen),
                              (size_t *)(void *)(memory + count), memory + tables, (float *)(void *)(memory + fit)};
    return size;
}

static struct room room_of(const struct cache *cache) {
    struct room room = {0};
    lay_out(cache, &cache->plan, &cache->reading, &room);
    return room;
}

/* Blocks of prompts first, in order, then those of the sequence's own tokens. */
static void list_spans(const struct cache *cache, struct reading *reading) {
    size_t n = 0;
    for (int generated = 0; generated < 2; generated++) {
        for (size_t i = 0; i < cache->sealed; i++)
            if (cache->spans[i].generated == (generated == 1)) reading->listed[n++] = (uint32_t)i;
        if (!generated) reading->candidates = n;
    }
    reading->dense = n - reading->candidates;
}

static enum terse_status reserve_packed(struct cache *cache, struct terse_error *error) {
    size_t threads = (size_t)omp_get_max_threads(), bytes = cache->key_bytes + cache->value_bytes;
    if (threads <= cache->packed_threads) return TERSE_OK;
    memory_free(cache->packed);
    cache->packed_threads = 0;
    cache->packed = memory_zeros(threads, bytes);
    if (!cache->packed) return status_no_memory(error, threads * bytes, "packed tokens");
    cache->packed_threads = threads;
    return TERSE_OK;
}

enum terse_status read_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    struct reading *reading = &cache->reading;
    const struct policy_parameters *parameters = &cache->method.parameters;
    reading->candidates = reading->dense = 0;
    if (!cache->method.index && !cache->fitted_bytes) return TERSE_OK;
    bool decodes = plan->kind == CACHE_STEP_DECODE || plan->kind == CACHE_STEP_CHUNK;
    if (cache->method.index && decodes && cache->sealed) {
        if (cache->sealed > reading->capacity) {
            memory_free(reading->listed);
            reading->capacity = 0;
            reading->listed = memory_array(cache->n_spans, sizeof *reading->listed);
            if (!reading->listed) return status_no_memory(error, cache->n_spans * sizeof *reading->listed, "chosen tokens");
            reading->capacity = cache->n_spans;
        }
        list_spans(cache, reading);
        size_t slots = slots_of(reading), wanted = policy_reads(parameters, slots) + cache->anchors.count;
        if (wanted < slots) {
            reading->most = wanted;
            enum terse_status status = reserve_packed(cache, error);
            if (status) return status;
        } else {
            reading->candidates = reading->dense = 0; /* there is nothing to choose */
        }
    }
    size_t bytes = lay_out(cache, plan, reading, NULL);
    if (bytes <= reading->bytes) return TERSE_OK;
    memory_free(reading->memory);
    reading->bytes = 0;
    if (!(reading->memory = memory_array(bytes, 1))) return status_no_memory(error, bytes, "chosen tokens");
    reading->bytes = bytes;
    return TERSE_OK;
}

void read_free(struct cache *cache) {
    memory_free(cache->reading.listed);
    memory_free(cache->reading.memory);
    memory_free(cache->packed);
}

/* ---- Learning and encoding */

static void fit_rows(struct cache *cache, uint32_t head, const float *rows, size_t n, size_t stride) {
    const struct method *method = &cache->method;
    struct index_options options = index_options_defaults();
    struct codec_shape shape = method_shape(method, CODEC_KEYS, cache->shape.head_dim, cache->group);
    if (fitted_key_bytes(method, cache->shape.head_dim))
        method->key.codec->fit(shape, CODEC_KEYS, rows, n, stride, &options, fitted_data(cache, cache->layer, head));
    if (method->index && !index_in_keys(method) && method->index->learned_bytes(cache->shape.head_dim))
        method->index->fit(cache->shape.head_dim, rows, n, stride, &options, learned_of(cache, cache->layer, head));
}

/* An index wants keys as queries meet them: rows of tokens `token`, token + step, ... where they are not turned yet. */
static void turn_rows(const struct cache *cache, uint64_t token, size_t step, float *rows, size_t n) {
    if (cache->turned) return;
    for (size_t i = 0; i < n; i++)
        turns_turn(&cache->turns, (int64_t)(token + i * step), rows + i * cache->shape.head_dim, 1, cache->shape.head_dim);
}

void read_fit(struct cache *cache, uint32_t head, const float *block) {
    const struct plan *plan = &cache->plan;
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    uint64_t first = plan->grid + plan->skip * BLOCK_TOKENS, end = first + plan->sealed, length = plan->before.length;
    uint64_t from = first > length ? first : length;
    float *some = room_of(cache).fit + (cache->turned ? 0 : head * FIT_ROWS * hd);
    if (end < from + BLOCK_TOKENS) {
        size_t n = plan->sealed < BLOCK_TOKENS ? plan->sealed : BLOCK_TOKENS;
        if (!cache->turned) {
            memcpy(some, block, n * hd * sizeof *some);
            turn_rows(cache, first, 1, some, n);
        }
        fit_rows(cache, head, cache->turned ? block : some, n, hd);
        return;
    }
    const float *rows = cache->k + (size_t)(from - length) * width + head * hd;
    size_t n = (size_t)(end - from), step = (n + FIT_ROWS - 1) / FIT_ROWS, count = (n + step - 1) / step;
    if (cache->turned) {
        fit_rows(cache, head, rows, n, width);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(some + i * hd, rows + i * step * width, hd * sizeof *some);
    turn_rows(cache, from, step, some, count);
    fit_rows(cache, head, some, count, hd);
}

void read_index(const struct cache *cache, const struct span *span, uint32_t layer, uint32_t head, const float *rows, size_t n,
                float *scratch) {
    size_t hd = cache->shape.head_dim;
    if (!cache->index_bytes) return;
    if (!cache->turned) {
        memcpy(scratch, rows, n * hd * sizeof *scratch);
        turn_rows(cache, span->first, 1, scratch, n);
    }
    cache->method.index->encode(hd, learned_of(cache, layer, head), cache->turned ? rows : scratch, n,
                                span_index(cache, span, layer, head));
}

/* ---- Choosing */

void read_prepare(const struct cache *cache, uint32_t head, const float *q) {
    size_t hd = cache->shape.head_dim;
    float turned[CODEC_HEAD_DIM_MAX], mean[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t g = 0; g < cache->group; g++) {
        memcpy(turned, q + g * hd, hd * sizeof *turned);
        if (!cache->turned) tile_turn_to_own(cache, turned);
        for (size_t c = 0; c < hd; c++) mean[c] += turned[c] / (float)cache->group;
    }
    cache->method.index->prepare(hd, learned_of(cache, cache->layer, head), mean, 1,
                                 room_of(cache).tables + head * table_bytes(cache));
}

size_t read_ranges(const struct cache *cache) { return (cache->reading.candidates + RANGE_SPANS - 1) / RANGE_SPANS; }

static const struct span *candidate(const struct cache *cache, size_t i) { return &cache->spans[cache->reading.listed[i]]; }

void read_score(const struct cache *cache, uint32_t head, size_t range) {
    struct room room = room_of(cache);
    size_t end = (range + 1) * RANGE_SPANS;
    uint16_t *scores = room.scores + head * slots_of(&cache->reading);
    size_t bytes = cache->method.index->block_bytes(cache->shape.head_dim);
    for (size_t i = range * RANGE_SPANS; i < end && i < cache->reading.candidates; i++) {
        if (i + SCORE_AHEAD < cache->reading.candidates) {
            const uint8_t *ahead = index_block(cache, candidate(cache, i + SCORE_AHEAD), cache->layer, head);
            for (size_t b = 0; b < bytes; b += MEMORY_ALIGN) __builtin_prefetch(ahead + b, 0, 2);
        }
        cache->method.index->scores(cache->shape.head_dim, room.tables + head * table_bytes(cache),
                                    index_block(cache, candidate(cache, i), cache->layer, head), scores + i * BLOCK_TOKENS);
    }
}

/* Exact keys are read whatever their scores; returns their number. */
static size_t force_anchors(const struct cache *cache, uint32_t head, uint16_t *scores) {
    struct anchor_range anchors = anchors_all(cache, CODEC_KEYS, head);
    size_t forced = 0;
    for (size_t i = 0, at = anchors.from; i < cache->reading.candidates; i++) {
        const struct span *span = candidate(cache, i);
        while (at < anchors.to && anchors.tokens[at] < span->first) at++;
        for (; at < anchors.to && anchors.tokens[at] < span->first + span->count; at++, forced++)
            scores[i * BLOCK_TOKENS + (anchors.tokens[at] - span->first)] = FORCED;
    }
    return forced;
}

void read_choose(const struct cache *cache, uint32_t head) {
    struct room room = room_of(cache);
    size_t slots = slots_of(&cache->reading), kept = 0;
    uint16_t *scores = room.scores + head * slots;
    uint32_t *chosen = room.chosen + head * cache->reading.most;
    bool filled = true; /* short blocks are few */
    for (size_t i = 0; i < cache->reading.candidates; i++) {
        for (size_t t = candidate(cache, i)->count; t < BLOCK_TOKENS; t++) {
            scores[i * BLOCK_TOKENS + t] = 0;
            filled = false;
        }
    }
    size_t wanted = policy_reads(&cache->method.parameters, slots) + force_anchors(cache, head, scores);
    size_t n = top_tokens(scores, slots, wanted < cache->reading.most ? wanted : cache->reading.most, chosen);
    if (filled) kept = n;
    for (size_t i = 0; !filled && i < n; i++)
        if (chosen[i] % BLOCK_TOKENS < candidate(cache, chosen[i] / BLOCK_TOKENS)->count) chosen[kept++] = chosen[i];
    room.count[head] = kept;
}

/* ---- Tiles */

static size_t packed_tiles(const struct cache *cache) { return (cache->reading.most + BLOCK_TOKENS - 1) / BLOCK_TOKENS; }

size_t read_tile_count(const struct cache *cache) { return packed_tiles(cache) + tile_count(cache) - cache->reading.candidates; }

struct tile read_tile_at(const struct cache *cache, uint32_t head, size_t i) {
    size_t packed = packed_tiles(cache), rows = tile_count_rows(cache), dense = cache->reading.dense;
    if (i < packed) {
        struct room room = room_of(cache);
        size_t first = i * BLOCK_TOKENS, left = room.count[head] > first ? room.count[head] - first : 0;
        return (struct tile){.kind = TILE_PACKED,
                             .end = (uint32_t)(left < BLOCK_TOKENS ? left : BLOCK_TOKENS),
                             .places = room.chosen + head * cache->reading.most + first};
    }
    i -= packed;
    if (i < rows) return tile_at(cache, i);
    i -= rows;
    if (i < dense) return tile_at(cache, rows + cache->reading.listed[cache->reading.candidates + i]);
    return tile_at(cache, rows + cache->sealed + (i - dense));
}

uint64_t read_bytes(const struct cache *cache) {
    const struct reading *reading = &cache->reading;
    size_t both = cache->key_bytes + cache->value_bytes;
    uint64_t scanned = reading->candidates * cache->method.index->block_bytes(cache->shape.head_dim);
    uint64_t left = tile_bytes(cache) - (uint64_t)cache->shape.kv_heads * reading->candidates * both;
    return left + cache->shape.kv_heads * (scanned + (uint64_t)reading->most * both / BLOCK_TOKENS);
}

uint64_t packed_token(const struct cache *cache, const struct tile *tile, size_t i) {
    return candidate(cache, tile->places[i] / BLOCK_TOKENS)->first + tile->places[i] % BLOCK_TOKENS;
}

/* The places from `place` on, before `end`, that lie in its block: their slots. Returns the next place, which does not. */
static const uint32_t *same_block(const uint32_t *place, const uint32_t *end, uint8_t *slots, size_t *n) {
    uint32_t block = *place / BLOCK_TOKENS;
    for (*n = 0; place < end && *place / BLOCK_TOKENS == block; place++) slots[(*n)++] = (uint8_t)(*place % BLOCK_TOKENS);
    return place;
}

/* Brings what will be taken of a block near, keys and values. */
static void fetch(const struct cache *cache, uint32_t head, uint32_t block, const uint8_t *slots, size_t n) {
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
        const void *from = span_block(cache, candidate(cache, block), (enum codec_side)side, cache->layer, head);
        if (codec->fetch)
            codec->fetch(method_shape(&cache->method, (enum codec_side)side, cache->shape.head_dim, 1), (enum codec_side)side, from,
                         slots, n);
    }
}

static const void *pack(const struct cache *cache, const struct tile *tile, uint32_t head, enum codec_side side) {
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, side, cache->layer, head, 1);
    struct room room = room_of(cache);
    const uint32_t *place = tile->places, *end = place + tile->end, *near = place;
    const uint32_t *last =
        room.chosen + head * cache->reading.most + room.count[head]; /* of the head's tiles, which lie in a row */
    uint8_t slots[BLOCK_TOKENS], *block = cache->packed + (size_t)omp_get_thread_num() * (cache->key_bytes + cache->value_bytes);
    size_t n, at = 0;
    bool keys = side == CODEC_KEYS && codec->fetch;
    if (side == CODEC_VALUES) block += cache->key_bytes;
    for (size_t ahead = 0; keys && ahead < FETCH_AHEAD && near < last; ahead++) near = same_block(near, last, slots, &n);
    while (place < end) {
        if (keys && near < last) {
            uint32_t coming = *near / BLOCK_TOKENS;
            near = same_block(near, last, slots, &n);
            fetch(cache, head, coming, slots, n);
        }
        const struct span *span = candidate(cache, *place / BLOCK_TOKENS);
        place = same_block(place, end, slots, &n);
        codec->take(shape, side, span_block(cache, span, side, cache->layer, head), slots, n, block, at);
        at += n;
    }
    return block;
}

/* Keys whose scales are their block's: all of the block is scored. */
static void score_in_place(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, const float *tables,
                           size_t rows, float *room, float *logits) {
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    const uint32_t *place = tile->places, *end = place + tile->end;
    uint8_t slots[BLOCK_TOKENS];
    for (size_t i = 0, n; place < end; i += n) {
        const struct span *span = candidate(cache, *place / BLOCK_TOKENS);
        place = same_block(place, end, slots, &n);
        cache->method.key.codec->score(shape, q, tables, span_block(cache, span, CODEC_KEYS, cache->layer, head), room);
        for (size_t m = 0; m < rows; m++)
            for (size_t j = 0; j < n; j++) logits[m * BLOCK_TOKENS + i + j] = room[m * BLOCK_TOKENS + slots[j]];
    }
}

static void turn_key(const struct cache *cache, const struct tile *tile, size_t i, float *row) {
    tile_turn_key(cache, cache->reading.listed[tile->places[i] / BLOCK_TOKENS], tile->places[i] % BLOCK_TOKENS, row);
}

static void dot_row(const float *q, const float *row, size_t rows, size_t hd, size_t i, float *logits) {
    for (size_t m = 0; m < rows; m++) logits[m * BLOCK_TOKENS + i] = kernels()->dot(q + m * hd, row, hd);
}

/* The tile's anchors of one side, one after another: the next from *i on, and its row. */
static bool next_anchor(const struct cache *cache, const struct tile *tile, const struct anchor_range *anchors, size_t *i,
                        size_t *at, float *row) {
    for (; *i < tile->end; ++*i) {
        uint64_t token = packed_token(cache, tile, *i);
        while (*at < anchors->to && anchors->tokens[*at] < token) ++*at;
        if (*at == anchors->to || anchors->tokens[*at] != token) continue;
        kernels()->half_to_float(anchors->rows + *at * cache->shape.head_dim, row, cache->shape.head_dim);
        return true;
    }
    return false;
}

void packed_score(const struct cache *cache, const struct tile *tile, uint32_t head, const float *q, const float *tables,
                  size_t rows, float *room, float *logits) {
    size_t hd = cache->shape.head_dim;
    const struct codec *codec = cache->method.key.codec;
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    if (!tile->end) return;
    if (codec->keys_stay) {
        score_in_place(cache, tile, head, q, tables, rows, room, logits);
    } else if (cache->turned) {
        codec->score(shape, q, tables, pack(cache, tile, head, CODEC_KEYS), logits);
    } else {
        codec->decode(shape, CODEC_KEYS, pack(cache, tile, head, CODEC_KEYS), room);
        for (size_t i = 0; i < tile->end; i++) {
            turn_key(cache, tile, i, room + i * hd);
            dot_row(q, room + i * hd, rows, hd, i, logits);
        }
    }
    struct anchor_range anchors =
        anchors_between(cache, CODEC_KEYS, head, packed_token(cache, tile, 0), packed_token(cache, tile, tile->end - 1) + 1);
    float row[CODEC_HEAD_DIM_MAX];
    for (size_t i = 0, at = anchors.from; next_anchor(cache, tile, &anchors, &i, &at, row); i++) {
        if (!cache->turned) turn_key(cache, tile, i, row);
        dot_row(q, row, rows, hd, i, logits);
    }
}

void packed_mix(const struct cache *cache, const struct tile *tile, uint32_t head, float *weights, size_t rows, float *tallies,
                float *acc) {
    const struct codec *codec = cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, CODEC_VALUES, cache->layer, head, rows);
    float row[CODEC_HEAD_DIM_MAX];
    if (!tile->end) return;
    struct anchor_range anchors =
        anchors_between(cache, CODEC_VALUES, head, packed_token(cache, tile, 0), packed_token(cache, tile, tile->end - 1) + 1);
    for (size_t i = 0, at = anchors.from; next_anchor(cache, tile, &anchors, &i, &at, row); i++)
        tile_mix_row(row, i, rows, cache->shape.head_dim, weights, acc);
    const void *block = pack(cache, tile, head, CODEC_VALUES);
    if (tallies)
        codec->tally(shape, weights, block, tallies);
    else
        (tile->light ? codec->mix_light : codec->mix)(shape, weights, block, acc);
}
