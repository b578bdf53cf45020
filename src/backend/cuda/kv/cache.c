/* The cache of a sequence: its life, its steps, and the accounting. state.h says which file does what. */
#include "backend/cuda/kv/cache.h"
#include "backend/cuda/kv/state.h"

#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/centroids.h"
#include "kv/token_shares.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sizes */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t rounded_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Rows of the window's ring: those that stay, a page that is not full, and the tokens of a decoding step. */
static uint32_t window_rows(const struct method *method) {
    return (uint32_t)rounded_up(method->tail_tokens + PAGE_TOKENS - 1 + DECODE_TOKENS_MOST, PAGE_TOKENS);
}

static bool fits_transforms(const struct method *method) {
    return method->of_weights && (method->key.codec->id == CODEC_TRANSFORM || method->value.codec->id == CODEC_TRANSFORM);
}

/* What the tokens of a shape and method cost; the same arithmetic for a cache that exists and one that is only asked about. */
struct sizes {
    uint64_t heads, page_set, exact, anchor, window, fitted;
};

static struct sizes sizes_of(const struct cache_shape *shape, const struct method *method) {
    uint64_t heads = (uint64_t)shape->layers * shape->kv_heads, row = shape->head_dim * sizeof(device_half);
    return (struct sizes){.heads = heads,
                          .page_set = page_set_bytes_of(shape, method, 0),
                          .exact = heads * 2 * method->parameters.exact * row,
                          .anchor = anchor_bytes(shape),
                          .window = heads * 2 * window_rows(method) * row,
                          .fitted =
                              fits_transforms(method) ? heads * 2 * transform_fitted_floats(shape->head_dim) * sizeof(float) : 0};
}

/* What there is of each kind. */
struct amounts {
    uint64_t page_sets, shared, table, views; /* held, of them held by others too, entries of the tables */
    uint64_t exact_bytes;
};

static void fill_report(const struct cache_shape *shape, const struct sizes *sizes, const struct extent *extent,
                        const struct amounts *amounts, struct terse_cache_report *report) {
    *report =
        (struct terse_cache_report){.tokens = extent->length, .kept = extent->length - extent_evicted(extent) - extent->dropped};
    report->codes = amounts->page_sets * sizes->page_set;
    report->shared = amounts->shared * sizes->page_set;
    report->window = sizes->window;
    report->exact = amounts->exact_bytes;
    report->tables = sizes->fitted + amounts->table * sizeof(struct page_set) + amounts->page_sets * sizeof(uint32_t) +
                     amounts->views * sizeof(struct page_set_view) + sizeof(struct sequence_view);
    report->resident = report->codes + report->exact + report->window + report->tables;
    double values = (double)extent->length * (double)sizes->heads * 2 * shape->head_dim;
    report->bits_per_value = values > 0 ? (double)report->resident * 8 / values : 0;
}

static void cache_report(const struct cache *cache, struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(&cache->shape, &cache->method);
    const struct amounts amounts = {cache->pages.n, page_table_shared(&cache->pages), cache->pages.capacity, cache->view_capacity,
                                    cache->exact.bytes + cache->chosen.bytes};
    fill_report(&cache->shape, &sizes, &cache->extent, &amounts, report);
}

static void predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                    struct terse_cache_report *report) {
    struct sizes sizes = sizes_of(shape, method);
    struct plan plan = plan_step(method, &(struct extent){0}, CACHE_STEP_PREFILL, tokens);
    const struct amounts amounts = {plan.seal, 0, plan.seal, plan.seal, sizes.exact + plan.anchors * sizes.anchor};
    fill_report(shape, &sizes, &plan.after, &amounts, report);
}

/* ---- What can be computed here */

static enum terse_status refuse(const struct method *method, const char *why, struct terse_error *error) {
    return status_fail(error, TERSE_E_UNSUPPORTED, "%s %s on the GPU: use --device cpu, or another --kv", method->name, why);
}

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    const struct head_view heads = kv_tables_heads(shape);
    const enum codec_id codec[2] = {method->key.codec->id, method->value.codec->id};
    const struct centroid_shape centroid[2] = {centroid_shape_of(&method->key), centroid_shape_of(&method->value)};
    const struct policy *policy = method->policy;
    enum terse_status status = method_check(method, shape->head_dim, shape->query_heads / shape->kv_heads, error);
    if (status) return status;
    if (method->index) return refuse(method, "cannot choose the tokens that a step reads", error);
    if ((policy->anchors && !policy->keep_selected_only) || policy->pick_victim)
        return refuse(method, "cannot choose tokens by their attention", error);
    if (policy->keep_selected_only && shape->slopes)
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%s reads tokens that lie apart, whose distances this model's ALiBi would have to know: use another --kv",
            method->name);
    if (!attend_decode_supports(&heads, codec, centroid) || !encode_supports(&heads, codec) || !attend_prefill_supports(&heads))
        return refuse(method, "has no kernels for this model's heads", error);
    return TERSE_OK;
}

/* ---- Items */

enum terse_status item_list_reserve(struct item_list *list, size_t n, struct terse_error *error) {
    if (n <= list->capacity) return TERSE_OK;
    struct encode_item *host = malloc(n * sizeof *host), *device = NULL;
    if (!host) return status_no_memory(error, n * sizeof *host, "a step's pages");
    if (!(device = device_alloc(NULL, n * sizeof *device, "a step's pages", error))) {
        free(host);
        return TERSE_E_MEMORY;
    }
    item_list_free(list);
    *list = (struct item_list){device, host, n, 0};
    return TERSE_OK;
}

void item_list_free(struct item_list *list) {
    device_free(NULL, list->device, list->capacity * sizeof *list->device);
    free(list->host);
    *list = (struct item_list){0};
}

enum terse_status item_list_upload(struct item_list *list, size_t n, struct terse_error *error) {
    list->n = n;
    if (!n) return TERSE_OK;
    return device_check(cudaMemcpyAsync(list->device, list->host, n * sizeof *list->host, cudaMemcpyHostToDevice, device_stream()),
                        "sending a step's pages", error);
}

struct encode cache_encode(const struct cache *cache, const struct item_list *list, uint32_t layer, uint32_t n_layers) {
    return (struct encode){.heads = cache->heads,
                           .layer = layer,
                           .n_layers = n_layers,
                           .codec = {cache->codec[CODEC_KEYS], cache->codec[CODEC_VALUES]},
                           .places = cache->tables->place_views,
                           .learned = {cache->tables->learned[CODEC_KEYS], cache->tables->learned[CODEC_VALUES]},
                           .run_angles = cache->tables->rotary.runs,
                           .items = list->device,
                           .n = (uint32_t)list->n};
}

/* ---- Views */

struct page_set_view cache_page_view(const struct cache *cache, const struct page_set *set) {
    uint64_t first = cache->extent.first, begin = first > set->first ? first - set->first : 0;
    return (struct page_set_view){.chunk = set->chunk,
                                  .sets = set->chunk_sets,
                                  .index = set->index,
                                  .first = (uint32_t)set->first,
                                  .begin = (uint16_t)(begin < set->count ? begin : set->count),
                                  .end = (uint16_t)set->count};
}

enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error) {
    size_t n = cache->pages.n_sealed, good = smaller(cache->views_good, n);
    if (extent_evicted(&cache->extent)) good = 0; /* the first page's tokens leave one by one */
    if (good == n) return TERSE_OK;
    struct page_set_view *views = malloc((n - good) * sizeof *views);
    if (!views) return status_no_memory(error, (n - good) * sizeof *views, "a step's pages");
    for (size_t i = good; i < n; i++) views[i - good] = cache_page_view(cache, &cache->pages.sets[i]);
    cudaError_t result =
        cudaMemcpyAsync(cache->views + good, views, (n - good) * sizeof *views, cudaMemcpyHostToDevice, device_stream());
    free(views); /* memory that is not pinned was copied before the call returned */
    if (result == cudaSuccess) cache->views_good = n;
    return device_check(result, "sending a step's pages", error);
}

struct sequence_view cache_view(const struct cache *cache) {
    const struct plan *plan = &cache->plan;
    uint64_t window = plan->grid > plan->before.first ? plan->grid : plan->before.first;
    uint64_t first = plan->after.length < cache_first_exact(cache) ? plan->after.length : cache_first_exact(cache);
    return (struct sequence_view){.page_sets = cache->views,
                                  .n_sealed = (uint32_t)cache->pages.n_sealed,
                                  .n_exact = (uint32_t)(first + cache->n_anchors),
                                  .exact_capacity = cache->exact.capacity,
                                  .window_capacity = cache->window_capacity,
                                  .window_first = (uint32_t)window,
                                  .window_origin = (uint32_t)cache->window_origin,
                                  .evicted = (uint32_t)extent_evicted(&plan->before),
                                  .exact = cache->exact.rows,
                                  .window = cache->window,
                                  .fitted = cache->fitted};
}

/* ---- Life */

static enum terse_status take(struct cache *cache, void *memory, uint64_t bytes, const char *what, struct terse_error *error) {
    void **to = memory;
    if (!bytes) return TERSE_OK;
    if (!(*to = device_alloc(cache->budget, (size_t)bytes, what, error))) return TERSE_E_MEMORY;
    return device_check(cudaMemsetAsync(*to, 0, (size_t)bytes, device_stream()), "clearing the KV cache", error);
}

static void *chunk_take(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error) {
    return device_alloc(budget, count * size, what, error);
}

static const struct page_memory device_memory = {chunk_take, device_free};

static enum terse_status new_event(cudaEvent_t *event, struct terse_error *error) {
    return device_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event", error);
}

enum terse_status cache_written(struct cache *cache, struct terse_error *error) {
    return device_check(cudaEventRecord(cache->written, device_stream()), "recording an event", error);
}

static enum terse_status allocate(struct cache *cache, struct terse_error *error) {
    struct sizes sizes = sizes_of(&cache->shape, &cache->method);
    enum terse_status status = page_table_new(&cache->pages, &device_memory, cache->tables->page_set_bytes, error);
    if (!status) status = kept_resize(cache, 0, error);
    if (!status) status = take(cache, &cache->window, sizes.window, "the KV cache's recent window", error);
    if (!status) status = take(cache, &cache->fitted, sizes.fitted, "what the KV cache learns", error);
    if (!status) status = take(cache, &cache->view, sizeof *cache->view, "the KV cache", error);
    if (!status) status = new_event(&cache->written, error);
    if (!status) status = new_event(&cache->encoded_ahead, error);
    return status ? status : cache_written(cache, error);
}

enum terse_status kv_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                            struct terse_error *error) {
    (void)threads;
    *cache = NULL;
    enum terse_status status = supports(shape, method, error);
    if (status) return status;
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the KV cache");
    c->shape = *shape;
    c->method = *method;
    c->codec[CODEC_KEYS] = method->key.codec->id;
    c->codec[CODEC_VALUES] = method->value.codec->id;
    c->window_capacity = window_rows(method);
    status = kv_tables_get(shape, method, &c->tables, error);
    if (!status) c->heads = c->tables->heads;
    if (!status) status = allocate(c, error);
    if (status) {
        kv_destroy(c);
        return status;
    }
    *cache = c;
    return TERSE_OK;
}

void kv_destroy(struct cache *cache) {
    if (!cache) return;
    struct sizes sizes = sizes_of(&cache->shape, &cache->method);
    cache_forget_ahead(cache);
    cudaStreamSynchronize(device_stream());
    page_table_free(&cache->pages);
    device_free(cache->budget, cache->views, cache->view_capacity * sizeof *cache->views);
    kept_free(cache);
    device_free(cache->budget, cache->window, (size_t)sizes.window);
    device_free(cache->budget, cache->fitted, (size_t)sizes.fitted);
    device_free(cache->budget, cache->view, sizeof *cache->view);
    prompt_release(cache);
    kept_release(cache);
    item_list_free(&cache->stored);
    item_list_free(&cache->sealed);
    host_step_free(cache->host);
    if (cache->written) cudaEventDestroy(cache->written);
    if (cache->encoded_ahead) cudaEventDestroy(cache->encoded_ahead);
    kv_tables_release(cache->tables);
    free(cache);
}

enum terse_status kv_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error) {
    struct terse_cache_report report;
    cache_report(cache, &report);
    enum terse_status status = budget_take(budget, (size_t)report.resident, "the KV cache", error);
    if (!status) cache->budget = cache->pages.pool->budget = budget;
    return status;
}

void cache_forget_ahead(struct cache *cache) {
    if (cache->n_ahead) cudaEventSynchronize(cache->encoded_ahead);
    cache->n_ahead = 0;
}

static void drop_pages(struct cache *cache, size_t first, size_t n) {
    page_table_drop(&cache->pages, first, n);
    cache->views_good = smaller(cache->views_good, first);
}

void kv_reset(struct cache *cache) {
    cache_forget_ahead(cache);
    cudaStreamSynchronize(device_stream()); /* pages may be another cache's next */
    cache->extent = (struct extent){0};
    drop_pages(cache, 0, cache->pages.n_sealed);
    kept_release(cache);
    kept_reset(cache);
    cache->fitted_ready = false;
    cache->prompt_end = 0;
    cache->in_step = false;
    cache->window_origin = 0;
}

static uint64_t cache_length(const struct cache *cache) { return cache->extent.length; }

/* ---- Steps */

bool cache_decodes(const struct cache *cache) {
    return cache->plan.kind == CACHE_STEP_DECODE && cache->plan.n <= DECODE_TOKENS_MOST;
}

static enum terse_status reserve_views(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->view_capacity) return TERSE_OK;
    size_t bytes = n * sizeof *cache->views, old = cache->view_capacity * sizeof *cache->views;
    struct page_set_view *views = device_alloc(cache->budget, bytes, "the KV cache's pages", error);
    if (!views) return TERSE_E_MEMORY;
    cudaStreamSynchronize(device_stream());
    device_free(cache->budget, cache->views, old);
    cache->views = views;
    cache->view_capacity = n;
    cache->views_good = 0;
    return TERSE_OK;
}

static enum terse_status reserve(struct cache *cache, struct terse_error *error) {
    size_t sets = cache->pages.n_sealed + cache->plan.seal + window_pages_ahead(cache, &cache->plan);
    enum terse_status status = page_table_reserve(&cache->pages, sets, error);
    if (!status) status = reserve_views(cache, cache->pages.n, error);
    if (!status) status = kv_tables_reserve(cache->tables, cache->plan.after.length, error);
    if (!status) page_table_assign(&cache->pages, &cache->plan, cache->prompt_end);
    if (!status) status = cache_upload_views(cache, error);
    if (!status && !cache_decodes(cache)) status = prompt_reserve(cache, error);
    return status;
}

enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    if (cache->extent.length + n > UINT32_MAX)
        return status_fail(error, TERSE_E_CONTEXT, "more tokens than the GPU's caches count");
    cache->in_step = false;
    cache->plan = plan_step(&cache->method, &cache->extent, kind, n);
    if (kind == CACHE_STEP_PAPER && cache->plan.anchors)
        return refuse(&cache->method, "cannot be read by the papers' protocol", error);
    if (!cache_decodes(cache)) cache_forget_ahead(cache);
    cache->plan.ready = smaller(cache->n_ahead, cache->plan.seal);
    if (cache->extent.length <= cache->plan.grid) cache->window_origin = cache->plan.grid; /* nothing lies in it */
    cache->layers_ended = 0;
    cache->layer = NO_LAYER;
    cache->steps++;
    enum terse_status status = reserve(cache, error);
    if (!status) cache->in_step = true;
    return status;
}

enum terse_status kv_commit(struct cache *cache, struct terse_error *error) {
    bool decodes = cache_decodes(cache);
    if (!cache->in_step || (!decodes && cache->layers_ended < cache->shape.layers))
        return status_fail(error, TERSE_E_ARGUMENT, "the end of a step after %" PRIu32 " of %" PRIu32 " layers",
                           cache->layers_ended, cache->shape.layers);
    enum terse_status status = decodes ? window_seal(cache, error) : kept_commit(cache, error);
    if (status) return status;
    cache->in_step = false;
    cache->fitted_ready |= cache->plan.seal > 0;
    cache->pages.n_sealed += cache->plan.seal;
    cache->extent = cache->plan.after;
    if (cache->plan.kind != CACHE_STEP_DECODE) cache->prompt_end = cache->extent.length;
    if (!decodes) prompt_release(cache);
    kept_release(cache);
    cache->n_ahead -= cache->plan.ready;
    size_t evicted = page_table_evicted(&cache->pages, cache->extent.first);
    if (evicted) drop_pages(cache, 0, evicted);
    if ((status = cache_written(cache, error))) return status;
    return decodes ? window_seal_ahead(cache, error) : TERSE_OK;
}

static bool attend_some(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    (void)cache, (void)q, (void)first, (void)count, (void)out;
    return false;
}

static bool seal_some(struct cache *cache) {
    (void)cache;
    return false;
}

static void counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    *counters = cache->counters;
    if (clear) cache->counters = (struct cache_counters){0};
}

/* ---- What became of each part of the sequence */

#define ADD(map, member, begin, end, share) token_map_add(map, offsetof(struct terse_token_share, member), begin, end, share)

static void add_anchors(const struct cache *cache, const struct token_map *map) {
    size_t n = cache_heads(cache) * cache->n_anchors;
    uint32_t *tokens = n ? malloc(n * sizeof *tokens) : NULL;
    if (tokens && device_fetch(tokens, cache->exact.tokens, n * sizeof *tokens) == cudaSuccess)
        for (size_t i = 0; i < n; i++) ADD(map, exact, tokens[i], tokens[i] + 1, 1 / (double)cache_heads(cache));
    free(tokens);
}

void kv_map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    const struct extent *extent = &cache->extent;
    const struct token_map map = {shares, n, extent->length};
    double exact = 0.5 * cache->method.key.codec->exact + 0.5 * cache->method.value.codec->exact;
    memset(shares, 0, n * sizeof *shares);
    if (!extent->length || !n || cache->in_step) return;
    ADD(&map, exact, 0, extent->exact, 1);
    for (size_t i = 0; i < cache->pages.n_sealed; i++) {
        const struct page_set *set = &cache->pages.sets[i];
        uint64_t end = set->first + set->count, begin = set->first < extent->first ? extent->first : set->first;
        ADD(&map, exact, begin, end, exact);
        ADD(&map, compressed, begin, end, 1 - exact);
    }
    add_anchors(cache, &map);
    ADD(&map, exact, extent->window_first > extent->first ? extent->window_first : extent->first, extent->length, 1);
    for (size_t i = 0; i < n; i++) shares[i].read = shares[i].exact + shares[i].compressed;
    token_map_end(&map);
}

const struct kv_ops cuda_kv_ops = {.supports = supports,
                                   .predict = predict,
                                   .create = kv_create,
                                   .limit = kv_limit,
                                   .destroy = kv_destroy,
                                   .reset = kv_reset,
                                   .length = cache_length,
                                   .truncate = kv_truncate,
                                   .common_prefix = kv_common_prefix,
                                   .fork = kv_fork,
                                   .save = kv_save,
                                   .load = kv_load,
                                   .begin = kv_begin,
                                   .append = kv_append,
                                   .queries_to_observe = kv_queries_to_observe,
                                   .observe = kv_observe,
                                   .attend = kv_attend,
                                   .attend_some = attend_some,
                                   .seal_some = seal_some,
                                   .end_layer = kv_end_layer,
                                   .commit = kv_commit,
                                   .report = cache_report,
                                   .map = kv_map,
                                   .counters = counters,
                                   .fill_random = kv_fill_random};
