/* Stores anchors: rows of sealed tokens that stay exact. anchor_scores.h chooses which tokens they are. */
#ifndef TERSE_BACKEND_CPU_KV_ANCHORS_H
#define TERSE_BACKEND_CPU_KV_ANCHORS_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

/* Returns the bytes of an anchor of one side. */
static inline uint64_t anchor_bytes(uint32_t head_dim) { return sizeof(uint32_t) + head_dim * sizeof(uint16_t); }

/* Reserves memory for `capacity` anchors in all, per layer, KV head and side; those that are there stay. */
enum terse_status anchors_reserve(struct cache *cache, size_t capacity, struct terse_error *error);
void anchors_free(struct cache *cache);
/* Copies the anchors of another cache to one that has none. */
enum terse_status anchors_copy(struct cache *cache, const struct cache *from, struct terse_error *error);
/* Counts the anchors of tokens before `end`. Returns false if the layers, KV heads and sides differ in that number. */
bool anchors_before(const struct cache *cache, uint64_t end, size_t *n);

/* These give and take the piece CACHE_ANCHORS; the cache that takes it has no memory for any anchor yet. */
void anchors_export(const struct cache *cache, const struct cache_sink *sink);
enum terse_status anchors_import(struct cache *cache, const uint8_t *data, struct terse_error *error);

/* Stores the step's i-th anchor of one side of the current layer: a token that the step seals, whose row is still among the new ones
 * or in the window. */
void anchors_store(struct cache *cache, enum codec_side side, uint32_t head, size_t i, uint64_t token);

/* An anchor_rows is all anchors of one side of the current layer. */
struct anchor_rows {
    const uint32_t *tokens; /* [n], ascending */
    const uint16_t *rows;   /* [n][hd] */
    size_t n;
};
struct anchor_rows anchors_of(const struct cache *cache, enum codec_side side, uint32_t head);
/* Writes the i-th row in float. */
void anchor_row(const struct cache *cache, enum codec_side side, uint32_t head, size_t i, float *row);

/* anchors_list marks, in the read lists of the layer's KV heads, where they have their own, which tokens of pages are anchors,
 * whose rows are read in place of codes. anchors_list_in does so in a list of a head that has other pages than the shared one. */
void anchors_list(const struct cache *cache);
void anchors_list_in(const struct cache *cache, uint32_t head, struct read_list *list);

#endif
