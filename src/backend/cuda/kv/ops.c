/* Fills in kv_ops of the backend: the functions that all backends share, over its storage, and its steps. */
#include "backend/cuda/kv/ops.h"

#include "backend/cuda/kv/fill.h"
#include "backend/cuda/kv/step.h"
#include "backend/cuda/kv/storage.h"

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    return cache_supports(&cuda_storage, shape, method, error);
}

static void predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                    struct terse_cache_report *report) {
    cache_predict(&cuda_storage, shape, method, tokens, report);
}

static bool wants_residual(const struct cache *cache) { return fitted_wants_residual(cache_base_of(cache)); }

static void note_residual(struct cache *cache, uint32_t layer, int64_t sum, size_t tokens) {
    fitted_note_residual(cache_base(cache), layer, sum, tokens);
}

const struct kv_ops cuda_kv_ops = {.supports = supports,
                                   .predict = predict,
                                   .create = kv_create,
                                   .limit = cache_limit,
                                   .destroy = kv_destroy,
                                   .reset = cache_reset,
                                   .length = cache_length,
                                   .prompt_part = cache_prompt_part,
                                   .truncate = cache_truncate,
                                   .common_prefix = cache_common_prefix,
                                   .fork = cache_fork,
                                   .save = cache_save,
                                   .load = cache_load,
                                   .begin = kv_begin,
                                   .join = kv_join,
                                   .append = kv_append,
                                   .queries_to_observe = kv_queries_to_observe,
                                   .observe = kv_observe,
                                   .attend = kv_attend,
                                   .seal = kv_seal,
                                   .wants_residual = wants_residual,
                                   .note_residual = note_residual,
                                   .commit = kv_commit,
                                   .report = cache_report,
                                   .map = cache_map,
                                   .counters = cache_counters,
                                   .fill_random = kv_fill_random};
