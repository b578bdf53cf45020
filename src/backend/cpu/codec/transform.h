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

/* Returns a slice of a row that is cut into slices: `learned` is the array [slices] of theirs, as records of `fitted` lie one after the
 * other. */
static inline struct codec_shape transform_slice(struct codec_shape shape, size_t slice) {
    struct codec_shape own = shape;
    own.head_dim = shape.head_dim / shape.slices;
    own.slices = 0;
    own.layout = shape.layout ? shape.layout + slice : NULL;
    own.learned = ((const void *const *)shape.learned)[slice];
    own.fitted = shape.fitted ? (const uint8_t *)shape.fitted + slice * TRANSFORM_RECORD_STRIDE(own.head_dim) : NULL;
    return own;
}

/* The row of a codec whose rows are cut into slices (shape.slices): keys that end with the values, and of which all slices but the first are
 * the values. Its pages of keys serve both. */
extern const struct cpu_codec cpu_codec_transform_slices;

#define TRANSFORM_TOGETHER 16 /* queries whose weights lie on the stack */

/* Implement cpu_codec's functions of these names for rows that lie `stride` floats apart. */
void transform_prepare_queries(struct codec_shape shape, const float *q, size_t stride, float *tables);
void transform_finish_code_sums(struct codec_shape shape, const float *code_sums, float *acc, size_t stride);
/* Scores for n queries from the first-th on, TRANSFORM_TOGETHER at most: logits[n][64]. */
void transform_score_some(struct codec_shape shape, const float *tables, const void *page, size_t first, size_t n, float *logits);
/* Implements codec_integer_sums.add_logits; `sums` may be NULL. */
void transform_accumulate_logits(struct codec_shape shape, const float *logits, const float *largest, const void *page,
                                 float *code_sums, float *sums);

/* Implements cpu_codec.encode. */
void transform_encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);

#endif
