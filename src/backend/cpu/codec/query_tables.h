/* Prepares queries as the kernels of q8_0, q4_0 and sign want them: tables made once for all pages or, without these, for one. */
#ifndef TERSE_BACKEND_CPU_CODEC_QUERY_TABLES_H
#define TERSE_BACKEND_CPU_CODEC_QUERY_TABLES_H

#include "backend/cpu/codec/codec.h"

#include <stddef.h>

#define TABLES_QUERIES 8                       /* whose tables lie on the stack at once */
#define TABLES_MOST_FLOATS (CODEC_ROW_MAX + 2) /* of a query */

/* Implements `score` for a codec whose prepare_queries writes at most TABLES_MOST_FLOATS for a query, and whose `read` scores a
 * page by them. */
static inline void tables_score(void (*prepare)(struct codec_shape shape, const float *q, float *tables),
                                void (*read)(const float *tables, size_t G, size_t hd, const void *page, float *logits),
                                struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    float room[TABLES_QUERIES * TABLES_MOST_FLOATS];
    struct codec_shape some = shape;
    if (tables) {
        read(tables, shape.group, shape.head_dim, page, logits);
        return;
    }
    for (size_t g = 0; g < shape.group; g += some.group) {
        some.group = (uint32_t)(shape.group - g < TABLES_QUERIES ? shape.group - g : TABLES_QUERIES);
        prepare(some, q + g * shape.head_dim, room);
        read(room, some.group, shape.head_dim, page, logits + g * PAGE_TOKENS);
    }
}

#endif
