/* Keeps the memory of a cache on the device: allocates, copies and counts it. */
#include "backend/cuda/kv/storage.h"

#include "backend/cuda/kv/anchors.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/centroids.h"
#include "backend/cuda/kv/choice.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/fit.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/lower.h"
#include "backend/cuda/kv/prompt.h"
#include "backend/cuda/kv/replace.h"
#include "backend/cuda/kv/saved.h"
#include "backend/cuda/kv/victims.h"
#include "backend/cuda/kv/views.h"
#include "backend/cuda/kv/window.h"

#include <stdlib.h>

/* ---- Sizes */

static size_t window_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * window_side_halves(cache) * sizeof(device_half);
}

/* ---- Life */

static enum terse_status take(struct cache *cache, void *memory, uint64_t bytes, const char *what, struct terse_error *error) {
    void **to = memory;
    if (!bytes) return TERSE_OK;
    if (!(*to = device_alloc(cache->base.budget, (size_t)bytes, what, error))) return TERSE_E_MEMORY;
    return device_check(cudaMemsetAsync(*to, 0, (size_t)bytes, device_stream()), "clearing the KV cache", error);
}

static void *chunk_take(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error) {
    return device_alloc(budget, count * size, what, error);
}

static const struct page_memory device_memory = {chunk_take, device_free};

static enum terse_status new_event(cudaEvent_t *event, struct terse_error *error) {
    return device_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event", error);
}

static enum terse_status allocate(struct cache *cache, struct terse_error *error) {
    enum terse_status status = rates_init(&cache->base, error);
    if (!status)
        status = block_table_new(&cache->base.pages, &device_memory, cache->base.rates.page_set_bytes, cache->base.rates.n, error);
    if (!status) status = kept_resize(cache, 0, error);
    if (!status) status = replacing_new(cache, error);
    if (!status) status = take(cache, &cache->window, window_bytes(cache), "the KV cache's recent window", error);
    if (!status) status = take(cache, &cache->learned, cache->base.learned_bytes, "what the KV cache learns", error);
    if (!status) status = take(cache, &cache->view, sizeof *cache->view, "the KV cache", error);
    if (!status) status = new_event(&cache->written, error);
    if (!status) status = new_event(&cache->encoded_ahead, error);
    return status ? status : cache_written(cache, error);
}

enum terse_status kv_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                            struct terse_error *error) {
    *cache = NULL;
    enum terse_status status = cache_supports(&cuda_storage, shape, method, error);
    if (status) return status;
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the KV cache");
    cache_base_init(&c->base, &cuda_storage, shape, method, threads);
    c->base.learned_bytes = cache_heads_of(shape) * learned_head_bytes(method, shape->head_dim);
    c->base.index_page_bytes = index_page_bytes_of(method, shape->head_dim);
    c->base.ahead_most_tokens = decode_tokens_most(method);
    c->codec[CODEC_KEYS] = method->key.codec->id;
    c->codec[CODEC_VALUES] = method->value.codec->id;
    c->window_capacity = window_least_rows(method);
    status = kv_tables_get(shape, method, &c->tables, error);
    if (!status) {
        c->heads = c->tables->heads;
        c->base.places = c->tables->places;
        c->base.page_set_bytes = c->tables->page_set_bytes;
        status = allocate(c, error);
    }
    if (status) {
        kv_destroy(c);
        return status;
    }
    *cache = c;
    return TERSE_OK;
}

void kv_destroy(struct cache *cache) {
    if (!cache) return;
    window_wait_ahead(cache);
    cudaStreamSynchronize(device_stream());
    kv_fitted_free(cache);
    cache_base_free(&cache->base);
    device_free(cache->base.budget, cache->views, page_view_bytes(cache->view_capacity));
    kept_free(cache);
    device_free(cache->base.budget, cache->window, window_bytes(cache));
    device_free(cache->base.budget, cache->learned, cache->base.learned_bytes);
    device_free(cache->base.budget, cache->view, sizeof *cache->view);
    prompt_release(cache);
    rank_exchange_free(&cache->exchange);
    kept_release(cache);
    item_list_free(&cache->stored);
    item_list_free(&cache->sealed);
    item_list_free(&cache->decoded);
    replacing_free(cache);
    if (cache->written) cudaEventDestroy(cache->written);
    if (cache->encoded_ahead) cudaEventDestroy(cache->encoded_ahead);
    kv_tables_release(cache->tables);
    free(cache);
}

/* ---- For the functions that all backends share (kv/cache.h) */

/* Returns the bytes that a shape and method take with so many rows of the window, anchors and views of page sets, whether or not
 * there is such a cache. */
static struct cache_bytes bytes_of(const struct cache_shape *shape, const struct method *method, uint64_t rows, uint64_t anchors,
                                   uint64_t views, bool noted, bool fitted) {
    const uint64_t heads = cache_heads_of(shape), row = shape->head_dim * sizeof(device_half);
    const uint64_t learned = heads * learned_head_bytes(method, shape->head_dim) + (noted ? fitted_sums_bytes(shape, method) : 0) +
                             (fitted ? fitted_all_bytes(shape, method) + kv_fitted_bytes(shape, method) : 0);
    return (struct cache_bytes){
        .page_set = page_set_bytes_of(shape, method, index_page_bytes_of(method, shape->head_dim)),
        .window = heads * 2 * rows * row,
        .exact = cache_exact_bytes(shape, method) + kept_bytes(shape, method, (size_t)anchors, (size_t)views),
        .tables = learned + page_view_bytes(views) + sizeof(struct sequence_view) + replacing_bytes(shape, method)};
}

static void storage_bytes_after(const struct cache_shape *shape, const struct method *method, const struct plan *plan,
                                struct cache_bytes *bytes) {
    *bytes =
        bytes_of(shape, method, window_rows_after(method, plan), plan->anchors, plan->seal, plan->waits || plan->fits, plan->fits);
}

static void storage_bytes(const struct cache *cache, struct cache_bytes *bytes) {
    *bytes = bytes_of(&cache->base.shape, &cache->base.method, cache->window_capacity, 0, cache->view_capacity,
                      cache->base.fitted.residual != NULL, cache->base.fitted.layouts != NULL);
    bytes->exact = cache->exact.bytes + cache->chosen.bytes;
}

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    const struct head_view heads = kv_tables_heads(shape);
    const enum codec_id codec[2] = {method->key.codec->id, method->value.codec->id};
    const struct centroid_shape centroid[2] = {centroid_shape_of(&method->key), centroid_shape_of(&method->value)};
    if (!attend_decode_supports(&heads, codec, centroid) || !encode_supports(&heads, codec) || !attend_prefill_supports(&heads))
        return cache_refuse(&cuda_storage, method, "has no kernels for this model's heads", error);
    if (method->index && !cuda_scores_of(method))
        return cache_refuse(&cuda_storage, method, "cannot choose the tokens that a step reads", error);
    if (replaces_rows(method) && method->parameters.exact > VICTIMS_EXACT_MOST)
        return cache_refuse(&cuda_storage, method, "cannot keep so many anchors", error);
    return TERSE_OK;
}

static void synchronize(struct cache *cache) {
    (void)cache;
    cudaStreamSynchronize(device_stream()); /* pages may be another cache's next */
}

static void pages_changed(struct cache *cache, size_t first) {
    if (cache->views_good > first) cache->views_good = first;
    kv_anchors_forget(cache);
    replacing_forget(cache);
    prompt_pages_changed(cache);
}

static void reset(struct cache *cache) {
    kept_release(cache);
    kept_reset(cache);
    cache->window_origin = 0;
}

/* Counts tokens that were kept without codes as anchors all together: any part that is left of a prompt has all of them. */
static bool anchors_or_kept_before(const struct cache *cache, uint64_t end, size_t *n) {
    if (anchors_have_codes(&cache->base.method)) return kv_anchors_before(cache, end, n);
    *n = cache->base.n_anchors;
    return true;
}

static bool anchor_tokens(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens) {
    const size_t n = cache->base.n_anchors;
    const uint32_t *from = cache->exact.tokens + ((size_t)layer * cache->base.shape.kv_heads + head) * n;
    if (anchors_have_codes(&cache->base.method)) return kv_anchors_fetch(cache, layer, head, side, tokens);
    return device_fetch(tokens, from, n * sizeof *tokens) == cudaSuccess;
}

static uint64_t fit_tokens(const struct cache *cache) {
    const struct cache_base *base = &cache->base;
    if (base->pages.n_sealed && base->learned_bytes) return UINT64_MAX;
    return base->fitted.layouts && base->pages.n_sealed ? base->method.parameters.exact + FIT_TOKENS : 0;
}

static cudaError_t copy(void *to, const void *from, size_t bytes) {
    return to && bytes ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_stream()) : cudaSuccess;
}

static enum terse_status copy_storage(struct cache *cache, const struct cache *from, struct terse_error *error) {
    enum terse_status status = kept_copy(cache, from, error);
    if (!status) status = window_clear(cache, from->window_capacity, error);
    if (status) return status;
    cudaError_t copied = copy(cache->window, from->window, window_bytes(from));
    if (copied == cudaSuccess) copied = copy(cache->learned, from->learned, from->base.learned_bytes);
    cache->window_origin = from->window_origin;
    status = device_check(copied, "copying a KV cache", error);
    return status ? status : cache_written(cache, error);
}

const struct kv_storage cuda_storage = {.most_tokens = UINT32_MAX,
                                        .where = "on the GPU",
                                        .supports = supports,
                                        .create = kv_create,
                                        .destroy = kv_destroy,
                                        .wait_ahead = window_wait_ahead,
                                        .synchronize = synchronize,
                                        .pages_changed = pages_changed,
                                        .reset = reset,
                                        .bytes = storage_bytes,
                                        .bytes_after = storage_bytes_after,
                                        .anchors_before = anchors_or_kept_before,
                                        .anchor_tokens = anchor_tokens,
                                        .fit_tokens = fit_tokens,
                                        .layouts_changed = kv_layouts_changed,
                                        .lower = kv_lower,
                                        .copy = copy_storage,
                                        .export_piece = kv_export_piece,
                                        .export_pages = kv_export_pages,
                                        .import_pages = kv_import_pages,
                                        .import_pieces = kv_import_pieces};
