/* Manages the memory of a cache: allocates, copies, counts, writes and reads it. */
#include "backend/cpu/kv/storage.h"

#include "backend/cpu/codec/transform.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/exchange.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/gather.h"
#include "backend/cpu/kv/lower.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/saved.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/seal_ahead.h"
#include "backend/cpu/kv/select.h"
#include "base/memory.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life */

static void set_sizes(struct cache *cache) {
    const struct method *method = &cache->base.method;
    uint32_t head_dim = cache->base.shape.head_dim;
    struct index_layout index = fit_index_layout(method, head_dim);
    cache->window_page_bytes = PAGE_BYTES_F16(head_dim);
    cache->base.index_page_bytes = index.page_bytes;
    cache->index_in_keys = index.in_keys;
    cache->fitted_bytes = learned_head_bytes(method, head_dim);
    cache->fitted_side_bytes[CODEC_KEYS] = learned_side_bytes(method, CODEC_KEYS, head_dim);
    cache->fitted_side_bytes[CODEC_VALUES] = learned_side_bytes(method, CODEC_VALUES, head_dim);
    cache->base.learned_bytes = cache_heads_of(&cache->base.shape) * cache->fitted_bytes;
}

static enum terse_status zeros(void *memory, uint64_t bytes, const char *what, struct terse_error *error) {
    void **to = memory;
    return !bytes || (*to = memory_zeros(bytes, 1)) ? TERSE_OK : status_no_memory(error, bytes, what);
}

/* Allocates the memory that the cache keeps for its whole life. */
static enum terse_status allocate(struct cache *cache, struct terse_error *error) {
    const struct cache_base *base = &cache->base;
    enum terse_status status = rotary_init(&cache->rotary, base->shape.rope, error);
    if (!status && cache->codec[CODEC_KEYS]->pre_rope_mean)
        status = position_scores_new(base->shape.rope, &cache->positions, error);
    if (!status) status = pool_set_places(cache, error);
    if (!status) status = block_table_new(&cache->base.pages, &page_memory_host, base->rates.page_set_bytes, base->rates.n, error);
    if (!status) status = zeros(&cache->exact, cache_exact_bytes(&base->shape, &base->method), "the KV cache's exact rows", error);
    if (!status)
        status = zeros(&cache->exact_logits, cache_exact_logit_bytes(&base->shape, &base->method), "the KV cache's logits", error);
    if (!status) status = zeros(&cache->fitted, base->learned_bytes, "what the KV cache learns", error);
    return status;
}

enum terse_status cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                               struct terse_error *error) {
    *cache = NULL;
    if (!threads) return status_fail(error, TERSE_E_ARGUMENT, "a cache without threads: give it 1 or more");
    enum terse_status status = cache_supports(&cpu_storage, shape, method, error);
    if (status) return status;
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the KV cache");
    cache_base_init(&c->base, &cpu_storage, shape, method, threads);
    c->codec[CODEC_KEYS] = method->slices ? &cpu_codec_transform_slices : cpu_codec_of(method->key.codec);
    c->codec[CODEC_VALUES] = shape->latents ? c->codec[CODEC_KEYS] : cpu_codec_of(method->value.codec);
    c->index = method->index ? cpu_index_of(method->index) : NULL; /* NULL of index_components too */
    c->base.ahead_most_tokens = SIZE_MAX;
    c->group = shape->query_heads / shape->kv_heads;
    c->keys_rotated = method->key.codec->rope != CODEC_ROPE_BEFORE;
    c->keys_in_rope_runs = method->key.codec->rope == CODEC_ROPE_IN_RUN;
    set_sizes(c);
    if (method->learned) status = cpu_codebook_prepare(method->learned, &c->codebook, error);
    if (!status) status = allocate(c, error);
    if (status) {
        cache_destroy(c);
        return status;
    }
    *cache = c;
    return TERSE_OK;
}

void cache_destroy(struct cache *cache) {
    if (!cache) return;
    seal_ahead_free(cache);
    pool_free(cache);
    anchors_free(cache);
    select_free(cache);
    gather_free(cache);
    fit_release(cache);
    scratch_free(cache);
    exchange_free(cache);
    budget_free(cache->base.budget, cache->exact, cache_exact_bytes(&cache->base.shape, &cache->base.method));
    budget_free(cache->base.budget, cache->exact_logits, cache_exact_logit_bytes(&cache->base.shape, &cache->base.method));
    budget_free(cache->base.budget, cache->fitted, cache->base.learned_bytes);
    memory_free(cache->observed);
    rotary_destroy(&cache->rotary);
    position_scores_free(&cache->positions);
    free(cache);
}

/* ---- For what is the same on all backends (kv/cache.h) */

static enum terse_status layouts_changed(struct cache *cache, struct terse_error *error) {
    (void)error;
    pool_fill_places(cache);
    return TERSE_OK;
}

static void pages_changed(struct cache *cache, size_t first) {
    (void)first;
    cache->selection.candidates = cache->selection.dense = 0; /* they are numbers of page sets */
}

/* Returns the bytes of a shape and method with so many page sets of the window and anchors, whether there is such a cache or
 * not. */
static struct cache_bytes bytes_of(const struct cache_shape *shape, const struct method *method, uint64_t windows, uint64_t anchors,
                                   bool noted, bool fitted) {
    const uint64_t heads = cache_heads_of(shape);
    return (struct cache_bytes){
        .page_set = page_set_bytes_of(shape, method, fit_index_layout(method, shape->head_dim).page_bytes),
        .window = windows * heads * cache_sides_of(shape) * PAGE_BYTES_F16(shape->head_dim),
        .exact = cache_exact_bytes(shape, method) + anchors * heads * cache_sides_of(shape) * anchor_bytes(shape->head_dim),
        .tables = heads * learned_head_bytes(method, shape->head_dim) + (noted ? fitted_sums_bytes(shape, method) : 0) +
                  (fitted ? fitted_all_bytes(shape, method) : 0) + cache_exact_logit_bytes(shape, method) +
                  windows * sizeof(uint8_t *) + pool_places_bytes(shape, method),
        .codebook = method->learned ? cpu_codebook_bytes(method->learned) : 0};
}

static void storage_bytes(const struct cache *cache, struct cache_bytes *bytes) {
    *bytes = bytes_of(&cache->base.shape, &cache->base.method, cache->n_window_sets, cache->anchors.capacity,
                      cache->base.fitted.residual != NULL, cache->base.fitted.layouts != NULL);
}

static void storage_bytes_after(const struct cache_shape *shape, const struct method *method, const struct plan *plan,
                                struct cache_bytes *bytes) {
    *bytes = bytes_of(shape, method, plan_window_after(plan), plan->anchors, plan->waits || plan->fits, plan->fits);
}

static bool anchor_tokens(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens) {
    struct cache at = *cache;
    at.base.layer = layer;
    memcpy(tokens, anchors_of(&at, side, head).tokens, cache->base.n_anchors * sizeof *tokens);
    return true;
}

/* Adds the tokens that an index passed over. */
static void add_skipped(const struct cache *cache, double weight, const struct token_map *map) {
    for (size_t i = 0; i < cache->selection.candidates; i++) {
        const struct page_set *set = select_candidate(cache, i);
        token_map_add(map, offsetof(struct terse_token_share, read), set->first, set->first + set->count,
                      weight * (select_share_read(cache, i) - 1));
    }
}

static void copy_bytes(void *to, const void *from, uint64_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

static enum terse_status copy_storage(struct cache *cache, const struct cache *from, struct terse_error *error) {
    const struct cache_shape *shape = &from->base.shape;
    size_t pages = cache_window_pages(from);
    enum terse_status status = pool_reserve_window(cache, pages, error);
    if (!status) status = anchors_copy(cache, from, error);
    if (status) return status;
    for (size_t i = 0; i < pages; i++)
        memcpy(cache->window_sets[i], from->window_sets[i], cache_heads_of(shape) * window_bytes(cache));
    copy_bytes(cache->exact, from->exact, cache_exact_bytes(shape, &from->base.method));
    copy_bytes(cache->exact_logits, from->exact_logits, cache_exact_logit_bytes(shape, &from->base.method));
    copy_bytes(cache->fitted, from->fitted, from->base.learned_bytes);
    cache->base.ahead_most_tokens = from->base.ahead_most_tokens;
    return TERSE_OK;
}

const struct kv_storage cpu_storage = {.most_tokens = UINT64_C(1) << 48, /* far from overflow of anything that is counted */
                                       .create = cache_create,
                                       .destroy = cache_destroy,
                                       .wait_ahead = seal_ahead_wait,
                                       .pages_changed = pages_changed,
                                       .bytes = storage_bytes,
                                       .bytes_after = storage_bytes_after,
                                       .anchors_before = anchors_before,
                                       .anchor_tokens = anchor_tokens,
                                       .add_skipped = add_skipped,
                                       .fit_tokens = fit_tokens,
                                       .layouts_changed = layouts_changed,
                                       .lower = lower_pages,
                                       .copy = copy_storage,
                                       .export_piece = saved_export,
                                       .import_pieces = saved_import};
