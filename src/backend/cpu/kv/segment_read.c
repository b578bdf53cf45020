/* Reads the keys and values of a segment, by its kind. */
#include "backend/cpu/kv/segment_read.h"

#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/side.h"

#include <string.h>

/* ---- Rows */

/* These are rows of one side of a segment, indexed by slot, as they are stored. */
struct rows {
    const float *data;
    size_t stride;
};

/* Returns the live slots of a sealed page whose rows are exact. */
static uint64_t exact_slots(const struct segment *segment, enum codec_side side) {
    return segment->exact ? segment->exact->slots[side] & segment->live : 0;
}

/* Takes the first of these slots, and writes its row. */
static uint32_t take_exact(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side,
                           uint64_t *slots, float *row) {
    uint32_t slot = read_take(slots);
    anchor_row(cache, side, head, read_exact_row(segment->exact, side, slot), row);
    return slot;
}

/* Loads a sealed page's rows[64][hd], keys at their own positions where any are stored so, anchors in their places. */
static void load_sealed(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side,
                        float *rows) {
    size_t hd = cache->base.shape.head_dim;
    const uint8_t *page = page_at(cache, segment->set, side, cache->base.layer, head);
    side_codec(cache, side)->decode(side_shape_at(cache, segment->set->rate, side, cache->base.layer, head, 1), side, page, rows);
    const float *mean = side == CODEC_KEYS ? side_pre_rope_mean(cache, cache->base.layer, head) : NULL;
    if (mean) pre_rope_add(&cache->positions.pre_rope, 1, mean, segment->set->first, rows, segment->end, (uint32_t)hd);
    if (side == CODEC_KEYS && cache->keys_in_rope_runs) segment_rotate_from_run(cache, segment->base, segment->end, rows);
    float row[CODEC_ROW_MAX];
    for (uint64_t slots = exact_slots(segment, side); slots;) {
        uint32_t slot = take_exact(cache, segment, head, side, &slots, row);
        memcpy(rows + slot * hd, row, hd * sizeof *row);
    }
}

/* Returns a segment's rows, decoded into workspace[64][hd]; those of new tokens are read in place. */
static struct rows segment_rows(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side,
                                float *workspace) {
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    side = side_stored(cache, side);
    switch (segment->kind) {
    case SEGMENT_NEW: {
        const float *rows = side == CODEC_KEYS ? cache->k : cache->v;
        return (struct rows){rows + (segment->first - cache->base.plan.before.length) * width + head * hd, width};
    }
    case SEGMENT_EXACT: {
        const uint16_t *rows = exact_rows(cache, cache->base.layer, head);
        if (side == CODEC_VALUES) rows += cache->base.method.parameters.exact * hd;
        vector_ops()->half_to_float(rows + segment->first * hd, workspace, segment->end * hd);
        for (size_t t = 0; side == CODEC_KEYS && cache->keys_rotated && t < segment->end; t++)
            rotary_rotate(&cache->rotary, segment->base, t, workspace + t * hd, 1, (uint32_t)hd);
        break;
    }
    case SEGMENT_ANCHORS: {
        struct anchor_rows kept = anchors_of(cache, side, head);
        vector_ops()->half_to_float(kept.rows + segment->first * hd, workspace, segment->end * hd);
        break;
    }
    case SEGMENT_SEALED: load_sealed(cache, segment, head, side, workspace); break;
    case SEGMENT_GATHERED: break; /* gather.c reads them */
    case SEGMENT_WINDOW:
        cpu_codec_f16.decode(window_shape(cache, 1), side, window_page(cache, segment->window_set, side, cache->base.layer, head),
                             workspace);
        break;
    }
    return (struct rows){workspace, hd};
}

void segment_first_key(const struct cache *cache, uint32_t head, float *key) {
    struct segment segment = segment_at(cache, head, segment_count_chosen(cache));
    segment.end = 1;
    float workspace[CODEC_ROW_MAX];
    struct rows rows = segment_rows(cache, &segment, head, CODEC_KEYS, workspace);
    memcpy(key, rows.data, cache->base.shape.head_dim * sizeof *key);
    if (!cache->keys_rotated) rotary_rotate(&cache->rotary, segment.base, 0, key, 1, 0);
}

void segment_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *workspace,
                        float *row) {
    struct segment segment = segment_of_token(cache, token);
    struct rows rows = segment_rows(cache, &segment, head, side, workspace);
    memcpy(row, rows.data + (token - segment.first) * rows.stride, cache->base.shape.head_dim * sizeof *row);
}

/* ---- Scores and weighted sums, on the codes where the codec allows it */

static size_t workspace_floats(const struct cache *cache, size_t rows) {
    return (2 * PAGE_TOKENS + rows) * cache->base.shape.head_dim;
}

size_t head_reader_floats(const struct cache *cache, uint32_t layer, uint32_t head, size_t rows) {
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    size_t floats = workspace_floats(cache, rows);
    if (!cache->keys_in_rope_runs) return floats;
    size_t tables = 0;
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++)
        tables = size_max(tables, cpu_codec_query_floats(codec, side_shape_at(cache, rate, CODEC_KEYS, layer, head, rows)));
    return floats + rows * (cache->base.shape.head_dim + 2 * cache->positions.stride) + tables;
}

void head_reader_set_rate(struct head_reader *reader, uint32_t rate) {
    const struct cache *cache = reader->cache;
    reader->rate = rate;
    reader->keys = side_shape_at(cache, rate, CODEC_KEYS, cache->base.layer, reader->head, reader->rows);
    reader->values = side_shape_at(cache, rate, CODEC_VALUES, cache->base.layer, reader->head, reader->rows);
    reader->run = INT64_MIN;
}

struct head_reader head_reader_of(const struct cache *cache, uint32_t head, const float *q, size_t rows, const float *tables,
                                  float *memory) {
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    struct head_reader reader = {.cache = cache, .head = head, .rows = rows, .q = q, .tables = tables};
    head_reader_set_rate(&reader, 0);
    reader.pre_rope_mean = side_pre_rope_mean(cache, cache->base.layer, head);
    reader.workspace = memory;
    reader.in_run = memory + workspace_floats(cache, rows);
    reader.position_products = reader.in_run + rows * cache->base.shape.head_dim;
    if (cpu_codec_query_floats(codec, reader.keys))
        reader.run_tables = reader.position_products + 2 * rows * cache->positions.stride;
    return reader;
}

/* Computes logits[rows][64] = <q, key> of the live slots. */
static void score_rows(const struct segment *segment, const float *q, size_t rows, size_t hd, struct rows keys, float *logits) {
    const struct vector_ops *kernel = vector_ops();
    for (size_t t = segment->begin; t < segment->end; t++)
        for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + t] = kernel->dot(q + m * hd, keys.data + t * keys.stride, hd);
}

/* Replaces the logits of anchors' codes by those of their exact rows. */
static void score_anchors(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    size_t hd = cache->base.shape.head_dim;
    float row[CODEC_ROW_MAX];
    for (uint64_t slots = exact_slots(segment, CODEC_KEYS); slots;) {
        size_t t = take_exact(cache, segment, reader->head, CODEC_KEYS, &slots, row);
        if (!cache->keys_rotated) rotary_rotate(&cache->rotary, segment->base, t, row, 1, (uint32_t)hd);
        for (size_t m = 0; m < reader->rows; m++) logits[m * PAGE_TOKENS + t] = vector_ops()->dot(reader->q + m * hd, row, hd);
    }
}

void segment_score_in_run(struct head_reader *reader, const void *page, size_t base, float *logits) {
    const struct cache *cache = reader->cache;
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    int64_t run = cache->rotary.positions[base];
    if (reader->run != run) {
        memcpy(reader->in_run, reader->q, reader->rows * cache->base.shape.head_dim * sizeof *reader->q);
        rotary_rotate_back(&cache->rotary, base, reader->in_run, (uint32_t)reader->rows, cache->base.shape.head_dim);
        if (reader->run_tables) codec->queries->prepare(reader->keys, reader->in_run, reader->run_tables);
        if (reader->pre_rope_mean)
            position_products(&cache->positions, reader->pre_rope_mean, reader->in_run, reader->rows, cache->base.shape.head_dim,
                              reader->position_products);
        reader->run = run;
    }
    codec->score(reader->keys, reader->in_run, reader->run_tables, page, logits);
}

/* Scores the keys of a sealed page, on their codes. */
static void score_sealed(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const void *page = page_at(cache, segment->set, CODEC_KEYS, cache->base.layer, reader->head);
    if (cache->keys_in_rope_runs) {
        segment_score_in_run(reader, page, segment->base, logits);
        if (reader->pre_rope_mean)
            position_scores_add(&cache->positions, reader->position_products, reader->rows, segment->set->first, logits);
    } else
        cache->codec[CODEC_KEYS]->score(reader->keys, reader->q, reader->tables, page, logits);
    score_anchors(reader, segment, logits);
}

/* Loads keys before rotation by channel, channels[hd][64], zeros where the segment has no tokens; workspace[64][hd]. */
static void load_channels(const struct cache *cache, const struct segment *segment, uint32_t head, float *workspace,
                          float *channels) {
    size_t hd = cache->base.shape.head_dim;
    if (segment->kind == SEGMENT_WINDOW) {
        cpu_codec_f16.channels(window_shape(cache, 1), window_keys(cache, segment->window_set, cache->base.layer, head), channels);
    } else if (segment->kind == SEGMENT_SEALED) {
        const uint8_t *page = page_at(cache, segment->set, CODEC_KEYS, cache->base.layer, head);
        cache->codec[CODEC_KEYS]->channels(side_shape_at(cache, segment->set->rate, CODEC_KEYS, cache->base.layer, head, 1), page,
                                           channels);
        for (uint64_t slots = exact_slots(segment, CODEC_KEYS); slots;) {
            uint32_t slot = take_exact(cache, segment, head, CODEC_KEYS, &slots, workspace);
            for (size_t c = 0; c < hd; c++) channels[c * PAGE_TOKENS + slot] = workspace[c];
        }
    } else {
        struct rows keys = segment_rows(cache, segment, head, CODEC_KEYS, workspace);
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            for (size_t c = 0; c < hd; c++) channels[c * PAGE_TOKENS + t] = t < segment->end ? keys.data[t * keys.stride + c] : 0;
    }
}

/* Scores keys before rotation. Only relative positions count: instead of rotating 64 keys by base + t, this rotates the queries
 * back by the base and the keys by t, whose angles are a constant table. */
static void score_unrotated(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const struct rotary *rotary = &cache->rotary;
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    size_t hd = cache->base.shape.head_dim, rows = reader->rows;
    float *channels = reader->workspace, *rotated = reader->workspace + PAGE_TOKENS * hd;
    struct key_rotation rotation = {.cosine = rotary->by_pair,
                                    .sine = rotary->by_pair + rotary->pairs * PAGE_TOKENS,
                                    .pairs = rotary->pairs,
                                    .adjacent = rotary->rope->pairing == ROPE_ADJACENT,
                                    .i16 = rotary->by_pair_i16,
                                    .magnitude = rotary->rope->magnitude};
    bool as_codes = segment->kind == SEGMENT_SEALED && codec->score_rotated;
    if (!as_codes) load_channels(cache, segment, reader->head, rotated, channels);
    memcpy(rotated, reader->q, rows * hd * sizeof *rotated);
    rotary_rotate_back(rotary, segment->base, rotated, (uint32_t)rows, cache->base.shape.head_dim);
    if (!as_codes) {
        pq_ops()->score_rotated_channels(&rotation, rotated, rows, hd, channels, logits);
        return;
    }
    codec->score_rotated(reader->keys, rotated, &rotation,
                         page_at(cache, segment->set, CODEC_KEYS, cache->base.layer, reader->head), logits);
    score_anchors(reader, segment, logits);
}

void segment_score(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    if (!cache->keys_rotated) {
        score_unrotated(reader, segment, logits);
    } else if (segment->kind == SEGMENT_SEALED) {
        score_sealed(reader, segment, logits);
    } else if (segment->kind == SEGMENT_WINDOW) {
        const uint8_t *page = window_keys(cache, segment->window_set, cache->base.layer, reader->head);
        cpu_codec_f16.score(window_shape(cache, reader->rows), reader->q, NULL, page, logits);
    } else {
        struct rows keys = segment_rows(cache, segment, reader->head, CODEC_KEYS, reader->workspace);
        score_rows(segment, reader->q, reader->rows, cache->base.shape.head_dim, keys, logits);
    }
}

void segment_accumulate_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc) {
    for (size_t m = 0; m < rows; m++) {
        float *weight = &weights[m * PAGE_TOKENS + t];
        if (*weight != 0) vector_ops()->axpy(*weight, value, acc + m * hd, hd);
        *weight = 0;
    }
}

void segment_accumulate_page(const struct head_reader *reader, const void *page, bool int8_weights, const float *weights,
                             float *code_sums, float *acc) {
    const struct cpu_codec *codec = reader->cache->codec[CODEC_VALUES];
    if (code_sums)
        (int8_weights ? codec->code_sums->integer->add : codec->code_sums->add)(reader->values, weights, page, code_sums);
    else
        (int8_weights ? codec->accumulate_values_int8 : codec->accumulate_values)(reader->values, weights, page, acc);
}

static void accumulate_sealed(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                              float *acc) {
    const struct cache *cache = reader->cache;
    size_t hd = cache->base.shape.head_dim;
    float row[CODEC_ROW_MAX];
    const uint8_t *page = page_at(cache, segment->set, side_stored(cache, CODEC_VALUES), cache->base.layer, reader->head);
    for (uint64_t slots = exact_slots(segment, CODEC_VALUES); slots;) {
        size_t t = take_exact(cache, segment, reader->head, CODEC_VALUES, &slots, row);
        segment_accumulate_row(row, t, reader->rows, hd, weights, acc);
    }
    segment_accumulate_page(reader, page, segment->int8_weights, weights, code_sums, acc);
}

bool segment_takes_logits(const struct head_reader *reader, const struct segment *segment) {
    const struct codec_code_sums *sums = reader->cache->codec[CODEC_VALUES]->code_sums;
    if (!sums || !sums->integer || !sums->integer->suffice(reader->values)) return false;
    return !exact_slots(segment, CODEC_VALUES);
}

void segment_accumulate_logits(const struct head_reader *reader, const struct segment *segment, const float *logits,
                               const float *largest, float *code_sums, float *sums) {
    const struct cache *cache = reader->cache;
    const uint8_t *page = page_at(cache, segment->set, side_stored(cache, CODEC_VALUES), cache->base.layer, reader->head);
    cache->codec[CODEC_VALUES]->code_sums->integer->add_logits(reader->values, logits, largest, page, code_sums, sums);
}

void segment_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                        float *acc) {
    const struct cache *cache = reader->cache;
    const bool latents = cache->base.shape.latents; /* pages lie as those of keys, which only codecs of slices accumulate */
    if (segment->kind == SEGMENT_SEALED && (!latents || cache->base.method.slices)) {
        accumulate_sealed(reader, segment, weights, code_sums, acc);
    } else if (segment->kind == SEGMENT_WINDOW && !latents) {
        const uint8_t *page = window_page(cache, segment->window_set, CODEC_VALUES, cache->base.layer, reader->head);
        cpu_codec_f16.accumulate_values(window_shape(cache, reader->rows), weights, page, acc);
    } else {
        struct rows values = segment_rows(cache, segment, reader->head, CODEC_VALUES, reader->workspace);
        for (size_t t = segment->begin; t < segment->end; t++)
            segment_accumulate_row(values.data + t * values.stride, t, reader->rows, cache->base.shape.head_dim, weights, acc);
    }
}

/* ---- The rows themselves, for a matrix product */

/* Copies the live rows to the front of to[64][hd], which they may be in already. */
static void copy_live_rows(const struct segment *segment, struct rows from, size_t hd, float *to) {
    size_t n = segment->end - segment->begin;
    if (segment->holes) {
        uint64_t left = segment->live;
        for (size_t t = 0; left; t++) memmove(to + t * hd, from.data + read_take(&left) * from.stride, hd * sizeof *to);
        return;
    }
    if (from.data == to) {
        if (segment->begin) memmove(to, to + segment->begin * hd, n * hd * sizeof *to);
        return;
    }
    for (size_t t = 0; t < n; t++) memcpy(to + t * hd, from.data + (segment->begin + t) * from.stride, hd * sizeof *to);
}

void segment_load(const struct cache *cache, const struct segment *segment, uint32_t head, float *keys, float *values) {
    size_t hd = cache->base.shape.head_dim;
    copy_live_rows(segment, segment_rows(cache, segment, head, CODEC_KEYS, keys), hd, keys);
    copy_live_rows(segment, segment_rows(cache, segment, head, CODEC_VALUES, values), hd, values);
    if (cache->keys_rotated) return;
    uint64_t left = segment->live;
    for (size_t t = 0; left; t++) rotary_rotate(&cache->rotary, segment->base, read_take(&left), keys + t * hd, 1, 0);
}
