/* Sums shares over tokens. */
#include "kv/token_shares.h"

#include <stddef.h>

static uint64_t part_begin(const struct token_map *map, size_t i) { return i * map->length / map->n; }

static size_t part_of(const struct token_map *map, uint64_t token) {
    size_t i = (size_t)(token * map->n / map->length);
    while (part_begin(map, i + 1) <= token) i++;
    return i;
}

void token_map_add(const struct token_map *map, size_t offset, uint64_t begin, uint64_t end, double share) {
    for (uint64_t at = begin; at < end;) {
        size_t i = part_of(map, at);
        uint64_t part_end = part_begin(map, i + 1), stop = end < part_end ? end : part_end;
        float *to = (float *)((char *)&map->shares[i] + offset);
        *to += (float)(share * (double)(stop - at) / (double)(part_end - part_begin(map, i)));
        at = stop;
    }
}

void token_map_end(const struct token_map *map) {
    for (size_t i = 0; i < map->n; i++)
        if (part_begin(map, i) < part_begin(map, i + 1))
            map->shares[i].evicted = 1 - map->shares[i].exact - map->shares[i].compressed;
}
