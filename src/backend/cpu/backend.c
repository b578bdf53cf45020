/* The CPU backend's tables. */
#include "backend/backend.h"

#include "backend/cpu/executor.h"
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/fork.h"
#include "backend/cpu/kv/saved.h"
#include "backend/cpu/kv/token_map.h"

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    return method_check(method, shape->head_dim, shape->query_heads / shape->kv_heads, error);
}

static const struct kv_ops kv_ops = {.supports = supports,
                                     .predict = cache_predict,
                                     .create = cache_create,
                                     .limit = cache_limit,
                                     .destroy = cache_destroy,
                                     .reset = cache_reset,
                                     .length = cache_length,
                                     .truncate = cache_truncate,
                                     .common_prefix = cache_common_prefix,
                                     .fork = cache_fork,
                                     .save = cache_save,
                                     .load = cache_load,
                                     .begin = cache_begin,
                                     .append = cache_append,
                                     .queries_to_observe = cache_queries_to_observe,
                                     .observe = cache_observe,
                                     .attend = cache_attend,
                                     .attend_some = cache_attend_some,
                                     .seal_some = cache_seal_some,
                                     .end_layer = cache_end_layer,
                                     .commit = cache_commit,
                                     .report = cache_report,
                                     .map = cache_map,
                                     .counters = cache_counters,
                                     .fill_random = cache_fill_random};

const struct backend backend_cpu = {.name = "cpu", .executor = &cpu_executor_ops, .kv = &kv_ops};
