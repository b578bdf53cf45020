/* Learns from the cache's own sequence, for each layer and KV head: transforms are fitted to the window's tokens before a step
 * seals the first of them; codecs and indexes fit themselves to the first tokens when these are sealed (codec.h, index.h). It also
 * encodes the index of a page when the page is sealed. */
#ifndef TERSE_BACKEND_CPU_KV_FIT_H
#define TERSE_BACKEND_CPU_KV_FIT_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/side.h"

/* The layout says where a cache holds the index of its method. */
struct index_layout {
    bool in_keys;      /* its page is the beginning of the page of keys, and what it learns of what the codec learns */
    size_t page_bytes; /* of a page beside that of the keys */
};
struct index_layout fit_index_layout(const struct method *method, uint32_t head_dim);

/* Reserves memory for the plan's step, where that fits something; it is freed once it did. */
enum terse_status fit_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);
void fit_release(struct cache *cache);

/* Fits sign's codec and indexes of the current layer and a KV head to the keys of those of the step's sealed tokens that are new, or where they are
 * few to the first page's, rows[64][hd]. */
void fit_head(struct cache *cache, uint32_t head, const float *rows);

/* Fits the transforms of all layers to the window's tokens, at the beginning of a step. A failure leaves nothing fitted. */
enum terse_status fit_transforms(struct cache *cache, struct terse_error *error);

/* Returns on how many tokens the fit depends, if the cache's first prompt has as many: transforms are fitted to the first
 * FIT_TOKENS alone, so that prompts that begin alike are fitted alike; codecs with signs and indexes to every row of a prompt. 0:
 * nothing is fitted. */
uint64_t fit_tokens(const struct cache *cache);

/* Encodes the index of a page from its keys rows[n][hd] as the codec takes them, where it has a page of its own; scratch[64][hd]. */
void fit_encode_index(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head, const float *rows,
                      size_t n, float *scratch);

#endif
