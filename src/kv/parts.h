/* The cache of a whole model, in one or two parts.
 *
 * Where some layers slide and others do not, there are two caches, each with positions, plan and pages of its own: the first is
 * that of the layers that see everything, with the method as it is; the second that of the layers that slide, with the method's
 * codecs (method_of_window), which gives back the pages that no query will see any more. Where all layers are alike there is one
 * cache.
 *
 * A cache is the first part, and cache_base.next the second one. The functions below are all that is done with a cache between
 * steps, on every backend, by way of its kv_storage; cache_length and cache_prompt_part (cache.h) are the first part's. */
#ifndef TERSE_KV_PARTS_H
#define TERSE_KV_PARTS_H

#include "kv/cache.h"

/* Returns TERSE_OK if caches of this shape and method can be made; TERSE_E_UNSUPPORTED says why not. */
enum terse_status parts_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                                 struct terse_error *error);
/* Predicts what parts_report will say after a prefill of `tokens` tokens into a new cache; allocates nothing. */
void parts_predict(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report);

/* Returns the part that has a layer, by the layer's number in the model, and writes its number in that part; NULL: the cache has no
 * such layer. */
struct cache *parts_of_layer(struct cache *cache, uint32_t number, uint32_t *layer);
/* Returns whether one of several ranks can attend for some of the queries of a step in progress without the others, in the layer of this number in
 * the model: it has all tokens there (kv/deal.h), and no anchors are chosen by how all queries attend. */
bool parts_attends_alone(struct cache *cache, uint32_t number);

/* Makes a cache that `threads` threads work on. It copies `shape` and `method`; what they point to outlives the cache. */
enum terse_status parts_create(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                               uint32_t threads, struct cache **cache, struct terse_error *error);
/* Makes a new cache, and its forks, take from a budget what reports call resident. The budget outlives them; calls that would take
 * more than is left fail with TERSE_E_MEMORY. */
enum terse_status parts_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error);
void parts_destroy(struct cache *cache); /* accepts NULL */
void parts_reset(struct cache *cache);   /* forgets all tokens, keeps the memory */
/* Returns the newest length, at most n, to which the states of recurrent layers can be taken back; without such layers n. */
uint64_t parts_restorable(const struct cache *cache, uint64_t n);
/* Forgets the tokens from the n-th on, between steps; n is at most the length, and restorable. TERSE_E_UNSUPPORTED where the cache
 * cannot. parts_check_truncate returns the same without truncating. */
enum terse_status parts_truncate(struct cache *cache, uint64_t n, struct terse_error *error);
enum terse_status parts_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error);
/* Returns how many of the first n tokens this sequence can share with another one that begins alike and has a prompt of `prompt` > n
 * tokens. The two can share tokens in pages that do not depend on what came after them, before the window of the other sequence.
 * They can share all n if these end in this sequence's window and such a prompt would have left no more tokens in its own window.
 * Returns n if n is the length; otherwise at least a page, or 0. */
uint64_t parts_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt);
/* Makes a second cache of the same sequence, between steps; the two share what does not change. */
enum terse_status parts_fork(const struct cache *cache, struct cache **copy, struct terse_error *error);

/* parts_wants_residual returns whether the cache needs the size of the residual stream in the step that was begun;
 * parts_note_residual, called before commit, gives it: `sum` is that of log2 of the mean squares of `tokens` hidden states as they
 * enter a layer, by its number in the model, each rounded to units of RESIDUAL_UNIT (fitted.h). */
bool parts_wants_residual(const struct cache *cache);
void parts_note_residual(struct cache *cache, uint32_t layer, int64_t sum, size_t tokens);

/* parts_save writes, between steps, the sections of a saved state from STATE_CACHE on, the same bytes on all backends; the writer
 * keeps failures. parts_load reads them into a new cache of the same shape, method and codebook, which becomes an owner of the file
 * where it leaves pages in it; after a failure the cache is to be destroyed. */
void parts_save(const struct cache *cache, struct state_writer *writer);
/* Where pages are dealt to ranks, parts_save gathers them, while every other rank gives its own by parts_save_share. What fails on one of
 * them fails on rank 0. */
void parts_save_share(const struct cache *cache);
enum terse_status parts_load(struct cache *cache, struct state_file *file, struct terse_error *error);

void parts_report(const struct cache *cache, struct terse_cache_report *report);       /* what is allocated now */
void parts_map(const struct cache *cache, struct terse_token_share *shares, size_t n); /* as terse_session_map */
void parts_counters(struct cache *cache, struct cache_counters *counters, bool clear);

#endif
