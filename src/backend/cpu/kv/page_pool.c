/* Growing the pool of pages, and giving it back. */
#include "backend/cpu/kv/page_pool.h"

#include "base/memory.h"
#include "format/transform.h"

#include <string.h>

#define GROWTH 64      /* generation allocates in advance at most this part of the page sets that there are ... */
#define GROWTH_MOST 16 /* ... and never more than these */

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

/* ---- Sizes */

struct page_place page_place_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    struct page_place place = {0};
    for (size_t i = 0; i < 2; i++) {
        const struct codec *codec = sides[i] == CODEC_KEYS ? method->key.codec : method->value.codec;
        struct codec_shape seen = method_shape(method, sides[i], layer, head, shape->head_dim, 1);
        place.bytes[sides[i]] = codec_page_bytes(codec, seen, sides[i]);
    }
    return place;
}

/* Whether bits of this side are shared over the model and nobody has looked yet who gets them. */
static bool unshared(const struct method *method, enum codec_side side) {
    return (side == CODEC_KEYS ? method->key.rate : method->value.rate) > 0 && !method->layouts;
}

/* The pages of such sides, which their sum is known of. */
static uint64_t unshared_bytes(const struct cache_shape *shape, const struct method *method) {
    size_t sets = (size_t)shape->layers * shape->kv_heads;
    bool keys = unshared(method, CODEC_KEYS), values = unshared(method, CODEC_VALUES);
    double key = method->key.rate, value = method->value.rate;
    if (keys && values && !(key < value) && !(key > value)) return transform_shared_page_bytes(2 * sets, shape->head_dim, key);
    return (keys ? transform_shared_page_bytes(sets, shape->head_dim, key) : 0) +
           (values ? transform_shared_page_bytes(sets, shape->head_dim, value) : 0);
}

uint64_t page_set_bytes_of(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes) {
    uint64_t bytes = unshared_bytes(shape, method);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            struct page_place place = page_place_of(shape, method, layer, head);
            if (!unshared(method, CODEC_KEYS)) bytes += place.bytes[CODEC_KEYS];
            if (!unshared(method, CODEC_VALUES)) bytes += place.bytes[CODEC_VALUES];
            bytes += index_page_bytes;
        }
    }
    return bytes;
}

enum terse_status pool_set_places(struct cache *cache, struct terse_error *error) {
    uint32_t kv_heads = cache->shape.kv_heads;
    cache->places = memory_array(heads(cache), sizeof *cache->places);
    if (!cache->places) return status_no_memory(error, heads(cache) * sizeof *cache->places, "the KV cache's page sizes");
    for (size_t i = 0; i < heads(cache); i++) {
        struct page_place place = page_place_of(&cache->shape, &cache->method, (uint32_t)(i / kv_heads), (uint32_t)(i % kv_heads));
        place.offset = cache->page_set_bytes;
        cache->places[i] = place;
        cache->page_set_bytes += place.bytes[CODEC_KEYS] + place.bytes[CODEC_VALUES] + cache->index_page_bytes;
        for (size_t side = 0; side < 2; side++) cache->largest_page[side] = larger(cache->largest_page[side], place.bytes[side]);
    }
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

/* ---- Memory */

enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_page_sets) return TERSE_OK;
    size_t more = n - cache->n_page_sets, ahead = cache->n_page_sets / GROWTH;
    if (ahead > GROWTH_MOST) ahead = GROWTH_MOST;
    if (more < ahead) more = ahead;
    size_t bytes = cache->page_set_bytes, total = cache->n_page_sets + more;
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
    memory_free(cache->places);
}
