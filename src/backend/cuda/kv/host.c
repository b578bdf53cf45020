/* kv_ops with keys, values and queries in the host's memory: what tests and benchmarks call; the executor has its own on the device. And
 * caches filled at random. */
#include "backend/cuda/kv/step.h"
#include "backend/cuda/kv/state.h"

#include <stdlib.h>

struct host_step {
    struct cache_batch *batch;
    uint64_t step; /* of the cache, that the batch was begun for */
    float *memory; /* on the device: q[n][Hq][hd], k, v[n][Hk][hd] */
    size_t floats;
};

static size_t query_width(const struct cache *cache) { return (size_t)cache->base.shape.query_heads * cache->base.shape.head_dim; }
static size_t kv_width(const struct cache *cache) { return (size_t)cache->base.shape.kv_heads * cache->base.shape.head_dim; }

static float *queries_of(const struct cache *cache) { return cache->host->memory; }
static float *keys_of(const struct cache *cache) { return cache->host->memory + cache->base.plan.n * query_width(cache); }
static float *values_of(const struct cache *cache) { return keys_of(cache) + cache->base.plan.n * kv_width(cache); }

void host_step_free(struct host_step *host) {
    if (!host) return;
    batch_free(host->batch);
    device_free(NULL, host->memory, host->floats * sizeof(float));
    free(host);
}

static enum terse_status reserve(struct cache *cache, struct terse_error *error) {
    size_t floats = cache->base.plan.n * (query_width(cache) + 2 * kv_width(cache));
    if (!cache->host && !(cache->host = calloc(1, sizeof *cache->host)))
        return status_no_memory(error, sizeof *cache->host, "a step");
    struct host_step *host = cache->host;
    if (floats > host->floats) {
        cudaStreamSynchronize(device_stream());
        device_free(NULL, host->memory, host->floats * sizeof(float));
        host->floats = 0;
        if (!(host->memory = device_alloc(NULL, floats * sizeof(float), "a step", error))) return TERSE_E_MEMORY;
        host->floats = floats;
    }
    if (!host->batch) return batch_new(&cache->base.shape, &host->batch, error);
    return TERSE_OK;
}

static enum terse_status send(float *to, const float *from, size_t floats, struct terse_error *error) {
    return device_check(cudaMemcpyAsync(to, from, floats * sizeof *to, cudaMemcpyHostToDevice, device_stream()), "sending a step",
                        error);
}

enum terse_status kv_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    if (!cache->base.in_step || layer < cache->base.layers_ended || layer >= cache->base.shape.layers)
        return status_fail(error, TERSE_E_ARGUMENT, "layer %u of %u out of order", layer, cache->base.shape.layers);
    size_t floats = cache->base.plan.n * kv_width(cache);
    enum terse_status status = reserve(cache, error);
    if (!status) status = send(keys_of(cache), k, floats, error);
    if (!status) status = send(values_of(cache), v, floats, error);
    if (status) return status;
    cache->base.layer = layer;
    if (!cache_decodes(cache))
        return cache_append_rows(cache, layer, 0, cache->base.plan.n, keys_of(cache), values_of(cache), error);
    if (cache->host->step != cache->steps) status = batch_begin(cache->host->batch, &cache, 1, error);
    cache->host->step = cache->steps;
    return status ? status : batch_append(cache->host->batch, layer, NULL, keys_of(cache), values_of(cache), error);
}

/* As they attend, prompts show their queries; the others have to be shown. */
size_t kv_queries_to_observe(const struct cache *cache, size_t needed) { return cache->base.plan.anchors ? needed : 0; }

enum terse_status kv_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    if (!cache->base.in_step || cache->base.layer == NO_LAYER || first > cache->base.plan.n || count > cache->base.plan.n - first)
        return status_fail(error, TERSE_E_ARGUMENT, "queries %zu to %zu of a step of %zu tokens", first, first + count,
                           cache->base.plan.n);
    if (cache_decodes(cache)) return TERSE_OK;
    float *own = queries_of(cache) + first * query_width(cache);
    enum terse_status status = send(own, q, count * query_width(cache), error);
    return status ? status : cache_observe_rows(cache, first, count, own, error);
}

enum terse_status kv_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                            struct terse_error *error) {
    size_t width = query_width(cache);
    if (!cache->base.in_step || cache->base.layer == NO_LAYER)
        return status_fail(error, TERSE_E_ARGUMENT, "queries of a layer without its keys and values");
    if (first > cache->base.plan.n || count > cache->base.plan.n - first)
        return status_fail(error, TERSE_E_ARGUMENT, "queries %zu to %zu of a step of %zu tokens", first, first + count,
                           cache->base.plan.n);
    float *own = queries_of(cache) + first * width;
    enum terse_status status = send(own, q, count * width, error);
    if (status) return status;
    if (cache_decodes(cache)) { /* the step's other queries are nobody's business */
        float *all = queries_of(cache);
        status = batch_append(cache->host->batch, cache->base.layer, all, NULL, NULL, error);
        if (!status) status = batch_attend(cache->host->batch, cache->base.layer, all, all, error);
    } else {
        status = cache_attend_rows(cache, cache->base.layer, first, count, own, own, error);
    }
    if (status) return status;
    cudaError_t result = cudaMemcpyAsync(out, own, count * width * sizeof *out, cudaMemcpyDeviceToHost, device_stream());
    if (result == cudaSuccess) result = cudaStreamSynchronize(device_stream());
    return device_check(result, "attention", error);
}

enum terse_status kv_end_layer(struct cache *cache, struct terse_error *error) {
    uint32_t layer = cache->base.layer;
    if (layer == NO_LAYER) return status_fail(error, TERSE_E_ARGUMENT, "the end of a layer without its keys and values");
    cache->base.layer = NO_LAYER;
    if (!cache_decodes(cache)) return cache_end_layer_rows(cache, layer, error);
    cache->base.layers_ended = layer + 1;
    return TERSE_OK;
}

/* ---- A cache of random tokens, through the steps */

#define FILL_ROWS 4096 /* at a time */

enum terse_status kv_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    size_t width = kv_width(cache), bytes = 2 * FILL_ROWS * width * sizeof(float);
    enum terse_status status = kv_begin(cache, CACHE_STEP_PREFILL, n, error);
    if (status) return status;
    float *rows = device_alloc(NULL, bytes, "random keys and values", error);
    if (!rows) return TERSE_E_MEMORY;
    for (uint32_t layer = 0; layer < cache->base.shape.layers && !status; layer++) {
        for (size_t first = 0; first < n && !status; first += FILL_ROWS) {
            size_t count = n - first < FILL_ROWS ? n - first : FILL_ROWS;
            status =
                device_check(random_rows(rows, 2 * FILL_ROWS * width, seed++, device_stream()), "random keys and values", error);
            if (!status) status = cache_append_rows(cache, layer, first, count, rows, rows + FILL_ROWS * width, error);
        }
        if (!status) status = cache_end_layer_rows(cache, layer, error);
    }
    if (!status) status = kv_commit(cache, error);
    cudaStreamSynchronize(device_stream());
    device_free(NULL, rows, bytes);
    return status;
}
