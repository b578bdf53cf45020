/* Sends what a codec learned to the device in the codec's own form: a set of parameters at a time, so that the host needs little
 * memory for it. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_LEARNED_H
#define TERSE_BACKEND_CUDA_KV_LEARNED_H

#include "kv/shape.h"
#include "method/method.h"

/* A learned_form is how kernels read one set of parameters[codec_parameters], for a side of one layer and KV head: by a view, and by
 * numbers in device memory that the view points to. */
struct learned_form {
    size_t view_bytes;
    /* Returns the bytes of device memory that the numbers take, a multiple of 16. */
    size_t (*bytes)(const struct coding *coding, uint32_t head_dim);
    /* Sends the numbers to `device` and makes the view. */
    enum terse_status (*send)(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                              struct terse_error *error);
};

/* Sends a side's views[layers][Hk] and, in the same piece of memory, the numbers of all sets of its codebook: learned_new of
 * codec.h. */
enum terse_status learned_views_new(const struct learned_form *form, const struct cache_shape *shape, const struct method *method,
                                    enum codec_side side, void **views, struct terse_error *error);

#endif
