/* The kernels' view of a cache: the places of its pages and rows, and the pages that they encode or decode. */
#include "backend/cuda/kv/views.h"
#include "base/size.h"

#include <stdlib.h>

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
    uint64_t first = cache->base.extent.first, begin = first > set->first ? first - set->first : 0;
    return (struct page_set_view){.chunk = set->chunk,
                                  .sets = set->chunk_sets,
                                  .index = set->index,
                                  .first = (uint32_t)set->first,
                                  .begin = (uint16_t)(begin < set->count ? begin : set->count),
                                  .end = (uint16_t)set->count};
}

enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error) {
    size_t n = cache->base.pages.n_sealed, good = size_min(cache->views_good, n);
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
