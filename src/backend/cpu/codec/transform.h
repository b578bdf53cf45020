/* The codec transform on the CPU: what its files share. transform.c reads pages, transform_encode.c writes them, and
 * transform_fit_rows.c says how large the rows of a sequence are. */
#ifndef TERSE_BACKEND_CPU_CODEC_TRANSFORM_H
#define TERSE_BACKEND_CPU_CODEC_TRANSFORM_H

#include "backend/cpu/codec/codec.h"
#include "format/transform.h"

/* A profile's parameters of one layer, KV head and side, ready for use at any rate. */
struct transform_learned {
    uint32_t head_dim;
    float gain_least, gain_step;
    float *mean;        /* [head_dim] */
    float *size;        /* [head_dim] */
    float *basis;       /* [head_dim][head_dim]: row c, times the size, is what a component of 1 adds to a row */
    float *inverse;     /* [component][channel]: its rows' products with row - mean are the coefficients y size */
    int16_t *queries;   /* [component / 16][channel / 2][16][2]: the basis in integers, as vector_ops.multiply_i16 takes columns */
    float *query_scale; /* [component], their units */
};

/* The scaling says where rows are centred and how large they are, as the profile has it or as it was fitted to a sequence. */
struct transform_scaling {
    const float *mean, *size; /* [head_dim] */
    float gain_least, gain_step;
};

static inline struct transform_scaling transform_scaling_of(struct codec_shape shape) {
    const struct transform_learned *learned = shape.learned;
    if (!shape.fitted) return (struct transform_scaling){learned->mean, learned->size, learned->gain_least, learned->gain_step};
    struct transform_fitted own = transform_fitted_at(shape.fitted, shape.head_dim);
    return (struct transform_scaling){own.mean, own.size, own.gain_least, (own.gain_most - own.gain_least) / 255};
}

struct index_options; /* backend/cpu/codec/index.h */

/* cpu_codec.fit: mean and range of gains of the rows, and sizes for which those of the profile count as 128 rows more. Rows that are the
 * mean itself, or not finite, say nothing of sizes. Finite whatever the rows are. */
void transform_fit_rows(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                        const struct index_options *options, void *fitted);

/* cpu_codec.encode. */
void transform_encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);

#endif
