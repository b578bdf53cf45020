/* Keeps exact rows. Some policies keep of a prompt only the tokens to which its last queries attend most: these become further
 * exact rows, behind the first ones, as do anchors (anchors.h), which such queries may choose, too. A step that chooses puts them
 * into memory of its own, which replaces the old memory when the step is committed. */
#include "backend/cuda/kv/kept.h"

#include "backend/cuda/kv/rank.h"
#include "base/memory.h"

static size_t row_bytes(const struct cache *cache) { return cache->base.shape.head_dim * sizeof(device_half); }

size_t kept_bytes(const struct cache_shape *shape, const struct method *method, size_t n, size_t pages) {
    const size_t row = 2 * shape->head_dim * sizeof(device_half) + sizeof(uint32_t);
    if (replaces_rows(method))
        return cache_heads_of(shape) *
               (method->parameters.exact * shape->head_dim * sizeof(device_half) + method->parameters.budget * sizeof(float));
    if (!n) return 0;
    if (!anchors_have_codes(method)) return cache_heads_of(shape) * n * row;
    return cache_heads_of(shape) *
           (anchor_rows_most(method, n) * (row + sizeof(uint32_t)) + pages * sizeof(uint64_t) + 2 * sizeof(uint32_t));
}

size_t exact_lay_out(const struct cache *cache, struct exact_rows *exact) {
    const size_t heads = cache_heads_of(&cache->base.shape), behind = exact->capacity - cache_first_exact(cache);
    const bool beside = behind && anchors_have_codes(&cache->base.method);
    uint8_t *at = (uint8_t *)exact->rows;
    size_t bytes = heads * 2 * exact->capacity * row_bytes(cache);
    exact->pages = beside ? (uint64_t *)(void *)(at + bytes) : NULL;
    bytes += beside ? heads * exact->n_pages * sizeof *exact->pages : 0;
    exact->tokens = (uint32_t *)(void *)(at + bytes);
    bytes += heads * behind * sizeof *exact->tokens;
    exact->sides = beside ? (uint32_t *)(void *)(at + bytes) : NULL;
    bytes += beside ? heads * behind * sizeof *exact->sides : 0;
    exact->counts = beside ? (uint32_t *)(void *)(at + bytes) : NULL;
    exact->elsewhere = beside ? exact->counts + heads : NULL;
    bytes += beside ? 2 * heads * sizeof *exact->counts : 0;
    if (!replaces_rows(&cache->base.method)) return bytes;
    exact->unrotated = (device_half *)(void *)(at + bytes);
    bytes += heads * exact->capacity * row_bytes(cache);
    exact->logits = (float *)(void *)(at + bytes);
    return bytes + heads * cache->base.method.parameters.budget * sizeof *exact->logits;
}

/* Allocates rows that hold `capacity` tokens of each KV head. */
static enum terse_status allocate(const struct cache *cache, uint32_t capacity, size_t pages, struct exact_rows *exact,
                                  struct terse_error *error) {
    *exact = (struct exact_rows){.capacity = capacity, .n_pages = (uint32_t)pages};
    const size_t bytes = exact_lay_out(cache, exact);
    if (!bytes) return TERSE_OK;
    if (!(exact->rows = device_alloc(cache->base.budget, bytes, "the KV cache's exact rows", error))) return TERSE_E_MEMORY;
    exact->bytes = bytes;
    exact_lay_out(cache, exact);
    return device_check(cudaMemsetAsync(exact->rows, 0, bytes, device_stream()), "clearing the KV cache", error);
}

enum terse_status exact_new(const struct cache *cache, size_t n, size_t pages, struct exact_rows *exact,
                            struct terse_error *error) {
    return allocate(cache, cache_first_exact(cache) + (uint32_t)anchor_rows_most(&cache->base.method, n), pages, exact, error);
}

void exact_free(const struct cache *cache, struct exact_rows *exact) {
    device_free(cache->base.budget, exact->rows, exact->bytes);
    *exact = (struct exact_rows){0};
}

void kept_free(struct cache *cache) {
    exact_free(cache, &cache->exact);
    exact_free(cache, &cache->chosen);
}

/* Replaces the exact rows by others, whose allocation has ended with `status`. */
static enum terse_status replace(struct cache *cache, struct exact_rows *exact, enum terse_status status) {
    if (status) {
        exact_free(cache, exact);
        return status;
    }
    exact_free(cache, &cache->exact);
    cache->exact = *exact;
    *exact = (struct exact_rows){0};
    return TERSE_OK;
}

enum terse_status kept_resize(struct cache *cache, size_t n, struct terse_error *error) {
    struct exact_rows exact;
    enum terse_status status = replace(cache, &exact, exact_new(cache, n, cache->base.pages.n_sealed, &exact, error));
    if (!status) cache->base.n_anchors = n;
    return status;
}

void kept_reset(struct cache *cache) {
    cache->exact.capacity = cache_first_exact(cache);
    cache->exact.n_pages = 0;
    exact_lay_out(cache, &cache->exact);
    cache->base.n_anchors = 0;
}

/* Allocates rows like those of `from` and queues copying them. */
static enum terse_status copy_rows(const struct cache *cache, const struct exact_rows *from, struct exact_rows *copy,
                                   struct terse_error *error) {
    struct exact_rows laid_out = *from;
    const size_t bytes = exact_lay_out(cache, &laid_out);
    enum terse_status status = allocate(cache, from->capacity, from->n_pages, copy, error);
    if (!status && bytes)
        status = device_check(cudaMemcpyAsync(copy->rows, from->rows, bytes, cudaMemcpyDeviceToDevice, device_stream()),
                              "copying a KV cache", error);
    if (status) exact_free(cache, copy);
    return status;
}

enum terse_status exact_copy(const struct cache *cache, struct exact_rows *copy, struct terse_error *error) {
    return copy_rows(cache, &cache->exact, copy, error);
}

enum terse_status kept_copy(struct cache *cache, const struct cache *from, struct terse_error *error) {
    struct exact_rows exact;
    enum terse_status status = replace(cache, &exact, copy_rows(cache, &from->exact, &exact, error));
    if (!status) cache->base.n_anchors = from->base.n_anchors;
    return status;
}

/* ---- A step that chooses */

static uint32_t ranking_queries(const struct cache *cache) { return (uint32_t)(cache->base.plan.n - cache->base.plan.ranking); }

static size_t choice_floats(const struct cache *cache, size_t rows) {
    const struct plan *plan = &cache->base.plan;
    return rank_floats(&cache->heads, ranking_queries(cache), (uint32_t)rows, (uint32_t)plan->sealed);
}

/* Counts the bytes of what is chosen: [Hk][plan.anchors] of the tokens that are kept, or marks of anchors (struct rank_tokens). */
static size_t chosen_bytes(const struct cache *cache) {
    const struct plan *plan = &cache->base.plan;
    const size_t heads = cache->base.shape.kv_heads;
    if (!anchors_have_codes(&cache->base.method)) return heads * plan->anchors * sizeof(uint32_t);
    return heads * 2 * plan->seal * sizeof(uint64_t);
}

/* The following return parts of the step's memory: what is chosen, then queries, then the memory of ranking. */
uint64_t *kept_marks(const struct cache *cache) { return cache->choice; }
static float *queries_at(const struct cache *cache) {
    return (float *)(void *)((uint8_t *)cache->choice + memory_round_up(chosen_bytes(cache), 256));
}
static float *ranking_at(const struct cache *cache) {
    return queries_at(cache) + ranking_queries(cache) * cache_shape_query_width(&cache->base.shape);
}

enum terse_status kept_reserve(struct cache *cache, size_t rows, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    kept_release(cache);
    if (!plan->anchors || !plan->ranked) return TERSE_OK;
    size_t work = ranking_queries(cache) * cache_shape_query_width(&cache->base.shape) + choice_floats(cache, rows);
    cache->choice_bytes = work * sizeof(float) + memory_round_up(chosen_bytes(cache), 256);
    enum terse_status status =
        exact_new(cache, cache->base.n_anchors + plan->anchors, cache->base.pages.n_sealed + plan->seal, &cache->chosen, error);
    if (!status && !(cache->choice = device_alloc(NULL, cache->choice_bytes, "choosing tokens of a prompt", error)))
        status = TERSE_E_MEMORY;
    if (status) kept_release(cache);
    return status;
}

void kept_release(struct cache *cache) {
    device_free(NULL, cache->choice, cache->choice_bytes);
    cache->choice = NULL;
    exact_free(cache, &cache->chosen);
}

cudaError_t kept_observe(const struct cache *cache, const float *q, size_t first, size_t count) {
    size_t from = cache->base.plan.ranking, width = cache_shape_query_width(&cache->base.shape),
           begin = first > from ? first : from, end = first + count;
    if (!cache->base.plan.anchors || !cache->base.plan.ranked || begin >= end) return cudaSuccess;
    return cudaMemcpyAsync(queries_at(cache) + (begin - from) * width, q + (begin - first) * width,
                           (end - begin) * width * sizeof *q, cudaMemcpyDeviceToDevice, device_stream());
}

cudaError_t kept_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v, size_t rows_before,
                        size_t first) {
    const struct plan *plan = &cache->base.plan;
    const struct exact_rows *to = &cache->chosen;
    size_t rows = rows_before + plan->n, heads = cache->base.shape.kv_heads, n = cache->base.n_anchors + plan->anchors;
    const bool beside = anchors_have_codes(&cache->base.method);
    if (!plan->anchors || !plan->ranked) return cudaSuccess;
    uint32_t *const kept = beside ? NULL : cache->choice;
    const struct rank_tokens rank = {.heads = cache->heads,
                                     .q = queries_at(cache),
                                     .n_queries = ranking_queries(cache),
                                     .first_query = (uint32_t)(rows_before + cache->base.plan.ranking),
                                     .k = k,
                                     .rows = (uint32_t)rows,
                                     .first = (uint32_t)first,
                                     .n = (uint32_t)plan->sealed,
                                     .neighbours = RANKING_NEIGHBOURS,
                                     .keep = (uint32_t)plan->anchors,
                                     .memory = ranking_at(cache),
                                     .kept = kept,
                                     .marks = beside ? kept_marks(cache) : NULL};
    cudaError_t result = beside ? cudaMemsetAsync(rank.marks, 0, chosen_bytes(cache), device_stream()) : cudaSuccess;
    if (result == cudaSuccess) result = rank_tokens(&rank, device_stream());
    if (result != cudaSuccess || beside) return result;
    const struct keep_rows keep = {.k = k,
                                   .v = v,
                                   .kv_heads = (uint32_t)heads,
                                   .head_dim = cache->base.shape.head_dim,
                                   .first = (uint32_t)first,
                                   .keep = (uint32_t)plan->anchors,
                                   .first_token = (uint32_t)plan_first_sealed(plan),
                                   .kept = kept,
                                   .to = to->rows + layer * 2 * to->capacity * cache_shape_kv_width(&cache->base.shape),
                                   .tokens = to->tokens + layer * heads * n,
                                   .capacity = to->capacity,
                                   .at = cache_first_exact(cache) + (uint32_t)cache->base.n_anchors,
                                   .token_capacity = (uint32_t)n,
                                   .at_token = (uint32_t)cache->base.n_anchors};
    return keep_rows(&keep, device_stream());
}

/* Queues the copy of runs[n] of `bytes` bytes, which are `from_pitch` and `to_pitch` apart. */
static cudaError_t copy_runs(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t n) {
    if (!bytes || !n) return cudaSuccess;
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, n, cudaMemcpyDeviceToDevice, device_stream());
}

enum terse_status kept_commit(struct cache *cache, struct terse_error *error) {
    struct exact_rows *from = &cache->exact, *to = &cache->chosen;
    /* Of anchors beside codes, a layer's choice has copied the old ones. */
    const size_t heads = cache_heads_of(&cache->base.shape), row = row_bytes(cache),
                 old = anchors_have_codes(&cache->base.method) ? 0 : cache->base.n_anchors, n = old + cache->base.plan.anchors;
    if (cache->base.plan.replaces) return replace(cache, to, TERSE_OK);
    if (!cache->base.plan.anchors) return TERSE_OK;
    cudaError_t result = copy_runs(to->rows, to->capacity * row, from->rows, from->capacity * row,
                                   (cache_first_exact(cache) + old) * row, 2 * heads);
    if (result == cudaSuccess)
        result = copy_runs(to->tokens, n * sizeof(uint32_t), from->tokens, old * sizeof(uint32_t), old * sizeof(uint32_t), heads);
    enum terse_status status = device_check(result, "keeping tokens of a prompt", error);
    if (status) return status;
    return replace(cache, to, TERSE_OK);
}
