/* Drives kv_ops through the layers of a step. */
#include "support/cache_steps.h"

#include "support/one_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MUST(call) \
    do { \
        if (call) fail_msg("%s: %s", #call, error.message); \
    } while (0)

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* The queries of a layer, from the first that attends on. */
static void attend(const struct kv_ops *kv, struct cache *cache, const struct cache_shape *shape, uint32_t layer, size_t n,
                   size_t needed, size_t piece, float *q, float *out) {
    const size_t width = cache_shape_query_width(shape), each = piece ? piece : n,
                 shown = one_queries_to_observe(kv, cache, needed);
    struct terse_error error;
    for (size_t i = 0; i < shown; i += each)
        MUST(one_observe(kv, cache, layer, q + i * width, i, smaller(each, shown - i), &error));
    for (size_t i = needed; i < n; i += each)
        MUST(one_attend(kv, cache, layer, q + i * width, i, smaller(each, n - i), out + i * width, &error));
}

void step_layers(const struct kv_ops *kv, struct cache *cache, const struct cache_shape *shape, size_t n,
                 const struct step_rows *rows) {
    const size_t k_width = cache_shape_kv_width(shape), q_width = cache_shape_query_width(shape);
    float *k = malloc(n * k_width * sizeof *k), *q = malloc(n * q_width * sizeof *q), *out = malloc(n * q_width * sizeof *out);
    struct terse_error error;
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        const size_t at = layer * rows->apart, needed = rows->asked && layer + 1 == shape->layers ? n - rows->asked : 0;
        memcpy(k, rows->k + at * k_width, n * k_width * sizeof *k); /* may be rotated in place */
        MUST(one_append(kv, cache, layer, k, rows->v + at * k_width, &error));
        if (rows->q) {
            memcpy(q, rows->q + at * q_width, n * q_width * sizeof *q);
            attend(kv, cache, shape, layer, n, needed, rows->piece, q, rows->out ? rows->out + at * q_width : out);
        }
        MUST(one_seal(kv, cache, layer, &error));
    }
    free(k);
    free(q);
    free(out);
}

void step_cache(const struct kv_ops *kv, struct cache *cache, const struct cache_shape *shape, enum cache_step_kind kind, size_t n,
                const struct step_rows *rows) {
    struct terse_error error;
    MUST(one_begin(kv, cache, kind, n, &error));
    step_layers(kv, cache, shape, n, rows);
    MUST(kv->commit(cache, &error));
}
