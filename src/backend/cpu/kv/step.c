/* Implements the steps of a cache. state.h says which file does what. */
#include "backend/cpu/kv/step.h"

#include "backend/cpu/kv/anchor_scores.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/attend_decode.h"
#include "backend/cpu/kv/attend_prefill.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/exchange.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/gather.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/seal.h"
#include "backend/cpu/kv/seal_ahead.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/select.h"
#include "base/clock.h"
#include "base/size.h"

#include <string.h>

void cache_set_seal_ahead(struct cache *cache, bool ahead) {
    cache_forget_ahead(cache);
    cache->base.ahead_most_tokens = ahead ? SIZE_MAX : 0;
}

/* ---- Steps */

/* Returns whether any attention of the plan's step reads rows. */
static bool has_prefill(const struct cache *cache) {
    return cache->base.plan.n > attend_decode_tokens(cache) || cache->base.plan.anchors;
}

static enum terse_status reserve_scratch(struct cache *cache, struct terse_error *error) {
    bool prefill = has_prefill(cache);
    size_t of_thread = size_max(attend_decode_thread_floats(cache), seal_thread_floats(cache));
    size_t new_keys =
        prefill && !cache->keys_rotated ? cache->base.plan.n * cache->base.shape.kv_heads * cache->base.shape.head_dim : 0;
    if (prefill) of_thread = size_max(of_thread, attend_prefill_thread_floats(cache));
    return scratch_reserve(cache, attend_decode_shared_floats(cache), of_thread, new_keys, error);
}

/* Reserves memory for read lists. KV heads have lists of their own if they differ in the tokens that are chosen or exact. */
static enum terse_status reserve_lists(struct cache *cache, struct terse_error *error) {
    bool differ = select_active(cache) || cache->base.n_anchors || cache->base.plan.anchors;
    return differ ? read_lists_reserve_own(&cache->base.reads, cache->base.shape.kv_heads, error) : TERSE_OK;
}

/* Sets whether the new tokens of the layer are read from their pages. */
static void set_sealed(struct cache *cache, bool sealed) {
    cache->sealed_first = sealed;
    read_lists_set_sealed(&cache->base.reads, &cache->base.pages, &cache->base.plan, &cache->base.method, sealed);
}

enum terse_status cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    cache->sealed_first = false;
    enum terse_status status = cache_plan_step(cache, kind, n, error);
    if (!status && fitted_due(&cache->base)) status = fit_transforms(cache, error);
    if (!status) status = seal_ahead_begin(cache, error);
    if (!status) status = pool_reserve_window(cache, plan_window_after(plan), error);
    if (!status) status = anchors_reserve(cache, cache->base.n_anchors + plan->anchors, error);
    if (!status) status = fit_reserve(cache, plan, error);
    if (!status) status = select_reserve(cache, plan, error);
    if (!status) status = gather_reserve(cache, error);
    if (!status) status = anchor_scores_reserve(cache, plan, error);
    if (!status) status = exact_reserve(cache, n, error);
    if (!status) status = reserve_lists(cache, error);
    if (status) return status;
    set_sealed(cache, kind == CACHE_STEP_PAPER); /* on which the number of bases depends */
    status = rotary_reserve(&cache->rotary, segment_bases(cache), error);
    if (status) return status;
    segment_set_bases(cache);
    if ((status = reserve_scratch(cache, error))) return status;
    cache->base.in_step = true;
    return TERSE_OK;
}

enum terse_status cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    uint32_t heads = cache->base.shape.kv_heads, hd = cache->base.shape.head_dim;
    enum terse_status status = cache_check_layer(cache, layer, error);
    if (status) return status;
    cache->base.layer = layer;
    cache->attended = cache->layer_sealed = 0;
    cache->k = k;
    cache->v = v;
    exact_store_first(cache);
    float *rotated = cache->keys_rotated ? k : has_prefill(cache) ? scratch_new_keys(cache) : NULL;
    cache->new_keys = rotated;
#pragma omp parallel for schedule(static) num_threads(cache->base.threads) if (cache->base.plan.n >= PAGE_TOKENS)
    for (size_t i = 0; i < (rotated ? cache->base.plan.n : 0); i++) {
        float *rows = rotated + i * heads * hd;
        if (rows != k + i * heads * hd) memcpy(rows, k + i * heads * hd, heads * hd * sizeof *rows);
        rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, heads, hd);
    }
    anchor_scores_begin_layer(cache);
    set_sealed(cache, cache->base.plan.kind == CACHE_STEP_PAPER && !cache->base.plan.anchors);
    if (cache->sealed_first) seal_layer(cache);
    anchors_list(cache);
    return TERSE_OK;
}

size_t cache_queries_to_observe(const struct cache *cache, size_t needed) {
    if (exact_observes(cache)) return needed;
    if (!cache->base.plan.anchors) return 0;
    return cache->base.plan.kind == CACHE_STEP_PAPER ? cache->base.plan.n
                                                     : needed; /* in a prefill, queries are observed as they attend */
}

enum terse_status cache_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    enum terse_status status = cache_check_queries(cache, first, count, error);
    if (status) return status;
    exact_observe(cache, q, first, count);
    if (!anchor_scores_wanted(cache, first, count)) return TERSE_OK;
    attend_prefill(cache, q, first, count, NULL);
    if (cache->base.plan.kind != CACHE_STEP_PAPER || first + count < cache->base.plan.n) return TERSE_OK;
    seal_layer(cache);
    set_sealed(cache, true);
    anchors_list(cache);
    return TERSE_OK;
}

/* Returns whether queries attend one by one, or few of them together, through the codes. */
static bool attends_as_decoding(const struct cache *cache, size_t first, size_t count) {
    return select_active(cache) || (count <= attend_decode_tokens(cache) && !anchor_scores_wanted(cache, first, count));
}

bool cache_attend_some(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    if (cache_check_queries(cache, first, count, NULL) || attends_as_decoding(cache, first, count)) return false;
    if (exchange_due(cache) && exchange_reserve(cache, count, NULL)) return false; /* cache_attend says so */
    double start = clock_now();
    bool more = attend_prefill_some(cache, q, first, count, out);
    cache->base.counters.seconds += clock_now() - start;
    return more;
}

enum terse_status cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                               struct terse_error *error) {
    enum terse_status status = cache_check_queries(cache, first, count, error);
    if (!status && exchange_due(cache)) status = exchange_reserve(cache, count, error);
    if (status) return status;
    double start = clock_now();
    exact_observe(cache, q, first, count);
    if (attends_as_decoding(cache, first, count))
        attend_decode(cache, q, first, count, out);
    else
        attend_prefill(cache, q, first, count, out);
    if (exchange_due(cache)) status = exchange_finish(cache, count, out, error);
    cache->base.counters.seconds += clock_now() - start;
    cache->base.counters.bytes += select_active(cache) ? count * gather_bytes(cache) : segment_bytes(cache);
    return status;
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
    enum terse_status status = cache_check_commit(cache, error);
    if (status) return status;
    seal_commit(cache);
    seal_ahead_post(cache);
    return TERSE_OK;
}
