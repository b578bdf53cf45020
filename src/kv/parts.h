/* The cache of a whole model, in one or two parts.
 *
 * Where some layers slide and others do not, there are two caches, each with positions, plan and pages of its own: the first is
 * that of the layers that see everything, with the method as it is; the second that of the layers that slide, with the method's
 * codecs (method_of_window), which gives back the pages that no query will see any more. Where all layers are alike there is one
 * cache.
 *
 * The functions serve kv_ops of a backend whose steps can do with two parts (backend/backend.h), whose contract they have; a cache is the
 * first part, and cache_base.next the second. They make each call for one part or for both. */
#ifndef TERSE_KV_PARTS_H
#define TERSE_KV_PARTS_H

#include "kv/cache.h"

enum terse_status parts_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                                 struct terse_error *error);
void parts_predict(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report);
enum terse_status parts_create(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                               uint32_t threads, struct cache **cache, struct terse_error *error);
enum terse_status parts_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error);
void parts_destroy(struct cache *cache); /* accepts NULL */
void parts_reset(struct cache *cache);
enum terse_status parts_truncate(struct cache *cache, uint64_t n, struct terse_error *error);
uint64_t parts_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt);
enum terse_status parts_fork(const struct cache *cache, struct cache **copy, struct terse_error *error);
bool parts_wants_residual(const struct cache *cache);
void parts_note_residual(struct cache *cache, uint32_t layer, int64_t sum, size_t tokens);
void parts_save(const struct cache *cache, struct state_writer *writer);
enum terse_status parts_load(struct cache *cache, struct state_file *file, struct terse_error *error);
void parts_report(const struct cache *cache, struct terse_cache_report *report);
void parts_map(const struct cache *cache, struct terse_token_share *shares, size_t n);
void parts_counters(struct cache *cache, struct cache_counters *counters, bool clear);

#endif
