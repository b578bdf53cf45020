/* Pages of the window: encoded in the step that seals them, or before it, as soon as they are full. */
#include "backend/cuda/kv/window.h"

#include "backend/cuda/kv/views.h"
#include "base/size.h"

/* Item of the window's page whose first token is `set->first`, its slots [0, set->count). */
static struct encode_item window_item(const struct cache *cache, const struct page_set *set) {
    size_t slot = (size_t)((set->first - cache->window_origin) % cache->window_capacity);
    device_half *keys = cache->window + slot * cache->base.shape.head_dim;
    return (struct encode_item){
        .set = cache_page_view(set), .rows = {keys, keys + window_side_halves(cache)}, .fitted = cache->fitted};
}

static struct encode window_encode(const struct cache *cache, const struct item_list *list) {
    struct encode encode = cache_encode(cache, list, 0, cache->base.shape.layers);
    encode.token_stride = cache->base.shape.head_dim;
    encode.head_stride = 2 * window_side_halves(cache);
    encode.layer_stride = cache->base.shape.kv_heads * encode.head_stride;
    return encode;
}

/* Fits transforms to all that the window holds from the first page on that the step seals. */
static enum terse_status fit_window(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    uint64_t first = plan_first_sealed(plan), end = plan->after.length;
    size_t n = size_min((size_t)((end - first + PAGE_TOKENS - 1) / PAGE_TOKENS), FIT_PAGES);
    enum terse_status status = item_list_reserve(&cache->sealed, n > plan->seal ? n : plan->seal, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        uint64_t from = first + i * PAGE_TOKENS;
        struct page_set set = {.first = from, .count = (uint32_t)size_min((size_t)(end - from), PAGE_TOKENS)};
        cache->sealed.host[i] = window_item(cache, &set);
    }
    if ((status = item_list_upload(&cache->sealed, n, error))) return status;
    struct encode encode = window_encode(cache, &cache->sealed);
    return device_check(fit_rows(&encode, cache->fitted, device_stream()), "fitting a sequence's transforms", error);
}

/* Queues on a stream the encoding of page sets [first, first + n). */
static enum terse_status encode_window(struct cache *cache, size_t first, size_t n, cudaStream_t stream,
                                       struct terse_error *error) {
    enum terse_status status = item_list_reserve(&cache->sealed, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) cache->sealed.host[i] = window_item(cache, &cache->base.pages.sets[first + i]);
    if ((status = item_list_upload(&cache->sealed, n, error))) return status;
    if (stream != device_stream()) status = cache_written(cache, error);
    if (status) return status;
    cudaError_t result = stream != device_stream() ? cudaStreamWaitEvent(stream, cache->written, 0) : cudaSuccess;
    struct encode encode = window_encode(cache, &cache->sealed);
    if (result == cudaSuccess) result = encode_pages(&encode, stream);
    return device_check(result, "encoding pages", error);
}

enum terse_status window_seal(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    cudaError_t result = cudaSuccess;
    if (!plan->seal) return TERSE_OK;
    if (plan->ready) result = cudaStreamWaitEvent(device_stream(), cache->encoded_ahead, 0);
    enum terse_status status = device_check(result, "waiting for encoded pages", error);
    if (!status && cache_fit_pending(&cache->base)) status = fit_window(cache, error);
    if (status || plan->ready == plan->seal) return status;
    return encode_window(cache, cache->base.pages.n_sealed + plan->ready, plan->seal - plan->ready, device_stream(), error);
}

enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error) {
    size_t first = cache->base.pages.n_sealed + cache->base.n_ahead, n = 0;
    bool busy = cache->base.n_ahead > 0;
    while (cache_next_ahead(cache)) n++;
    if (!n) return TERSE_OK;
    /* The items are one list, which the background reads: it has done with those before. */
    if (busy) cudaEventSynchronize(cache->encoded_ahead);
    enum terse_status status = encode_window(cache, first, n, device_background(), error);
    if (!status) status = device_check(cudaEventRecord(cache->encoded_ahead, device_background()), "encoding pages", error);
    if (status) cache->base.n_ahead -= n;
    return status;
}

void window_wait_ahead(struct cache *cache) {
    if (cache->base.n_ahead) cudaEventSynchronize(cache->encoded_ahead);
}
