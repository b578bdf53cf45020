/* Chooses the tokens that have exact rows, and moves these rows. */
#include "backend/cpu/kv/exact.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/segment_read.h"
#include "base/memory.h"

#include <string.h>

/* ---- A step observes for each KV head the logits[n] of its tokens. As workspace follow the logits of the exact rows and of the
 * one token that competes with them, [exact + 1], and where their rows are, [exact + 1]. */

static size_t head_floats(const struct cache *cache, size_t n) { return n + 2 * ((size_t)cache->base.method.parameters.exact + 1); }

enum terse_status exact_reserve(struct cache *cache, size_t n, struct terse_error *error) {
    size_t floats = cache->base.shape.kv_heads * head_floats(cache, n);
    if (!exact_observes(cache) || floats <= cache->observed_floats) return TERSE_OK;
    memory_free(cache->observed);
    cache->observed_floats = 0;
    cache->observed = memory_array(floats, sizeof *cache->observed);
    if (!cache->observed) return status_no_memory(error, floats * sizeof *cache->observed, "logits to the first token");
    cache->observed_floats = floats;
    return TERSE_OK;
}

static float *new_logits(const struct cache *cache, uint32_t head) {
    return cache->observed + head * head_floats(cache, cache->base.plan.n);
}

static size_t recent(const struct cache *cache) {
    return cache->base.method.parameters.budget - cache->base.method.parameters.exact;
}

/* Returns the logits of the exact rows; those of the window follow. */
static float *kept_logits(const struct cache *cache, uint32_t head) {
    return cache->exact_logits + layer_head(cache, cache->base.layer, head) * cache->base.method.parameters.budget;
}

static void store_row(const struct cache *cache, uint32_t head, size_t row, const float *key, const float *value) {
    size_t hd = cache->base.shape.head_dim;
    uint16_t *keys = exact_rows(cache, cache->base.layer, head), *values = keys + cache->base.method.parameters.exact * hd;
    vector_ops()->float_to_half(key, keys + row * hd, hd);
    if (!cache->base.shape.latents) vector_ops()->float_to_half(value, values + row * hd, hd);
}

void exact_store_first(struct cache *cache) {
    const struct plan *plan = &cache->base.plan;
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    if (!cache->base.method.parameters.exact || plan->before.length >= cache->base.method.parameters.exact) return;
    for (uint64_t t = plan->before.length; t < plan->after.exact; t++)
        for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
            size_t at = (size_t)(t - plan->before.length) * width + head * hd;
            store_row(cache, head, (size_t)t, cache->k + at, cache->v + at);
        }
}

/* Returns the mean logit, with key 0, of the G queries q[G][hd] of the step's i-th token. */
static float logit_of(const struct cache *cache, const float *q, size_t i, const float *key) {
    size_t hd = cache->base.shape.head_dim, G = cache->group;
    float query[CODEC_ROW_MAX], sum = 0;
    for (size_t g = 0; g < G; g++) {
        memcpy(query, q + g * hd, hd * sizeof *query);
        segment_rotate_query(cache, i, query, 1);
        sum += vector_ops()->dot(query, key, hd);
    }
    return cache->base.shape.scale * sum / (float)G;
}

void exact_observe(struct cache *cache, const float *q, size_t first, size_t count) {
    size_t G = cache->group, hd = cache->base.shape.head_dim, heads = cache->base.shape.kv_heads;
    if (!exact_observes(cache)) return;
    for (uint32_t head = 0; head < heads; head++) {
        float key[CODEC_ROW_MAX], *logits = new_logits(cache, head) + first;
        segment_first_key(cache, head, key);
#pragma omp parallel for schedule(static) num_threads(cache->base.threads) if (count >= PAGE_TOKENS)
        for (size_t i = 0; i < count; i++) logits[i] = logit_of(cache, q + (i * heads + head) * G * hd, first + i, key);
    }
}

/* ---- After attention */

/* Returns a token's logit, before those of the step are stored among the window's. */
static float token_logit(const struct cache *cache, uint32_t head, uint64_t token) {
    const struct plan *plan = &cache->base.plan;
    if (token >= plan->before.length) return new_logits(cache, head)[token - plan->before.length];
    return kept_logits(cache, head)[cache->base.method.parameters.exact + token % recent(cache)];
}

/* Lets the tokens [from, to) leave the window one after another. rows[i] says where the row of the i-th of the tokens that stay is:
 * below `exact` among the exact rows, else that of token from + rows[i] - exact. */
static void compete(const struct cache *cache, uint32_t head, uint64_t from, uint64_t to, float *logits, uint32_t *rows) {
    const struct method *method = &cache->base.method;
    size_t exact = method->parameters.exact;
    for (uint64_t t = from; t < to; t++) {
        logits[exact] = token_logit(cache, head, t);
        rows[exact] = (uint32_t)(exact + (t - from));
        size_t victim = method_victim(method, cache->base.layer, logits, exact + 1);
        memmove(logits + victim, logits + victim + 1, (exact - victim) * sizeof *logits);
        memmove(rows + victim, rows + victim + 1, (exact - victim) * sizeof *rows);
    }
}

/* Moves up the rows that stay, and lets those of tokens that left the window follow: both are in order of age. */
static void move_rows(struct cache *cache, uint32_t head, uint64_t from, const uint32_t *rows, float *scratch) {
    size_t exact = cache->base.method.parameters.exact, hd = cache->base.shape.head_dim;
    uint16_t *keys = exact_rows(cache, cache->base.layer, head), *values = keys + exact * hd;
    float key[CODEC_ROW_MAX], value[CODEC_ROW_MAX];
    for (size_t i = 0; i < exact; i++) {
        if (rows[i] == i) continue;
        if (rows[i] < exact) {
            memcpy(keys + i * hd, keys + rows[i] * hd, hd * sizeof *keys);
            memcpy(values + i * hd, values + rows[i] * hd, hd * sizeof *values);
            continue;
        }
        uint64_t token = from + (rows[i] - exact);
        segment_read_token(cache, head, CODEC_KEYS, token, scratch, key);
        segment_read_token(cache, head, CODEC_VALUES, token, scratch, value);
        if (cache->keys_rotated) rotary_undo(&cache->rotary, (int64_t)token, key, 1, (uint32_t)hd);
        store_row(cache, head, i, key, value);
    }
}

void exact_replace(struct cache *cache, uint32_t head, float *scratch) {
    const struct plan *plan = &cache->base.plan;
    size_t exact = cache->base.method.parameters.exact;
    if (!exact_observes(cache)) return;
    float *logits = new_logits(cache, head) + plan->n, *kept = kept_logits(cache, head);
    uint32_t *rows = (uint32_t *)(void *)(logits + exact + 1);
    /* Until all exact rows are filled, they are those of the first tokens. */
    for (size_t i = 0; i < plan->after.exact; i++) {
        rows[i] = (uint32_t)i;
        logits[i] = i < plan->before.exact ? kept[i] : new_logits(cache, head)[i - plan->before.length];
    }
    uint64_t from = plan->before.first > plan->after.exact ? plan->before.first : plan->after.exact;
    if (plan->after.first > from) {
        compete(cache, head, from, plan->after.first, logits, rows);
        move_rows(cache, head, from, rows, scratch);
    }
    memcpy(kept, logits, (size_t)plan->after.exact * sizeof *kept);
    for (uint64_t t = plan->before.length > plan->after.first ? plan->before.length : plan->after.first; t < plan->after.length;
         t++)
        kept[exact + t % recent(cache)] = new_logits(cache, head)[t - plan->before.length];
}
