/* What a cache learns of its own sequence: codecs of keys and indexes that fit themselves to the first tokens that are sealed, for each
 * layer and KV head (codec.h, index.h); and the index of a page, encoded when it is sealed. */
#ifndef TERSE_BACKEND_CPU_KV_FIT_H
#define TERSE_BACKEND_CPU_KV_FIT_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"

#define FIT_ROWS 4096 /* keys of a layer and head that are fitted to, where they must be rotated first */

/* How the index of a method lies in its cache. */
struct index_layout {
    bool in_keys;      /* its page is the beginning of the page of keys, and what it learns of what the codec learns */
    size_t page_bytes; /* of a page beside that of the keys */
};
struct index_layout fit_index_layout(const struct method *method, uint32_t head_dim);

/* Bytes that one layer and KV head learns: the codec of keys' part, and all. */
size_t fit_key_bytes(const struct method *method, uint32_t head_dim);
size_t fit_bytes(const struct method *method, uint32_t head_dim);

/* Whether the cache still has to learn, from the first pages that are sealed. */
static inline bool fit_pending(const struct cache *cache) { return cache->fitted_bytes && !cache->fitted_ready; }

/* Memory for the plan's step, where it fits; given back once it did. */
enum terse_status fit_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);
void fit_release(struct cache *cache);

/* Fits the current layer and a KV head to those of the step's sealed tokens that are new, or where they are few to the first page's,
 * rows[64][hd]. */
void fit_head(struct cache *cache, uint32_t head, const float *rows);

/* Encodes the index of a page from its keys rows[n][hd] as the codec takes them, where it has a page of its own; scratch[64][hd]. */
void fit_encode_index(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head, const float *rows,
                      size_t n, float *scratch);

#endif
