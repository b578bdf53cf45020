/* Decodes pages by the layout of one rate and encodes them by that of another. The rows stay as pages hold them, keys rotated by their
 * place in a rope run and without their mean before rotation. */
#include "backend/cpu/kv/lower.h"

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/side.h"

static void lower_side(const struct cache *cache, const struct page_set *from, const struct page_set *to, uint32_t layer,
                       uint32_t head, enum codec_side side) {
    const struct cpu_codec *codec = side_codec(cache, side);
    float rows[PAGE_TOKENS * CODEC_ROW_MAX];
    codec->decode(side_shape_at(cache, from->rate, side, layer, head, 1), side, page_at(cache, from, side, layer, head), rows);
    codec->encode(side_shape_at(cache, to->rate, side, layer, head, 1), side, rows, PAGE_TOKENS,
                  page_at(cache, to, side, layer, head));
}

enum terse_status lower_pages(struct cache *cache, const struct page_set *from, const struct page_set *to) {
    const uint32_t heads = cache->base.shape.kv_heads, sides = cache_sides_of(&cache->base.shape);
#pragma omp parallel for schedule(dynamic, 1) num_threads(cache->base.threads)
    for (size_t i = 0; i < sides * cache_heads_of(&cache->base.shape); i++)
        lower_side(cache, from, to, (uint32_t)(i / sides / heads), (uint32_t)(i / sides % heads),
                   i % sides ? CODEC_VALUES : CODEC_KEYS);
    return TERSE_OK;
}
