/* Growing the pool of pages, and giving it back. */
#include "backend/cpu/kv/page_pool.h"

#include "base/memory.h"

#include <string.h>

#define GROWTH 32      /* generation allocates in advance at most this part of the page sets that there are ... */
#define GROWTH_MOST 16 /* ... and never more than these */

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_page_sets) return TERSE_OK;
    size_t more = n - cache->n_page_sets, ahead = cache->n_page_sets / GROWTH;
    if (ahead > GROWTH_MOST) ahead = GROWTH_MOST;
    if (more < ahead) more = ahead;
    size_t bytes = heads(cache) * (cache->key_page_bytes + cache->value_page_bytes + cache->index_page_bytes),
           total = cache->n_page_sets + more;
    struct page_set *page_sets = memory_array(total, sizeof *page_sets);
    uint8_t *chunk = memory_array(more, bytes);
    if (!page_sets || !chunk || more > UINT32_MAX) {
        memory_free(page_sets);
        memory_free(chunk);
        return status_no_memory(error, (uint64_t)more * bytes, "the KV cache");
    }
    if (cache->n_page_sets) memcpy(page_sets, cache->page_sets, cache->n_page_sets * sizeof *page_sets);
    for (size_t i = 0; i < more; i++)
        page_sets[cache->n_page_sets + i] = (struct page_set){.chunk = chunk, .chunk_sets = (uint32_t)more, .index = (uint32_t)i};
    memory_free(cache->page_sets);
    cache->page_sets = page_sets;
    cache->n_page_sets = total;
    return TERSE_OK;
}

enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_window_sets) return TERSE_OK;
    size_t bytes = 2 * cache->window_page_bytes, done = cache->n_window_sets;
    uint8_t **window_sets = memory_array(n, sizeof *window_sets);
    if (!window_sets) goto refused;
    if (done) memcpy(window_sets, cache->window_sets, done * sizeof *window_sets);
    for (; done < n; done++)
        if (!(window_sets[done] = memory_array(heads(cache), bytes))) goto refused;
    memory_free(cache->window_sets);
    cache->window_sets = window_sets;
    cache->n_window_sets = n;
    return TERSE_OK;
refused:
    for (size_t i = cache->n_window_sets; window_sets && i < done; i++) memory_free(window_sets[i]);
    memory_free(window_sets);
    return status_no_memory(error, (uint64_t)(n - cache->n_window_sets) * heads(cache) * bytes, "the KV cache's recent window");
}

void pool_free(struct cache *cache) {
    for (size_t i = 0; i < cache->n_page_sets; i++)
        if (cache->page_sets[i].index == 0) memory_free(cache->page_sets[i].chunk);
    for (size_t i = 0; i < cache->n_window_sets; i++) memory_free(cache->window_sets[i]);
    memory_free(cache->page_sets);
    memory_free(cache->window_sets);
}
