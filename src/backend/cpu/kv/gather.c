/* Packing tokens into pages, and reading these. */
#include "backend/cpu/kv/gather.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"
#include "backend/cpu/kv/side.h"
#include "base/memory.h"
#include "base/parallel.h"

#include <string.h>

#define PREFETCH_PAGES 3 /* pages ahead whose chosen tokens are prefetched */

/* A page of keys and one of values, of any layer and KV head. */
static size_t packed_bytes(const struct cache *cache) {
    return cache->largest_page[CODEC_KEYS] + cache->largest_page[CODEC_VALUES];
}

enum terse_status gather_reserve(struct cache *cache, struct terse_error *error) {
    size_t threads = cache->base.threads, bytes = packed_bytes(cache);
    if (!select_active(cache) || cache->gathered) return TERSE_OK;
    if (!(cache->gathered = memory_zeros(threads, bytes))) return status_no_memory(error, threads * bytes, "packed tokens");
    return TERSE_OK;
}

void gather_free(struct cache *cache) { memory_free(cache->gathered); }

/* ---- Segments */

static size_t gathered_segments(const struct cache *cache) { return (cache->selection.max_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS; }

size_t gather_segment_count(const struct cache *cache) {
    return gathered_segments(cache) + segment_count(cache) - cache->selection.candidates;
}

struct segment gather_segment_at(const struct cache *cache, uint32_t head, size_t i) {
    size_t packed = gathered_segments(cache), rows = segment_count_rows(cache), dense = cache->selection.dense;
    if (i < packed) {
        struct selected selected = select_result(cache, head);
        size_t first = i * PAGE_TOKENS, left = selected.count > first ? selected.count - first : 0;
        return (struct segment){.kind = SEGMENT_GATHERED,
                                .end = (uint32_t)(left < PAGE_TOKENS ? left : PAGE_TOKENS),
                                .places = selected.places + first};
    }
    i -= packed;
    if (i < rows) return segment_at(cache, i);
    i -= rows;
    if (i < dense) return segment_at(cache, rows + cache->selection.listed[cache->selection.candidates + i]);
    return segment_at(cache, rows + cache->base.pages.n_sealed + (i - dense));
}

uint64_t gather_bytes(const struct cache *cache) {
    const struct selection *selection = &cache->selection;
    uint64_t pages = page_bytes_of_layer(cache, cache->base.layer);
    uint64_t left = segment_bytes(cache) - selection->candidates * pages;
    return left + select_bytes(cache) + selection->max_tokens * pages / PAGE_TOKENS;
}

uint64_t gather_token(const struct cache *cache, const struct segment *segment, size_t i) {
    return select_candidate(cache, segment->places[i] / PAGE_TOKENS)->first + segment->places[i] % PAGE_TOKENS;
}

/* slots[*n] of the places from `place` on, before `end`, that lie in the same page. Returns the next place, which does not. */
static const uint32_t *same_page(const uint32_t *place, const uint32_t *end, uint8_t *slots, size_t *n) {
    uint32_t page = *place / PAGE_TOKENS;
    for (*n = 0; place < end && *place / PAGE_TOKENS == page; place++) slots[(*n)++] = (uint8_t)(*place % PAGE_TOKENS);
    return place;
}

/* Prefetches what will be copied from a page, keys and values. */
static void prefetch(const struct cache *cache, uint32_t head, uint32_t page, const uint8_t *slots, size_t n) {
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct cpu_codec *codec = side_codec(cache, (enum codec_side)side);
        const void *from = page_at(cache, select_candidate(cache, page), (enum codec_side)side, cache->base.layer, head);
        if (codec->prefetch_tokens)
            codec->prefetch_tokens(side_shape(cache, (enum codec_side)side, cache->base.layer, head, 1), (enum codec_side)side,
                                   from, slots, n);
    }
}

/* Packs the tokens of a segment into the calling thread's page of one side. */
static const void *pack(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side) {
    const struct cpu_codec *codec = side_codec(cache, side);
    struct codec_shape shape = side_shape(cache, side, cache->base.layer, head, 1);
    struct selected selected = select_result(cache, head); /* of all the head's segments, which lie in a row */
    const uint32_t *place = segment->places, *end = place + segment->end, *near = place, *last = selected.places + selected.count;
    size_t thread = parallel_thread(), n, at = 0;
    uint8_t slots[PAGE_TOKENS], *page = cache->gathered + thread * packed_bytes(cache);
    bool prefetches = side == CODEC_KEYS && codec->prefetch_tokens;
    if (side == CODEC_VALUES) page += cache->largest_page[CODEC_KEYS];
    for (size_t ahead = 0; prefetches && ahead < PREFETCH_PAGES && near < last; ahead++) near = same_page(near, last, slots, &n);
    while (place < end) {
        if (prefetches && near < last) {
            uint32_t coming = *near / PAGE_TOKENS;
            near = same_page(near, last, slots, &n);
            prefetch(cache, head, coming, slots, n);
        }
        const struct page_set *set = select_candidate(cache, *place / PAGE_TOKENS);
        place = same_page(place, end, slots, &n);
        codec->gather_tokens(shape, side, page_at(cache, set, side, cache->base.layer, head), slots, n, page, at);
        at += n;
    }
    return page;
}

/* Keys whose scales are those of their page cannot leave it: the whole page is scored and the logits are picked. */
static void score_in_place(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    float *whole = reader->workspace;
    const uint32_t *place = segment->places, *end = place + segment->end;
    uint8_t slots[PAGE_TOKENS];
    for (size_t i = 0, n; place < end; i += n) {
        const struct page_set *set = select_candidate(cache, *place / PAGE_TOKENS);
        place = same_page(place, end, slots, &n);
        cache->codec[CODEC_KEYS]->score(reader->keys, reader->q, reader->tables,
                                        page_at(cache, set, CODEC_KEYS, cache->base.layer, reader->head), whole);
        for (size_t m = 0; m < reader->rows; m++)
            for (size_t j = 0; j < n; j++) logits[m * PAGE_TOKENS + i + j] = whole[m * PAGE_TOKENS + slots[j]];
    }
}

static void rotate_key(const struct cache *cache, const struct segment *segment, size_t i, float *row) {
    segment_rotate_key(cache, cache->selection.listed[segment->places[i] / PAGE_TOKENS], segment->places[i] % PAGE_TOKENS, row);
}

/* Logits of one key, in slot i. */
static void dot_row(const float *q, const float *row, size_t rows, size_t hd, size_t i, float *logits) {
    for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + i] = vector_ops()->dot(q + m * hd, row, hd);
}

/* The anchors among the segment's tokens, one after another: the next from *i on, and its row. */
static bool next_anchor(const struct cache *cache, const struct segment *segment, const struct anchor_range *anchors, size_t *i,
                        size_t *at, float *row) {
    for (; *i < segment->end && *at < anchors->to; ++*i) {
        uint64_t token = gather_token(cache, segment, *i);
        while (*at < anchors->to && anchors->tokens[*at] < token) ++*at;
        if (*at == anchors->to || anchors->tokens[*at] != token) continue;
        anchor_row(anchors, *at, cache->base.shape.head_dim, row);
        return true;
    }
    return false;
}

/* Keys before rotation are rotated one by one. */
static void score_decoded(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    size_t hd = cache->base.shape.head_dim;
    float *rows = reader->workspace;
    cache->codec[CODEC_KEYS]->decode(reader->keys, CODEC_KEYS, pack(cache, segment, reader->head, CODEC_KEYS), rows);
    for (size_t i = 0; i < segment->end; i++) {
        rotate_key(cache, segment, i, rows + i * hd);
        dot_row(reader->q, rows + i * hd, reader->rows, hd, i, logits);
    }
}

/* The tokens of a packed page come from a few runs, one after another: the page is scored for each, which takes less than to decode the
 * keys and to rotate them. */
static void score_by_runs(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const void *page = pack(cache, segment, reader->head, CODEC_KEYS);
    float *some = reader->workspace;
    const uint32_t *listed = cache->selection.listed, *place = segment->places;
    const int64_t *positions = cache->rotary.positions + segment_page_base(cache, 0); /* of the runs of pages */
    for (size_t i = 0, end; i < segment->end; i = end) {
        size_t page_set = listed[place[i] / PAGE_TOKENS], base = segment_page_base(cache, page_set);
        for (end = i + 1; end < segment->end && positions[listed[place[end] / PAGE_TOKENS]] == positions[page_set];) end++;
        segment_score_in_run(reader, page, base, some);
        for (size_t m = 0; m < reader->rows; m++)
            memcpy(logits + m * PAGE_TOKENS + i, some + m * PAGE_TOKENS + i, (end - i) * sizeof *logits);
    }
}

void gather_score(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    if (!segment->end) return;
    if (codec->format->gather == CODEC_GATHERS_VALUES) {
        score_in_place(reader, segment, logits);
    } else if (cache->keys_in_rope_runs) {
        score_by_runs(reader, segment, logits);
    } else if (cache->keys_rotated) {
        codec->score(reader->keys, reader->q, reader->tables, pack(cache, segment, reader->head, CODEC_KEYS), logits);
    } else {
        score_decoded(reader, segment, logits);
    }
    struct anchor_range anchors = anchors_between(cache, CODEC_KEYS, reader->head, gather_token(cache, segment, 0),
                                                  gather_token(cache, segment, segment->end - 1) + 1);
    float row[CODEC_HEAD_DIM_MAX];
    for (size_t i = 0, at = anchors.from; next_anchor(cache, segment, &anchors, &i, &at, row); i++) {
        if (!cache->keys_rotated) rotate_key(cache, segment, i, row);
        dot_row(reader->q, row, reader->rows, cache->base.shape.head_dim, i, logits);
    }
}

void gather_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                       float *acc) {
    const struct cache *cache = reader->cache;
    float row[CODEC_HEAD_DIM_MAX];
    if (!segment->end) return;
    struct anchor_range anchors = anchors_between(cache, CODEC_VALUES, reader->head, gather_token(cache, segment, 0),
                                                  gather_token(cache, segment, segment->end - 1) + 1);
    for (size_t i = 0, at = anchors.from; next_anchor(cache, segment, &anchors, &i, &at, row); i++)
        segment_accumulate_row(row, i, reader->rows, cache->base.shape.head_dim, weights, acc);
    const void *page = pack(cache, segment, reader->head, CODEC_VALUES);
    segment_accumulate_page(reader, page, segment->int8_weights, weights, code_sums, acc);
}
