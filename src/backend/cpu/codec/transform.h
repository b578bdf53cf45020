/* Declares what the files of the codec transform on the CPU share. transform.c reads pages, transform_encode.c writes them. */
#ifndef TERSE_BACKEND_CPU_CODEC_TRANSFORM_H
#define TERSE_BACKEND_CPU_CODEC_TRANSFORM_H

#include "backend/cpu/codec/codec.h"
#include "format/transform.h"

/* A transform_learned is a profile's parameters of one layer, KV head and side, ready for use at any rate. */
struct transform_learned {
    uint32_t head_dim;
    void *record;  /* format/transform.h */
    float *metric; /* [head_dim][head_dim], transform_metric */
};

/* Returns the transform by which rows are coded: the one fitted to the sequence, or the profile's. */
static inline struct transform_fitted transform_of(struct codec_shape shape) {
    const struct transform_learned *learned = shape.learned;
    return transform_fitted_at(shape.fitted ? shape.fitted : learned->record, shape.head_dim);
}

/* Implements cpu_codec.encode. */
void transform_encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);

#endif
