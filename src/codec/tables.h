/* Queries of q8_0 and q4_0 as their kernels want them: tables[G][hd], made once for all blocks or, when nobody has, for one. */
#ifndef TERSE_CODEC_TABLES_H
#define TERSE_CODEC_TABLES_H

#include "codec/codec.h"

#include <stddef.h>

#define TABLES_QUERIES 8 /* whose tables lie on the stack at once */

typedef void tables_prepare_slot(const float *q, size_t G, size_t hd, float *tables);
typedef void tables_score_slot(const float *tables, size_t G, size_t hd, const void *block, float *logits);

/* The hook `prepared`. */
static inline size_t tables_floats(struct codec_shape shape) { return (size_t)shape.group * shape.head_dim; }

/* The hook `score`. */
static inline void tables_score(tables_prepare_slot *prepare, tables_score_slot *score, struct codec_shape shape, const float *q,
                                const float *tables, const void *block, float *logits) {
    const size_t hd = shape.head_dim;
    float room[TABLES_QUERIES * CODEC_HEAD_DIM_MAX];
    if (tables) {
        score(tables, shape.group, hd, block, logits);
        return;
    }
    for (size_t g = 0, n; g < shape.group; g += n) {
        n = shape.group - g < TABLES_QUERIES ? shape.group - g : TABLES_QUERIES;
        prepare(q + g * hd, n, hd, room);
        score(room, n, hd, block, logits + g * BLOCK_TOKENS);
    }
}

#endif
