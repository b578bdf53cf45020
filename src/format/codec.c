/* Holds the table of codecs. */
#include "format/codec.h"

#include "format/index.h"

#include <string.h>

const struct codec codec_f16 = {.id = CODEC_F16, .name = "f16", .gather = CODEC_GATHERS_BOTH, .exact = true};
const struct codec codec_q8_0 = {.id = CODEC_Q8_0, .name = "q8_0", .gather = CODEC_GATHERS_BOTH};
const struct codec codec_q4_0 = {.id = CODEC_Q4_0, .name = "q4_0", .gather = CODEC_GATHERS_BOTH};
const struct codec codec_kivi_4 = {.id = CODEC_KIVI_4, .name = "kivi-4", .gather = CODEC_GATHERS_VALUES};
const struct codec codec_kivi_2 = {.id = CODEC_KIVI_2, .name = "kivi-2", .gather = CODEC_GATHERS_VALUES};
const struct codec codec_sign = {
    .id = CODEC_SIGN, .name = "sign", .gather = CODEC_GATHERS_BOTH, .fitted = true, .index = &index_sign};
const struct codec codec_pq = {.id = CODEC_PQ, .name = "pq", .learner = CODEC_LEARNS_KMEANS, .gather = CODEC_GATHERS_BOTH};
const struct codec codec_vq = {
    .id = CODEC_VQ, .name = "vq", .rope = CODEC_ROPE_IN_RUN, .learner = CODEC_LEARNS_KMEANS, .gather = CODEC_GATHERS_BOTH};
const struct codec codec_gain_shape = {.id = CODEC_GAIN_SHAPE,
                                       .name = "gain-shape",
                                       .rope = CODEC_ROPE_IN_RUN,
                                       .learner = CODEC_LEARNS_KMEANS,
                                       .gather = CODEC_GATHERS_BOTH,
                                       .normalized = true};
const struct codec codec_commvq = {.id = CODEC_COMMVQ,
                                   .name = "comm",
                                   .rope = CODEC_ROPE_BEFORE,
                                   .learner = CODEC_LEARNS_EM,
                                   .gather = CODEC_GATHERS_BOTH,
                                   .normalized = true,
                                   .by_rate = true};
const struct codec codec_additive = {.id = CODEC_ADDITIVE,
                                     .name = "additive",
                                     .learner = CODEC_LEARNS_ADDITIVE,
                                     .gather = CODEC_GATHERS_BOTH,
                                     .normalized = true,
                                     .by_rate = true};
const struct codec codec_transform = {.id = CODEC_TRANSFORM,
                                      .name = "transform",
                                      .rope = CODEC_ROPE_IN_RUN,
                                      .learner = CODEC_LEARNS_TRANSFORM,
                                      .gather = CODEC_GATHERS_BOTH,
                                      .index = &index_components};

static const struct codec *const codecs[CODEC_COUNT] = {[CODEC_F16] = &codec_f16,
                                                        [CODEC_Q8_0] = &codec_q8_0,
                                                        [CODEC_Q4_0] = &codec_q4_0,
                                                        [CODEC_KIVI_4] = &codec_kivi_4,
                                                        [CODEC_KIVI_2] = &codec_kivi_2,
                                                        [CODEC_SIGN] = &codec_sign,
                                                        [CODEC_PQ] = &codec_pq,
                                                        [CODEC_VQ] = &codec_vq,
                                                        [CODEC_GAIN_SHAPE] = &codec_gain_shape,
                                                        [CODEC_COMMVQ] = &codec_commvq,
                                                        [CODEC_ADDITIVE] = &codec_additive,
                                                        [CODEC_TRANSFORM] = &codec_transform};

const struct codec *codec_at(size_t i) { return i < CODEC_COUNT ? codecs[i] : NULL; }

const struct codec *codec_find(const char *name) {
    const struct codec *codec;
    for (size_t i = 0; (codec = codec_at(i)); i++)
        if (!codec_learns(codec) && !codec->fitted && strcmp(codec->name, name) == 0) return codec;
    return NULL;
}
