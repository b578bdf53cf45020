/* Implements terse_codebook_random: the codebook of a method for a model with random numbers in place of learned ones. */
#include "method/method.h"
#include "model/model.h"
#include "terse_calibrate.h"

#include <stdio.h>

enum terse_status terse_codebook_random(const struct terse_model *model, const char *name, struct terse_codebook **codebook,
                                        struct terse_error *error) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = name;
    *codebook = NULL;
    enum terse_status status = method_resolve(&options, model->head_dim, &method, error);
    if (!status && model->latent.rank) status = method_for_latents(&method, model->rope.n_rot, model->latent.rank, error);
    if (!status) status = method_check(&method, model->head_dim, model->query_heads / model->kv_heads, error);
    if (status) return status;
    if (!method.codebook[0]) return status_fail(error, TERSE_E_ARGUMENT, "%s learns nothing: it needs no codebook", method.name);
    const uint32_t slices = method_slices(&method);
    method.key.rate = method.value.rate = 0; /* a profile serves every rate */
    struct codebook_info info = {.key = method.key,
                                 .value = method.value,
                                 .layers = model_kv_layers(model),
                                 .kv_heads = model->kv_heads * slices,
                                 .head_dim = method_slice_width(&method, model->head_dim),
                                 .fingerprint = model->fingerprint,
                                 .weighting = "none"};
    snprintf(info.method, sizeof info.method, "%s", method.codebook);
    snprintf(info.model, sizeof info.model, "%s", model->name);
    snprintf(info.corpus, sizeof info.corpus, "random numbers");
    return codebook_random(&info, model->rope.n_rot / 2, model->rope.pairing == ROPE_ADJACENT, codebook, error);
}
