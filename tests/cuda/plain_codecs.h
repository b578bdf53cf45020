/* The codecs of the GPU's table that need neither a codebook nor fitting, which tests of pages run one after another. */
#ifndef TERSE_TESTS_CUDA_PLAIN_CODECS_H
#define TERSE_TESTS_CUDA_PLAIN_CODECS_H

#include "backend/cuda/kv/codec.h"

/* Writes them to codecs[CODEC_COUNT] and returns how many there are. */
static inline size_t plain_codecs(const struct codec *codecs[]) {
    size_t n = 0;
    for (size_t i = 0; codec_at(i); i++)
        if (cuda_codec_of(codec_at(i)->id) && !codec_learns(codec_at(i)) && !codec_at(i)->fitted) codecs[n++] = codec_at(i);
    return n;
}

#endif
