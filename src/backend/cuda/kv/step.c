/* The steps of a cache. state.h says which file does what. */
#include "backend/cuda/kv/step.h"

#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/storage.h"
#include "backend/cuda/kv/views.h"
#include "backend/cuda/kv/window.h"

#include <inttypes.h>

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

bool cache_decodes(const struct cache *cache) {
    return cache->base.plan.kind == CACHE_STEP_DECODE && cache->base.plan.n <= DECODE_TOKENS_MOST;
}

static enum terse_status reserve_views(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->view_capacity) return TERSE_OK;
    size_t bytes = n * sizeof *cache->views, old = cache->view_capacity * sizeof *cache->views;
    struct page_set_view *views = device_alloc(cache->base.budget, bytes, "the KV cache's pages", error);
    if (!views) return TERSE_E_MEMORY;
    cudaStreamSynchronize(device_stream());
    device_free(cache->base.budget, cache->views, old);
    cache->views = views;
    cache->view_capacity = n;
    cache->views_good = 0;
    return TERSE_OK;
}

static enum terse_status reserve(struct cache *cache, struct terse_error *error) {
    size_t sets = cache->base.pages.n_sealed + cache->base.plan.seal + window_pages_ahead(cache, &cache->base.plan);
    enum terse_status status = page_table_reserve(&cache->base.pages, sets, error);
    if (!status) status = reserve_views(cache, cache->base.pages.n, error);
    if (!status) status = kv_tables_reserve(cache->tables, cache->base.plan.after.length, error);
    if (!status) page_table_assign(&cache->base.pages, &cache->base.plan, cache->base.prompt_end);
    if (!status) status = cache_upload_views(cache, error);
    if (!status && !cache_decodes(cache)) status = prompt_reserve(cache, error);
    return status;
}

enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    if (cache->base.extent.length + n > UINT32_MAX)
        return status_fail(error, TERSE_E_CONTEXT, "more tokens than the GPU's caches count");
    cache->base.in_step = false;
    cache->base.plan = plan_step(&cache->base.method, &cache->base.extent, kind, n);
    if (kind == CACHE_STEP_PAPER && cache->base.plan.anchors)
        return kv_refuse(&cache->base.method, "cannot be read by the papers' protocol", error);
    if (!cache_decodes(cache)) window_forget_ahead(cache);
    cache->base.plan.ready = smaller(cache->n_ahead, cache->base.plan.seal);
    if (cache->base.extent.length <= cache->base.plan.grid) cache->window_origin = cache->base.plan.grid; /* nothing lies in it */
    cache->base.layers_ended = 0;
    cache->base.layer = NO_LAYER;
    cache->steps++;
    enum terse_status status = reserve(cache, error);
    if (!status) cache->base.in_step = true;
    return status;
}

enum terse_status kv_commit(struct cache *cache, struct terse_error *error) {
    bool decodes = cache_decodes(cache);
    if (!cache->base.in_step || (!decodes && cache->base.layers_ended < cache->base.shape.layers))
        return status_fail(error, TERSE_E_ARGUMENT, "the end of a step after %" PRIu32 " of %" PRIu32 " layers",
                           cache->base.layers_ended, cache->base.shape.layers);
    enum terse_status status = decodes ? window_seal(cache, error) : kept_commit(cache, error);
    if (status) return status;
    cache_advance(cache);
    if (!decodes) prompt_release(cache);
    kept_release(cache);
    cache->n_ahead -= cache->base.plan.ready;
    if ((status = cache_written(cache, error))) return status;
    return decodes ? window_seal_ahead(cache, error) : TERSE_OK;
}
