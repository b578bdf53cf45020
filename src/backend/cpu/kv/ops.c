/* Puts together what is the same on all backends, over the CPU's storage, and the CPU's steps. */
#include "backend/cpu/kv/ops.h"

#include "backend/cpu/kv/batch.h"
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"
#include "kv/parts.h"

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    return parts_supports(&cpu_storage, shape, method, error);
}

static void predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                    struct terse_cache_report *report) {
    parts_predict(&cpu_storage, shape, method, tokens, report);
}

static enum terse_status create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                struct cache **cache, struct terse_error *error) {
    return parts_create(&cpu_storage, shape, method, threads, cache, error);
}

static enum terse_status begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    cache->at = cache;
    cache->first_row = 0;
    cache->brought = NO_LAYER;
    for (; cache && !status; cache = cache->base.next) status = cache_begin(cache, kind, n, error);
    return status;
}

static enum terse_status commit(struct cache *cache, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (; cache && !status; cache = cache->base.next) status = cache_commit(cache, error);
    return status;
}

static enum terse_status fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (; cache && !status; cache = cache->base.next) status = cache_fill_random(cache, n, seed, error);
    return status;
}

const struct kv_ops cpu_kv_ops = {.supports = supports,
                                  .predict = predict,
                                  .create = create,
                                  .limit = parts_limit,
                                  .destroy = parts_destroy,
                                  .reset = parts_reset,
                                  .length = cache_length,
                                  .prompt_part = cache_prompt_part,
                                  .truncate = parts_truncate,
                                  .common_prefix = parts_common_prefix,
                                  .fork = parts_fork,
                                  .save = parts_save,
                                  .load = parts_load,
                                  .begin = begin,
                                  .join = caches_join,
                                  .append = caches_append,
                                  .queries_to_observe = caches_queries_to_observe,
                                  .observe = caches_observe,
                                  .attend = caches_attend,
                                  .attend_some = caches_attend_some,
                                  .seal_some = caches_seal_some,
                                  .seal = caches_seal,
                                  .wants_residual = parts_wants_residual,
                                  .note_residual = parts_note_residual,
                                  .commit = commit,
                                  .report = parts_report,
                                  .map = parts_map,
                                  .counters = parts_counters,
                                  .fill_random = fill_random};
