/* Keeps codebooks of codecs with centroids (pq, vq, gain-shape) on the device: what encoding and reading need of each layer, KV
 * head and side. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_CENTROIDS_H
#define TERSE_BACKEND_CUDA_KV_CENTROIDS_H

#include "backend/cuda/kv/view.h"
#include "kv/shape.h"
#include "method/method.h"

/* Returns the shape of a side's code; zeros where its codec has no sub-vectors. */
struct centroid_shape centroid_shape_of(const struct coding *coding);

/* Implements learned_new of codec.h for a side whose codec has centroids: sends struct centroid_view views[layers][Hk] and the
 * numbers that they point to, which never change. */
enum terse_status centroids_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                struct terse_error *error);
/* These are its functions of learned.h, whose view is a struct centroid_view. */
size_t centroid_bytes(const struct coding *coding, uint32_t head_dim);
enum terse_status centroid_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                                struct terse_error *error);

#endif
