/* Makes the kernels' view of a cache: the places of its pages and rows, and the pages that they encode or decode. */
#include "backend/cuda/kv/views.h"

#include "backend/cuda/kv/centroids.h"
#include "base/size.h"
#include "kv/deal.h"

#include <stdlib.h>
#include <string.h>

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

struct fit_sign cache_fit_sign(const struct cache *cache, uint32_t layer, uint32_t n_layers, const device_half *rows, size_t n,
                               size_t token_stride, size_t head_stride, size_t layer_stride) {
    return (struct fit_sign){.kv_heads = cache->base.shape.kv_heads,
                             .head_dim = cache->base.shape.head_dim,
                             .layer = layer,
                             .n_layers = n_layers,
                             .rows = rows,
                             .n = n,
                             .token_stride = token_stride,
                             .head_stride = head_stride,
                             .layer_stride = layer_stride,
                             .own_learned = cache->learned,
                             .learned_floats = learned_floats(cache),
                             .alpha = cache->codec[CODEC_KEYS] == CODEC_SIGN};
}

struct encode cache_encode(const struct cache *cache, const struct item_list *list, uint32_t layer, uint32_t n_layers) {
    return (struct encode){.heads = cache->heads,
                           .layer = layer,
                           .n_layers = n_layers,
                           .codec = {cache->codec[CODEC_KEYS], cache->codec[CODEC_VALUES]},
                           .places = cache->tables->place_views,
                           .centroid = {centroid_shape_of(&cache->base.method.key), centroid_shape_of(&cache->base.method.value)},
                           .learned = {cache->tables->learned[CODEC_KEYS], cache->tables->learned[CODEC_VALUES]},
                           .run_angles = cache->tables->rotary.runs,
                           .pre_rope = cache->tables->pre_rope,
                           .index_bytes = (uint32_t)cache->base.index_page_bytes,
                           .index = cache->base.method.index ? cache->base.method.index->id : INDEX_COUNT,
                           .own_learned = cache->learned,
                           .learned_floats = learned_floats(cache),
                           .items = list->device,
                           .n = (uint32_t)list->n};
}

/* ---- Views */

struct page_set_view cache_page_view(const struct page_set *set) {
    return (struct page_set_view){.chunk = set->chunk,
                                  .sets = set->chunk_sets,
                                  .index = set->index,
                                  .first = (uint32_t)set->first,
                                  .count = (uint16_t)set->count,
                                  .generated = set->generated};
}

/* Counts of the first n page sets those that this rank has, and rank 0. */
static void count_dealt(const struct cache *cache, size_t n, size_t *here, size_t *most) {
    const struct page_set *sets = cache->base.pages.sets;
    *here = *most = cache->base.shape.ranks ? 0 : n;
    for (size_t i = 0; i < n && cache->base.shape.ranks; i++) {
        *here += page_set_is_here(&sets[i]);
        *most += deal_owner(&cache->base.shape, sets[i].first) == 0;
    }
}

/* Returns how many of the first n page sets have views. */
static size_t views_before(const struct cache *cache, size_t n) {
    size_t here, most;
    count_dealt(cache, n, &here, &most);
    return here;
}

enum terse_status cache_reserve_views(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->view_capacity) return TERSE_OK;
    struct page_set_view *views = device_alloc(cache->base.budget, page_view_bytes(n), "the KV cache's pages", error);
    if (!views) return TERSE_E_MEMORY;
    cudaStreamSynchronize(device_stream());
    device_free(cache->base.budget, cache->views, page_view_bytes(cache->view_capacity));
    cache->views = views;
    cache->listed = (struct read_page *)(void *)(views + n);
    cache->view_capacity = n;
    cache->views_good = 0;
    read_lists_forget_copy(&cache->base.reads);
    return TERSE_OK;
}

static enum terse_status upload_sets(struct cache *cache, struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets;
    size_t n = cache->base.pages.n_sealed, good = size_min(cache->views_good, n), here = 0;
    if (cache->counted_sets != n) count_dealt(cache, n, &cache->pages_here, &cache->pages_most);
    cache->counted_sets = n;
    if (good == n) return TERSE_OK;
    struct page_set_view *views = malloc((n - good) * sizeof *views);
    if (!views) return status_no_memory(error, (n - good) * sizeof *views, "a step's pages");
    for (size_t i = good; i < n; i++)
        if (page_set_is_here(&sets[i])) views[here++] = cache_page_view(&sets[i]);
    cudaError_t result = cudaMemcpyAsync(cache->views + views_before(cache, good), views, here * sizeof *views,
                                         cudaMemcpyHostToDevice, device_stream());
    free(views); /* memory that is not pinned was copied before the call returned */
    if (result == cudaSuccess) cache->views_good = n;
    return device_check(result, "sending a step's pages", error);
}

struct rate_view cache_rate_view(const struct cache *cache, uint32_t rate) {
    return cache->fitted.memory ? cache->fitted.rates[rate] : cache->tables->rates[rate];
}

/* Writes first[RATE_VIEWS + 1]: where the pages of each rate begin in a list of n that is ordered by rate; zeros where a cache has one
 * rate alone. Returns whether pages are of lower rates. */
static bool find_rates(const struct cache *cache, size_t n, uint32_t *first) {
    const struct page_set *sets = cache->base.pages.sets;
    memset(first, 0, (RATE_VIEWS + 1) * sizeof *first);
    if (rates_of(&cache->base) == 1) return false;
    for (size_t i = 0; i < n; i++) first[sets[i].rate + 1]++;
    for (size_t rate = 0; rate < RATE_VIEWS; rate++) first[rate + 1] += first[rate];
    return first[1] < n;
}

/* Uploads the shared list's entries by rate: those of rate r from at[r] on, which is changed. */
static enum terse_status upload_by_rate(struct cache *cache, uint32_t *at, struct terse_error *error) {
    struct read_lists *reads = &cache->base.reads;
    const size_t n = reads->shared.n_pages;
    struct read_page *sorted = malloc(n * sizeof *sorted);
    if (!sorted) return status_no_memory(error, n * sizeof *sorted, "a step's pages");
    for (size_t i = 0; i < n; i++) sorted[at[cache->base.pages.sets[i].rate]++] = reads->pages[i];
    const cudaError_t result = cudaMemcpyAsync(cache->listed, sorted, n * sizeof *sorted, cudaMemcpyHostToDevice, device_stream());
    free(sorted); /* memory that is not pinned was copied before the call returned */
    read_lists_forget_copy(reads);
    return device_check(result, "sending a step's pages", error);
}

static cudaError_t upload_entries(const struct cache *cache, size_t first, size_t end) {
    const struct read_page *pages = cache->base.reads.pages;
    if (first >= end) return cudaSuccess;
    return cudaMemcpyAsync(cache->listed + first, pages + first, (end - first) * sizeof *pages, cudaMemcpyHostToDevice,
                           device_stream());
}

/* Does the same where pages are dealt, of this rank's, which are numbered as their views are: of page sets [first, end), since entry i
 * of a list that leaves nothing out is page set i. */
static enum terse_status upload_dealt_entries(const struct cache *cache, size_t first, size_t end, struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets;
    const size_t before = views_before(cache, first);
    size_t n = 0;
    if (first >= end) return TERSE_OK;
    struct read_page *pages = malloc((end - first) * sizeof *pages);
    if (!pages) return status_no_memory(error, (end - first) * sizeof *pages, "a step's pages");
    for (size_t i = first; i < end; i++)
        if (page_set_is_here(&sets[i])) pages[n] = cache->base.reads.pages[i], pages[n].page = (uint32_t)(before + n), n++;
    const cudaError_t result =
        cudaMemcpyAsync(cache->listed + before, pages, n * sizeof *pages, cudaMemcpyHostToDevice, device_stream());
    free(pages);
    return device_check(result, "sending a step's pages", error);
}

static enum terse_status upload_dealt(struct cache *cache, struct terse_error *error) {
    struct read_lists *reads = &cache->base.reads;
    const size_t n = reads->shared.n_pages, low = size_min(reads->stale_low, n);
    enum terse_status status = upload_dealt_entries(cache, 0, low, error);
    if (!status) status = upload_dealt_entries(cache, size_max(reads->stale_high, low), n, error);
    if (!status) read_lists_copied(reads);
    return status;
}

enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error) {
    struct read_lists *reads = &cache->base.reads;
    const size_t n = reads->shared.n_pages, low = size_min(reads->stale_low, n);
    uint32_t first[RATE_VIEWS + 1];
    enum terse_status status = upload_sets(cache, error);
    if (status) return status;
    if (cache->base.shape.ranks) return upload_dealt(cache, error);
    if (find_rates(cache, n, first)) return upload_by_rate(cache, first, error);
    cudaError_t result = upload_entries(cache, 0, low);
    if (result == cudaSuccess) result = upload_entries(cache, size_max(reads->stale_high, low), n);
    if (result == cudaSuccess) read_lists_copied(reads);
    return device_check(result, "sending a step's pages", error);
}

struct sequence_view cache_view(const struct cache *cache) {
    struct read_list list = cache->base.reads.shared;
    list.pages = cache->listed;
    list.rows_end = (uint32_t)cache->base.plan.after.exact; /* new ones lie there when they are read */
    if (cache->base.shape.ranks) list.n_pages = (uint32_t)cache->pages_here;
    if (cache->base.shape.ranks && cache->base.shape.ranks->rank) { /* rank 0 alone reads the first tokens and the window */
        list.rows_begin = list.rows_end;
        list.window_first = UINT32_MAX;
    }
    struct sequence_view view = {.page_sets = cache->views,
                                 .list = list,
                                 .first_exact = cache_first_exact(cache),
                                 .exact_capacity = cache->exact.capacity,
                                 .window_capacity = cache->window_capacity,
                                 .window_origin = (uint32_t)cache->window_origin,
                                 .exact = cache->exact.rows,
                                 .own_learned = cache->learned,
                                 .learned_floats = learned_floats(cache),
                                 .window = cache->window,
                                 .anchor_rows = cache->exact.counts,
                                 .anchor_tokens = cache->exact.counts ? cache->exact.tokens : NULL,
                                 .anchored = cache->exact.pages,
                                 .anchored_pages = cache->exact.n_pages,
                                 .unrotated = cache->exact.unrotated,
                                 .first_logits = cache->replacing.fresh};
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++) view.rates[rate] = cache_rate_view(cache, rate);
    find_rates(cache, list.n_pages, view.rate_first);
    return view;
}
