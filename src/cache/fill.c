/* Filling a cache with random tokens, for benchmarks at depth: the steps of a real prefill without its attention. */
#include "base/memory.h"
#include "base/random.h"
#include "cache/state.h"

#include <math.h>
#include <string.h>

#define CHUNK 1024                /* tokens of a step; a policy that keeps some of each prompt sees one prompt */
#define NORMALS ((size_t)1 << 16) /* numbers that all rows are cut from, each row at a random place */

/* Box-Muller. */
static void fill_normals(float *numbers, size_t n, uint64_t *state) {
    for (size_t i = 0; i + 1 < n; i += 2) {
        double u = (double)((random_next(state) >> 11) + 1) * 0x1p-53, angle = (double)(random_next(state) >> 11) * 0x1p-52 * M_PI;
        double radius = sqrt(-2 * log(u));
        numbers[i] = (float)(radius * cos(angle));
        numbers[i + 1] = (float)(radius * sin(angle));
    }
}

static void fill_rows(const struct cache *cache, const float *normals, size_t n, uint64_t *state, float *rows) {
    size_t hd = cache->shape.head_dim;
    for (size_t i = 0; i < n * cache->shape.kv_heads; i++)
        memcpy(rows + i * hd, normals + random_next(state) % NORMALS, hd * sizeof *rows);
}

enum terse_status cache_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    size_t width = (size_t)cache->shape.kv_heads * cache->shape.head_dim,
           chunk = n < CHUNK || cache->method.policy->alone ? n : CHUNK;
    size_t floats = NORMALS + CODEC_HEAD_DIM_MAX;
    enum terse_status status = TERSE_OK;
    float *normals = memory_array(floats + 2 * chunk * width, sizeof *normals);
    if (!normals) return status_no_memory(error, (floats + 2 * chunk * width) * sizeof *normals, "random keys and values");
    float *k = normals + floats, *v = k + chunk * width;
    fill_normals(normals, floats, &seed);
    for (size_t first = 0; first < n && !status; first += chunk) {
        size_t count = n - first < chunk ? n - first : chunk;
        /* A number of anchors is that of a prompt: the last step stands for it. */
        bool part = cache->method.parameters.anchor_count && first + count < n;
        if ((status = cache_step_begin(cache, part ? CACHE_STEP_CHUNK : CACHE_STEP_PREFILL, count, error))) break;
        for (uint32_t layer = 0; layer < cache->shape.layers; layer++) {
            fill_rows(cache, normals, count, &seed, k);
            fill_rows(cache, normals, count, &seed, v);
            cache_layer_begin(cache, layer, k, v);
            cache_layer_end(cache);
        }
        cache_step_end(cache);
    }
    memory_free(normals);
    return status;
}
