/* Truncating and forking. */
#include "backend/cpu/kv/fork.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/seal_ahead.h"

#include <inttypes.h>
#include <string.h>

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

/* Whether the next query after n tokens would find all that it sees. */
static bool window_held(const struct cache *cache, uint64_t n) {
    return cache->method.policy->retain(&cache->method.parameters, n).first >= page_table_first(&cache->pages, &cache->extent);
}

static enum terse_status check_truncate(const struct cache *cache, uint64_t n, size_t *anchors, struct terse_error *error) {
    if (n > cache->extent.length)
        return status_fail(error, TERSE_E_ARGUMENT, "a sequence of %" PRIu64 " tokens cannot be cut at %" PRIu64,
                           cache->extent.length, n);
    *anchors = 0;
    if (cache->shape.window && window_held(cache, n)) return TERSE_OK;
    if (cache->shape.window && n < cache->extent.length)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "layers of this model hold only what their sliding window of %" PRIu32
                           " tokens still sees, so the sequence cannot go back from %" PRIu64 " tokens to %" PRIu64
                           ": reset the session and read the text again",
                           cache->shape.window, cache->extent.length, n);
    if (n < first_complete(cache))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s has evicted tokens, so the sequence cannot go back from %" PRIu64 " tokens to %" PRIu64
                           ": reset the session and read the text again",
                           cache->method.name, cache->extent.length, n);
    if (!anchors_before(cache, n, anchors))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s has chosen its exact tokens among all of a prompt's, so the sequence cannot end at %" PRIu64
                           " among them: cut behind them, or reset the session and read the text again",
                           cache->method.name, n);
    return TERSE_OK;
}

/* Drops the sealed pages from token n on; of one in which n lies the first tokens are read. */
static void cut_pages(struct cache *cache, uint64_t n) {
    size_t kept = cache->pages.n_sealed;
    while (kept && cache->pages.sets[kept - 1].first >= n) kept--;
    pool_drop_page_sets(cache, kept, cache->pages.n_sealed - kept);
    if (!kept) {
        cache->fitted_ready = false;
        return;
    }
    struct page_set *last = &cache->pages.sets[kept - 1];
    if (last->first + last->count > n) last->count = (uint32_t)(n - last->first);
}

enum terse_status cache_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error) {
    size_t anchors;
    return n ? check_truncate(cache, n, &anchors, error) : TERSE_OK;
}

enum terse_status cache_truncate(struct cache *cache, uint64_t n, struct terse_error *error) {
    struct extent *extent = &cache->extent;
    size_t anchors;
    enum terse_status status = n ? check_truncate(cache, n, &anchors, error) : TERSE_OK;
    if (status || n == extent->length) return status;
    if (!n) {
        cache_reset(cache);
        return TERSE_OK;
    }
    seal_ahead_forget(cache);
    cache->in_step = false;
    if (n < extent->window_first) {
        cut_pages(cache, n);
        extent->window_first = n;
    }
    if (n < extent->exact) extent->exact = extent->first = n;
    if (cache->shape.window) extent->first = cache->method.policy->retain(&cache->method.parameters, n).first;
    extent->length = n;
    cache->anchors.count = anchors;
    if (cache->prompt_end > n) cache->prompt_end = n;
    return TERSE_OK;
}

uint64_t cache_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    return page_table_common_prefix(&cache->pages, &cache->method, &cache->extent, fit_tokens(cache), n, prompt);
}

/* ---- Forking */

static void copy_bytes(void *to, const void *from, uint64_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

static enum terse_status copy_window(struct cache *cache, const struct cache *from, struct terse_error *error) {
    size_t heads = (size_t)cache->shape.layers * cache->shape.kv_heads, pages = extent_window_pages(&from->extent);
    enum terse_status status = pool_reserve_window(cache, pages, error);
    for (size_t i = 0; i < pages && !status; i++)
        memcpy(cache->window_sets[i], from->window_sets[i], heads * 2 * cache->window_page_bytes);
    return status;
}

enum terse_status cache_fork(const struct cache *cache, struct cache **copy, struct terse_error *error) {
    size_t heads = (size_t)cache->shape.layers * cache->shape.kv_heads;
    struct cache *c;
    *copy = NULL;
    if (cache->in_step && cache->layers_ended)
        return status_fail(error, TERSE_E_ARGUMENT, "a cache in the middle of a step cannot be forked");
    enum terse_status status = cache_create(&cache->shape, &cache->method, (uint32_t)cache->threads, &c, error);
    if (status) return status;
    if (cache->budget && (status = cache_limit(c, cache->budget, error))) goto fail;
    if ((status = copy_window(c, cache, error))) goto fail;
    if ((status = anchors_copy(c, cache, error))) goto fail;
    if ((status = page_table_share(&c->pages, &cache->pages, error))) goto fail;
    copy_bytes(c->exact, cache->exact, exact_bytes(&cache->shape, &cache->method));
    copy_bytes(c->exact_logits, cache->exact_logits, exact_logit_bytes(&cache->shape, &cache->method));
    copy_bytes(c->fitted, cache->fitted, heads * cache->fitted_bytes);
    c->extent = cache->extent;
    c->prompt_end = cache->prompt_end;
    c->fitted_ready = cache->fitted_ready;
    c->seal_in_step = cache->seal_in_step;
    *copy = c;
    return TERSE_OK;
fail:
    cache_destroy(c);
    return status;
}
