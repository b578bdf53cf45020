/* Truncating and forking. */
#include "backend/cuda/kv/state.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Truncating */

/* The first token from which on none was evicted. */
static uint64_t first_complete(const struct cache *cache) {
    const struct extent *extent = &cache->extent;
    uint64_t first = extent->window_first;
    if (!extent->dropped && !extent_evicted(extent)) return 0;
    if (extent_evicted(extent)) return extent->length; /* and the policy counts on what has left */
    for (size_t i = cache->pages.n_sealed; i-- > 0 && cache->pages.sets[i].first + cache->pages.sets[i].count == first;)
        first = cache->pages.sets[i].first;
    return first;
}

static enum terse_status check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error) {
    if (n > cache->extent.length)
        return status_fail(error, TERSE_E_ARGUMENT, "a sequence of %" PRIu64 " tokens cannot be cut at %" PRIu64,
                           cache->extent.length, n);
    if (n >= first_complete(cache)) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s has evicted tokens, so the sequence cannot go back from %" PRIu64 " tokens to %" PRIu64
                       ": reset the session and read the text again",
                       cache->method.name, cache->extent.length, n);
}

/* Drops the sealed pages from token n on; of one in which n lies the first tokens are read. */
static void cut_pages(struct cache *cache, uint64_t n) {
    size_t kept = cache->pages.n_sealed;
    while (kept && cache->pages.sets[kept - 1].first >= n) kept--;
    page_table_drop(&cache->pages, kept, cache->pages.n_sealed - kept);
    if (!kept) {
        cache->fitted_ready = false;
        cache->views_good = 0;
        return;
    }
    struct page_set *last = &cache->pages.sets[kept - 1];
    if (last->first + last->count > n) last->count = (uint32_t)(n - last->first);
    if (cache->views_good >= kept) cache->views_good = kept - 1;
}

enum terse_status kv_truncate(struct cache *cache, uint64_t n, struct terse_error *error) {
    struct extent *extent = &cache->extent;
    enum terse_status status = n ? check_truncate(cache, n, error) : TERSE_OK;
    if (status || n == extent->length) return status;
    if (!n) {
        kv_reset(cache);
        return TERSE_OK;
    }
    cache_forget_ahead(cache);
    cudaStreamSynchronize(device_stream()); /* pages may be another cache's next */
    cache->in_step = false;
    if (n < extent->window_first) {
        cut_pages(cache, n);
        extent->window_first = n;
    }
    if (n < extent->exact) extent->exact = extent->first = n;
    extent->length = n;
    if (cache->prompt_end > n) cache->prompt_end = n;
    return TERSE_OK;
}

/* ---- What sequences that begin alike have in common */

uint64_t kv_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    uint64_t fitted = cache->fitted && cache->pages.n_sealed ? cache->pages.sets[0].first + FIT_PAGES * PAGE_TOKENS : 0;
    return page_table_common_prefix(&cache->pages, &cache->method, &cache->extent, fitted, n, prompt);
}

/* ---- Forking */

static cudaError_t copy(void *to, const void *from, size_t bytes) {
    return to && bytes ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_stream()) : cudaSuccess;
}

enum terse_status kv_fork(const struct cache *cache, struct cache **result, struct terse_error *error) {
    size_t row = cache->shape.head_dim * sizeof(device_half), heads = cache_heads(cache);
    size_t floats = transform_fitted_floats(cache->shape.head_dim);
    struct cache *c;
    *result = NULL;
    if (cache->in_step && cache->layers_ended)
        return status_fail(error, TERSE_E_ARGUMENT, "a cache in the middle of a step cannot be forked");
    enum terse_status status = kv_create(&cache->shape, &cache->method, 1, &c, error);
    if (status) return status;
    if (cache->budget) status = kv_limit(c, cache->budget, error);
    if (!status) status = page_table_share(&c->pages, &cache->pages, error);
    if (!status) status = kept_copy(c, cache, error);
    cudaError_t copied = copy(c->window, cache->window, heads * 2 * cache->window_capacity * row);
    if (copied == cudaSuccess) copied = copy(c->fitted, cache->fitted, heads * 2 * floats * sizeof(float));
    if (!status) status = device_check(copied, "copying a KV cache", error);
    if (!status) status = cache_written(c, error);
    if (status) {
        kv_destroy(c);
        return status;
    }
    c->extent = cache->extent;
    c->prompt_end = cache->prompt_end;
    c->fitted_ready = cache->fitted_ready;
    c->window_origin = cache->window_origin;
    *result = c;
    return TERSE_OK;
}
