/* Shares of tokens, from what lies where: exact rows, sealed pages, anchors, window. */
#include "backend/cpu/kv/token_map.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"

#include <stddef.h>
#include <string.h>

/* The sequence in n parts, of `length` tokens together. */
struct map {
    struct terse_token_share *shares;
    size_t n;
    uint64_t length;
};

static uint64_t part_begin(const struct map *map, size_t i) { return i * map->length / map->n; }

static size_t part_of(const struct map *map, uint64_t token) {
    size_t i = (size_t)(token * map->n / map->length);
    while (part_begin(map, i + 1) <= token) i++;
    return i;
}

/* Adds `share` of each token of [begin, end) to a member of its part's shares, `offset` bytes into them. */
static void add(const struct map *map, size_t offset, uint64_t begin, uint64_t end, double share) {
    for (uint64_t at = begin; at < end;) {
        size_t i = part_of(map, at);
        uint64_t part_end = part_begin(map, i + 1), stop = end < part_end ? end : part_end;
        float *to = (float *)((char *)&map->shares[i] + offset);
        *to += (float)(share * (double)(stop - at) / (double)(part_end - part_begin(map, i)));
        at = stop;
    }
}

#define ADD(map, member, begin, end, share) add(map, offsetof(struct terse_token_share, member), begin, end, share)

/* Of a token in a sealed page, the part that is exact. */
static double exact_sides(const struct method *method) { return 0.5 * method->key.codec->exact + 0.5 * method->value.codec->exact; }

static void add_sealed(const struct cache *cache, const struct map *map) {
    double exact = exact_sides(&cache->method);
    for (size_t i = 0; i < cache->pages.n_sealed; i++) {
        const struct page_set *set = &cache->pages.sets[i];
        uint64_t end = set->first + set->count, begin = set->first < cache->extent.first ? cache->extent.first : set->first;
        ADD(map, exact, begin, end, exact);
        ADD(map, compressed, begin, end, 1 - exact);
    }
}

/* Anchors are exact in place of their codes, or are all that is left of a prompt. */
static void add_anchors(const struct cache *cache, const struct map *map) {
    const double share = 0.5 / ((double)cache->shape.layers * cache->shape.kv_heads);
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
static void add_read(const struct cache *cache, const struct map *map) {
    const struct selection *selection = &cache->selection;
    for (size_t i = 0; i < map->n; i++) map->shares[i].read = map->shares[i].exact + map->shares[i].compressed;
    for (size_t i = 0; i < selection->candidates; i++) {
        const struct page_set *set = select_candidate(cache, i);
        ADD(map, read, set->first, set->first + set->count, select_share_read(cache, i) - 1);
    }
}

void cache_map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    const struct extent *extent = &cache->extent;
    const struct map map = {shares, n, extent->length};
    memset(shares, 0, n * sizeof *shares);
    if (!extent->length || !n || cache->in_step) return;
    ADD(&map, exact, 0, extent->exact, 1);
    add_sealed(cache, &map);
    ADD(&map, exact, extent->window_first > extent->first ? extent->window_first : extent->first, extent->length, 1);
    add_anchors(cache, &map);
    add_read(cache, &map);
    for (size_t i = 0; i < n; i++)
        if (part_begin(&map, i) < part_begin(&map, i + 1)) shares[i].evicted = 1 - shares[i].exact - shares[i].compressed;
}
