/* Describes a side (keys or values) of a layer and KV head: the codec that serves it, what this codec has learned, offline or from
 * this sequence, and the index that finds tokens worth reading. */
#ifndef TERSE_BACKEND_CPU_KV_SIDE_H
#define TERSE_BACKEND_CPU_KV_SIDE_H

#include "backend/cpu/kv/page_pool.h"

static inline const struct cpu_codec *side_codec(const struct cache *cache, enum codec_side side) { return cache->codec[side]; }

/* Returns what was learned of this sequence: the codecs' parts by side, followed by the index's. */
static inline uint8_t *fitted_data(const struct cache *cache, uint32_t layer, uint32_t head) {
    return cache->fitted ? cache->fitted + layer_head(cache, layer, head) * cache->fitted_bytes : NULL;
}

/* Returns the side whose pages hold these rows: keys, where they end with the values. */
static inline enum codec_side side_stored(const struct cache *cache, enum codec_side side) {
    return cache->base.shape.latents ? CODEC_KEYS : side;
}

/* Returns the shape that describes one side of a layer and head to its codec, for `rows` queries that read it together. */
static inline struct codec_shape side_shape(const struct cache *cache, enum codec_side side, uint32_t layer, uint32_t head,
                                            size_t rows) {
    const uint32_t number = cache_shape_number(&cache->base.shape, layer), slices = cache->base.method.slices;
    side = side_stored(cache, side);
    struct codec_shape shape = method_shape(&cache->base.method, side, number, head, cache->base.shape.head_dim, (uint32_t)rows);
    shape.learned = slices ? cpu_codebook_learned_slices(cache->codebook, side, number, head, slices)
                           : cpu_codebook_learned(cache->codebook, side, number, head);
    shape.fitted = fitted_record(&cache->base, layer, head * method_slices(&cache->base.method), side);
    if (cache->fitted_side_bytes[side])
        shape.fitted = fitted_data(cache, layer, head) + (side == CODEC_KEYS ? 0 : cache->fitted_side_bytes[CODEC_KEYS]);
    return shape;
}

/* Does the same for pages of a rate (kv/rates.h). */
static inline struct codec_shape side_shape_at(const struct cache *cache, uint32_t rate, enum codec_side side, uint32_t layer,
                                               uint32_t head, size_t rows) {
    struct codec_shape shape = side_shape(cache, side, layer, head, rows);
    if (!rate) return shape;
    const struct method method = rates_method(&cache->base, rate);
    const uint32_t number = cache_shape_number(&cache->base.shape, layer);
    shape.layout = method_shape(&method, side_stored(cache, side), number, head, shape.head_dim, shape.group).layout;
    return shape;
}

/* Returns the mean before rotation of a layer and head's keys, which their pages leave out; NULL: their pages hold the whole
 * key. */
static inline const float *side_pre_rope_mean(const struct cache *cache, uint32_t layer, uint32_t head) {
    if (!cache->positions.pre_rope.pairs) return NULL;
    return cache->codec[CODEC_KEYS]->pre_rope_mean(side_shape(cache, CODEC_KEYS, layer, head, 1));
}

/* Returns the shape of pages of the window, whose codec is f16. */
static inline struct codec_shape window_shape(const struct cache *cache, size_t rows) {
    return (struct codec_shape){.head_dim = cache->base.shape.head_dim, .group = (uint32_t)rows};
}

/* Returns what the index has learned. */
static inline uint8_t *index_learned(const struct cache *cache, uint32_t layer, uint32_t head) {
    size_t codecs = cache->fitted_side_bytes[CODEC_KEYS] + cache->fitted_side_bytes[CODEC_VALUES];
    uint8_t *fitted = fitted_data(cache, layer, head);
    return fitted && !cache->index_in_keys ? fitted + codecs : fitted;
}

/* Returns the index's page of 64 tokens. */
static inline const uint8_t *index_page(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head) {
    return cache->index_in_keys ? page_at(cache, set, CODEC_KEYS, layer, head) : own_index_page(cache, set, layer, head);
}

#endif
