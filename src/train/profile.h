/* Learns a model's profile: the parameters of the codec transform (format/transform.h) for every layer, KV head and side.
 *
 * Forward passes over a text give keys and values, and from them mean and covariance (format/transform_fit.h) in the metric of the
 * weights, and the size of the residual stream. The weights imply the importance of each layer, KV head and side
 * (backend/cpu/weight_profile.h); it is corrected for the text's rows (format/codebook_importance.h), as a cache that fits itself
 * to its sequence corrects it. */
#ifndef TERSE_TRAIN_PROFILE_H
#define TERSE_TRAIN_PROFILE_H

#include "format/codec.h"
#include "model/model.h"

#define PROFILE_TOKENS 20480 /* where nothing else is asked for */

struct profile_options {
    uint32_t window, windows;       /* as of struct capture_options */
    size_t budget;                  /* bytes of samples */
    struct terse_progress progress; /* "keys and values", in passes over a layer, then "transforms" */
    const struct learning_ops *ops; /* as of struct capture_options */
};

/* Writes parameters[side]: floats [layers][kv_heads][transform_parameter_floats], and to *seen how many tokens of the text were
 * looked at. Keys are in the frame CODEC_ROPE_IN_RUN, and the first tokens of each window, which caches keep exact, are left out.
 * It uses the calling thread's OpenMP threads, whose number changes no bit. */
enum terse_status profile_learn(const struct terse_model *model, const struct profile_options *options, const int32_t *tokens,
                                size_t n, float *parameters[2], uint64_t *seen, struct terse_error *error);

#endif
