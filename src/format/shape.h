/* Describes the heads of a model as codecs and indexes see them. It is plain C, for C and CUDA C++ alike. */
#ifndef TERSE_FORMAT_SHAPE_H
#define TERSE_FORMAT_SHAPE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CODEC_HEAD_DIM_MAX 256 /* channels of the widest head that any codec serves */
#define CODEC_ROW_MAX 576 /* of the widest row, a key that ends with a latent: f16, q8_0, q4_0, kivi, and transform in slices */

enum codec_side { CODEC_KEYS, CODEC_VALUES };

struct transform_layout; /* format/transform.h */

/* A codec_shape describes the heads that a codec serves. */
struct codec_shape {
    uint32_t head_dim;
    uint32_t group;                        /* G: queries that read together; no size of a format depends on it */
    uint32_t width, bits;                  /* as of a coding */
    const struct transform_layout *layout; /* of the codec transform: [slices], of the layer, KV head and side; else NULL */
    const void *learned; /* a backend's: what it has made of a codebook's parameters, for a layer, KV head and side. NULL here */
    const void *fitted;  /* what a codec has learned of a sequence, for a layer, KV head and side (codec.h). NULL here */
    uint32_t slices;     /* of the codec transform: a row is so many slices of channels, each coded by itself; 0: one */
};

/* Returns TERSE_E_UNSUPPORTED unless head_dim is a multiple of 32 up to 256, what all codecs and indexes serve. */
enum terse_status codec_check_head_dim(uint32_t head_dim, struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
