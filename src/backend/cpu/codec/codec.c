/* Holds the table of codecs on the CPU. */
#include "backend/cpu/codec/codec.h"

static const struct cpu_codec *const codecs[CODEC_COUNT] = {[CODEC_F16] = &cpu_codec_f16,
                                                            [CODEC_Q8_0] = &cpu_codec_q8_0,
                                                            [CODEC_Q4_0] = &cpu_codec_q4_0,
                                                            [CODEC_KIVI_4] = &cpu_codec_kivi_4,
                                                            [CODEC_KIVI_2] = &cpu_codec_kivi_2,
                                                            [CODEC_SIGN] = &cpu_codec_sign,
                                                            [CODEC_PQ] = &cpu_codec_pq,
                                                            [CODEC_VQ] = &cpu_codec_vq,
                                                            [CODEC_GAIN_SHAPE] = &cpu_codec_gain_shape,
                                                            [CODEC_COMMVQ] = &cpu_codec_commvq,
                                                            [CODEC_ADDITIVE] = &cpu_codec_additive,
                                                            [CODEC_TRANSFORM] = &cpu_codec_transform};

const struct cpu_codec *cpu_codec_of(const struct codec *codec) { return codecs[codec->id]; }
