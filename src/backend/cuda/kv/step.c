/* The steps of a cache. state.h says which file does what. */
#include "backend/cuda/kv/step.h"

#include "backend/cuda/kv/fit.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/storage.h"
#include "backend/cuda/kv/views.h"
#include "backend/cuda/kv/window.h"

bool cache_decodes(const struct cache *cache) {
    return cache->base.plan.kind == CACHE_STEP_DECODE && cache->base.plan.n <= DECODE_TOKENS_MOST;
}

enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    enum terse_status status = cache_plan_step(cache, kind, n, error);
    if (status) return status;
    if (kind == CACHE_STEP_PAPER && base->plan.anchors)
        return kv_refuse(&base->method, "cannot be read by the papers' protocol", error);
    if ((status = window_reserve(cache, error))) return status;
    if (base->extent.length <= base->plan.grid) cache->window_origin = base->plan.grid; /* nothing lies in it */
    if (fitted_due(base) && (status = kv_fit_transforms(cache, error))) return status;
    cache->steps++;
    status = cache_reserve_views(cache, base->pages.n, error);
    if (!status) status = kv_tables_reserve(cache->tables, base->plan.after.length, error);
    if (!status) status = cache_upload_views(cache, error);
    if (!status && !cache_decodes(cache)) status = prompt_reserve(cache, error);
    if (!status) base->in_step = true;
    return status;
}

enum terse_status kv_commit(struct cache *cache, struct terse_error *error) {
    const bool decodes = cache_decodes(cache);
    if (decodes) cache->base.layers_ended = cache->base.shape.layers; /* those of a batch are not counted */
    enum terse_status status = cache_check_commit(cache, error);
    if (!status) status = decodes ? window_seal(cache, error) : kept_commit(cache, error);
    if (status) return status;
    cache_advance(cache);
    if (!decodes) prompt_release(cache);
    kept_release(cache);
    if ((status = window_trim(cache, error)) || (status = cache_written(cache, error))) return status;
    return decodes ? window_seal_ahead(cache, error) : TERSE_OK;
}
