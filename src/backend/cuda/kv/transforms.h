/* What the codec transform goes by, on the device: of each layer, KV head and side the layout of its components and the numbers of the
 * profile. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORMS_H
#define TERSE_BACKEND_CUDA_KV_TRANSFORMS_H

#include "backend/cuda/kv/view.h"
#include "kv/shape.h"
#include "method/method.h"

/* views[layers][Hk][2] and the numbers that they point to, all of it the device's and one piece of memory; zeros for a side of another codec.
 * *views is NULL where neither side is of codec transform. Immutable. */
enum terse_status transforms_new(const struct cache_shape *shape, const struct method *method, struct transform_view **views,
                                 struct terse_error *error);
void transforms_free(struct transform_view *views); /* accepts NULL */

#endif
