/* Makes each call for one part or for both. */
#include "backend/cpu/kv/parts.h"

#include "backend/cpu/kv/batch.h"
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"

#include <string.h>

#define PARTS_MOST 2

/* ---- What the parts are */

struct part {
    struct cache_shape shape;
    struct method method;
};

/* Writes the parts and returns their number, 1 or 2. */
static size_t parts_of(const struct cache_shape *shape, const struct method *method, struct part parts[PARTS_MOST]) {
    const bool mixed = shape->sliding && shape->sliding < shape->layers;
    const struct part sliding = {cache_shape_part(shape, true), method_of_window(method, shape->window)};
    parts[0] = shape->sliding && !mixed ? sliding : (struct part){cache_shape_part(shape, false), *method};
    parts[1] = sliding;
    return mixed ? 2 : 1;
}

static enum terse_status supports(const struct cache_shape *shape, const struct method *method, struct terse_error *error) {
    struct part parts[PARTS_MOST];
    enum terse_status status = TERSE_OK;
    for (size_t i = parts_of(shape, method, parts); i-- > 0 && !status;)
        status = cache_supports(&cpu_storage, &parts[i].shape, &parts[i].method, error);
    return status;
}

/* ---- Reports */

/* Adds a part's report to the first part's, whose `tokens` and `kept` stand for both, since no token slides out of the first part. */
static void add_report(const struct terse_cache_report *part, uint64_t values, struct terse_cache_report *sum) {
    sum->codes += part->codes;
    sum->shared += part->shared;
    sum->window += part->window;
    sum->exact += part->exact;
    sum->tables += part->tables;
    sum->resident += part->resident;
    sum->bits_per_value = values ? (double)sum->resident * 8 / (double)values : 0;
}

/* Returns the number of values of a model that has seen so many tokens. */
static uint64_t values_of(const struct cache_shape *shape, uint64_t layers, uint64_t tokens) {
    return tokens * layers * shape->kv_heads * 2 * shape->head_dim;
}

static void predict(const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                    struct terse_cache_report *report) {
    struct part parts[PARTS_MOST];
    struct terse_cache_report second;
    size_t n = parts_of(shape, method, parts);
    cache_predict(&cpu_storage, &parts[0].shape, &parts[0].method, tokens, report);
    if (n == 1) return;
    const size_t first =
        plan_part(&parts[0].method, &(struct extent){0}, (size_t)tokens); /* prompts are cut as the first part has it */
    cache_predict_parts(&cpu_storage, &parts[1].shape, &parts[1].method, first, tokens, &second);
    add_report(&second, values_of(shape, shape->layers, tokens), report);
}

static void report(const struct cache *cache, struct terse_cache_report *report) {
    struct terse_cache_report second;
    cache_report(cache, report);
    if (!cache->next) return;
    cache_report(cache->next, &second);
    add_report(&second,
               values_of(&cache->base.shape, (uint64_t)cache->base.shape.layers + cache->next->base.shape.layers, report->tokens),
               report);
}

/* ---- Life */

static void destroy(struct cache *cache) {
    if (cache) cache_destroy(cache->next);
    cache_destroy(cache);
}

static enum terse_status create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                struct cache **cache, struct terse_error *error) {
    struct part parts[PARTS_MOST];
    size_t n = parts_of(shape, method, parts);
    enum terse_status status = cache_create(&parts[0].shape, &parts[0].method, threads, cache, error);
    if (!status && n > 1) status = cache_create(&parts[1].shape, &parts[1].method, threads, &(*cache)->next, error);
    if (!status) return TERSE_OK;
    destroy(*cache);
    *cache = NULL;
    return status;
}

static enum terse_status limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error) {
    enum terse_status status = cache_limit(cache, budget, error);
    return status || !cache->next ? status : cache_limit(cache->next, budget, error);
}

static void reset(struct cache *cache) {
    for (; cache; cache = cache->next) cache_reset(cache);
}

static enum terse_status truncate_parts(struct cache *cache, uint64_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (struct cache *part = cache; part && !status; part = part->next) status = cache_check_truncate(part, n, error);
    for (struct cache *part = cache; part && !status; part = part->next) status = cache_truncate(part, n, error);
    return status;
}

/* Returns the common prefix of both. Pages are cut at the same tokens in both, so that the second mostly has what the first
 * offers. */
static uint64_t common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    uint64_t common = cache_common_prefix(cache, n, prompt);
    if (!cache->next || !common) return common;
    uint64_t second = cache_common_prefix(cache->next, common, prompt);
    return second == common || cache_common_prefix(cache, second, prompt) == second ? second : 0;
}

static enum terse_status fork_parts(const struct cache *cache, struct cache **copy, struct terse_error *error) {
    enum terse_status status = cache_fork(cache, copy, error);
    if (!status && cache->next) status = cache_fork(cache->next, &(*copy)->next, error);
    if (!status) return TERSE_OK;
    destroy(*copy);
    *copy = NULL;
    return status;
}

/* ---- Steps */

static enum terse_status begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    cache->at = cache;
    cache->first_row = 0;
    cache->brought = NO_LAYER;
    for (; cache && !status; cache = cache->next) status = cache_begin(cache, kind, n, error);
    return status;
}

static bool wants_residual(const struct cache *cache) {
    return fitted_wants_residual(&cache->base) || (cache->next && fitted_wants_residual(&cache->next->base));
}

static void note_residual(struct cache *cache, uint32_t layer, int64_t sum, size_t tokens) {
    for (; cache; cache = cache->next)
        for (uint32_t own = 0; own < cache->base.shape.layers; own++)
            if (cache_shape_number(&cache->base.shape, own) == layer) fitted_note_residual(&cache->base, own, sum, tokens);
}

static enum terse_status commit(struct cache *cache, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (; cache && !status; cache = cache->next) status = cache_commit(cache, error);
    return status;
}

static void counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    struct cache_counters second = {0};
    cache_counters(cache, counters, clear);
    if (cache->next) cache_counters(cache->next, &second, clear);
    counters->seconds += second.seconds;
    counters->bytes += second.bytes;
}

static enum terse_status fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (; cache && !status; cache = cache->next) status = cache_fill_random(cache, n, seed, error);
    return status;
}

/* ---- What became of each part of the sequence */

static void map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    struct token_map sums;
    double layers = (double)cache->base.shape.layers, own = layers / (layers + (cache->next ? cache->next->base.shape.layers : 0));
    if (!cache_map_begin(cache, shares, n, &sums)) return;
    cache_map_add(cache, own, &sums);
    if (cache->next) cache_map_add(cache->next, 1 - own, &sums);
    cache_map_end(cache, own, &sums);
}

/* ---- Saved states */

static void save(const struct cache *cache, struct state_writer *writer) {
    cache_save(cache, writer);
    state_writer_second(writer);
    if (cache->next) cache_save(cache->next, writer);
}

static enum terse_status load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    enum terse_status status = cache_load(cache, file, error);
    if (status || !cache->next) return status;
    state_file_second(file, true);
    status = cache_load(cache->next, file, error);
    state_file_second(file, false);
    if (!status && cache->next->base.extent.length != cache->base.extent.length)
        status = state_file_refuse(file, STATE_CACHE, "its parts are of sequences of different lengths", error);
    return status;
}

const struct kv_ops parts_ops = {.supports = supports,
                                 .predict = predict,
                                 .create = create,
                                 .limit = limit,
                                 .destroy = destroy,
                                 .reset = reset,
                                 .length = cache_length,
                                 .prompt_part = cache_prompt_part,
                                 .truncate = truncate_parts,
                                 .common_prefix = common_prefix,
                                 .fork = fork_parts,
                                 .save = save,
                                 .load = load,
                                 .begin = begin,
                                 .join = caches_join,
                                 .append = caches_append,
                                 .queries_to_observe = caches_queries_to_observe,
                                 .observe = caches_observe,
                                 .attend = caches_attend,
                                 .attend_some = caches_attend_some,
                                 .seal_some = caches_seal_some,
                                 .seal = caches_seal,
                                 .wants_residual = wants_residual,
                                 .note_residual = note_residual,
                                 .commit = commit,
                                 .report = report,
                                 .map = map,
                                 .counters = counters,
                                 .fill_random = fill_random};
