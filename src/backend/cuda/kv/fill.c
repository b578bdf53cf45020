/* Fills caches with random tokens, through the steps. */
#include "backend/cuda/kv/fill.h"

#include "backend/cuda/kv/state.h"
#include "backend/cuda/kv/step.h"

#define FILL_ROWS 4096 /* at a time */

/* Fills in the layers of a part; rows[2][FILL_ROWS][Hk][hd] is scratch. */
static enum terse_status fill_part(const struct kv_batch *batch, const struct cache_shape *shape, size_t n, float *rows,
                                   uint64_t *seed, struct terse_error *error) {
    const size_t width = cache_shape_kv_width(shape);
    enum terse_status status = TERSE_OK;
    for (uint32_t i = 0; i < shape->layers && !status; i++) {
        const uint32_t layer = cache_shape_number(shape, i);
        for (size_t first = 0; first < n && !status; first += FILL_ROWS) {
            size_t count = n - first < FILL_ROWS ? n - first : FILL_ROWS;
            status =
                device_check(random_rows(rows, 2 * FILL_ROWS * width, shape->head_dim, RANDOM_OCTAVES, (*seed)++, device_stream()),
                             "random keys and values", error);
            const struct kv_rows part = {.layer = layer, .first = first, .count = count, .k = rows, .v = rows + FILL_ROWS * width};
            if (!status) status = kv_append(batch, &part, error);
        }
        if (!status) status = kv_seal(batch, layer, error);
    }
    return status;
}

/* Appends n tokens in a step. */
static enum terse_status fill_step(struct cache *cache, size_t n, float *rows, uint64_t *seed, struct terse_error *error) {
    const struct kv_batch batch = {&cache, 1, NULL};
    enum terse_status status = kv_begin(cache, CACHE_STEP_PREFILL, n, error);
    if (!status) status = kv_join(&batch, error);
    for (const struct cache *part = cache; part && !status; part = part->base.next)
        status = fill_part(&batch, &part->base.shape, n, rows, seed, error);
    return status ? status : kv_commit(cache, error);
}

enum terse_status kv_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    size_t width = (size_t)cache->base.shape.kv_heads * cache->base.shape.head_dim, bytes = 2 * FILL_ROWS * width * sizeof(float);
    enum terse_status status = TERSE_OK;
    float *rows = device_alloc(NULL, bytes, "random keys and values", error);
    if (!rows) return TERSE_E_MEMORY;
    for (size_t part; n && !status; n -= part) {
        part = cache_prompt_part(cache, n);
        status = fill_step(cache, part, rows, &seed, error);
    }
    cudaStreamSynchronize(device_stream());
    device_free(NULL, rows, bytes);
    return status;
}
