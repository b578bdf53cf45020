/* Shares of tokens, from what lies where: exact rows, sealed pages, anchors, window. */
#include "backend/cpu/kv/token_map.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"
#include "kv/token_shares.h"

#include <stddef.h>
#include <string.h>

#define ADD(map, member, begin, end, share) token_map_add(map, offsetof(struct terse_token_share, member), begin, end, share)

/* Of a token in a sealed page, the part that is exact. */
static double exact_sides(const struct method *method) { return 0.5 * method->key.codec->exact + 0.5 * method->value.codec->exact; }

static void add_sealed(const struct cache *cache, double weight, const struct token_map *map) {
    double exact = exact_sides(&cache->method);
    for (size_t i = 0; i < cache->pages.n_sealed; i++) {
        const struct page_set *set = &cache->pages.sets[i];
        uint64_t end = set->first + set->count, begin = set->first < cache->extent.first ? cache->extent.first : set->first;
        ADD(map, exact, begin, end, weight * exact);
        ADD(map, compressed, begin, end, weight * (1 - exact));
    }
}

/* Anchors are exact in place of their codes, or are all that is left of a prompt. */
static void add_anchors(const struct cache *cache, double weight, const struct token_map *map) {
    const double share = 0.5 * weight / ((double)cache->shape.layers * cache->shape.kv_heads);
    const bool alone = cache->method.policy->keep_selected_only;
    struct cache at = *cache;
    for (at.layer = 0; at.layer < cache->shape.layers; at.layer++)
        for (uint32_t head = 0; head < cache->shape.kv_heads; head++)
            for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                struct anchor_range anchors = anchors_all(&at, (enum codec_side)side, head);
                for (size_t i = anchors.from; i < anchors.to; i++) {
                    uint64_t token = anchors.tokens[i];
                    if (!alone && token < cache->extent.first) continue; /* evicted with its page */
                    ADD(map, exact, token, token + 1, share);
                    if (!alone) ADD(map, compressed, token, token + 1, -share);
                }
            }
}

/* All that is there was read, but for what an index passed over. */
static void add_read(const struct cache *cache, double weight, const struct token_map *map) {
    const struct selection *selection = &cache->selection;
    for (size_t i = 0; i < map->n; i++) map->shares[i].read = map->shares[i].exact + map->shares[i].compressed;
    for (size_t i = 0; i < selection->candidates; i++) {
        const struct page_set *set = select_candidate(cache, i);
        ADD(map, read, set->first, set->first + set->count, weight * (select_share_read(cache, i) - 1));
    }
}

/* `weight`: the part's share of the layers. */
static void add_part(const struct cache *cache, double weight, const struct token_map *map) {
    const struct extent *extent = &cache->extent;
    ADD(map, exact, 0, extent->exact, weight);
    add_sealed(cache, weight, map);
    ADD(map, exact, extent->window_first > extent->first ? extent->window_first : extent->first, extent->length, weight);
    add_anchors(cache, weight, map);
}

void cache_map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    const struct token_map map = {shares, n, cache->extent.length};
    double own = (double)cache->shape.layers / (cache->shape.layers + (cache->next ? cache->next->shape.layers : 0));
    memset(shares, 0, n * sizeof *shares);
    if (!map.length || !n || cache->in_step) return;
    add_part(cache, own, &map);
    if (cache->next) add_part(cache->next, 1 - own, &map);
    add_read(cache, own, &map);
    token_map_end(&map);
}
