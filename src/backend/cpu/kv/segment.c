/* The arithmetic of addresses and positions. */
#include "backend/cpu/kv/segment.h"

#include "backend/cpu/kv/page_pool.h"

/* ---- Which segments a step has */

static size_t segments_for(uint64_t tokens) { return (size_t)((tokens + PAGE_TOKENS - 1) / PAGE_TOKENS); }

static uint64_t exact_tokens(const struct cache *cache) {
    return cache->sealed_first ? cache->base.plan.after.exact : cache->base.plan.before.exact;
}

/* Tokens of prompts that were reduced to them, when the step began. */
static size_t anchor_tokens(const struct cache *cache) {
    return cache->base.method.policy->keep_selected_only ? cache->base.n_anchors : 0;
}

static size_t sealed_segments(const struct cache *cache) {
    return cache->base.pages.n_sealed + (cache->sealed_first ? cache->base.plan.seal : 0);
}

static size_t window_segments(const struct cache *cache) {
    return cache->sealed_first ? 0 : extent_window_pages(&cache->base.plan.before);
}

size_t segment_count_rows(const struct cache *cache) {
    return segments_for(exact_tokens(cache)) + segments_for(anchor_tokens(cache));
}

size_t segment_count_stored(const struct cache *cache) {
    return segment_count_rows(cache) + sealed_segments(cache) + window_segments(cache);
}

size_t segment_count(const struct cache *cache) {
    return segment_count_stored(cache) + (cache->sealed_first ? 0 : segments_for(cache->base.plan.n));
}

/* The tokens [first, end_token), 64 of them at most. */
static void set_tokens(const struct cache *cache, uint64_t first, uint64_t end_token, struct segment *segment) {
    bool evicts = segment->kind == SEGMENT_SEALED || segment->kind == SEGMENT_WINDOW;
    uint64_t live = evicts ? cache->base.plan.before.first : 0, count = end_token - first, seen = segment_first_seen(cache, 0);
    if (seen > live) live = seen;
    if (count > PAGE_TOKENS) count = PAGE_TOKENS;
    uint64_t begin = live > first ? live - first : 0;
    segment->first = first;
    segment->end = (uint32_t)count;
    segment->begin = (uint32_t)(begin < count ? begin : count);
}

void segment_find(const struct cache *cache, size_t i, struct segment *segment) {
    const struct extent *before = &cache->base.plan.before;
    size_t exact = segments_for(exact_tokens(cache)), rows = segment_count_rows(cache), sealed = sealed_segments(cache);
    size_t stored = rows + sealed + window_segments(cache);
    segment->places = NULL;
    segment->as_logits = segment->int8_weights = false;
    segment->base = i < stored ? segments_for(cache->base.plan.n) + i : i - stored;
    if (i < exact) {
        segment->kind = SEGMENT_EXACT;
        set_tokens(cache, i * PAGE_TOKENS, exact_tokens(cache), segment);
    } else if (i < rows) {
        segment->kind = SEGMENT_ANCHORS;
        set_tokens(cache, (i - exact) * PAGE_TOKENS, anchor_tokens(cache), segment);
    } else if (i < rows + sealed) {
        const struct page_set *set = &cache->base.pages.sets[i - rows];
        segment->kind = SEGMENT_SEALED;
        segment->set = set;
        set_tokens(cache, set->first, set->first + set->count, segment);
    } else if (i < stored) {
        size_t page = i - rows - sealed;
        segment->kind = SEGMENT_WINDOW;
        segment->window_set = cache->window_sets[page];
        set_tokens(cache, before->window_first + page * PAGE_TOKENS, before->length, segment);
    } else {
        segment->kind = SEGMENT_NEW;
        set_tokens(cache, before->length + (i - stored) * PAGE_TOKENS, before->length + cache->base.plan.n, segment);
    }
}

struct segment segment_at(const struct cache *cache, size_t i) {
    struct segment segment = {0};
    segment_find(cache, i, &segment);
    return segment;
}

size_t segment_count_seen(const struct cache *cache, size_t i) {
    size_t n = segment_count(cache);
    while (segment_at(cache, n - 1).first > cache->base.plan.before.length + i) n--;
    return n;
}

size_t segment_of_token(const struct cache *cache, uint64_t token) {
    const struct extent *before = &cache->base.plan.before;
    size_t stored = segment_count_stored(cache), i = segment_count_rows(cache);
    if (token >= before->length)
        i = stored + (size_t)(token - before->length) / PAGE_TOKENS;
    else if (token >= before->window_first)
        i = stored - window_segments(cache) + (size_t)(token - before->window_first) / PAGE_TOKENS;
    for (struct segment segment = segment_at(cache, i); token >= segment.first + segment.end;) segment = segment_at(cache, ++i);
    return i;
}

uint64_t segment_bytes(const struct cache *cache) {
    uint64_t exact = (exact_tokens(cache) + anchor_tokens(cache)) * 2 * cache->base.shape.head_dim * sizeof(uint16_t);
    uint64_t sealed = sealed_segments(cache) * page_bytes_of_layer(cache, cache->base.layer);
    return cache->base.shape.kv_heads * (exact + window_segments(cache) * 2 * cache->window_page_bytes) + sealed;
}

/* ---- Positions */

/* Returns the position of the run that contains a page with this first token. */
static int64_t run_position(uint64_t first) { return (int64_t)(first - first % ROPE_RUN_TOKENS); }

/* Segments that need the angles of their base, the first ones: where keys are stored at their own positions only exact rows. */
static size_t rotated_segments(const struct cache *cache) {
    if (cache->keys_in_rope_runs) return segment_count_rows(cache) + sealed_segments(cache);
    return cache->keys_rotated ? segments_for(exact_tokens(cache)) : segment_count_stored(cache);
}

size_t segment_bases(const struct cache *cache) { return segments_for(cache->base.plan.n) + rotated_segments(cache); }

/* If positions are by index, exact rows are numbered as if they came right before the tokens that follow them. */
int64_t segment_position(const struct cache *cache, const struct segment *segment) {
    const struct extent *before = &cache->base.plan.before;
    bool moved = segment->kind == SEGMENT_EXACT && cache->base.method.policy->positions_by_index;
    return (int64_t)segment->first + (moved ? (int64_t)extent_evicted(before) : 0) - (int64_t)before->length;
}

void segment_set_bases(struct cache *cache) {
    int64_t start = cache->keys_rotated ? (int64_t)cache->base.plan.before.length : 0; /* the first new token's */
    for (size_t i = 0; i < segments_for(cache->base.plan.n); i++)
        rotary_set_base(&cache->rotary, i, (int64_t)(i * PAGE_TOKENS) + start);
    for (size_t i = 0; i < rotated_segments(cache); i++) {
        struct segment segment = segment_at(cache, i);
        bool in_run = cache->keys_in_rope_runs && segment.kind == SEGMENT_SEALED;
        rotary_set_base(&cache->rotary, segment.base,
                        in_run ? run_position(segment.first) : segment_position(cache, &segment) + start);
    }
}

void segment_rotate_query(const struct cache *cache, size_t i, float *rows, uint32_t n) {
    rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, n, cache->base.shape.head_dim);
}

size_t segment_page_base(const struct cache *cache, size_t i) {
    return segments_for(cache->base.plan.n) + segment_count_rows(cache) + i;
}

void segment_rotate_from_run(const struct cache *cache, size_t base, size_t n, float *rows) {
    rotary_advance_base(&cache->rotary, base, rows, (uint32_t)n, cache->base.shape.head_dim);
}

void segment_rotate_to_run(const struct cache *cache, uint64_t first, size_t n, float *rows) {
    rotary_advance(&cache->rotary, -run_position(first), rows, (uint32_t)n, cache->base.shape.head_dim);
}

void segment_rotate_key(const struct cache *cache, size_t i, size_t slot, float *row) {
    rotary_rotate(&cache->rotary, segment_page_base(cache, i), slot, row, 1, 0);
}

void segment_rotate_to_own(const struct cache *cache, float *query) {
    rotary_advance(&cache->rotary, (int64_t)cache->base.plan.before.length, query, 1, 0);
}
