/* The cache of a sequence: its life, the steps, and the accounting. Owns all memory of keys and values; leaves where tokens go to
 * plan.c, the writing to store.c, the reading to tile.c and attend.c. */
#include "backend/cpu/kv/cache.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/sealer.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/select.h"
#include "base/clock.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sizes */

/* What the tokens of a shape and method cost; the same arithmetic for a cache that exists and one that is only asked about. */
struct sizes {
    size_t key, value; /* bytes of a sealed block */
    size_t half;       /* of one side of a window block */
    size_t index;      /* of an index's block */
    uint64_t fitted;   /* learned of a sequence, in all */
    uint64_t heads, exact, logits;
    uint64_t anchor; /* of one more anchor everywhere */
};

static struct sizes sizes_of(const struct cache_shape *shape, const struct method *method) {
    struct codec_shape keys = method_shape(method, CODEC_KEYS, shape->head_dim, 1);
    struct codec_shape values = method_shape(method, CODEC_VALUES, shape->head_dim, 1);
    struct sizes sizes = {.key = method->key.codec->page_bytes(keys, CODEC_KEYS),
                          .value = method->value.codec->page_bytes(values, CODEC_VALUES),
                          .half = PAGE_BYTES_F16(shape->head_dim),
                          .index = index_page_bytes(method, shape->head_dim),
                          .heads = (uint64_t)shape->layers * shape->kv_heads};
    sizes.fitted = sizes.heads * fitted_bytes(method, shape->head_dim);
    sizes.exact = exact_bytes(shape, method);
    sizes.logits = exact_logit_bytes(shape, method);
    sizes.anchor = sizes.heads * 2 * anchor_bytes(shape->head_dim);
    return sizes;
}

static void fill_report(const struct cache_shape *shape, const struct sizes *sizes, const struct extent *extent, uint64_t page_sets,
                        uint64_t windows, uint64_t anchors, struct terse_cache_report *report) {
    *report =
        (struct terse_cache_report){.tokens = extent->length, .kept = extent->length - extent_evicted(extent) - extent->dropped};
    report->codes = page_sets * sizes->heads * (sizes->key + sizes->value + sizes->index);
    report->window = windows * sizes->heads * 2 * sizes->half;
    report->exact = sizes->exact + anchors * sizes->anchor;
    report->tables = sizes->fitted + sizes->logits + page_sets * sizeof(struct set) + windows * sizeof(uint8_t *);
    report->resident = report->codes + report->exact + report->window + report->tables;
    double values = (double)extent->length * (double)sizes->heads * 2 * shape->head_dim;
    report->bits_per_value = values > 0 ? (double)report->resident * 8 / values : 0;
}

void cache_report(const struct cache *cache, struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(&cache->shape, &cache->method);
    fill_report(&cache->shape, &sizes, &cache->extent, cache->n_page_sets, cache->n_windows, cache->anchors.capacity, report);
    if (cache->method.learned) report->codebook = codebook_bytes(cache->method.learned);
}

void cache_predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(shape, method);
    struct plan plan = plan_step(method, &(struct extent){0}, CACHE_STEP_PREFILL, tokens);
    fill_report(shape, &sizes, &plan.after, plan.seal, extent_window_pages(&plan.after), plan.anchors, report);
    if (method->learned) report->codebook = codebook_bytes(method->learned);
}

/* ---- Life */

enum terse_status cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                               struct terse_error *error) {
    *cache = NULL;
    if (!shape->layers || !shape->kv_heads || !shape->query_heads || shape->query_heads % shape->kv_heads)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%u layers of %u query heads over %u KV heads: the query heads must be a multiple of the KV heads",
                           shape->layers, shape->query_heads, shape->kv_heads);
    if (!threads) return status_fail(error, TERSE_E_ARGUMENT, "a cache without threads: give it 1 or more");
    uint32_t group = shape->query_heads / shape->kv_heads;
    enum terse_status status = method_check(method, shape->head_dim, group, error);
    if (status) return status;
    if ((method->policy->keep_selected_only || method->index) && shape->slopes)
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%s reads tokens that lie apart, whose distances this model's ALiBi would have to know: use another --kv%s",
            method->name, method->policy->keep_selected_only ? "" : ", or omit --top-k-tokens");
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the KV cache");
    struct sizes sizes = sizes_of(shape, method);
    c->shape = *shape;
    c->method = *method;
    c->group = group;
    c->threads = (int)threads;
    c->layer = NO_LAYER;
    c->rotated = method->key.codec->rope == CODEC_ROPE_AFTER;
    c->key_bytes = sizes.key;
    c->value_bytes = sizes.value;
    c->half_bytes = sizes.half;
    c->index_bytes = sizes.index;
    c->fitted_bytes = fitted_bytes(method, shape->head_dim);
    if ((status = rotary_init(&c->rotary, shape->rope, error))) goto fail;
    if (!(c->exact = memory_array(sizes.exact, 1))) {
        status = status_no_memory(error, sizes.exact, "the KV cache's exact rows");
        goto fail;
    }
    if (sizes.fitted && !(c->fitted = memory_zeros(sizes.fitted, 1))) {
        status = status_no_memory(error, sizes.fitted, "what the KV cache learns");
        goto fail;
    }
    if (sizes.logits && !(c->logits = memory_array(sizes.logits, 1))) {
        status = status_no_memory(error, sizes.logits, "the KV cache's logits");
        goto fail;
    }
    *cache = c;
    return TERSE_OK;
fail:
    cache_destroy(c);
    return status;
}

void cache_destroy(struct cache *cache) {
    if (!cache) return;
    sealer_free(cache->sealer);
    for (size_t i = 0; i < cache->n_page_sets; i++)
        if (cache->page_sets[i].index == 0) memory_free(cache->page_sets[i].chunk);
    for (size_t i = 0; i < cache->n_windows; i++) memory_free(cache->windows[i]);
    memory_free(cache->page_sets);
    memory_free(cache->windows);
    memory_free(cache->exact);
    memory_free(cache->fitted);
    select_free(cache);
    memory_free(cache->logits);
    memory_free(cache->scratch);
    memory_free(cache->observed);
    memory_free(cache->anchors.memory);
    rotary_destroy(&cache->rotary);
    free(cache);
}

static void forget_ahead(struct cache *cache) {
    sealer_wait(cache->sealer, 0);
    cache->ahead = 0;
}

void cache_set_seal_ahead(struct cache *cache, bool ahead) {
    forget_ahead(cache);
    cache->seal_in_step = !ahead;
}

void cache_reset(struct cache *cache) {
    cache->extent = (struct extent){0};
    cache->sealed = 0;
    cache->anchors.count = 0;
    cache->fitted_ready = false;
    cache->prompt = 0;
    cache->in_step = false;
    cache->layer = NO_LAYER;
    forget_ahead(cache);
}

uint64_t cache_length(const struct cache *cache) { return cache->extent.length; }

/* ---- Steps */

static enum terse_status reserve_scratch(struct cache *cache, struct terse_error *error) {
    size_t floats = attend_scratch(cache);
    if (floats <= cache->scratch_floats) return TERSE_OK;
    memory_free(cache->scratch);
    cache->scratch_floats = 0;
    cache->scratch = memory_array(floats, sizeof *cache->scratch);
    if (!cache->scratch) return status_no_memory(error, floats * sizeof *cache->scratch, "attention");
    cache->scratch_floats = floats;
    return TERSE_OK;
}

/* Full blocks of the window after a step, which a worker is to encode before they leave it. Where the window is shorter than a block
 * there is no time for that, and where tokens are evicted no need. */
static size_t pages_ahead(const struct cache *cache, const struct plan *plan) {
    bool wanted = plan->kind == CACHE_STEP_DECODE && !cache->seal_in_step && cache->method.tail_tokens >= PAGE_TOKENS;
    bool unlearned = unfitted(cache) && !plan->seal; /* even after this step */
    if (!wanted || cache->method.policy->positions_by_index || unlearned) return 0;
    return (size_t)((plan->after.length - plan->after.window_first) / PAGE_TOKENS);
}

/* What was encoded ahead is ready, or given up where a prefill looks at every token that it seals. */
static enum terse_status finish_ahead(struct cache *cache, struct plan *plan, struct terse_error *error) {
    if (plan->kind != CACHE_STEP_DECODE) forget_ahead(cache);
    plan->ready = cache->ahead < plan->seal ? cache->ahead : plan->seal;
    if (plan->ready) sealer_wait(cache->sealer, cache->ahead - plan->ready);
    if (cache->sealer || !pages_ahead(cache, plan)) return TERSE_OK;
    return sealer_new(cache, cache->method.tail_tokens / PAGE_TOKENS + 2, &cache->sealer, error);
}

static void post_ahead(struct cache *cache) {
    cache->ahead -= cache->plan.ready;
    for (size_t pages = pages_ahead(cache, &cache->plan); cache->ahead < pages; cache->ahead++) {
        struct set *set = &cache->page_sets[cache->sealed + cache->ahead];
        set->first = cache->extent.window_first + cache->ahead * PAGE_TOKENS;
        set->count = PAGE_TOKENS;
        set->generated = set->first >= cache->prompt;
        sealer_post(cache->sealer, set, cache->windows[cache->ahead]);
    }
}

enum terse_status cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    struct plan plan = plan_step(&cache->method, &cache->extent, kind, n);
    enum terse_status status;
    if ((status = finish_ahead(cache, &plan, error))) return status;
    if ((status = pool_reserve_page_sets(cache, cache->sealed + plan.seal + pages_ahead(cache, &plan), error))) return status;
    if ((status = pool_reserve_windows(cache, extent_window_pages(&plan.after), error))) return status;
    for (size_t i = 0; i < plan.seal; i++) {
        struct set *set = &cache->page_sets[cache->sealed + i];
        set->first = plan.grid + (plan.skip + i) * PAGE_TOKENS;
        uint64_t left = plan.after.length - set->first;
        set->count = left < PAGE_TOKENS ? (uint32_t)left : PAGE_TOKENS;
        set->generated = kind == CACHE_STEP_DECODE && set->first >= cache->prompt;
    }
    if ((status = select_reserve(cache, &plan, error))) return status;
    if ((status = anchors_reserve(cache, &plan, error))) return status;
    if ((status = exact_reserve(cache, n, error))) return status;
    cache->plan = plan;
    cache->sealed_first = kind == CACHE_STEP_PAPER;
    cache->layer = NO_LAYER;
    cache->layers_ended = 0;
    cache->in_step = false;
    if ((status = rotary_reserve(&cache->rotary, segment_bases(cache), error))) return status;
    segment_set_bases(cache);
    if ((status = reserve_scratch(cache, error))) return status;
    cache->in_step = true;
    return TERSE_OK;
}

/* Whether queries of new tokens [first, first + count) may be asked now. */
static enum terse_status check_queries(const struct cache *cache, size_t first, size_t count, struct terse_error *error) {
    if (cache->layer == NO_LAYER) return status_fail(error, TERSE_E_ARGUMENT, "queries of a layer without its keys and values");
    if (first <= cache->plan.n && count <= cache->plan.n - first) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "queries %zu to %zu of a step of %zu tokens", first, first + count, cache->plan.n);
}

enum terse_status cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    uint32_t heads = cache->shape.kv_heads, hd = cache->shape.head_dim;
    if (!cache->in_step || layer < cache->layers_ended || layer >= cache->shape.layers)
        return status_fail(error, TERSE_E_ARGUMENT, "layer %" PRIu32 " of %" PRIu32 " out of order", layer, cache->shape.layers);
    cache->layer = layer;
    cache->k = k;
    cache->v = v;
    exact_store_first(cache);
    float *rotated = cache->rotated ? k : attend_new_keys(cache);
    cache->new_keys = rotated;
#pragma omp parallel for schedule(static) num_threads(cache->threads) if (cache->plan.n >= PAGE_TOKENS)
    for (size_t i = 0; i < (rotated ? cache->plan.n : 0); i++) {
        float *rows = rotated + i * heads * hd;
        if (rows != k + i * heads * hd) memcpy(rows, k + i * heads * hd, heads * hd * sizeof *rows);
        rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, heads, hd);
    }
    anchors_begin_layer(cache);
    cache->sealed_first = cache->plan.kind == CACHE_STEP_PAPER && !cache->plan.anchors;
    if (cache->sealed_first) seal_layer(cache);
    return TERSE_OK;
}

size_t cache_queries_to_observe(const struct cache *cache, size_t needed) {
    if (exact_observes(cache)) return needed;
    if (!cache->plan.anchors) return 0;
    return cache->plan.kind == CACHE_STEP_PAPER ? cache->plan.n : needed; /* what attends in a prefill is scored as it does */
}

enum terse_status cache_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    enum terse_status status = check_queries(cache, first, count, error);
    if (status) return status;
    exact_observe(cache, q, first, count);
    if (!anchors_listen(cache, first, count)) return TERSE_OK;
    attend_prefill(cache, q, first, count, NULL);
    if (cache->plan.kind != CACHE_STEP_PAPER || first + count < cache->plan.n) return TERSE_OK;
    seal_layer(cache);
    cache->sealed_first = true;
    return TERSE_OK;
}

enum terse_status cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                               struct terse_error *error) {
    enum terse_status status = check_queries(cache, first, count, error);
    if (status) return status;
    double start = clock_now();
    exact_observe(cache, q, first, count);
    attend(cache, q, first, count, out);
    cache->counters.seconds += clock_now() - start;
    cache->counters.bytes += select_active(cache) ? count * select_bytes(cache) : segment_bytes(cache);
    return TERSE_OK;
}

enum terse_status cache_end_layer(struct cache *cache, struct terse_error *error) {
    if (cache->layer == NO_LAYER) return status_fail(error, TERSE_E_ARGUMENT, "the end of a layer without its keys and values");
    if (!cache->sealed_first) seal_layer(cache);
    cache->layers_ended = cache->layer + 1;
    cache->layer = NO_LAYER;
    return TERSE_OK;
}

enum terse_status cache_commit(struct cache *cache, struct terse_error *error) {
    if (!cache->in_step || cache->layers_ended < cache->shape.layers)
        return status_fail(error, TERSE_E_ARGUMENT, "the end of a step after %" PRIu32 " of %" PRIu32 " layers",
                           cache->layers_ended, cache->shape.layers);
    cache->in_step = false;
    seal_commit(cache);
    if (cache->plan.kind != CACHE_STEP_DECODE) cache->prompt = cache->extent.length;
    post_ahead(cache);
    return TERSE_OK;
}

void cache_counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    *counters = cache->counters;
    if (clear) cache->counters = (struct cache_counters){0};
}
