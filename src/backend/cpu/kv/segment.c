/* Reading tiles: where the keys and values of a tile lie and at which positions they are read. Owns nothing. */
#include "backend/cpu/kv/segment.h"

#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"

#include <string.h>

/* ---- Which tiles a step has */

static size_t segments_of(uint64_t tokens) { return (size_t)((tokens + PAGE_TOKENS - 1) / PAGE_TOKENS); }

static uint64_t exact_tokens(const struct cache *cache) {
    return cache->sealed_first ? cache->plan.after.exact : cache->plan.before.exact;
}

/* Tokens of which anchors alone stayed, when the step began. */
static size_t kept_tokens(const struct cache *cache) { return cache->method.policy->keep_selected_only ? cache->anchors.count : 0; }

static size_t sealed_segments(const struct cache *cache) { return cache->sealed + (cache->sealed_first ? cache->plan.seal : 0); }

static size_t window_segments(const struct cache *cache) {
    return cache->sealed_first ? 0 : extent_window_pages(&cache->plan.before);
}

size_t segment_count_rows(const struct cache *cache) { return segments_of(exact_tokens(cache)) + segments_of(kept_tokens(cache)); }

size_t segment_count_stored(const struct cache *cache) {
    return segment_count_rows(cache) + sealed_segments(cache) + window_segments(cache);
}

size_t segment_count(const struct cache *cache) {
    return segment_count_stored(cache) + (cache->sealed_first ? 0 : segments_of(cache->plan.n));
}

static struct segment segment_of(const struct cache *cache, int kind, uint64_t first, uint64_t end_token) {
    uint64_t live = kind == SEGMENT_SEALED || kind == SEGMENT_WINDOW ? cache->plan.before.first : 0;
    uint64_t count = end_token - first < PAGE_TOKENS ? end_token - first : PAGE_TOKENS;
    uint64_t begin = live > first ? live - first : 0;
    struct segment segment = {.first = first, .end = (uint32_t)count, .begin = (uint32_t)(begin < count ? begin : count)};
    segment.kind = kind;
    return segment;
}

struct segment segment_at(const struct cache *cache, size_t i) {
    const struct extent *before = &cache->plan.before;
    size_t exact = segments_of(exact_tokens(cache)), rows = segment_count_rows(cache), sealed = sealed_segments(cache);
    size_t stored = segment_count_stored(cache);
    struct segment segment;
    if (i < exact) {
        segment = segment_of(cache, SEGMENT_EXACT, i * PAGE_TOKENS, exact_tokens(cache));
    } else if (i < rows) {
        segment = segment_of(cache, SEGMENT_KEPT, (i - exact) * PAGE_TOKENS, kept_tokens(cache));
    } else if (i < rows + sealed) {
        const struct set *set = &cache->page_sets[i - rows];
        segment = segment_of(cache, SEGMENT_SEALED, set->first, set->first + set->count);
        segment.set = set;
    } else if (i < stored) {
        size_t page = i - rows - sealed;
        segment = segment_of(cache, SEGMENT_WINDOW, before->window_first + page * PAGE_TOKENS, before->length);
        segment.window = cache->windows[page];
    } else {
        segment = segment_of(cache, SEGMENT_NEW, before->length + (i - stored) * PAGE_TOKENS, before->length + cache->plan.n);
    }
    segment.base = i < stored ? segments_of(cache->plan.n) + i : i - stored;
    return segment;
}

size_t segment_count_seen(const struct cache *cache, size_t i) {
    size_t n = segment_count(cache);
    while (segment_at(cache, n - 1).first > cache->plan.before.length + i) n--;
    return n;
}

uint64_t segment_bytes(const struct cache *cache) {
    uint64_t exact = (exact_tokens(cache) + kept_tokens(cache)) * 2 * cache->shape.head_dim * sizeof(uint16_t);
    uint64_t sealed = sealed_segments(cache) * (cache->key_bytes + cache->value_bytes);
    return cache->shape.kv_heads * (exact + sealed + window_segments(cache) * 2 * cache->half_bytes);
}

/* ---- Positions. When keys are stored rotated, only new tokens and exact rows are turned, the latter to where they are in the cache,
 * in terms of the other tokens' own positions. Otherwise all positions are relative to the first new token's. */

/* Of the step's tiles that are turned as they are read: exact rows come first. */
static size_t rotated_segments(const struct cache *cache) {
    return cache->rotated ? segments_of(exact_tokens(cache)) : segment_count_stored(cache);
}

size_t segment_bases(const struct cache *cache) { return segments_of(cache->plan.n) + rotated_segments(cache); }

/* Where positions are by index, exact rows close up to what follows them. */
int64_t segment_position(const struct cache *cache, const struct segment *segment) {
    const struct extent *before = &cache->plan.before;
    bool moved = segment->kind == SEGMENT_EXACT && cache->method.policy->positions_by_index;
    return (int64_t)segment->first + (moved ? (int64_t)extent_evicted(before) : 0) - (int64_t)before->length;
}

void segment_set_bases(struct cache *cache) {
    int64_t start = cache->rotated ? (int64_t)cache->plan.before.length : 0; /* the first new token's */
    for (size_t i = 0; i < segments_of(cache->plan.n); i++) rotary_set_base(&cache->rotary, i, (int64_t)(i * PAGE_TOKENS) + start);
    for (size_t i = 0; i < rotated_segments(cache); i++) {
        struct segment segment = segment_at(cache, i);
        rotary_set_base(&cache->rotary, segment.base, segment_position(cache, &segment) + start);
    }
}

void segment_rotate_query(const struct cache *cache, size_t i, float *rows, uint32_t n) {
    rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, n, cache->shape.head_dim);
}

void segment_rotate_key(const struct cache *cache, size_t i, size_t slot, float *row) {
    rotary_rotate(&cache->rotary, segments_of(cache->plan.n) + segment_count_rows(cache) + i, slot, row, 1, 0);
}

void segment_rotate_to_own(const struct cache *cache, float *query) {
    rotary_advance(&cache->rotary, (int64_t)cache->plan.before.length, query, 1, 0);
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
static struct anchor_range segment_anchors(const struct cache *cache, const struct segment *segment, enum codec_side side,
                                           uint32_t head) {
    return anchors_between(cache, side, head, segment->first, segment->first + segment->end);
}

/* The i-th anchor's row, in float. */
static void anchor_row(const struct anchor_range *anchors, size_t i, size_t hd, float *row) {
    vector_ops()->half_to_float(anchors->rows + i * hd, row, hd);
}

/* A sealed tile's rows[64][hd], anchors in their places. */
static void load_sealed(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side,
                        float *rows) {
    size_t hd = cache->shape.head_dim;
    const uint8_t *page = page_at(cache, segment->set, side, cache->layer, head);
    side_codec(cache, side)->decode(side_shape(cache, side, cache->layer, head, 1), side, page, rows);
    struct anchor_range anchors = segment_anchors(cache, segment, side, head);
    for (size_t i = anchors.from; i < anchors.to; i++)
        anchor_row(&anchors, i, hd, rows + (anchors.tokens[i] - segment->first) * hd);
}

/* Decodes into room[64][hd], but for new tokens, whose rows are there. */
static struct rows segment_rows(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side,
                                float *workspace) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    const uint8_t *page;
    switch (segment->kind) {
    case SEGMENT_NEW: {
        const float *rows = side == CODEC_KEYS ? cache->k : cache->v;
        return (struct rows){rows + (segment->first - cache->plan.before.length) * width + head * hd, width};
    }
    case SEGMENT_EXACT: {
        const uint16_t *rows = exact_rows(cache, cache->layer, head);
        if (side == CODEC_VALUES) rows += cache->method.parameters.exact * hd;
        vector_ops()->half_to_float(rows + segment->first * hd, workspace, segment->end * hd);
        for (size_t t = 0; side == CODEC_KEYS && cache->rotated && t < segment->end; t++)
            rotary_rotate(&cache->rotary, segment->base, t, workspace + t * hd, 1, (uint32_t)hd);
        break;
    }
    case SEGMENT_KEPT: {
        struct anchor_range kept = anchors_all(cache, side, head);
        vector_ops()->half_to_float(kept.rows + segment->first * hd, workspace, segment->end * hd);
        break;
    }
    case SEGMENT_SEALED: load_sealed(cache, segment, head, side, workspace); break;
    case SEGMENT_PACKED: break; /* is never read by rows */
    case SEGMENT_WINDOW:
        page = window_page(cache, segment->window, cache->layer, head);
        codec_f16.decode(window_shape(cache, 1), side, page + (side == CODEC_KEYS ? 0 : cache->half_bytes), workspace);
        break;
    }
    return (struct rows){workspace, hd};
}

void segment_first_key(const struct cache *cache, uint32_t head, float *key) {
    struct segment segment = segment_at(cache, 0);
    segment.end = 1;
    float workspace[CODEC_HEAD_DIM_MAX];
    struct rows rows = segment_rows(cache, &segment, head, CODEC_KEYS, workspace);
    memcpy(key, rows.data, cache->shape.head_dim * sizeof *key);
    if (!cache->rotated) rotary_rotate(&cache->rotary, segment.base, 0, key, 1, 0);
}

void segment_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *workspace,
                        float *row) {
    const struct extent *before = &cache->plan.before;
    size_t i = token >= before->window_first
                   ? segment_count_stored(cache) - window_segments(cache) + (size_t)(token - before->window_first) / PAGE_TOKENS
                   : segment_count_rows(cache);
    if (token >= before->length) i = segment_count_stored(cache) + (size_t)(token - before->length) / PAGE_TOKENS;
    struct segment segment = segment_at(cache, i);
    while (token >= segment.first + segment.end) segment = segment_at(cache, ++i);
    struct rows rows = segment_rows(cache, &segment, head, side, workspace);
    memcpy(row, rows.data + (token - segment.first) * rows.stride, cache->shape.head_dim * sizeof *row);
}

/* ---- A few queries: scores and mixes on the codes where they allow it */

size_t segment_workspace_floats(const struct cache *cache, size_t rows) { return (2 * PAGE_TOKENS + rows) * cache->shape.head_dim; }

/* logits[rows][64] = <q, key> of the live slots. */
static void score_rows(const struct segment *segment, const float *q, size_t rows, size_t hd, struct rows keys, float *logits) {
    const struct vector_ops *kernel = vector_ops();
    for (size_t t = segment->begin; t < segment->end; t++)
        for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + t] = kernel->dot(q + m * hd, keys.data + t * keys.stride, hd);
}

/* Logits of anchors in place of what their codes say. */
static void score_anchors(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, size_t rows,
                          float *logits) {
    size_t hd = cache->shape.head_dim;
    float row[CODEC_HEAD_DIM_MAX];
    struct anchor_range anchors = segment_anchors(cache, segment, CODEC_KEYS, head);
    for (size_t i = anchors.from; i < anchors.to; i++) {
        size_t t = anchors.tokens[i] - segment->first;
        anchor_row(&anchors, i, hd, row);
        if (!cache->rotated) rotary_rotate(&cache->rotary, segment->base, t, row, 1, (uint32_t)hd);
        for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + t] = vector_ops()->dot(q + m * hd, row, hd);
    }
}

/* Keys that lie in blocks, on their codes. */
static void score_sealed(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q,
                         const float *tables, size_t rows, float *logits) {
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    cache->method.key.codec->score(shape, q, tables, page_at(cache, segment->set, CODEC_KEYS, cache->layer, head), logits);
    score_anchors(cache, segment, head, q, rows, logits);
}

/* Unturned keys by channel, channels[hd][64], zeros where the tile has no tokens; `room` has 64 rows. */
static void load_channels(const struct cache *cache, const struct segment *segment, uint32_t head, float *workspace,
                          float *channels) {
    size_t hd = cache->shape.head_dim;
    if (segment->kind == SEGMENT_WINDOW) {
        codec_f16.channels(window_shape(cache, 1), window_page(cache, segment->window, cache->layer, head), channels);
    } else if (segment->kind == SEGMENT_SEALED) {
        const uint8_t *page = page_at(cache, segment->set, CODEC_KEYS, cache->layer, head);
        cache->method.key.codec->channels(side_shape(cache, CODEC_KEYS, cache->layer, head, 1), page, channels);
        struct anchor_range anchors = segment_anchors(cache, segment, CODEC_KEYS, head);
        for (size_t i = anchors.from; i < anchors.to; i++) {
            anchor_row(&anchors, i, hd, workspace);
            for (size_t c = 0; c < hd; c++) channels[c * PAGE_TOKENS + (anchors.tokens[i] - segment->first)] = workspace[c];
        }
    } else {
        struct rows keys = segment_rows(cache, segment, head, CODEC_KEYS, workspace);
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            for (size_t c = 0; c < hd; c++) channels[c * PAGE_TOKENS + t] = t < segment->end ? keys.data[t * keys.stride + c] : 0;
    }
}

/* Relativity: instead of turning 64 keys by base + t, turn the queries back by the base and the keys by t. */
static void score_unrotated(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, size_t rows,
                            float *workspace, float *logits) {
    const struct rotary *rotary = &cache->rotary;
    const struct codec *codec = cache->method.key.codec;
    size_t hd = cache->shape.head_dim;
    float *channels = workspace, *moved = workspace + PAGE_TOKENS * hd;
    struct key_rotation rotation = {.cosine = rotary->slots,
                                    .sine = rotary->slots + rotary->pairs * PAGE_TOKENS,
                                    .pairs = rotary->pairs,
                                    .adjacent = rotary->rope->pairing == ROPE_ADJACENT,
                                    .i16 = rotary->i16,
                                    .magnitude = rotary->rope->magnitude};
    bool as_codes = segment->kind == SEGMENT_SEALED && codec->score_rotated;
    if (!as_codes) load_channels(cache, segment, head, moved, channels);
    memcpy(moved, q, rows * hd * sizeof *moved);
    rotary_rotate_back(rotary, segment->base, moved, (uint32_t)rows, cache->shape.head_dim);
    if (!as_codes) {
        pq_ops()->score_rotated_channels(&rotation, moved, rows, hd, channels, logits);
        return;
    }
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    codec->score_rotated(shape, moved, &rotation, page_at(cache, segment->set, CODEC_KEYS, cache->layer, head), logits);
    score_anchors(cache, segment, head, q, rows, logits);
}

void segment_score(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, const float *tables,
                   size_t rows, float *workspace, float *logits) {
    if (segment->kind == SEGMENT_PACKED)
        packed_score(cache, segment, head, q, tables, rows, workspace, logits);
    else if (!cache->rotated)
        score_unrotated(cache, segment, head, q, rows, workspace, logits);
    else if (segment->kind == SEGMENT_SEALED)
        score_sealed(cache, segment, head, q, tables, rows, logits);
    else if (segment->kind == SEGMENT_WINDOW)
        codec_f16.score(window_shape(cache, rows), q, NULL, window_page(cache, segment->window, cache->layer, head), logits);
    else
        score_rows(segment, q, rows, cache->shape.head_dim, segment_rows(cache, segment, head, CODEC_KEYS, workspace), logits);
}

void segment_accumulate_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc) {
    for (size_t m = 0; m < rows; m++) {
        float *weight = &weights[m * PAGE_TOKENS + t];
        if (*weight != 0) vector_ops()->axpy(*weight, value, acc + m * hd, hd);
        *weight = 0;
    }
}

static void accumulate_sealed(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                              float *code_sums, float *acc) {
    size_t hd = cache->shape.head_dim;
    float row[CODEC_HEAD_DIM_MAX];
    const struct codec *codec = cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, CODEC_VALUES, cache->layer, head, rows);
    const uint8_t *page = page_at(cache, segment->set, CODEC_VALUES, cache->layer, head);
    struct anchor_range anchors = segment_anchors(cache, segment, CODEC_VALUES, head);
    for (size_t i = anchors.from; i < anchors.to; i++) {
        anchor_row(&anchors, i, hd, row);
        segment_accumulate_row(row, (size_t)(anchors.tokens[i] - segment->first), rows, hd, weights, acc);
    }
    if (code_sums)
        codec->accumulate_by_code(shape, weights, page, code_sums);
    else
        (segment->int8_weights ? codec->accumulate_int8 : codec->accumulate)(shape, weights, page, acc);
}

void segment_accumulate(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                        float *workspace, float *code_sums, float *acc) {
    if (segment->kind == SEGMENT_PACKED) {
        packed_accumulate(cache, segment, head, weights, rows, code_sums, acc);
    } else if (segment->kind == SEGMENT_SEALED) {
        accumulate_sealed(cache, segment, head, weights, rows, code_sums, acc);
    } else if (segment->kind == SEGMENT_WINDOW) {
        const uint8_t *page = window_page(cache, segment->window, cache->layer, head) + cache->half_bytes;
        codec_f16.accumulate(window_shape(cache, rows), weights, page, acc);
    } else {
        struct rows values = segment_rows(cache, segment, head, CODEC_VALUES, workspace);
        for (size_t t = segment->begin; t < segment->end; t++)
            segment_accumulate_row(values.data + t * values.stride, t, rows, cache->shape.head_dim, weights, acc);
    }
}

/* ---- Many queries: the rows themselves, for a matrix product */

/* Brings the live rows to the front of to[64][hd], where they may be already. */
static void gather_rows(const struct segment *segment, struct rows from, size_t hd, float *to) {
    size_t n = segment->end - segment->begin;
    if (from.data == to) {
        if (segment->begin) memmove(to, to + segment->begin * hd, n * hd * sizeof *to);
        return;
    }
    for (size_t t = 0; t < n; t++) memcpy(to + t * hd, from.data + (segment->begin + t) * from.stride, hd * sizeof *to);
}

void segment_load(const struct cache *cache, const struct segment *segment, uint32_t head, float *keys, float *values) {
    size_t hd = cache->shape.head_dim;
    gather_rows(segment, segment_rows(cache, segment, head, CODEC_KEYS, keys), hd, keys);
    gather_rows(segment, segment_rows(cache, segment, head, CODEC_VALUES, values), hd, values);
    if (cache->rotated) return;
    for (size_t t = segment->begin; t < segment->end; t++)
        rotary_rotate(&cache->rotary, segment->base, t, keys + (t - segment->begin) * hd, 1, 0);
}
