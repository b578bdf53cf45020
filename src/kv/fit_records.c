/* Divides the records among ranks, and each rank's among its threads. */
#include "kv/fit_records.h"

#include "base/memory.h"
#include "base/size.h"
#include "dist/collective.h"
#include "method/method.h"

#include <omp.h>
#include <string.h>

/* A share is the records that a rank fits, [first, end) of all; one process fits all. */
struct share {
    size_t first, end;
    size_t most; /* of any rank */
};

static struct share share_of(const struct cache_base *base) {
    const struct collective *ranks = base->shape.ranks;
    const size_t n = fitted_records(base), most = ranks ? (n + ranks->ranks - 1) / ranks->ranks : n,
                 first = ranks ? size_min(ranks->rank * most, n) : 0;
    return (struct share){first, size_min(first + most, n), most};
}

/* Returns how many records a layer has of a side. */
static size_t heads_of(const struct cache_base *base) { return (size_t)base->shape.kv_heads * method_slices(&base->method); }

struct layer_range fit_layers(const struct cache_base *base) {
    const struct share share = share_of(base);
    const size_t each = heads_of(base) * cache_sides_of(&base->shape);
    return (struct layer_range){(uint32_t)(share.first / each), (uint32_t)((share.end + each - 1) / each)};
}

static enum terse_status fit_share(struct cache_base *base, const struct share *share, record_fit *fit, void *user,
                                   struct terse_error *error) {
    const size_t heads = heads_of(base), sides = cache_sides_of(&base->shape);
    enum terse_status status = TERSE_OK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(base->threads)
    for (size_t i = share->first; i < share->end; i++) {
        const uint32_t layer = (uint32_t)(i / sides / heads), head = (uint32_t)(i / sides % heads);
        const enum codec_side side = i % sides ? CODEC_VALUES : CODEC_KEYS;
        void *record = fitted_record(base, layer, head, side);
        struct terse_error message;
        const enum terse_status result =
            record ? fit(user, (size_t)omp_get_thread_num(), layer, head, side, record, &message) : TERSE_OK;
        if (!result) continue;
#pragma omp critical
        {
            status = result;
            if (error) *error = message;
        }
    }
    return status;
}

/* Completes the records, of which each rank has its share. memory[1 + ranks][most][record_bytes] is scratch. */
static enum terse_status gather_shares(struct cache_base *base, const struct share *share, uint8_t *memory,
                                       struct terse_error *error) {
    const size_t each = base->fitted.record_bytes, block = share->most * each;
    memcpy(memory, base->fitted.records + share->first * each, (share->end - share->first) * each);
    enum terse_status status = collective_gather(base->shape.ranks, memory, block, memory + block, error);
    if (!status) memcpy(base->fitted.records, memory + block, fitted_records(base) * each);
    return status;
}

static enum terse_status agree(const struct cache_base *base, enum terse_status own, struct terse_error *error) {
    return base->shape.ranks ? collective_agree(base->shape.ranks, own, error) : own;
}

enum terse_status fit_records(struct cache *cache, enum terse_status ready, record_fit *fit, void *user,
                              struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    const struct share share = share_of(base);
    const size_t blocks = base->shape.ranks ? 1 + (size_t)base->shape.ranks->ranks : 0;
    uint8_t *memory = NULL;
    enum terse_status status = ready ? ready : fitted_begin(base, error);
    if (!status && blocks && !(memory = memory_zeros(blocks * share.most, base->fitted.record_bytes)))
        status = status_no_memory(error, blocks * share.most * base->fitted.record_bytes, "what ranks fit a KV cache to");
    if (!status) status = fit_share(base, &share, fit, user, error);
    if (!(status = agree(base, status, error))) {
        if (blocks) status = gather_shares(base, &share, memory, error);
        if (!status) status = fitted_end(base, error);
        if (!status) status = base->storage->layouts_changed(cache, error);
        status = agree(base, status, error);
    }
    memory_free(memory);
    if (!status) return TERSE_OK;
    fitted_drop(base);
    base->storage->layouts_changed(cache, NULL);
    return status;
}
