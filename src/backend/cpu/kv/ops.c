/* Fills in kv_ops of the backend; a step of a cache is one of each of its parts. */
#include "backend/cpu/kv/ops.h"

#include "backend/cpu/kv/batch.h"
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"
#include "backend/cpu/kv/storage.h"

static enum terse_status begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    cache->at = cache;
    cache->first_row = 0;
    cache->brought = NO_LAYER;
    for (struct cache *part = cache; part && !status; part = part->base.next) status = cache_begin(part, kind, n, error);
    for (struct cache *part = cache; part && status; part = part->base.next) part->base.in_step = false; /* all begin again */
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

const struct kv_ops cpu_kv_ops = {.storage = &cpu_storage,
                                  .begin = begin,
                                  .join = caches_join,
                                  .append = caches_append,
                                  .queries_to_observe = caches_queries_to_observe,
                                  .observe = caches_observe,
                                  .attend = caches_attend,
                                  .attend_some = caches_attend_some,
                                  .seal_some = caches_seal_some,
                                  .seal = caches_seal,
                                  .commit = commit,
                                  .fill_random = fill_random};
