/* The memory of pages: page sets of sealed tokens and of the recent window, and where a page lies in them.
 *
 * A prompt takes one chunk of as many page sets as it seals; generation adds chunks of at most a 64th of what there is. Caches that
 * were forked from one another share sealed page sets, which do not change, and count who holds them; one thread at a time works on
 * all caches of a pool. Window pages are allocated one page set at a time and hold rows in the layout of codec f16, zeros where there are no tokens.
 */
#ifndef TERSE_BACKEND_CPU_KV_PAGE_POOL_H
#define TERSE_BACKEND_CPU_KV_PAGE_POOL_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

/* What the pages of a layer and KV head take, but for the offset: every size of a page in a cache comes from here. */
struct page_place page_place_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head);
/* Bytes of all pages of a page set, with index pages of so many bytes. */
uint64_t page_set_bytes_of(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes);
/* Fills in cache->places and what follows from them; index_page_bytes is set. */
enum terse_status pool_set_places(struct cache *cache, struct terse_error *error);

/* A pool for a new cache. */
enum terse_status pool_new(struct cache *cache, struct terse_error *error);
/* Memory for `n` page sets in all, sealed or of the window. On failure what was there stays as it was. Page sets that nobody holds any
 * more are taken before new ones are made. */
enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error);
/* The sealed page sets [first, first + n) hold nothing of the sequence any more: they become free ones behind the others, or, where another
 * cache holds them too, are let go. */
void pool_drop_page_sets(struct cache *cache, size_t first, size_t n);
/* A cache without page sets holds the sealed ones of `from` and belongs to its pool. */
enum terse_status pool_share_page_sets(struct cache *cache, const struct cache *from, struct terse_error *error);
/* A cache without page sets holds `n` whose pages lie in a file, `memory` being laid out as a chunk is. Their pages stay there. */
enum terse_status pool_map_page_sets(struct cache *cache, struct state_file *file, const uint8_t *memory, size_t n,
                                     struct terse_error *error);
enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error);
/* Of the page sets that the cache holds, those that others hold too. */
size_t pool_shared_page_sets(const struct cache *cache);
void pool_free(struct cache *cache);

static inline size_t layer_head(const struct cache *cache, uint32_t layer, uint32_t head) {
    return (size_t)layer * cache->shape.kv_heads + head;
}

static inline const struct page_place *page_place(const struct cache *cache, uint32_t layer, uint32_t head) {
    return &cache->places[layer_head(cache, layer, head)];
}

/* Bytes of a layer's pages of one page set, over all KV heads, without those of an index. */
uint64_t page_bytes_of_layer(const struct cache *cache, uint32_t layer);

/* The page of one side, layer and head. */
static inline uint8_t *page_at(const struct cache *cache, const struct page_set *set, enum codec_side side, uint32_t layer,
                               uint32_t head) {
    const struct page_place *place = page_place(cache, layer, head);
    uint8_t *pages = set->chunk + set->chunk_sets * (place->offset + (side == CODEC_KEYS ? 0 : place->bytes[CODEC_KEYS]));
    return pages + set->index * place->bytes[side];
}

/* The index's page, where it has one of its own. */
static inline uint8_t *own_index_page(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head) {
    const struct page_place *place = page_place(cache, layer, head);
    size_t before = place->offset + place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES];
    return set->chunk + set->chunk_sets * before + set->index * cache->index_page_bytes;
}

/* The key page in memory of a window's page set; the value page follows it. */
static inline uint8_t *window_keys(const struct cache *cache, const uint8_t *memory, uint32_t layer, uint32_t head) {
    return (uint8_t *)memory + layer_head(cache, layer, head) * 2 * cache->window_page_bytes;
}
static inline uint8_t *window_page(const struct cache *cache, const uint8_t *memory, enum codec_side side, uint32_t layer,
                                   uint32_t head) {
    return window_keys(cache, memory, layer, head) + (side == CODEC_VALUES ? cache->window_page_bytes : 0);
}

/* Exact rows [parameters.exact][hd] of the keys; those of the values follow. */
static inline uint16_t *exact_rows(const struct cache *cache, uint32_t layer, uint32_t head) {
    return cache->exact + layer_head(cache, layer, head) * 2 * cache->method.parameters.exact * cache->shape.head_dim;
}

#endif
