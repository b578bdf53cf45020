/* The device's copies of what tests have in the host's memory, by cache. */
#include "host_kv.h"

#include "backend/cuda/kv/ops.h"
#include "backend/cuda/kv/state.h"
#include "backend/cuda/kv/step.h"

#include <stdlib.h>

struct host_step {
    struct host_step *next;
    const struct cache *cache;
    struct cache_batch *batch;
    uint64_t step; /* of the cache, that the batch was begun for */
    float *memory; /* on the device: q[n][Hq][hd], k, v[n][Hk][hd] */
    size_t floats;
};

static struct host_step *steps;

static struct host_step *step_of(const struct cache *cache) {
    struct host_step *step = steps;
    while (step && step->cache != cache) step = step->next;
    return step;
}

static float *queries_of(const struct cache *cache) { return step_of(cache)->memory; }
static float *keys_of(const struct cache *cache) {
    return step_of(cache)->memory + cache->base.plan.n * cache_shape_query_width(&cache->base.shape);
}
static float *values_of(const struct cache *cache) {
    return keys_of(cache) + cache->base.plan.n * cache_shape_kv_width(&cache->base.shape);
}

static void destroy(struct cache *cache) {
    for (struct host_step **at = &steps; *at; at = &(*at)->next) {
        struct host_step *step = *at;
        if (step->cache != cache) continue;
        *at = step->next;
        batch_free(step->batch);
        device_free(NULL, step->memory, step->floats * sizeof(float));
        free(step);
        break;
    }
    cuda_kv_ops.destroy(cache);
}

static enum terse_status reserve(struct cache *cache, struct terse_error *error) {
    size_t floats =
        cache->base.plan.n * (cache_shape_query_width(&cache->base.shape) + 2 * cache_shape_kv_width(&cache->base.shape));
    struct host_step *host = step_of(cache);
    if (!host) {
        if (!(host = calloc(1, sizeof *host))) return status_no_memory(error, sizeof *host, "a step");
        host->cache = cache;
        host->next = steps;
        steps = host;
    }
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

static enum terse_status append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    size_t floats = cache->base.plan.n * cache_shape_kv_width(&cache->base.shape);
    enum terse_status status = cache_check_layer(cache, layer, error);
    if (!status) status = reserve(cache, error);
    if (!status) status = send(keys_of(cache), k, floats, error);
    if (!status) status = send(values_of(cache), v, floats, error);
    if (status) return status;
    cache->base.layer = layer;
    if (!cache_decodes(cache))
        return cache_append_rows(cache, layer, 0, cache->base.plan.n, keys_of(cache), values_of(cache), error);
    if (step_of(cache)->step != cache->steps) status = batch_begin(step_of(cache)->batch, &cache, 1, error);
    step_of(cache)->step = cache->steps;
    return status ? status : batch_append(step_of(cache)->batch, layer, NULL, keys_of(cache), values_of(cache), error);
}

/* Prompts show their queries as they attend; only the other queries must be shown by observe(). */
static size_t queries_to_observe(const struct cache *cache, size_t needed) { return cache->base.plan.anchors ? needed : 0; }

static enum terse_status observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error) {
    enum terse_status status = cache_check_queries(cache, first, count, error);
    if (status || cache_decodes(cache)) return status;
    float *own = queries_of(cache) + first * cache_shape_query_width(&cache->base.shape);
    status = send(own, q, count * cache_shape_query_width(&cache->base.shape), error);
    return status ? status : cache_observe_rows(cache, first, count, own, error);
}

static enum terse_status attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                                struct terse_error *error) {
    size_t width = cache_shape_query_width(&cache->base.shape);
    enum terse_status status = cache_check_queries(cache, first, count, error);
    if (status) return status;
    float *own = queries_of(cache) + first * width;
    status = send(own, q, count * width, error);
    if (status) return status;
    if (cache_decodes(cache)) { /* all of the step's queries, those besides not being read */
        float *all = queries_of(cache);
        status = batch_append(step_of(cache)->batch, cache->base.layer, all, NULL, NULL, error);
        if (!status) status = batch_attend(step_of(cache)->batch, cache->base.layer, all, all, error);
    } else {
        status = cache_attend_rows(cache, cache->base.layer, first, count, own, own, error);
    }
    if (status) return status;
    cudaError_t result = cudaMemcpyAsync(out, own, count * width * sizeof *out, cudaMemcpyDeviceToHost, device_stream());
    if (result == cudaSuccess) result = cudaStreamSynchronize(device_stream());
    return device_check(result, "attention", error);
}

static enum terse_status end_layer(struct cache *cache, struct terse_error *error) {
    uint32_t layer = cache->base.layer;
    if (layer == NO_LAYER) return status_fail(error, TERSE_E_ARGUMENT, "the end of a layer without its keys and values");
    cache->base.layer = NO_LAYER;
    if (!cache_decodes(cache)) return cache_end_layer_rows(cache, layer, error);
    cache->base.layers_ended = layer + 1;
    return TERSE_OK;
}

const struct kv_ops *host_kv_ops(void) {
    static struct kv_ops ops;
    ops = cuda_kv_ops;
    ops.destroy = destroy;
    ops.append = append;
    ops.queries_to_observe = queries_to_observe;
    ops.observe = observe;
    ops.attend = attend;
    ops.end_layer = end_layer;
    return &ops;
}
