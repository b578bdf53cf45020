/* Declares what a decoding step appends to a layer, for append.h and for attention that appends by itself (attend_launch.h). Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_APPEND_DECODE_H
#define TERSE_BACKEND_CUDA_KV_APPEND_DECODE_H

#include "backend/cuda/kv/view.h"

/* These are a decoding step's rows of one layer, as struct attend_decode has them. */
struct append_decode {
    struct head_view heads;
    struct rotary_view rotary;
    uint32_t layer;
    const struct sequence_view *sequences;
    const struct query_row_view *rows; /* [n_rows] */
    uint32_t n_rows;
    const float *q;              /* [n_rows][Hq][hd]; NULL: there are none */
    float *rotated, *q_exact;    /* they go here, rotated, which may be q; by position - evicted to q_exact unless that is NULL */
    const float *k, *v;          /* [n_rows][Hk][hd], to the exact rows or the window. NULL: there are none */
    uint32_t *not_finite, place; /* batch_watch: the layer's place in the model */
};

#endif
