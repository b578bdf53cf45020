/* Encodes pages of the window: in the step that seals them, or before it, as soon as they are full. */
#include "backend/cuda/kv/window.h"

#include "backend/cuda/kv/choice.h"
#include "backend/cuda/kv/encode_kernels.h"
#include "backend/cuda/kv/views.h"
#include "base/size.h"

/* ---- Memory */

static uint32_t whole_pages(uint64_t rows) { return (uint32_t)((rows + PAGE_TOKENS - 1) / PAGE_TOKENS * PAGE_TOKENS); }

uint32_t window_least_rows(const struct method *method) {
    return whole_pages((uint64_t)method->tail_tokens + PAGE_TOKENS - 1 + decode_tokens_most(method));
}

/* Returns how many rows a ring that has `capacity` and needs `needed` grows to: it doubles, up to what a sequence waits for. */
static uint32_t grown(const struct method *method, uint32_t capacity, uint64_t needed) {
    const uint32_t most = whole_pages(FIT_TOKENS + PAGE_TOKENS + decode_tokens_most(method));
    const uint32_t doubled = 2 * capacity < most ? 2 * capacity : most;
    if (needed <= capacity) return capacity;
    return whole_pages(needed) > doubled ? whole_pages(needed) : doubled;
}

/* Returns how many rows a step that waits needs: its tokens and, lest the ring be copied for them, those of the next step. */
static uint64_t rows_waiting(const struct method *method, const struct plan *plan) {
    return plan->after.length - plan->grid + decode_tokens_most(method);
}

uint32_t window_rows_after(const struct method *method, const struct plan *plan) {
    const uint32_t least = window_least_rows(method);
    return plan->waits ? grown(method, least, rows_waiting(method, plan)) : least;
}

/* Gives the ring so many rows, and copies n tokens from `first` on. A ring that shrinks is counted in the budget when the old one is
 * not any more, lest a budget that is full keep it. */
static enum terse_status resize(struct cache *cache, uint32_t rows, uint64_t first, size_t n, struct terse_error *error) {
    const struct cache_base *base = &cache->base;
    const size_t row = base->shape.head_dim * sizeof(device_half), sides = 2 * cache_heads_of(&base->shape);
    const uint32_t capacity = cache->window_capacity;
    if (rows == capacity) return TERSE_OK;
    const size_t from = n ? (size_t)((first - cache->window_origin) % capacity) : 0, run = size_min(n, capacity - from);
    struct kv_budget *const budget = rows > capacity ? base->budget : NULL;
    static const char what[] = "the KV cache's recent window";
    device_half *window = device_alloc(budget, sides * rows * row, what, error);
    if (!window) return TERSE_E_MEMORY;
    uint8_t *to = (uint8_t *)window;
    const uint8_t *old = (const uint8_t *)cache->window;
    cudaError_t result = cudaMemsetAsync(window, 0, sides * rows * row, device_stream());
    if (run && result == cudaSuccess)
        result = cudaMemcpy2DAsync(to, rows * row, old + from * row, capacity * row, run * row, sides, cudaMemcpyDeviceToDevice,
                                   device_stream());
    if (n > run && result == cudaSuccess)
        result = cudaMemcpy2DAsync(to + run * row, rows * row, old, capacity * row, (n - run) * row, sides,
                                   cudaMemcpyDeviceToDevice, device_stream());
    enum terse_status status = device_check(result, "moving the KV cache's recent window", error);
    if (status) {
        device_free(budget, window, sides * rows * row);
        return status;
    }
    device_free(base->budget, cache->window, sides * capacity * row);
    if (!budget) (void)budget_take(base->budget, sides * rows * row, what, NULL);
    cache->window = window;
    cache->window_capacity = rows;
    cache->window_origin = first;
    return TERSE_OK;
}

/* Gives the ring so many rows, at least as many as there are tokens in it, and keeps these. */
static enum terse_status resize_kept(struct cache *cache, uint32_t rows, struct terse_error *error) {
    const struct token_range window = cache_window(cache);
    return resize(cache, rows, window.first, (size_t)(window.end - window.first), error);
}

enum terse_status window_clear(struct cache *cache, uint64_t n, struct terse_error *error) {
    return method_fits_transforms(&cache->base.method)
               ? resize(cache, grown(&cache->base.method, cache->window_capacity, n), 0, 0, error)
               : TERSE_OK;
}

enum terse_status window_reserve(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    const struct method *method = &cache->base.method;
    const uint64_t needed = plan->waits
                                ? rows_waiting(method, plan)
                                : plan->before.length - size_min(plan->grid, plan->before.length) + decode_tokens_most(method);
    return method_fits_transforms(method) ? resize_kept(cache, grown(method, cache->window_capacity, needed), error) : TERSE_OK;
}

enum terse_status window_trim(struct cache *cache, struct terse_error *error) {
    const uint32_t least = window_least_rows(&cache->base.method);
    return fitted_would_wait(&cache->base) || cache->base.n_ahead || cache_window_pages(cache) * PAGE_TOKENS > least
               ? TERSE_OK
               : resize_kept(cache, least, error);
}

/* ---- Pages */

/* Returns the item of the window's page whose first token is `set->first`, of its slots [0, set->count). */
static struct encode_item window_item(const struct cache *cache, const struct page_set *set) {
    size_t slot = (size_t)((set->first - cache->window_origin) % cache->window_capacity);
    device_half *keys = cache->window + slot * cache->base.shape.head_dim;
    return (struct encode_item){
        .set = cache_page_view(set), .rows = {keys, keys + window_side_halves(cache)}, .rate = cache_rate_view(cache, set->rate)};
}

static struct encode window_encode(const struct cache *cache, const struct item_list *list) {
    struct encode encode = cache_encode(cache, list, 0, cache->base.shape.layers);
    encode.token_stride = cache->base.shape.head_dim;
    encode.head_stride = 2 * window_side_halves(cache);
    encode.layer_stride = cache->base.shape.kv_heads * encode.head_stride;
    return encode;
}

/* Queues on a stream the encoding of page sets [first, first + n), but for those of other ranks. */
static enum terse_status encode_window(struct cache *cache, size_t first, size_t n, cudaStream_t stream,
                                       struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets + first;
    enum terse_status status = item_list_reserve(&cache->sealed, n, error);
    size_t here = 0;
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (page_set_is_here(&sets[i])) cache->sealed.host[here++] = window_item(cache, &sets[i]);
    if ((status = item_list_upload(&cache->sealed, here, error))) return status;
    if (stream != device_stream()) status = cache_written(cache, error);
    if (status) return status;
    cudaError_t result = stream != device_stream() ? cudaStreamWaitEvent(stream, cache->written, 0) : cudaSuccess;
    struct encode encode = window_encode(cache, &cache->sealed);
    if (result == cudaSuccess) result = encode_pages(&encode, stream);
    return device_check(result, "encoding pages", error);
}

#define MOMENTS_BYTES ((size_t)16 << 20) /* of layers that are looked at together, at least one */

/* Lists the pages of n tokens from `first` on, for a launch whose first layer is `layer`. */
static enum terse_status list_window(struct cache *cache, uint64_t first, size_t n, size_t layer, struct terse_error *error) {
    const size_t pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    enum terse_status status = item_list_reserve(&cache->sealed, pages, error);
    if (status) return status;
    for (size_t i = 0; i < pages; i++) {
        const struct page_set set = {.first = first + i * PAGE_TOKENS,
                                     .count = (uint32_t)size_min(n - i * PAGE_TOKENS, PAGE_TOKENS)};
        struct encode_item *item = &cache->sealed.host[i];
        *item = window_item(cache, &set);
        for (int side = 0; side < 2; side++) item->rows[side] += layer * cache->base.shape.kv_heads * 2 * window_side_halves(cache);
    }
    return item_list_upload(&cache->sealed, pages, error);
}

enum terse_status window_moments(struct cache *cache, size_t n, struct encode_sides sides, struct layer_range layers,
                                 float *moments, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t of_layer = shape->kv_heads * (size_t)sides.n * ENCODE_MOMENTS_FLOATS(shape->head_dim) * sizeof *moments,
                 together = size_min(size_max(MOMENTS_BYTES / of_layer, 1), layers.end - layers.first);
    float *device = device_alloc(NULL, together * of_layer, "what a KV cache learns from", error);
    enum terse_status status = device ? TERSE_OK : TERSE_E_MEMORY;
    for (size_t layer = layers.first, some; layer < layers.end && !status; layer += some) {
        some = size_min(together, layers.end - layer);
        if ((status = list_window(cache, cache->base.plan.grid, n, layer, error))) break;
        struct encode encode = window_encode(cache, &cache->sealed);
        encode.layer = (uint32_t)layer;
        encode.n_layers = (uint32_t)some;
        cudaError_t result = encode_moments(&encode, sides, device, device_stream());
        if (result == cudaSuccess)
            result = device_fetch((uint8_t *)moments + (layer - layers.first) * of_layer, device, some * of_layer);
        status = device_check(result, "finding what a KV cache learns from", error);
    }
    device_free(NULL, device, together * of_layer);
    return status;
}

/* Fits codec sign and index sign to the first page that is sealed. */
static cudaError_t learn_first_page(const struct cache *cache) {
    const struct cache_shape *shape = &cache->base.shape;
    const struct page_set *set = &cache->base.pages.sets[cache->base.pages.n_sealed];
    const struct encode_item item = window_item(cache, set);
    const size_t head = 2 * window_side_halves(cache);
    const struct fit_sign fit =
        cache_fit_sign(cache, 0, shape->layers, item.rows[CODEC_KEYS], set->count, shape->head_dim, head, shape->kv_heads * head);
    return fit_sign(&fit, device_stream());
}

enum terse_status window_seal(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    cudaError_t result = cudaSuccess;
    if (!plan->seal) return TERSE_OK;
    if (cache_fit_pending(&cache->base)) result = learn_first_page(cache);
    if (plan->ready && result == cudaSuccess) result = cudaStreamWaitEvent(device_stream(), cache->encoded_ahead, 0);
    enum terse_status status = device_check(result, "waiting for encoded pages", error);
    if (status || plan->ready == plan->seal) return status;
    return encode_window(cache, cache->base.pages.n_sealed + plan->ready, plan->seal - plan->ready, device_stream(), error);
}

enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error) {
    size_t first = cache->base.pages.n_sealed + cache->base.n_ahead, n = 0;
    bool busy = cache->base.n_ahead > 0;
    while (cache_next_ahead(cache)) n++;
    if (!n) return TERSE_OK;
    /* The items are one list, which the background stream reads: it must have encoded those before. */
    if (busy) cudaEventSynchronize(cache->encoded_ahead);
    enum terse_status status = encode_window(cache, first, n, device_background(), error);
    if (!status) status = device_check(cudaEventRecord(cache->encoded_ahead, device_background()), "encoding pages", error);
    if (status) cache->base.n_ahead -= n;
    return status;
}

void window_wait_ahead(struct cache *cache) {
    if (cache->base.n_ahead) cudaEventSynchronize(cache->encoded_ahead);
}
