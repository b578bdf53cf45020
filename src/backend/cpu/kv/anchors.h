/* Anchors: rows of sealed tokens that stay exact. This is their storage; anchor_scores.h chooses which tokens they are. */
#ifndef TERSE_BACKEND_CPU_KV_ANCHORS_H
#define TERSE_BACKEND_CPU_KV_ANCHORS_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

/* Bytes of an anchor of one side. */
static inline uint64_t anchor_bytes(uint32_t head_dim) { return sizeof(uint32_t) + head_dim * sizeof(uint16_t); }

/* Memory for `capacity` anchors in all, per layer, KV head and side; those that are there stay. */
enum terse_status anchors_reserve(struct cache *cache, size_t capacity, struct terse_error *error);
void anchors_free(struct cache *cache);
/* A cache without anchors gets those of another one. */
enum terse_status anchors_copy(struct cache *cache, const struct cache *from, struct terse_error *error);
/* Counts the anchors of tokens before `end`. Returns false if the layers, KV heads and sides differ in that number. */
bool anchors_before(const struct cache *cache, uint64_t end, size_t *n);

/* anchors_save writes the section STATE_ANCHORS. anchors_load reads from it `n` anchors of each layer, KV head and side into a cache that has no
 * memory for any. */
void anchors_save(const struct cache *cache, struct state_writer *writer);
enum terse_status anchors_load(struct cache *cache, size_t n, const struct state_file *file, struct terse_error *error);

/* Stores the step's i-th anchor of one side of the current layer: a token that the step seals, whose row is still among the new ones
 * or in the window. */
void anchors_store(struct cache *cache, enum codec_side side, uint32_t head, size_t i, uint64_t token);

/* Anchors of one side of the current layer: rows [from, to) of `tokens` and `rows`, all of them or those of tokens [first, end). */
struct anchor_range {
    const uint32_t *tokens; /* [.] */
    const uint16_t *rows;   /* [.][hd] */
    size_t from, to;
};
struct anchor_range anchors_all(const struct cache *cache, enum codec_side side, uint32_t head);
struct anchor_range anchors_between(const struct cache *cache, enum codec_side side, uint32_t head, uint64_t first, uint64_t end);
/* The i-th row, in float. */
void anchor_row(const struct anchor_range *anchors, size_t i, size_t head_dim, float *row);

#endif
