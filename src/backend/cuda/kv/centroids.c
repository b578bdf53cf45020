/* Makes what kernels read of a codec with centroids. */
#include "backend/cuda/kv/centroids.h"

#include "backend/cuda/device.h"
#include "backend/cuda/kv/learned.h"
#include "base/half.h"
#include "base/memory.h"
#include "format/pq.h"

#include <math.h>
#include <string.h>

struct centroid_shape centroid_shape_of(const struct coding *coding) {
    return (struct centroid_shape){coding->width, coding->bits};
}

/* Counts the numbers of a set: centroids in halves, then floats: z, half, origin, scale, most, mean. */
struct numbers {
    size_t centroids, parts, k, halves, z, floats;
};

static struct numbers numbers_of(const struct coding *coding, uint32_t hd) {
    struct numbers n = {.parts = hd / coding->width, .k = (size_t)1 << coding->bits};
    n.centroids = n.k * hd;
    n.halves = memory_round_up(n.centroids * sizeof(uint16_t), 16);
    n.z = coding->bits <= PQ_CHANNEL_BITS ? n.centroids : 0;
    n.floats = n.z + n.parts * n.k + hd + n.parts + n.parts + hd;
    return n;
}

size_t centroid_bytes(const struct coding *coding, uint32_t head_dim) {
    struct numbers n = numbers_of(coding, head_dim);
    return n.halves + memory_round_up(n.floats * sizeof(float), 16);
}

/* Sets what the search needs; `z` where it is kept. */
static void set_search(const struct numbers *n, const float *centroids, size_t d, float *origin, float *scale, float *half,
                       float *most, float *z) {
    float own[PQ_WIDTH_MAX];
    for (size_t p = 0; p < n->parts; p++) {
        const float *of_part = centroids + p * n->k * d;
        scale[p] = pq_search_origin(of_part, n->k, d, origin + p * d);
        for (size_t j = 0; j < n->k; j++) {
            const float own_half = half[p * n->k + j] = pq_search_centroid(of_part + j * d, d, origin + p * d, scale[p], own);
            most[p] = fmaxf(most[p], own_half);
            for (size_t c = 0; n->z && c < d; c++) z[(p * d + c) * n->k + j] = own[c];
        }
    }
}

enum terse_status centroid_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                                struct terse_error *error) {
    const struct numbers n = numbers_of(coding, head_dim);
    const float *normalization = coding->codec->normalized ? parameters + n.centroids : NULL;
    size_t bytes = centroid_bytes(coding, head_dim);
    uint8_t *host = memory_zeros(bytes, 1), *to = device;
    if (!host) return status_no_memory(error, bytes, "a codebook");
    uint16_t *halves = (uint16_t *)(void *)host;
    float *z = (float *)(void *)(host + n.halves), *half = z + n.z, *origin = half + n.parts * n.k, *scale = origin + head_dim;
    float *most = scale + n.parts, *mean = most + n.parts;
    const float *there = (const float *)(const void *)(to + n.halves);
    for (size_t i = 0; i < n.centroids; i++) { /* parameters are [hd / width][2^bits][width] */
        const size_t row = i / coding->width, part = row / n.k, code = row % n.k;
        halves[code * head_dim + part * coding->width + i % coding->width] = half_from_float(parameters[i]);
    }
    set_search(&n, parameters, coding->width, origin, scale, half, most, z);
    if (normalization) memcpy(mean, normalization, head_dim * sizeof *mean);
    *(struct centroid_view *)view = (struct centroid_view){.shape = {coding->width, coding->bits},
                                                           .centroids = device,
                                                           .origin = there + (origin - z),
                                                           .scale = there + (scale - z),
                                                           .half = there + (half - z),
                                                           .most = there + (most - z),
                                                           .z = n.z ? there : NULL,
                                                           .normalized = normalization != NULL,
                                                           .gain_scale = normalization ? normalization[head_dim] : 1,
                                                           .mean = there + (mean - z)};
    enum terse_status status = device_check(device_send(device, host, bytes), "sending a codebook", error);
    memory_free(host);
    return status;
}

enum terse_status centroids_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                struct terse_error *error) {
    static const struct learned_form form = {sizeof(struct centroid_view), centroid_bytes, centroid_send};
    return learned_views_new(&form, shape, method, side, views, error);
}
