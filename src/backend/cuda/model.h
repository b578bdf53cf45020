/* Declares a model's weights on the device. */
#ifndef TERSE_BACKEND_CUDA_MODEL_H
#define TERSE_BACKEND_CUDA_MODEL_H

#include "backend/cuda/weights.h"
#include "base/status.h"

struct device_experts {
    struct device_matrix router, gate, up, down, shared_gate, shared_up, shared_down;
    struct device_matrix shared_router; /* of one row */
};

/* This is the device's part of struct layer; a matrix or norm that the model does not have has data, gain NULL. */
struct device_layer {
    struct norm attention_norm, feed_forward_norm, q_norm, k_norm, attention_post_norm, feed_forward_post_norm;
    struct device_matrix q, k, v, o, gate, up, down;
    struct device_experts experts;
};

struct device_model {
    const struct terse_model *model;
    struct device_matrix embedding, output, positions;
    struct norm output_norm;
    struct device_layer *layer; /* [layers] */
    size_t bytes;               /* of all matrices */
};

/* Uploads a model, which outlives the result. `besides` bytes are kept free. TERSE_E_MEMORY says in one line how much the model
 * takes and how much there is. `progress`, which may be NULL, is asked now and then whether to go on: TERSE_E_INTERRUPTED. */
enum terse_status device_model_load(const struct terse_model *model, size_t besides, const struct terse_progress *progress,
                                    struct device_model *device, struct terse_error *error);
void device_model_free(struct device_model *device);

/* Return the device's part of a matrix or a norm, which is one of the model's output or of its layers without experts. */
const struct device_matrix *device_model_matrix(const struct device_model *device, const struct matrix *matrix);
const struct norm *device_model_norm(const struct device_model *device, const struct norm *norm);

#endif
