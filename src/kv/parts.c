/* Makes each call for one part or for both. */
#include "kv/parts.h"

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

enum terse_status parts_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                                 struct terse_error *error) {
    struct part parts[PARTS_MOST];
    enum terse_status status = TERSE_OK;
    for (size_t i = parts_of(shape, method, parts); i-- > 0 && !status;)
        status = cache_supports(storage, &parts[i].shape, &parts[i].method, error);
    return status;
}

/* Returns the second part; NULL: there is none. */
static struct cache *next_of(const struct cache *cache) { return cache_base_of(cache)->next; }

struct cache *parts_of_layer(struct cache *cache, uint32_t number, uint32_t *layer) {
    for (; cache; cache = next_of(cache))
        for (*layer = 0; *layer < cache_base_of(cache)->shape.layers; ++*layer)
            if (cache_shape_number(&cache_base_of(cache)->shape, *layer) == number) return cache;
    return NULL;
}

bool parts_attends_alone(struct cache *cache, uint32_t number) {
    uint32_t layer;
    const struct cache_base *base = cache_base_of(parts_of_layer(cache, number, &layer));
    const bool dealt = base->shape.ranks && (base->pages.n_sealed || base->plan.kind == CACHE_STEP_PAPER);
    return !dealt && !base->plan.anchors;
}

/* ---- Reports */

/* Adds a part's report to the first part's, whose `tokens` and `kept` stand for both, since no token slides out of the first part. */
static void add_report(const struct terse_cache_report *part, uint64_t values, struct terse_cache_report *sum) {
    sum->codes += part->codes;
    sum->shared += part->shared;
    sum->window += part->window;
    sum->exact += part->exact;
    sum->tables += part->tables;
    sum->recurrent += part->recurrent;
    sum->resident += part->resident;
    sum->bits_per_value = values ? (double)sum->resident * 8 / (double)values : 0;
}

/* Returns the number of values of a model that has seen so many tokens. */
static uint64_t values_of(const struct cache_shape *shape, uint64_t layers, uint64_t tokens) {
    return tokens * layers * shape->kv_heads * cache_sides_of(shape) * shape->head_dim;
}

void parts_predict(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report) {
    struct part parts[PARTS_MOST];
    struct terse_cache_report second;
    size_t n = parts_of(shape, method, parts);
    cache_predict(storage, &parts[0].shape, &parts[0].method, tokens, report);
    if (n == 1) return;
    const size_t first =
        plan_part(&parts[0].method, &(struct extent){0}, (size_t)tokens); /* prompts are cut as the first part has it */
    cache_predict_parts(storage, &parts[1].shape, &parts[1].method, first, tokens, &second);
    add_report(&second, values_of(shape, shape->layers, tokens), report);
}

void parts_report(const struct cache *cache, struct terse_cache_report *report) {
    struct terse_cache_report second;
    cache_report(cache, report);
    if (!next_of(cache)) return;
    cache_report(next_of(cache), &second);
    add_report(&second,
               values_of(&cache_base_of(cache)->shape,
                         (uint64_t)cache_base_of(cache)->shape.layers + cache_base_of(next_of(cache))->shape.layers,
                         report->tokens),
               report);
}

/* ---- Life */

void parts_destroy(struct cache *cache) {
    if (!cache) return;
    const struct kv_storage *storage = cache_base(cache)->storage;
    if (next_of(cache)) storage->destroy(next_of(cache));
    storage->destroy(cache);
}

enum terse_status parts_create(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                               uint32_t threads, struct cache **cache, struct terse_error *error) {
    struct part parts[PARTS_MOST];
    size_t n = parts_of(shape, method, parts);
    enum terse_status status = storage->create(&parts[0].shape, &parts[0].method, threads, cache, error);
    if (!status && n > 1) status = storage->create(&parts[1].shape, &parts[1].method, threads, &cache_base(*cache)->next, error);
    if (!status) return TERSE_OK;
    parts_destroy(*cache);
    *cache = NULL;
    return status;
}

enum terse_status parts_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error) {
    enum terse_status status = cache_limit(cache, budget, error);
    return status || !next_of(cache) ? status : cache_limit(next_of(cache), budget, error);
}

void parts_reset(struct cache *cache) {
    for (; cache; cache = next_of(cache)) cache_reset(cache);
}

uint64_t parts_restorable(const struct cache *cache, uint64_t n) { return recurrent_restorable(cache_base_of(cache), n); }

enum terse_status parts_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (const struct cache *part = cache; part && !status; part = next_of(part)) status = cache_check_truncate(part, n, error);
    return status;
}

enum terse_status parts_truncate(struct cache *cache, uint64_t n, struct terse_error *error) {
    enum terse_status status = parts_check_truncate(cache, n, error);
    for (struct cache *part = cache; part && !status; part = next_of(part)) status = cache_truncate(part, n, error);
    return status;
}

/* Returns the common prefix of both. Pages are cut at the same tokens in both, so that the second mostly has what the first
 * offers. */
uint64_t parts_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    uint64_t common = cache_common_prefix(cache, n, prompt);
    if (!next_of(cache) || !common) return common;
    uint64_t second = cache_common_prefix(next_of(cache), common, prompt);
    return second == common || cache_common_prefix(cache, second, prompt) == second ? second : 0;
}

enum terse_status parts_fork(const struct cache *cache, struct cache **copy, struct terse_error *error) {
    enum terse_status status = cache_fork(cache, copy, error);
    if (!status && next_of(cache)) status = cache_fork(next_of(cache), &cache_base(*copy)->next, error);
    if (!status) return TERSE_OK;
    parts_destroy(*copy);
    *copy = NULL;
    return status;
}

/* ---- What the parts note in a step */

bool parts_wants_residual(const struct cache *cache) {
    return fitted_wants_residual(cache_base_of(cache)) || (next_of(cache) && fitted_wants_residual(cache_base_of(next_of(cache))));
}

void parts_note_residual(struct cache *cache, uint32_t layer, int64_t sum, size_t tokens) {
    uint32_t own;
    struct cache *part = parts_of_layer(cache, layer, &own);
    if (part) fitted_note_residual(cache_base(part), own, sum, tokens);
}

void parts_counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    struct cache_counters second = {0};
    cache_counters(cache, counters, clear);
    if (next_of(cache)) cache_counters(next_of(cache), &second, clear);
    counters->seconds += second.seconds;
    counters->bytes += second.bytes;
}

/* ---- What became of each part of the sequence */

void parts_map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    struct token_map sums;
    double layers = (double)cache_base_of(cache)->shape.layers,
           own = layers / (layers + (next_of(cache) ? cache_base_of(next_of(cache))->shape.layers : 0));
    if (!cache_map_begin(cache, shares, n, &sums)) return;
    cache_map_add(cache, own, &sums);
    if (next_of(cache)) cache_map_add(next_of(cache), 1 - own, &sums);
    cache_map_end(cache, own, &sums);
}

/* ---- Saved states */

void parts_save(const struct cache *cache, struct state_writer *writer) {
    cache_save(cache, writer);
    state_writer_second(writer);
    if (next_of(cache)) cache_save(next_of(cache), writer);
}

void parts_save_share(const struct cache *cache) { cache_save_share(cache); }

enum terse_status parts_load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    enum terse_status status = cache_load(cache, file, error);
    if (status || !next_of(cache)) return status;
    state_file_second(file, true);
    status = cache_load(next_of(cache), file, error);
    state_file_second(file, false);
    if (!status && cache_base_of(next_of(cache))->extent.length != cache_base_of(cache)->extent.length)
        status = state_file_refuse(file, STATE_CACHE, "its parts are of sequences of different lengths", error);
    return status;
}
