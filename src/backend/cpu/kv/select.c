/* Scores, the largest of them, and their memory. */
#include "backend/cpu/kv/select.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/side.h"
#include "backend/cpu/kv/top_k.h"
#include "base/memory.h"

#include <string.h>

#define RANGE_PAGE_SETS 32 /* pages that are scored at a time */
#define FORCED UINT16_MAX  /* the score of tokens that are read in any case */
#define SCORE_AHEAD 12 /* pages of the index: where they lie within those of keys, no prefetcher of the processor follows them */

/* ---- Memory */

/* Where the parts of selection.memory lie. */
struct workspace {
    uint16_t *scores; /* [Hk][slots] */
    uint32_t *chosen; /* [Hk][max_tokens], places */
    size_t *count;    /* [Hk] */
    uint8_t *tables;  /* [Hk][table_bytes] */
};

static size_t slots_of(const struct selection *selection) { return selection->candidates * PAGE_TOKENS; }

static size_t table_bytes(const struct cache *cache) {
    return memory_round_up(cache->index->table_bytes(cache->shape.head_dim), MEMORY_ALIGN);
}

/* Appends count * bytes to the layout; returns where they begin. */
static size_t part(size_t *size, size_t count, size_t bytes) {
    size_t at = *size;
    *size += memory_round_up(count * bytes, MEMORY_ALIGN);
    return at;
}

/* Returns the bytes of the layout, and fills in `workspace` unless it is NULL. */
static size_t lay_out(const struct cache *cache, const struct selection *selection, struct workspace *workspace) {
    size_t heads = cache->shape.kv_heads, size = 0;
    size_t scores = part(&size, heads * slots_of(selection), sizeof *workspace->scores);
    size_t chosen = part(&size, heads * selection->max_tokens, sizeof *workspace->chosen);
    size_t count = part(&size, heads, sizeof *workspace->count);
    size_t tables = part(&size, heads, table_bytes(cache));
    uint8_t *memory = selection->memory;
    if (workspace)
        *workspace = (struct workspace){(uint16_t *)(void *)(memory + scores), (uint32_t *)(void *)(memory + chosen),
                                        (size_t *)(void *)(memory + count), memory + tables};
    return size;
}

static struct workspace workspace_of(const struct cache *cache) {
    struct workspace workspace;
    lay_out(cache, &cache->selection, &workspace);
    return workspace;
}

/* Lists page sets of prompts first, in order, then those of generated tokens. */
static void list_page_sets(const struct cache *cache, struct selection *selection) {
    size_t n = 0;
    for (int generated = 0; generated < 2; generated++) {
        for (size_t i = 0; i < cache->n_sealed; i++)
            if (cache->page_sets[i].generated == (generated == 1)) selection->listed[n++] = (uint32_t)i;
        if (!generated) selection->candidates = n;
    }
    selection->dense = n - selection->candidates;
}

/* How many tokens a KV head reads of so many candidate slots, at most. */
static size_t selected_tokens(const struct cache *cache, size_t slots) {
    return policy_selects(&cache->method.parameters, slots) + cache->anchors.count;
}

static enum terse_status reserve_list(struct cache *cache, struct terse_error *error) {
    struct selection *selection = &cache->selection;
    if (cache->n_sealed <= selection->capacity) return TERSE_OK;
    memory_free(selection->listed);
    selection->capacity = 0;
    selection->listed = memory_array(cache->n_page_sets, sizeof *selection->listed);
    if (!selection->listed) return status_no_memory(error, cache->n_page_sets * sizeof *selection->listed, "chosen tokens");
    selection->capacity = cache->n_page_sets;
    return TERSE_OK;
}

enum terse_status select_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    struct selection *selection = &cache->selection;
    bool decodes = plan->kind == CACHE_STEP_DECODE || plan->kind == CACHE_STEP_CHUNK;
    selection->candidates = selection->dense = 0;
    if (!cache->method.index || !decodes || !cache->n_sealed) return TERSE_OK;
    enum terse_status status = reserve_list(cache, error);
    if (status) return status;
    list_page_sets(cache, selection);
    selection->max_tokens = selected_tokens(cache, slots_of(selection));
    if (selection->max_tokens >= slots_of(selection)) {
        selection->candidates = selection->dense = 0; /* all are read: there is nothing to choose */
        return TERSE_OK;
    }
    size_t bytes = lay_out(cache, selection, NULL);
    if (bytes <= selection->bytes) return TERSE_OK;
    memory_free(selection->memory);
    selection->bytes = 0;
    if (!(selection->memory = memory_array(bytes, 1))) return status_no_memory(error, bytes, "chosen tokens");
    selection->bytes = bytes;
    return TERSE_OK;
}

void select_free(struct cache *cache) {
    memory_free(cache->selection.listed);
    memory_free(cache->selection.memory);
}

/* ---- Choosing */

void select_prepare(const struct cache *cache, uint32_t head, const float *q) {
    size_t hd = cache->shape.head_dim;
    float rotated[CODEC_HEAD_DIM_MAX], mean[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t g = 0; g < cache->group; g++) {
        memcpy(rotated, q + g * hd, hd * sizeof *rotated);
        if (!cache->keys_rotated) segment_rotate_to_own(cache, rotated);
        for (size_t c = 0; c < hd; c++) mean[c] += rotated[c] / (float)cache->group;
    }
    cache->index->prepare(hd, index_learned(cache, cache->layer, head), mean, 1,
                          workspace_of(cache).tables + head * table_bytes(cache));
}

size_t select_ranges(const struct cache *cache) { return (cache->selection.candidates + RANGE_PAGE_SETS - 1) / RANGE_PAGE_SETS; }

const struct page_set *select_candidate(const struct cache *cache, size_t i) {
    return &cache->page_sets[cache->selection.listed[i]];
}

void select_score(const struct cache *cache, uint32_t head, size_t range) {
    struct workspace workspace = workspace_of(cache);
    size_t end = (range + 1) * RANGE_PAGE_SETS;
    uint16_t *scores = workspace.scores + head * slots_of(&cache->selection);
    size_t bytes = index_bytes(cache->method.index, cache->shape.head_dim);
    for (size_t i = range * RANGE_PAGE_SETS; i < end && i < cache->selection.candidates; i++) {
        if (i + SCORE_AHEAD < cache->selection.candidates) {
            const uint8_t *ahead = index_page(cache, select_candidate(cache, i + SCORE_AHEAD), cache->layer, head);
            for (size_t b = 0; b < bytes; b += MEMORY_ALIGN) __builtin_prefetch(ahead + b, 0, 2);
        }
        cache->index->scores(cache->shape.head_dim, workspace.tables + head * table_bytes(cache),
                             index_page(cache, select_candidate(cache, i), cache->layer, head), scores + i * PAGE_TOKENS);
    }
}

/* Exact keys are read whatever their scores are; returns their number. */
static size_t force_anchors(const struct cache *cache, uint32_t head, uint16_t *scores) {
    struct anchor_range anchors = anchors_all(cache, CODEC_KEYS, head);
    size_t forced = 0;
    for (size_t i = 0, at = anchors.from; i < cache->selection.candidates; i++) {
        const struct page_set *set = select_candidate(cache, i);
        while (at < anchors.to && anchors.tokens[at] < set->first) at++;
        for (; at < anchors.to && anchors.tokens[at] < set->first + set->count; at++, forced++)
            scores[i * PAGE_TOKENS + (anchors.tokens[at] - set->first)] = FORCED;
    }
    return forced;
}

void select_top_k(const struct cache *cache, uint32_t head) {
    struct workspace workspace = workspace_of(cache);
    size_t slots = slots_of(&cache->selection), kept = 0;
    uint16_t *scores = workspace.scores + head * slots;
    uint32_t *chosen = workspace.chosen + head * cache->selection.max_tokens;
    bool filled = true; /* pages of fewer than 64 tokens are rare */
    for (size_t i = 0; i < cache->selection.candidates; i++) {
        for (size_t t = select_candidate(cache, i)->count; t < PAGE_TOKENS; t++) {
            scores[i * PAGE_TOKENS + t] = 0;
            filled = false;
        }
    }
    size_t wanted = policy_selects(&cache->method.parameters, slots) + force_anchors(cache, head, scores);
    size_t n = top_tokens(scores, slots, smaller(wanted, cache->selection.max_tokens), chosen);
    if (filled) kept = n;
    for (size_t i = 0; !filled && i < n; i++)
        if (chosen[i] % PAGE_TOKENS < select_candidate(cache, chosen[i] / PAGE_TOKENS)->count) chosen[kept++] = chosen[i];
    workspace.count[head] = kept;
}

struct selected select_result(const struct cache *cache, uint32_t head) {
    struct workspace workspace = workspace_of(cache);
    return (struct selected){workspace.chosen + head * cache->selection.max_tokens, workspace.count[head]};
}
