/* A model's profile: the parameters of the codec transform (format/transform.h) for every layer, KV head and side.
 *
 * Forward passes over a text give keys, values and queries, and from them mean, metric and covariance (format/transform_fit.h); a backward
 * pass over a part of it gives the importance of each layer, KV head and side: the mean square of the loss's gradient with respect to a
 * component of a row of gain 1, labels drawn from the model's predictions, so that it averages to the Fisher information. */
#ifndef TERSE_TRAIN_PROFILE_H
#define TERSE_TRAIN_PROFILE_H

#include "format/codec.h"
#include "model/model.h"

#define PROFILE_TOKENS 20480         /* of means and covariances, where nothing else is asked for */
#define PROFILE_GRADIENT_TOKENS 4096 /* of importance, at most, but one window at least */

struct profile_options {
    uint32_t window, windows;       /* as of struct capture_options */
    bool text_labels;               /* gradients of the loss against the text, not of drawn labels */
    uint64_t seed;                  /* of the draws */
    size_t budget;                  /* bytes of samples */
    struct terse_progress progress; /* "keys and values" and "gradients", in passes over a layer, and "transforms" between them */
};

/* parameters[side]: floats [layers][kv_heads][transform_parameter_floats]. *seen are the tokens of the text that were looked at. Keys are in
 * the frame CODEC_ROPE_IN_RUN, and the first tokens of each window, which caches keep exact, are left out. Uses the calling thread's
 * OpenMP threads, whose number changes no bit. */
enum terse_status profile_learn(const struct terse_model *model, const struct profile_options *options, const int32_t *tokens,
                                size_t n, float *parameters[2], uint64_t *seen, struct terse_error *error);

#endif
