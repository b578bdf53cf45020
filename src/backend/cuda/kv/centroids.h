/* Codebooks of codecs with centroids (pq, vq, gain-shape) on the device: of each layer, KV head and side what encoding and reading go by. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_CENTROIDS_H
#define TERSE_BACKEND_CUDA_KV_CENTROIDS_H

#include "backend/cuda/kv/view.h"
#include "kv/shape.h"
#include "method/method.h"

/* width 0 for a side whose codec has no centroids. */
struct centroid_shape centroid_shape_of(const struct coding *coding);

/* views[layers][Hk][2] and the numbers that they point to, all of it the device's and one piece of memory; zeros for a side of another codec.
 * *views is NULL where neither side's codec has centroids. Immutable. */
enum terse_status centroids_new(const struct cache_shape *shape, const struct method *method, struct centroid_view **views,
                                struct terse_error *error);
/* Of one set of parameters[codec_parameters], for a side of one layer and KV head: what it takes of device memory, a multiple of 16 bytes, and
 * the view, whose numbers are sent there. */
size_t centroid_bytes(const struct coding *coding, uint32_t head_dim);
enum terse_status centroid_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device,
                                struct centroid_view *view, struct terse_error *error);
void centroids_free(struct centroid_view *views); /* accepts NULL */

#endif
