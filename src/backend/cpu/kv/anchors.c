/* Stores and finds the rows of anchors. */
#include "backend/cpu/kv/anchors.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/page_pool.h"

#include <string.h>

static uint8_t *side_memory(uint8_t *memory, size_t capacity, uint32_t hd, size_t side) {
    return memory + side * capacity * (size_t)anchor_bytes(hd);
}

static size_t side_index(const struct cache *cache, enum codec_side side, uint32_t head) {
    return layer_head(cache, cache->base.layer, head) * 2 + (side == CODEC_VALUES);
}

static size_t count_sides(const struct cache *cache) { return 2 * cache_heads_of(&cache->base.shape); }

void anchors_free(struct cache *cache) {
    size_t bytes = count_sides(cache) * cache->anchors.capacity * (size_t)anchor_bytes(cache->base.shape.head_dim);
    budget_free(cache->base.budget, cache->anchors.memory, bytes);
}

/* Copies the anchors to memory that has room for `capacity` anchors. */
static void copy_anchors(const struct cache *from, uint8_t *memory, size_t capacity) {
    const struct anchors *anchors = &from->anchors;
    uint32_t hd = from->base.shape.head_dim;
    size_t n = from->base.n_anchors;
    for (size_t i = 0; n && i < count_sides(from); i++) {
        const uint8_t *tokens = side_memory(anchors->memory, anchors->capacity, hd, i);
        uint8_t *to = side_memory(memory, capacity, hd, i);
        memcpy(to, tokens, n * sizeof(uint32_t));
        memcpy(to + capacity * sizeof(uint32_t), tokens + anchors->capacity * sizeof(uint32_t), n * hd * sizeof(uint16_t));
    }
}

enum terse_status anchors_reserve(struct cache *cache, size_t capacity, struct terse_error *error) {
    struct anchors *anchors = &cache->anchors;
    uint32_t hd = cache->base.shape.head_dim;
    size_t sides = count_sides(cache);
    if (capacity <= anchors->capacity) return TERSE_OK;
    uint8_t *memory = budget_array(cache->base.budget, sides * capacity, (size_t)anchor_bytes(hd), "the KV cache's anchors", error);
    if (!memory) return TERSE_E_MEMORY;
    copy_anchors(cache, memory, capacity);
    anchors_free(cache);
    anchors->memory = memory;
    anchors->capacity = capacity;
    return TERSE_OK;
}

enum terse_status anchors_copy(struct cache *cache, const struct cache *from, struct terse_error *error) {
    enum terse_status status = anchors_reserve(cache, from->base.n_anchors, error);
    if (status) return status;
    copy_anchors(from, cache->anchors.memory, cache->anchors.capacity);
    cache->base.n_anchors = from->base.n_anchors;
    return TERSE_OK;
}

void anchors_export(const struct cache *cache, const struct cache_sink *sink) {
    const struct anchors *anchors = &cache->anchors;
    uint32_t hd = cache->base.shape.head_dim;
    for (size_t i = 0; cache->base.n_anchors && i < count_sides(cache); i++) {
        const uint8_t *tokens = side_memory(anchors->memory, anchors->capacity, hd, i);
        sink->put(sink->user, tokens, cache->base.n_anchors * sizeof(uint32_t));
        sink->put(sink->user, tokens + anchors->capacity * sizeof(uint32_t), cache->base.n_anchors * hd * sizeof(uint16_t));
    }
}

enum terse_status anchors_import(struct cache *cache, const uint8_t *data, struct terse_error *error) {
    const size_t n = cache->base.n_anchors;
    cache->base.n_anchors = 0; /* there is nothing to keep */
    enum terse_status status = anchors_reserve(cache, n, error);
    cache->base.n_anchors = n;
    if (!status && n) memcpy(cache->anchors.memory, data, cache_piece_bytes(cache, CACHE_ANCHORS)); /* the capacity is n */
    return status;
}

/* Copies a row in half precision of a token that the step seals, from the step's rows or from the window that it leaves. */
static void copy_row(const struct cache *cache, enum codec_side side, uint32_t head, uint64_t token, uint16_t *row) {
    const struct plan *plan = &cache->base.plan;
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    if (token >= plan->before.length) {
        const float *rows = side == CODEC_KEYS ? cache->k : cache->v;
        vector_ops()->float_to_half(rows + (size_t)(token - plan->before.length) * width + head * hd, row, hd);
        return;
    }
    size_t slot = (size_t)(token - plan->before.window_first), t = slot % PAGE_TOKENS;
    const uint16_t *halves =
        (const uint16_t *)window_page(cache, cache->window_sets[slot / PAGE_TOKENS], side, cache->base.layer, head);
    for (size_t c = 0; c < hd; c++) row[c] = side == CODEC_VALUES ? halves[t * hd + c] : halves[c * PAGE_TOKENS + t];
}

void anchors_store(struct cache *cache, enum codec_side side, uint32_t head, size_t i, uint64_t token) {
    size_t hd = cache->base.shape.head_dim, capacity = cache->anchors.capacity, at = cache->base.n_anchors + i;
    uint8_t *memory = side_memory(cache->anchors.memory, capacity, (uint32_t)hd, side_index(cache, side, head));
    uint32_t *tokens = (uint32_t *)(void *)memory;
    uint16_t *rows = (uint16_t *)(void *)(tokens + capacity);
    tokens[at] = (uint32_t)token;
    copy_row(cache, side, head, token, rows + at * hd);
}

/* Returns the first of tokens[n] that is not before `token`. */
static size_t lower_bound(const uint32_t *tokens, size_t n, uint64_t token) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (tokens[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool anchors_before(const struct cache *cache, uint64_t end, size_t *n) {
    const struct anchors *anchors = &cache->anchors;
    for (size_t i = 0; cache->base.n_anchors && i < count_sides(cache); i++) {
        const uint8_t *memory = side_memory(anchors->memory, anchors->capacity, cache->base.shape.head_dim, i);
        size_t before = lower_bound((const uint32_t *)(const void *)memory, cache->base.n_anchors, end);
        if (i && before != *n) return false;
        *n = before;
    }
    if (!cache->base.n_anchors) *n = 0;
    return true;
}

struct anchor_rows anchors_of(const struct cache *cache, enum codec_side side, uint32_t head) {
    size_t n = cache->base.n_anchors + (cache->sealed_first ? cache->base.plan.anchors : 0);
    if (!n) return (struct anchor_rows){0};
    const uint8_t *memory =
        side_memory(cache->anchors.memory, cache->anchors.capacity, cache->base.shape.head_dim, side_index(cache, side, head));
    struct anchor_rows anchors = {.tokens = (const uint32_t *)(const void *)memory, .n = n};
    anchors.rows = (const uint16_t *)(const void *)(anchors.tokens + cache->anchors.capacity);
    return anchors;
}

void anchor_row(const struct cache *cache, enum codec_side side, uint32_t head, size_t i, float *row) {
    size_t hd = cache->base.shape.head_dim;
    vector_ops()->half_to_float(anchors_of(cache, side, head).rows + i * hd, row, hd);
}

void anchors_list_in(const struct cache *cache, uint32_t head, struct read_list *list) {
    const struct anchor_rows keys = anchors_of(cache, CODEC_KEYS, head), values = anchors_of(cache, CODEC_VALUES, head);
    const uint32_t *const tokens[] = {keys.tokens, values.tokens};
    if (!keys.n) return;
    struct read_exact *exact = own_exact_of(&cache->base.reads, head);
    read_exact_set(list, &cache->base.pages, tokens, keys.n, exact);
    list->exact = exact;
}

void anchors_list(const struct cache *cache) {
    if (!cache->base.reads.by_head) return;
    for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++)
        anchors_list_in(cache, head, read_lists_own(&cache->base.reads, head));
}
