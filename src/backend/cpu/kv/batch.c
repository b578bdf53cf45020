/* Makes each call for every sequence of a batch. Owns no memory: a sequence's cache has what a batch needs of it. */
#include "backend/cpu/kv/batch.h"

#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"
#include "kv/parts.h"

/* ---- A sequence's share of a call */

/* Returns the sequence's own rows, counted from its first token on. */
static struct kv_rows own_rows(const struct cache *cache, const struct kv_rows *rows) {
    const size_t first = cache->first_row;
    struct kv_rows own = kv_rows_within(rows, first, first + cache->base.plan.n, &cache->base.shape);
    if (own.count) own.first -= first;
    return own;
}

typedef enum terse_status visit(struct cache *cache, const struct kv_rows *own, struct terse_error *error);

static enum terse_status visit_one(struct cache *cache, visit *call, const struct kv_rows *rows, struct terse_error *error) {
    const struct kv_rows own = rows ? own_rows(cache, rows) : (struct kv_rows){0};
    return rows && !own.count ? TERSE_OK : call(cache, &own, error);
}

/* Visits the sequences [first, n), each by one thread. */
static enum terse_status visit_side_by_side(const struct kv_batch *batch, size_t first, visit *call, const struct kv_rows *rows,
                                            struct terse_error *error) {
    enum terse_status failed = TERSE_OK;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = first; i < batch->n; i++) {
        struct terse_error own;
        enum terse_status status = visit_one(batch->caches[i], call, rows, &own);
        if (!status) continue;
#pragma omp critical /* without a name, which the library would export */
        {
            failed = status;
            if (error) *error = own;
        }
    }
    return failed;
}

static enum terse_status check_rows(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    const struct cache *last = batch->caches[batch->n - 1];
    const size_t all = last->first_row + last->base.plan.n, end = rows->first + rows->count;
    return end <= all ? TERSE_OK : status_fail(error, TERSE_E_ARGUMENT, "rows %zu to %zu of a batch of %zu", rows->first, end, all);
}

/* Makes the call for every sequence that has some of the rows; rows NULL: for every one. */
static enum terse_status visit_caches(const struct kv_batch *batch, visit *call, const struct kv_rows *rows,
                                      struct terse_error *error) {
    enum terse_status status = rows ? check_rows(batch, rows, error) : TERSE_OK;
    if (status) return status;
    uint64_t left = 0;
    for (size_t i = 0; i < batch->n; i++) left += cache_length(batch->caches[i]);
    size_t i = 0;
    for (; i < batch->n && !status; i++) {
        uint64_t length = cache_length(batch->caches[i]);
        const bool exchanges = batch->caches[i]->base.shape.ranks; /* which ranks do in the same order */
        if (!exchanges && i + 1 < batch->n && length * batch->caches[i]->base.threads <= left) break;
        status = visit_one(batch->caches[i], call, rows, error);
        left -= length;
    }
    return status || i == batch->n ? status : visit_side_by_side(batch, i, call, rows, error);
}

/* ---- Keys and values: of several sequences they are noted, and appended by the thread that visits the sequence next */

static enum terse_status note_keys(struct cache *cache, const struct kv_rows *own, struct terse_error *error) {
    if (own->count != cache->base.plan.n)
        return status_fail(error, TERSE_E_ARGUMENT, "keys and values of %zu of %zu tokens", own->count, cache->base.plan.n);
    uint32_t layer;
    struct cache *part = parts_of_layer(cache, own->layer, &layer);
    if (!part) return status_fail(error, TERSE_E_ARGUMENT, "layer %u, which the cache does not have", own->layer);
    enum terse_status status = cache_check_layer(part, layer, error);
    if (status) return status;
    cache->at = part;
    cache->brought = layer;
    part->k = own->k;
    part->v = own->v;
    return TERSE_OK;
}

static enum terse_status append_noted(struct cache *cache, struct terse_error *error) {
    const uint32_t layer = cache->brought;
    cache->brought = NO_LAYER;
    return layer == NO_LAYER ? TERSE_OK : cache_append(cache->at, layer, cache->at->k, cache->at->v, error);
}

enum terse_status caches_join(const struct kv_batch *batch, struct terse_error *error) {
    size_t row = 0;
    for (size_t i = 0; i < batch->n; i++) {
        if (!batch->caches[i]->base.in_step)
            return status_fail(error, TERSE_E_ARGUMENT, "a batch of caches of which not all have begun");
        batch->caches[i]->first_row = row;
        row += batch->caches[i]->base.plan.n;
    }
    return TERSE_OK;
}

enum terse_status caches_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < batch->n && !status; i++) {
        const struct kv_rows own = own_rows(batch->caches[i], rows);
        status = note_keys(batch->caches[i], &own, error);
    }
    return status || batch->n > 1 ? status : append_noted(batch->caches[0], error);
}

/* ---- Queries */

size_t caches_queries_to_observe(const struct kv_batch *batch, size_t needed, size_t *first) {
    size_t end = 0;
    *first = 0;
    for (size_t i = 0; i < batch->n; i++) {
        size_t own = cache_queries_to_observe(batch->caches[i]->at, batch->n > 1 ? 0 : needed);
        if (own) end = batch->caches[i]->first_row + own;
    }
    return end;
}

static enum terse_status observe(struct cache *cache, const struct kv_rows *own, struct terse_error *error) {
    enum terse_status status = append_noted(cache, error);
    return status ? status : cache_observe(cache->at, own->q, own->first, own->count, error);
}

/* Observes the queries of a sequence among several, all of which attend. */
static enum terse_status observe_wanted(struct cache *cache, const struct kv_rows *own, struct terse_error *error) {
    return cache_queries_to_observe(cache->at, 0) ? observe(cache, own, error) : TERSE_OK;
}

enum terse_status caches_observe(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    return visit_caches(batch, batch->n > 1 ? observe_wanted : observe, rows, error);
}

static enum terse_status attend(struct cache *cache, const struct kv_rows *own, struct terse_error *error) {
    enum terse_status status = append_noted(cache, error);
    return status ? status : cache_attend(cache->at, own->q, own->first, own->count, own->out, error);
}

enum terse_status caches_attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    return visit_caches(batch, attend, rows, error);
}

bool caches_attend_some(const struct kv_batch *batch, const struct kv_rows *rows) {
    if (batch->n > 1) return false;
    const struct kv_rows own = own_rows(batch->caches[0], rows);
    return cache_attend_some(batch->caches[0]->at, own.q, own.first, own.count, own.out);
}

/* ---- The end of a layer */

static enum terse_status seal(struct cache *cache, const struct kv_rows *own, struct terse_error *error) {
    (void)own;
    enum terse_status status = append_noted(cache, error);
    return status ? status : cache_end_layer(cache->at, error);
}

enum terse_status caches_seal(const struct kv_batch *batch, uint32_t layer, struct terse_error *error) {
    (void)layer; /* that of append */
    return visit_caches(batch, seal, NULL, error);
}

bool caches_seal_some(const struct kv_batch *batch) { return batch->n == 1 && cache_seal_some(batch->caches[0]->at); }
