/* The table of codecs. */
#include "backend/cpu/codec/codec.h"

#include <string.h>

static const struct codec *const codecs[] = {&codec_f16, &codec_q8_0, &codec_q4_0,       &codec_kivi_4, &codec_kivi_2,  &codec_sign,
                                             &codec_pq,  &codec_vq,   &codec_gain_shape, &codec_commvq, &codec_additive};

const struct codec *codec_at(size_t i) { return i < sizeof codecs / sizeof codecs[0] ? codecs[i] : NULL; }

const struct codec *codec_find(const char *name) {
    const struct codec *codec;
    for (size_t i = 0; (codec = codec_at(i)); i++)
        if (!codec->parameters && !codec->fitted_bytes && strcmp(codec->name, name) == 0) return codec;
    return NULL;
}

enum terse_status codec_check_head_dim(struct codec_shape shape, enum codec_side side, struct terse_error *error) {
    (void)side;
    if (shape.head_dim && shape.head_dim % SCALE_GROUP == 0 && shape.head_dim <= CODEC_HEAD_DIM_MAX) return TERSE_OK;
    return status_fail(
        error, TERSE_E_UNSUPPORTED,
        "the model's heads have %u channels, the KV cache serves multiples of %d up to %d: this model cannot run in terse",
        shape.head_dim, SCALE_GROUP, CODEC_HEAD_DIM_MAX);
}
