/* The steps of a cache. state.h says which file does what. */
#include "backend/cpu/kv/step.h"

#include "backend/cpu/kv/anchor_scores.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/attend_decode.h"
#include "backend/cpu/kv/attend_prefill.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/gather.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/seal.h"
#include "backend/cpu/kv/seal_ahead.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/select.h"
#include "base/clock.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void cache_set_seal_ahead(struct cache *cache, bool ahead) {
    seal_ahead_forget(cache);
    cache->seal_in_step = !ahead;
}

/* ---- Steps */

/* Whether any attention of the plan's step reads rows. */
static bool has_prefill(const struct cache *cache) {
    return cache->base.plan.n > attend_decode_tokens(cache) || cache->base.plan.anchors;
}

static enum terse_status reserve_scratch(struct cache *cache, struct terse_error *error) {
    bool prefill = has_prefill(cache);
    size_t of_thread = larger(attend_decode_thread_floats(cache), seal_thread_floats(cache));
    size_t new_keys =
        prefill && !cache->keys_rotated ? cache->base.plan.n * cache->base.shape.kv_heads * cache->base.shape.head_dim : 0;
    if (prefill) of_thread = larger(of_thread, attend_prefill_thread_floats(cache));
    return scratch_reserve(cache, attend_decode_shared_floats(cache), of_thread, new_keys, error);
}

/* Memory for the tokens that the plan's step stores. */
static enum terse_status reserve_pages(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    size_t page_sets = cache->base.pages.n_sealed + plan->seal + seal_ahead_pages(cache, plan);
    enum terse_status status = page_table_reserve(&cache->base.pages, page_sets, error);
    if (!status) status = pool_reserve_window(cache, extent_window_pages(&plan->after), error);
    if (!status) status = anchors_reserve(cache, cache->base.n_anchors + plan->anchors, error);
    return status;
}

enum terse_status cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    struct plan plan = plan_step(&cache->base.method, &cache->base.extent, kind, n);
    enum terse_status status;
    cache->base.in_step = false;
    if ((status = seal_ahead_begin(cache, &plan, error))) return status;
    if ((status = reserve_pages(cache, &plan, error))) return status;
    page_table_assign(&cache->base.pages, &plan, cache->base.prompt_end);
    if ((status = fit_reserve(cache, &plan, error))) return status;
    if ((status = select_reserve(cache, &plan, error))) return status;
    if ((status = gather_reserve(cache, error))) return status;
    if ((status = anchor_scores_reserve(cache, &plan, error))) return status;
    if ((status = exact_reserve(cache, n, error))) return status;
    cache->base.plan = plan;
    cache->sealed_first = kind == CACHE_STEP_PAPER;
    cache->base.layer = NO_LAYER;
    cache->base.layers_ended = 0;
    if ((status = rotary_reserve(&cache->rotary, segment_bases(cache), error))) return status;
    segment_set_bases(cache);
    if ((status = reserve_scratch(cache, error))) return status;
    cache->base.in_step = true;
    return TERSE_OK;
}

/* Whether queries of new tokens [first, first + count) may be asked now. */
static enum terse_status check_queries(const struct cache *cache, size_t first, size_t count, struct terse_error *error) {
    if (cache->base.layer == NO_LAYER)
        return status_fail(error, TERSE_E_ARGUMENT, "queries of a layer without its keys and values");
    if (first <= cache->base.plan.n && count <= cache->base.plan.n - first) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "queries %zu to %zu of a step of %zu tokens", first, first + count,
                       cache->base.plan.n);
}

enum terse_status cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    uint32_t heads = cache->base.shape.kv_heads, hd = cache->base.shape.head_dim;
    if (!cache->base.in_step || layer < cache->base.layers_ended || layer >= cache->base.shape.layers)
        return status_fail(error, TERSE_E_ARGUMENT, "layer %" PRIu32 " of %" PRIu32 " out of order", layer,
                           cache->base.shape.layers);
    cache->base.layer = layer;
    cache->attended = cache->layer_sealed = 0;
    cache->k = k;
    cache->v = v;
    exact_store_first(cache);
    float *rotated = cache->keys_rotated ? k : has_prefill(cache) ? scratch_new_keys(cache) : NULL;
    cache->new_keys = rotated;
#pragma omp parallel for schedule(static) num_threads(cache->threads) if (cache->base.plan.n >= PAGE_TOKENS)
    for (size_t i = 0; i < (rotated ? cache->base.plan.n : 0); i++) {
        float *rows = rotated + i * heads * hd;
        if (rows != k + i * heads * hd) memcpy(rows, k + i * heads * hd, heads * hd * sizeof *rows);
        rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, heads, hd);
    }
    anchor_scores_begin_layer(cache);
    cache->sealed_first = cache->base.plan.kind == CACHE_STEP_PAPER && !cache->base.plan.anchors;
    if (cache->sealed_first) seal_layer(cache);
    return TERSE_OK;
}

size_t cache_queries_to_observe(const struct cache *cache, size_t needed) {
    if (exact_observes(cache)) return needed;
    if (!cache->base.plan.anchors) return 0;
    return cache->base.plan.kind == CACHE_STEP_PAPER ? cache->base.plan.n
                                                     : needed; /* in a prefill, queries are observed as they attend */
}

enum terse_status cache_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    enum terse_status status = check_queries(cache, first, count, error);
    if (status) return status;
    exact_observe(cache, q, first, count);
    if (!anchor_scores_wanted(cache, first, count)) return TERSE_OK;
    attend_prefill(cache, q, first, count, NULL);
    if (cache->base.plan.kind != CACHE_STEP_PAPER || first + count < cache->base.plan.n) return TERSE_OK;
    seal_layer(cache);
    cache->sealed_first = true;
    return TERSE_OK;
}

/* Whether queries go one by one, or few of them together, through the codes. */
static bool attends_as_decoding(const struct cache *cache, size_t first, size_t count) {
    return select_active(cache) || (count <= attend_decode_tokens(cache) && !anchor_scores_wanted(cache, first, count));
}

bool cache_attend_some(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    if (check_queries(cache, first, count, NULL) || attends_as_decoding(cache, first, count)) return false;
    double start = clock_now();
    bool more = attend_prefill_some(cache, q, first, count, out);
    cache->base.counters.seconds += clock_now() - start;
    return more;
}

enum terse_status cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                               struct terse_error *error) {
    enum terse_status status = check_queries(cache, first, count, error);
    if (status) return status;
    double start = clock_now();
    exact_observe(cache, q, first, count);
    if (attends_as_decoding(cache, first, count))
        attend_decode(cache, q, first, count, out);
    else
        attend_prefill(cache, q, first, count, out);
    cache->base.counters.seconds += clock_now() - start;
    cache->base.counters.bytes += select_active(cache) ? count * gather_bytes(cache) : segment_bytes(cache);
    return TERSE_OK;
}

bool cache_seal_some(struct cache *cache) { return cache->base.layer != NO_LAYER && !cache->sealed_first && seal_some(cache); }

enum terse_status cache_end_layer(struct cache *cache, struct terse_error *error) {
    if (cache->base.layer == NO_LAYER)
        return status_fail(error, TERSE_E_ARGUMENT, "the end of a layer without its keys and values");
    if (!cache->sealed_first) seal_layer(cache);
    cache->base.layers_ended = cache->base.layer + 1;
    cache->base.layer = NO_LAYER;
    return TERSE_OK;
}

enum terse_status cache_commit(struct cache *cache, struct terse_error *error) {
    if (!cache->base.in_step || cache->base.layers_ended < cache->base.shape.layers)
        return status_fail(error, TERSE_E_ARGUMENT, "the end of a step after %" PRIu32 " of %" PRIu32 " layers",
                           cache->base.layers_ended, cache->base.shape.layers);
    seal_commit(cache);
    seal_ahead_post(cache);
    return TERSE_OK;
}
