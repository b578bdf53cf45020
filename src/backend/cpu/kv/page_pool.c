/* Computes the places of pages, and allocates the window's memory. */
#include "backend/cpu/kv/page_pool.h"

#include "base/memory.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

size_t pool_places_bytes(const struct cache_shape *shape, const struct method *method) {
    double bits[METHOD_RATES];
    return method_rates(method, bits) * cache_heads_of(shape) * sizeof(struct page_address);
}

enum terse_status pool_set_places(struct cache *cache, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    enum terse_status status = rates_init(base, error);
    if (status) return status;
    struct page_address *places = memory_array(base->rates.n * cache_heads_of(&base->shape), sizeof *places);
    if (!places) return status_no_memory(error, pool_places_bytes(&base->shape, &base->method), "the KV cache's page sizes");
    base->places = places;
    base->page_set_bytes = base->rates.page_set_bytes[0];
    pool_fill_places(cache);
    return TERSE_OK;
}

void pool_fill_places(struct cache *cache) {
    struct page_address *places = (struct page_address *)(void *)cache->base.places;
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++) {
        const struct method method = rates_method(&cache->base, rate);
        page_addresses_set(&cache->base.shape, &method, cache->base.index_page_bytes,
                           places + rate * cache_heads_of(&cache->base.shape));
    }
    for (size_t side = 0; side < 2; side++) cache->largest_page[side] = 0;
    for (size_t i = 0; i < cache_heads_of(&cache->base.shape); i++)
        for (size_t side = 0; side < 2; side++)
            cache->largest_page[side] = size_max(cache->largest_page[side], places[i].bytes[side]);
}

uint64_t page_bytes_of_layer(const struct cache *cache, uint32_t layer) { return page_bytes_of_layer_at(cache, 0, layer); }

uint64_t page_bytes_of_layer_at(const struct cache *cache, uint32_t rate, uint32_t layer) {
    uint64_t bytes = 0;
    for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
        const struct page_address *place = page_address_at(cache, rate, layer, head);
        bytes += place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES];
    }
    return bytes;
}

/* ---- The window */

enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_window_sets) return TERSE_OK;
    size_t bytes = window_bytes(cache), done = cache->n_window_sets;
    static const char what[] = "the KV cache's recent window";
    uint8_t **window_sets = budget_array(cache->base.budget, n, sizeof *window_sets, what, error);
    if (!window_sets) return TERSE_E_MEMORY;
    if (done) memcpy(window_sets, cache->window_sets, done * sizeof *window_sets);
    for (; done < n; done++)
        if (!(window_sets[done] = budget_array(cache->base.budget, cache_heads_of(&cache->base.shape), bytes, what, error)))
            goto refused;
    budget_free(cache->base.budget, cache->window_sets, cache->n_window_sets * sizeof *window_sets);
    cache->window_sets = window_sets;
    cache->n_window_sets = n;
    return TERSE_OK;
refused:
    for (size_t i = cache->n_window_sets; i < done; i++)
        budget_free(cache->base.budget, window_sets[i], cache_heads_of(&cache->base.shape) * bytes);
    budget_free(cache->base.budget, window_sets, n * sizeof *window_sets);
    return TERSE_E_MEMORY;
}

void pool_trim_window(struct cache *cache, size_t n) {
    const size_t most = 2 * (cache->base.method.tail_tokens / PAGE_TOKENS + 2), kept = size_max(n, 1);
    if (!cache->base.fitted.layouts || cache->n_window_sets <= size_max(most, kept)) return;
    const size_t bytes = cache_heads_of(&cache->base.shape) * window_bytes(cache);
    uint8_t **sets = memory_array(kept, sizeof *sets); /* counted below, when there is room for certain */
    if (!sets) return;                                 /* the window stays as large */
    memcpy(sets, cache->window_sets, kept * sizeof *sets);
    for (size_t i = kept; i < cache->n_window_sets; i++) budget_free(cache->base.budget, cache->window_sets[i], bytes);
    budget_free(cache->base.budget, cache->window_sets, cache->n_window_sets * sizeof *sets);
    (void)budget_take(cache->base.budget, kept * sizeof *sets, "the KV cache's recent window", NULL);
    cache->window_sets = sets;
    cache->n_window_sets = kept;
}

void pool_free(struct cache *cache) {
    cache_base_free(&cache->base);
    size_t window = cache_heads_of(&cache->base.shape) * window_bytes(cache);
    for (size_t i = 0; i < cache->n_window_sets; i++) budget_free(cache->base.budget, cache->window_sets[i], window);
    budget_free(cache->base.budget, cache->window_sets, cache->n_window_sets * sizeof *cache->window_sets);
    budget_free(cache->base.budget, (void *)cache->base.places, pool_places_bytes(&cache->base.shape, &cache->base.method));
}
