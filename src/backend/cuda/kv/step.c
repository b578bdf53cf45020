/* The steps of a cache. state.h says which file does what. */
#include "backend/cuda/kv/step.h"
#include "backend/cuda/kv/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

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
                           .transforms = cache->tables->transforms,
                           .centroids = cache->tables->centroids,
                           .run_angles = cache->tables->rotary.runs,
                           .items = list->device,
                           .n = (uint32_t)list->n};
}

/* ---- Views */

struct page_set_view cache_page_view(const struct cache *cache, const struct page_set *set) {
    uint64_t first = cache->base.extent.first, begin = first > set->first ? first - set->first : 0;
    return (struct page_set_view){.chunk = set->chunk,
                                  .sets = set->chunk_sets,
                                  .index = set->index,
                                  .first = (uint32_t)set->first,
                                  .begin = (uint16_t)(begin < set->count ? begin : set->count),
                                  .end = (uint16_t)set->count};
}

enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error) {
    size_t n = cache->base.pages.n_sealed, good = smaller(cache->views_good, n);
    if (extent_evicted(&cache->base.extent)) good = 0; /* the first page's tokens leave one by one */
    if (good == n) return TERSE_OK;
    struct page_set_view *views = malloc((n - good) * sizeof *views);
    if (!views) return status_no_memory(error, (n - good) * sizeof *views, "a step's pages");
    for (size_t i = good; i < n; i++) views[i - good] = cache_page_view(cache, &cache->base.pages.sets[i]);
    cudaError_t result =
        cudaMemcpyAsync(cache->views + good, views, (n - good) * sizeof *views, cudaMemcpyHostToDevice, device_stream());
    free(views); /* memory that is not pinned was copied before the call returned */
    if (result == cudaSuccess) cache->views_good = n;
    return device_check(result, "sending a step's pages", error);
}

struct sequence_view cache_view(const struct cache *cache) {
    const struct plan *plan = &cache->base.plan;
    uint64_t window = plan->grid > plan->before.first ? plan->grid : plan->before.first;
    uint64_t first = plan->after.length < cache_first_exact(cache) ? plan->after.length : cache_first_exact(cache);
    return (struct sequence_view){.page_sets = cache->views,
                                  .n_sealed = (uint32_t)cache->base.pages.n_sealed,
                                  .n_exact = (uint32_t)(first + cache->base.n_anchors),
                                  .exact_capacity = cache->exact.capacity,
                                  .window_capacity = cache->window_capacity,
                                  .window_first = (uint32_t)window,
                                  .window_origin = (uint32_t)cache->window_origin,
                                  .evicted = (uint32_t)extent_evicted(&plan->before),
                                  .exact = cache->exact.rows,
                                  .window = cache->window,
                                  .fitted = cache->fitted};
}

/* ---- Steps */

void cache_forget_ahead(struct cache *cache) {
    if (cache->n_ahead) cudaEventSynchronize(cache->encoded_ahead);
    cache->n_ahead = 0;
}

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
    if (!cache_decodes(cache)) cache_forget_ahead(cache);
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

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    return cache_supports(&cuda_storage, shape, method, error);
}

static void predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                    struct terse_cache_report *report) {
    cache_predict(&cuda_storage, shape, method, tokens, report);
}

const struct kv_ops cuda_kv_ops = {.supports = supports,
                                   .predict = predict,
                                   .create = kv_create,
                                   .limit = cache_limit,
                                   .destroy = kv_destroy,
                                   .reset = cache_reset,
                                   .length = cache_length,
                                   .truncate = cache_truncate,
                                   .common_prefix = cache_common_prefix,
                                   .fork = cache_fork,
                                   .save = cache_save,
                                   .load = cache_load,
                                   .begin = kv_begin,
                                   .append = kv_append,
                                   .queries_to_observe = kv_queries_to_observe,
                                   .observe = kv_observe,
                                   .attend = kv_attend,
                                   .end_layer = kv_end_layer,
                                   .commit = kv_commit,
                                   .report = cache_report,
                                   .map = cache_map,
                                   .counters = cache_counters,
                                   .fill_random = kv_fill_random};
