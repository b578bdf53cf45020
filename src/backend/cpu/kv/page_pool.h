/* Holds the pages of a cache and says where they lie: page sets of sealed tokens (kv/block_table.h), and the memory of the recent
 * window. Window pages are allocated one page set at a time and hold rows in the layout of codec f16, zeros where there are no
 * tokens. */
#ifndef TERSE_BACKEND_CPU_KV_PAGE_POOL_H
#define TERSE_BACKEND_CPU_KV_PAGE_POOL_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

/* Fills in base.rates and base.places and what follows from them; index_page_bytes is set. */
enum terse_status pool_set_places(struct cache *cache, struct terse_error *error);
/* Returns the bytes of base.places of a shape and method. */
size_t pool_places_bytes(const struct cache_shape *shape, const struct method *method);

/* Writes where pages lie with the method's present layouts. */
void pool_fill_places(struct cache *cache);

enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error);
/* Frees the memory, except for `n` pages, of a window that waited for its tokens to be fitted to. */
void pool_trim_window(struct cache *cache, size_t n);
void pool_free(struct cache *cache);

static inline size_t layer_head(const struct cache *cache, uint32_t layer, uint32_t head) {
    return (size_t)layer * cache->base.shape.kv_heads + head;
}

static inline const struct page_address *page_address(const struct cache *cache, uint32_t layer, uint32_t head) {
    return &cache->base.places[layer_head(cache, layer, head)];
}
/* Does the same for pages of a rate (kv/rates.h). */
static inline const struct page_address *page_address_at(const struct cache *cache, uint32_t rate, uint32_t layer, uint32_t head) {
    return page_address(cache, layer, head) + rate * cache_heads_of(&cache->base.shape);
}

/* Returns the bytes of a layer's pages of one page set, over all KV heads, without those of an index. */
uint64_t page_bytes_of_layer(const struct cache *cache, uint32_t layer);
uint64_t page_bytes_of_layer_at(const struct cache *cache, uint32_t rate, uint32_t layer);

/* Returns the page of one side, layer and head. */
static inline uint8_t *page_at(const struct cache *cache, const struct page_set *set, enum codec_side side, uint32_t layer,
                               uint32_t head) {
    return page_set_page(set, page_address_at(cache, set->rate, layer, head), side);
}

/* Returns the index's page, where it has one of its own. */
static inline uint8_t *own_index_page(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head) {
    const struct page_address *place = page_address_at(cache, set->rate, layer, head);
    size_t before = place->offset + place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES];
    return set->chunk + set->chunk_sets * before + set->index * cache->base.index_page_bytes;
}

/* Returns the bytes of a window's pages of a layer and KV head. */
static inline size_t window_bytes(const struct cache *cache) {
    return cache_sides_of(&cache->base.shape) * cache->window_page_bytes;
}
/* Returns the key page in memory of a window's page set; the value page, if there is one, follows it. */
static inline uint8_t *window_keys(const struct cache *cache, const uint8_t *memory, uint32_t layer, uint32_t head) {
    return (uint8_t *)memory + layer_head(cache, layer, head) * window_bytes(cache);
}
static inline uint8_t *window_page(const struct cache *cache, const uint8_t *memory, enum codec_side side, uint32_t layer,
                                   uint32_t head) {
    return window_keys(cache, memory, layer, head) + (side == CODEC_VALUES ? cache->window_page_bytes : 0);
}

/* Returns the exact rows [parameters.exact][hd] of the keys; those of the values, if there are any, follow. */
static inline uint16_t *exact_rows(const struct cache *cache, uint32_t layer, uint32_t head) {
    return cache->exact + layer_head(cache, layer, head) * cache_sides_of(&cache->base.shape) *
                              cache->base.method.parameters.exact * cache->base.shape.head_dim;
}

#endif
