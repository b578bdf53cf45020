/* Places of pages, and the window's memory. */
#include "backend/cpu/kv/page_pool.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

enum terse_status pool_set_places(struct cache *cache, struct terse_error *error) {
    cache->places = memory_array(heads(cache), sizeof *cache->places);
    if (!cache->places) return status_no_memory(error, heads(cache) * sizeof *cache->places, "the KV cache's page sizes");
    cache->page_set_bytes = page_places_set(&cache->shape, &cache->method, cache->index_page_bytes, cache->places);
    for (size_t i = 0; i < heads(cache); i++)
        for (size_t side = 0; side < 2; side++)
            cache->largest_page[side] = larger(cache->largest_page[side], cache->places[i].bytes[side]);
    return TERSE_OK;
}

uint64_t page_bytes_of_layer(const struct cache *cache, uint32_t layer) {
    uint64_t bytes = 0;
    for (uint32_t head = 0; head < cache->shape.kv_heads; head++) {
        const struct page_place *place = page_place(cache, layer, head);
        bytes += place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES];
    }
    return bytes;
}

void pool_drop_page_sets(struct cache *cache, size_t first, size_t n) {
    if (!n) return;
    page_table_drop(&cache->pages, first, n);
    cache->selection.candidates = cache->selection.dense = 0; /* they are numbers of page sets */
}

/* ---- The window */

enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_window_sets) return TERSE_OK;
    size_t bytes = 2 * cache->window_page_bytes, done = cache->n_window_sets;
    static const char what[] = "the KV cache's recent window";
    uint8_t **window_sets = budget_array(cache->budget, n, sizeof *window_sets, what, error);
    if (!window_sets) return TERSE_E_MEMORY;
    if (done) memcpy(window_sets, cache->window_sets, done * sizeof *window_sets);
    for (; done < n; done++)
        if (!(window_sets[done] = budget_array(cache->budget, heads(cache), bytes, what, error))) goto refused;
    budget_free(cache->budget, cache->window_sets, cache->n_window_sets * sizeof *window_sets);
    cache->window_sets = window_sets;
    cache->n_window_sets = n;
    return TERSE_OK;
refused:
    for (size_t i = cache->n_window_sets; i < done; i++) budget_free(cache->budget, window_sets[i], heads(cache) * bytes);
    budget_free(cache->budget, window_sets, n * sizeof *window_sets);
    return TERSE_E_MEMORY;
}

void pool_free(struct cache *cache) {
    page_table_free(&cache->pages);
    size_t window = heads(cache) * 2 * cache->window_page_bytes;
    for (size_t i = 0; i < cache->n_window_sets; i++) budget_free(cache->budget, cache->window_sets[i], window);
    budget_free(cache->budget, cache->window_sets, cache->n_window_sets * sizeof *cache->window_sets);
    budget_free(cache->budget, cache->places, heads(cache) * sizeof *cache->places);
}
