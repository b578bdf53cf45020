/* Sends a codebook to the device: a set of parameters at a time, so that the host needs little memory for it. */
#include "backend/cuda/kv/centroids.h"

#include "backend/cuda/device.h"
#include "base/half.h"
#include "base/memory.h"
#include "format/codebook.h"
#include "format/pq.h"

#include <string.h>

struct centroid_shape centroid_shape_of(const struct coding *coding) {
    return (struct centroid_shape){coding->width, coding->bits};
}

/* Counts the numbers of a set: centroids in halves, then floats: origin, scale, half, mean. */
struct numbers {
    size_t centroids, parts, k, halves, floats;
};

static struct numbers numbers_of(const struct coding *coding, uint32_t hd) {
    struct numbers n = {.parts = hd / coding->width, .k = (size_t)1 << coding->bits};
    n.centroids = n.k * hd;
    n.halves = memory_round_up(n.centroids * sizeof(uint16_t), 16);
    n.floats = (size_t)hd + n.parts + n.parts * n.k + hd;
    return n;
}

size_t centroid_bytes(const struct coding *coding, uint32_t head_dim) {
    struct numbers n = numbers_of(coding, head_dim);
    return n.halves + memory_round_up(n.floats * sizeof(float), 16);
}

static void set_search(const struct numbers *n, const float *centroids, size_t d, float *origin, float *scale, float *half) {
    float z[PQ_WIDTH_MAX];
    for (size_t p = 0; p < n->parts; p++) {
        const float *of_part = centroids + p * n->k * d;
        scale[p] = pq_search_origin(of_part, n->k, d, origin + p * d);
        for (size_t j = 0; j < n->k; j++) half[p * n->k + j] = pq_search_centroid(of_part + j * d, d, origin + p * d, scale[p], z);
    }
}

enum terse_status centroid_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device,
                                struct centroid_view *view, struct terse_error *error) {
    const struct numbers n = numbers_of(coding, head_dim);
    const float *normalization = coding->codec->normalized ? parameters + n.centroids : NULL;
    size_t bytes = centroid_bytes(coding, head_dim);
    uint8_t *host = memory_zeros(bytes, 1), *to = device;
    if (!host) return status_no_memory(error, bytes, "a codebook");
    uint16_t *halves = (uint16_t *)(void *)host;
    float *origin = (float *)(void *)(host + n.halves), *scale = origin + head_dim, *half = scale + n.parts;
    float *mean = half + n.parts * n.k;
    const float *there = (const float *)(const void *)(to + n.halves);
    for (size_t i = 0; i < n.centroids; i++) halves[i] = half_from_float(parameters[i]);
    set_search(&n, parameters, coding->width, origin, scale, half);
    if (normalization) memcpy(mean, normalization, head_dim * sizeof *mean);
    *view = (struct centroid_view){.shape = {coding->width, coding->bits},
                                   .centroids = device,
                                   .origin = there,
                                   .scale = there + (scale - origin),
                                   .half = there + (half - origin),
                                   .normalized = normalization != NULL,
                                   .gain_scale = normalization ? normalization[head_dim] : 1,
                                   .mean = there + (mean - origin)};
    enum terse_status status = device_check(device_send(device, host, bytes), "sending a codebook", error);
    memory_free(host);
    return status;
}

/* Sends the numbers of `sets` sets, one for each of views[cache_heads_of(shape)] or one for all of them, to `device`. */
static enum terse_status send_sets(const struct cache_shape *shape, const struct method *method, enum codec_side side, size_t sets,
                                   uint8_t *device, struct centroid_view *views, struct terse_error *error) {
    const struct coding *coding = side == CODEC_VALUES ? &method->value : &method->key;
    const struct codebook_info *info = codebook_info(method->learned);
    const size_t bytes = centroid_bytes(coding, shape->head_dim);
    float *parameters = memory_array(codec_parameters(coding->codec, codebook_shape(info, side)), sizeof *parameters);
    enum terse_status status = parameters ? TERSE_OK : status_no_memory(error, 0, "a codebook");
    for (size_t set = 0; set < sets && !status; set++) {
        codebook_parameters(method->learned, side, info->shared ? 0 : cache_shape_set(shape, set), parameters);
        status = centroid_send(coding, shape->head_dim, parameters, device + set * bytes, &views[set], error);
    }
    for (size_t i = sets; i < cache_heads_of(shape) && !status; i++) views[i] = views[0];
    memory_free(parameters);
    return status;
}

enum terse_status centroids_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                struct terse_error *error) {
    const struct coding *coding = side == CODEC_VALUES ? &method->value : &method->key;
    size_t n = cache_heads_of(shape), head = memory_round_up(n * sizeof(struct centroid_view), 256);
    const size_t sets = codebook_info(method->learned)->shared ? 1 : n,
                 bytes = head + sets * centroid_bytes(coding, shape->head_dim);
    struct centroid_view *host = memory_zeros(n, sizeof *host);
    uint8_t *device = host ? device_alloc(NULL, bytes, "a codebook", error) : NULL;
    enum terse_status status = host ? device ? TERSE_OK : TERSE_E_MEMORY : status_no_memory(error, n * sizeof *host, "a codebook");
    *views = NULL;
    if (!status) status = send_sets(shape, method, side, sets, device + head, host, error);
    if (!status) status = device_check(device_send(device, host, n * sizeof *host), "sending a codebook", error);
    memory_free(host);
    if (status)
        device_free(NULL, device, bytes);
    else
        *views = device;
    return status;
}
