/* Keeps CommVQ's codebooks on the device: what encoding and reading need of each layer, KV head and side. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_COMMVQ_H
#define TERSE_BACKEND_CUDA_KV_COMMVQ_H

#include "backend/cuda/kv/view.h"
#include "kv/shape.h"
#include "method/method.h"

/* These implement learned_new of codec.h for keys, whose views are struct commvq_view, and values, struct additive_view. Keys whose
 * codebook pairs other channels than the model rotates together are TERSE_E_UNSUPPORTED. */
enum terse_status commvq_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                             struct terse_error *error);
enum terse_status additive_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                               struct terse_error *error);

/* These are their functions of learned.h. */
size_t commvq_bytes(const struct coding *coding, uint32_t head_dim);
enum terse_status commvq_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                              struct terse_error *error);
size_t additive_bytes(const struct coding *coding, uint32_t head_dim);
enum terse_status additive_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                                struct terse_error *error);

#endif
