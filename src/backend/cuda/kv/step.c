/* Implements the steps of caches. state.h says which file does what. */
#include "backend/cuda/kv/step.h"

#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/choice.h"
#include "backend/cuda/kv/fit.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/prompt.h"
#include "backend/cuda/kv/replace.h"
#include "backend/cuda/kv/storage.h"
#include "backend/cuda/kv/views.h"
#include "backend/cuda/kv/window.h"
#include "kv/parts.h"

bool cache_decodes(const struct cache *cache) {
    return cache->base.plan.kind == CACHE_STEP_DECODE && cache->base.plan.n <= decode_tokens_most(&cache->base.method);
}

static enum terse_status begin_part(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    enum terse_status status = cache_plan_step(cache, kind, n, error);
    if (status) return status;
    if (kind == CACHE_STEP_PAPER && base->plan.ranked)
        return cache_refuse(&cuda_storage, &base->method, "cannot be read by the papers' protocol", error);
    if (!cache_decodes(cache) && choice_of(cache).made)
        return cache_refuse(&cuda_storage, &base->method,
                            "cannot choose what compressed prefill, or a step of more than 64 tokens, reads", error);
    if ((status = window_reserve(cache, error))) return status;
    if (base->plan.before.length <= base->plan.grid) cache->window_origin = base->plan.grid; /* nothing lies in it */
    if (fitted_due(base) && (status = kv_fit_transforms(cache, error))) return status;
    cache->steps++;
    status = cache_reserve_views(cache, base->pages.n, error);
    if (!status) status = kv_tables_reserve(cache->tables, base->plan.after.length, error);
    if (!status) status = cache_upload_views(cache, error);
    if (!status && !cache_decodes(cache)) status = prompt_reserve(cache, error);
    if (!status) base->in_step = true;
    return status;
}

enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    cache->at = cache;
    for (struct cache *part = cache; part && !status; part = part->base.next) status = begin_part(part, kind, n, error);
    for (struct cache *part = cache; part && status; part = part->base.next) part->base.in_step = false; /* all begin again */
    return status;
}

/* ---- Layers */

/* Returns the cache whose prompt is the batch; NULL: the batch decodes. */
static struct cache *prompt_of(const struct kv_batch *batch) { return cache_decodes(batch->caches[0]) ? NULL : batch->caches[0]; }

enum terse_status kv_join(const struct kv_batch *batch, struct terse_error *error) {
    size_t n = 0;
    while (n < batch->n && batch->caches[n]->base.in_step && cache_decodes(batch->caches[n])) n++;
    if (n == batch->n) return batch_begin(batch->memory, batch->caches, n, error);
    if (batch->n == 1 && batch->caches[0]->base.in_step) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "%zu steps that cannot go together", batch->n);
}

/* Makes the part that has the rows' layer the one that the prompt is at, and returns the rows as that part numbers layers. */
static enum terse_status go_to_layer(struct cache *prompt, const struct kv_rows *rows, struct kv_rows *own,
                                     struct terse_error *error) {
    *own = *rows;
    struct cache *part = parts_of_layer(prompt, rows->layer, &own->layer);
    if (!part) return status_fail(error, TERSE_E_ARGUMENT, "layer %u, which the cache does not have", rows->layer);
    prompt->at = part;
    return TERSE_OK;
}

enum terse_status kv_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct cache *prompt = prompt_of(batch);
    struct kv_rows own;
    if (!prompt) return batch_append(batch->memory, rows, error);
    enum terse_status status = go_to_layer(prompt, rows, &own, error);
    return status ? status : prompt_append(prompt->at, &own, error);
}

/* Returns the rows to observe: a prompt's queries are also observed as they attend, those of a decoding step as they are
 * appended. Where queries read pages, and anchors beside them, all are observed before one attends. */
size_t kv_queries_to_observe(const struct kv_batch *batch, size_t needed, size_t *first) {
    const struct cache *prompt = prompt_of(batch);
    bool chooses = prompt && (prompt->at->base.plan.anchors || prompt->at->base.plan.replaces);
    *first = chooses ? prompt->at->base.plan.ranking : 0;
    if (chooses && prompt->at->base.plan.kind == CACHE_STEP_PAPER) return prompt->at->base.plan.n;
    return chooses ? needed : 0;
}

enum terse_status kv_observe(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct cache *prompt = prompt_of(batch);
    struct kv_rows own;
    if (!prompt) return TERSE_OK;
    enum terse_status status = go_to_layer(prompt, rows, &own, error);
    return status ? status : prompt_observe(prompt->at, &own, error);
}

enum terse_status kv_attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct cache *prompt = prompt_of(batch);
    struct kv_rows own;
    if (!prompt) return batch_attend(batch->memory, rows, error);
    enum terse_status status = go_to_layer(prompt, rows, &own, error);
    return status ? status : prompt_attend(prompt->at, &own, error);
}

enum terse_status kv_seal(const struct kv_batch *batch, uint32_t layer, struct terse_error *error) {
    struct cache *prompt = prompt_of(batch);
    struct kv_rows own;
    if (!prompt) return TERSE_OK; /* what decoding seals waits in the window for commit */
    enum terse_status status = go_to_layer(prompt, &(struct kv_rows){.layer = layer}, &own, error);
    return status ? status : prompt_seal(prompt->at, own.layer, error);
}

/* ---- The end */

static enum terse_status commit_part(struct cache *cache, struct terse_error *error) {
    const bool decodes = cache_decodes(cache);
    if (decodes) cache->base.layers_ended = cache->base.shape.layers; /* those of a batch are not counted */
    enum terse_status status = cache_check_commit(cache, error);
    if (!status && decodes) status = replacing_commit(cache, error);
    if (!status) status = decodes ? window_seal(cache, error) : kept_commit(cache, error);
    if (status) return status;
    cache_advance(cache);
    if (!decodes) prompt_release(cache);
    kept_release(cache);
    if ((status = window_trim(cache, error)) || (status = cache_written(cache, error))) return status;
    return decodes ? window_seal_ahead(cache, error) : TERSE_OK;
}

enum terse_status kv_commit(struct cache *cache, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (; cache && !status; cache = cache->base.next) status = commit_part(cache, error);
    return status;
}
