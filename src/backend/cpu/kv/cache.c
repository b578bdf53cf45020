/* The cache of a sequence: its life, its steps, and the accounting. state.h says which file does what. */
#include "backend/cpu/kv/cache.h"

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

/* ---- Sizes */

/* What the tokens of a shape and method cost; the same arithmetic for a cache that exists and one that is only asked about. */
struct sizes {
    uint64_t page_set;             /* bytes of a page set, all layers and heads */
    size_t window;                 /* of a page of the window */
    size_t index;                  /* of an index's page beside that of the keys */
    uint64_t fitted;               /* learned of a sequence, over all layers and heads */
    uint64_t heads, exact, logits; /* layers * Hk; bytes of exact rows and of their logits */
    uint64_t anchor;               /* of one more anchor in every layer, head and side */
};

static struct sizes sizes_of(const struct cache_shape *shape, const struct method *method) {
    struct sizes sizes = {.window = PAGE_BYTES_F16(shape->head_dim),
                          .index = fit_index_layout(method, shape->head_dim).page_bytes,
                          .heads = (uint64_t)shape->layers * shape->kv_heads};
    sizes.page_set = page_set_bytes_of(shape, method, sizes.index);
    sizes.fitted = sizes.heads * fit_bytes(method, shape->head_dim);
    sizes.exact = exact_bytes(shape, method);
    sizes.logits = exact_logit_bytes(shape, method);
    sizes.anchor = sizes.heads * 2 * anchor_bytes(shape->head_dim);
    return sizes;
}

/* What there is of each kind. */
struct amounts {
    uint64_t page_sets, shared, table; /* held, of them held by others too, entries of the table */
    uint64_t windows, anchors;
};

static void fill_report(const struct cache_shape *shape, const struct sizes *sizes, const struct extent *extent,
                        const struct amounts *amounts, struct terse_cache_report *report) {
    *report =
        (struct terse_cache_report){.tokens = extent->length, .kept = extent->length - extent_evicted(extent) - extent->dropped};
    report->codes = amounts->page_sets * sizes->page_set;
    report->shared = amounts->shared * sizes->page_set;
    report->window = amounts->windows * sizes->heads * 2 * sizes->window;
    report->exact = sizes->exact + amounts->anchors * sizes->anchor;
    report->tables = sizes->fitted + sizes->logits + amounts->table * sizeof(struct page_set) +
                     amounts->page_sets * sizeof(uint32_t) + amounts->windows * sizeof(uint8_t *) +
                     sizes->heads * sizeof(struct page_place);
    report->resident = report->codes + report->exact + report->window + report->tables;
    double values = (double)extent->length * (double)sizes->heads * 2 * shape->head_dim;
    report->bits_per_value = values > 0 ? (double)report->resident * 8 / values : 0;
}

void cache_report(const struct cache *cache, struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(&cache->shape, &cache->method);
    const struct amounts amounts = {cache->pages.n, page_table_shared(&cache->pages), cache->pages.capacity, cache->n_window_sets,
                                    cache->anchors.capacity};
    fill_report(&cache->shape, &sizes, &cache->extent, &amounts, report);
    if (cache->method.learned) report->codebook = cpu_codebook_bytes(cache->method.learned);
}

void cache_predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(shape, method);
    struct plan plan = plan_step(method, &(struct extent){0}, CACHE_STEP_PREFILL, tokens);
    const struct amounts amounts = {plan.seal, 0, plan.seal, extent_window_pages(&plan.after), plan.anchors};
    fill_report(shape, &sizes, &plan.after, &amounts, report);
    if (method->learned) report->codebook = cpu_codebook_bytes(method->learned);
}

/* ---- Life */

/* Whether the method can serve the shape. */
static enum terse_status check_shape(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    if (!shape->layers || !shape->kv_heads || !shape->query_heads || shape->query_heads % shape->kv_heads)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%u layers of %u query heads over %u KV heads: the query heads must be a multiple of the KV heads",
                           shape->layers, shape->query_heads, shape->kv_heads);
    enum terse_status status = method_check(method, shape->head_dim, shape->query_heads / shape->kv_heads, error);
    if (status || !shape->slopes || !(method->policy->keep_selected_only || method->index)) return status;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s reads tokens that lie apart, whose distances this model's ALiBi would have to know: use another --kv%s",
                       method->name, method->policy->keep_selected_only ? "" : ", or omit --top-k-tokens");
}

static void set_sizes(struct cache *cache, const struct sizes *sizes) {
    const struct method *method = &cache->method;
    uint32_t head_dim = cache->shape.head_dim;
    cache->window_page_bytes = sizes->window;
    cache->index_page_bytes = sizes->index;
    cache->index_in_keys = fit_index_layout(method, head_dim).in_keys;
    cache->fitted_bytes = fit_bytes(method, head_dim);
    cache->fitted_side_bytes[CODEC_KEYS] = fit_side_bytes(method, CODEC_KEYS, head_dim);
    cache->fitted_side_bytes[CODEC_VALUES] = fit_side_bytes(method, CODEC_VALUES, head_dim);
}

/* What is allocated for the cache's whole life. */
static enum terse_status allocate(struct cache *cache, const struct sizes *sizes, struct terse_error *error) {
    enum terse_status status = rotary_init(&cache->rotary, cache->shape.rope, error);
    if (status || (status = pool_set_places(cache, error))) return status;
    if ((status = page_table_new(&cache->pages, &page_memory_host, cache->page_set_bytes, error))) return status;
    if (!(cache->exact = memory_zeros(sizes->exact, 1))) return status_no_memory(error, sizes->exact, "the KV cache's exact rows");
    if (sizes->fitted && !(cache->fitted = memory_zeros(sizes->fitted, 1)))
        return status_no_memory(error, sizes->fitted, "what the KV cache learns");
    if (sizes->logits && !(cache->exact_logits = memory_zeros(sizes->logits, 1)))
        return status_no_memory(error, sizes->logits, "the KV cache's logits");
    return TERSE_OK;
}

enum terse_status cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                               struct terse_error *error) {
    *cache = NULL;
    if (!threads) return status_fail(error, TERSE_E_ARGUMENT, "a cache without threads: give it 1 or more");
    enum terse_status status = check_shape(shape, method, error);
    if (status) return status;
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the KV cache");
    struct sizes sizes = sizes_of(shape, method);
    c->shape = *shape;
    c->method = *method;
    c->codec[CODEC_KEYS] = cpu_codec_of(method->key.codec);
    c->codec[CODEC_VALUES] = cpu_codec_of(method->value.codec);
    c->index = method->index ? cpu_index_of(method->index) : NULL; /* NULL of index_components too */
    c->group = shape->query_heads / shape->kv_heads;
    c->threads = (int)threads;
    c->layer = NO_LAYER;
    c->keys_rotated = method->key.codec->rope != CODEC_ROPE_BEFORE;
    c->keys_in_runs = method->key.codec->rope == CODEC_ROPE_IN_RUN;
    set_sizes(c, &sizes);
    if (method->learned) status = cpu_codebook_prepare(method->learned, &c->codebook, error);
    if (status || (status = allocate(c, &sizes, error))) {
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
    budget_free(cache->budget, cache->exact, exact_bytes(&cache->shape, &cache->method));
    budget_free(cache->budget, cache->exact_logits, exact_logit_bytes(&cache->shape, &cache->method));
    budget_free(cache->budget, cache->fitted, (size_t)cache->shape.layers * cache->shape.kv_heads * cache->fitted_bytes);
    memory_free(cache->observed);
    rotary_destroy(&cache->rotary);
    free(cache);
}

enum terse_status cache_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error) {
    struct terse_cache_report report;
    cache_report(cache, &report);
    enum terse_status status = budget_take(budget, (size_t)report.resident, "the KV cache", error);
    if (!status) cache->budget = cache->pages.pool->budget = budget;
    return status;
}

void cache_set_seal_ahead(struct cache *cache, bool ahead) {
    seal_ahead_forget(cache);
    cache->seal_in_step = !ahead;
}

void cache_reset(struct cache *cache) {
    seal_ahead_forget(cache);
    cache->extent = (struct extent){0};
    pool_drop_page_sets(cache, 0, cache->pages.n_sealed);
    cache->anchors.count = 0;
    cache->fitted_ready = false;
    cache->prompt_end = 0;
    cache->in_step = false;
    cache->layer = NO_LAYER;
}

uint64_t cache_length(const struct cache *cache) { return cache->extent.length; }

/* ---- Steps */

/* Whether any attention of the plan's step reads rows. */
static bool has_prefill(const struct cache *cache) { return cache->plan.n > attend_decode_tokens(cache) || cache->plan.anchors; }

static enum terse_status reserve_scratch(struct cache *cache, struct terse_error *error) {
    bool prefill = has_prefill(cache);
    size_t of_thread = larger(attend_decode_thread_floats(cache), seal_thread_floats(cache));
    size_t new_keys = prefill && !cache->keys_rotated ? cache->plan.n * cache->shape.kv_heads * cache->shape.head_dim : 0;
    if (prefill) of_thread = larger(of_thread, attend_prefill_thread_floats(cache));
    return scratch_reserve(cache, attend_decode_shared_floats(cache), of_thread, new_keys, error);
}

/* Memory for the tokens that the plan's step stores. */
static enum terse_status reserve_pages(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    size_t page_sets = cache->pages.n_sealed + plan->seal + seal_ahead_pages(cache, plan);
    enum terse_status status = page_table_reserve(&cache->pages, page_sets, error);
    if (!status) status = pool_reserve_window(cache, extent_window_pages(&plan->after), error);
    if (!status) status = anchors_reserve(cache, cache->anchors.count + plan->anchors, error);
    return status;
}

enum terse_status cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    struct plan plan = plan_step(&cache->method, &cache->extent, kind, n);
    enum terse_status status;
    cache->in_step = false;
    if ((status = seal_ahead_begin(cache, &plan, error))) return status;
    if ((status = reserve_pages(cache, &plan, error))) return status;
    page_table_assign(&cache->pages, &plan, cache->prompt_end);
    if ((status = fit_reserve(cache, &plan, error))) return status;
    if ((status = select_reserve(cache, &plan, error))) return status;
    if ((status = gather_reserve(cache, error))) return status;
    if ((status = anchor_scores_reserve(cache, &plan, error))) return status;
    if ((status = exact_reserve(cache, n, error))) return status;
    cache->plan = plan;
    cache->sealed_first = kind == CACHE_STEP_PAPER;
    cache->layer = NO_LAYER;
    cache->layers_ended = 0;
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
    cache->attended = cache->layer_sealed = 0;
    cache->k = k;
    cache->v = v;
    exact_store_first(cache);
    float *rotated = cache->keys_rotated ? k : has_prefill(cache) ? scratch_new_keys(cache) : NULL;
    cache->new_keys = rotated;
#pragma omp parallel for schedule(static) num_threads(cache->threads) if (cache->plan.n >= PAGE_TOKENS)
    for (size_t i = 0; i < (rotated ? cache->plan.n : 0); i++) {
        float *rows = rotated + i * heads * hd;
        if (rows != k + i * heads * hd) memcpy(rows, k + i * heads * hd, heads * hd * sizeof *rows);
        rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, heads, hd);
    }
    anchor_scores_begin_layer(cache);
    cache->sealed_first = cache->plan.kind == CACHE_STEP_PAPER && !cache->plan.anchors;
    if (cache->sealed_first) seal_layer(cache);
    return TERSE_OK;
}

size_t cache_queries_to_observe(const struct cache *cache, size_t needed) {
    if (exact_observes(cache)) return needed;
    if (!cache->plan.anchors) return 0;
    return cache->plan.kind == CACHE_STEP_PAPER ? cache->plan.n : needed; /* in a prefill, queries are observed as they attend */
}

enum terse_status cache_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    enum terse_status status = check_queries(cache, first, count, error);
    if (status) return status;
    exact_observe(cache, q, first, count);
    if (!anchor_scores_wanted(cache, first, count)) return TERSE_OK;
    attend_prefill(cache, q, first, count, NULL);
    if (cache->plan.kind != CACHE_STEP_PAPER || first + count < cache->plan.n) return TERSE_OK;
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
    cache->counters.seconds += clock_now() - start;
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
    cache->counters.seconds += clock_now() - start;
    cache->counters.bytes += select_active(cache) ? count * gather_bytes(cache) : segment_bytes(cache);
    return TERSE_OK;
}

bool cache_seal_some(struct cache *cache) { return cache->layer != NO_LAYER && !cache->sealed_first && seal_some(cache); }

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
    if (cache->plan.kind != CACHE_STEP_DECODE) cache->prompt_end = cache->extent.length;
    seal_ahead_post(cache);
    return TERSE_OK;
}

void cache_counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    *counters = cache->counters;
    if (clear) cache->counters = (struct cache_counters){0};
}
