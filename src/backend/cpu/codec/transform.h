/* The codec transform on the CPU: what its two files share. transform.c reads pages, transform_encode.c writes them. */
#ifndef TERSE_BACKEND_CPU_CODEC_TRANSFORM_H
#define TERSE_BACKEND_CPU_CODEC_TRANSFORM_H

#include "backend/cpu/codec/codec.h"
#include "format/transform.h"

/* A profile's parameters of one layer, KV head and side, ready for use at any rate. */
struct transform_learned {
    uint32_t head_dim;
    float gain_least, gain_step;
    float *mean;      /* [head_dim] */
    float *size;      /* [head_dim] */
    float *basis;     /* [head_dim][head_dim]: row c, times the size, is what a component of 1 adds to a row */
    float *transpose; /* of the basis with the sizes: [channel][component], what a query's weights are its products with */
    float *inverse;   /* [component][channel]: its rows' products with row - mean are the coefficients y size */
};

/* cpu_codec.encode. */
void transform_encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);

#endif
