/* Steps of one cache through kv_ops: a batch of it alone, for programs that drive caches without an executor. */
#ifndef TESTS_SUPPORT_ONE_CACHE_H
#define TESTS_SUPPORT_ONE_CACHE_H

#include "backend/backend.h"
#include "kv/cache_base.h"

static inline struct kv_batch one_batch(struct cache *const *cache) { return (struct kv_batch){cache, 1, NULL}; }

static inline enum terse_status one_begin(const struct kv_ops *kv, struct cache *cache, enum cache_step_kind kind, size_t n,
                                          struct terse_error *error) {
    const struct kv_batch batch = one_batch(&cache);
    enum terse_status status = kv->begin(cache, kind, n, error);
    return status ? status : kv->join(&batch, error);
}

/* k, v [n][Hk][hd] of all the step's tokens. */
static inline enum terse_status one_append(const struct kv_ops *kv, struct cache *cache, uint32_t layer, float *k, const float *v,
                                           struct terse_error *error) {
    const struct kv_batch batch = one_batch(&cache);
    const size_t n = ((const struct cache_base *)(const void *)cache)->plan.n;
    const struct kv_rows rows = {.layer = layer, .count = n, .k = k, .v = v};
    return kv->append(&batch, &rows, error);
}

static inline size_t one_queries_to_observe(const struct kv_ops *kv, struct cache *cache, size_t needed) {
    const struct kv_batch batch = one_batch(&cache);
    size_t first; /* those before it may be shown, too */
    return kv->queries_to_observe(&batch, needed, &first);
}

static inline enum terse_status one_observe(const struct kv_ops *kv, struct cache *cache, uint32_t layer, float *q, size_t first,
                                            size_t count, struct terse_error *error) {
    const struct kv_batch batch = one_batch(&cache);
    const struct kv_rows rows = {.layer = layer, .first = first, .count = count, .q = q};
    return kv->observe(&batch, &rows, error);
}

static inline enum terse_status one_attend(const struct kv_ops *kv, struct cache *cache, uint32_t layer, float *q, size_t first,
                                           size_t count, float *out, struct terse_error *error) {
    const struct kv_batch batch = one_batch(&cache);
    const struct kv_rows rows = {.layer = layer, .first = first, .count = count, .q = q, .out = out};
    return kv->attend(&batch, &rows, error);
}

static inline enum terse_status one_seal(const struct kv_ops *kv, struct cache *cache, uint32_t layer, struct terse_error *error) {
    const struct kv_batch batch = one_batch(&cache);
    return kv->seal(&batch, layer, error);
}

#endif
