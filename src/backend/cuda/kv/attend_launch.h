/* Declares the arguments of a launch of a decoding step's attention, which attend_decode.h passes to the family of the codecs.
 * Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_LAUNCH_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_LAUNCH_H

#include "backend/cuda/kv/append_decode.h"
#include "format/codec.h"

#include <cuda_runtime_api.h>

/* All pointers are to the device's memory. */
struct attend_decode {
    struct head_view heads;
    uint32_t layer;
    enum codec_id codec[2];            /* by side */
    struct centroid_shape centroid[2]; /* by side */
    const struct place_view *places;   /* [layers][Hk] */
    const void
        *learned[2]; /* by side, [layers][Hk] of what its codec learned in the codec's own form: struct transform_view, struct
                               centroid_view; NULL where it learns nothing */
    const float *
        run_angles; /* [runs][n_rot / 2][cosine, sine] of positions 0, ROPE_RUN_TOKENS, ..., without the magnitude. Kernels get NULL
                                where keys are stored as they come */
    struct pre_rope_view pre_rope;
    const struct sequence_view *sequences;
    const struct query_row_view *rows; /* [n_rows] */
    uint32_t n_rows, splits;           /* `splits`: the most of any row, when the kernels were launched or captured */
    bool lists_written;                /* a kernel just before writes lists of heads' own: the first kernel does not begin early */
    bool shared_lists;                 /* rows read the list that heads share, even where they have their own */
    const float *q;                    /* [n_rows][Hq][hd], rotated by their own positions, magnitude included */
    const float *q_exact;              /* the same by position - evicted, for exact rows; may be q */
    float *out;                        /* [n_rows][Hq][hd], may be q */
    float *
        log_sums; /* [n_rows][Hq]: log2 of the sum of exp2(logit log2 e), a learned sink's included; INFINITY where nothing is read.
                        NULL: they are not wanted */
    float *parts; /* attend_decode_part_floats(...) */
    uint32_t page_bytes[2]; /* of the largest page, by side; read but where codecs are scaled */
    uint32_t rates;         /* bit r: some row reads pages of rate r; 0: all are of rate 0, and listed as they come */
    uint32_t rate;          /* of a kernel's pages; launches set it */
    uint32_t *run_queries;  /* attend_decode_run_words(...) */
    uint32_t runs;          /* the most that pages of any row lie in, from that of the first page to that of the last */
    uint32_t run_step;      /* these runs are so many apart, as they are where pages are dealt to ranks (kv/deal.h); else 1 */
    /* attend_decode_multiprocessor_parts(...). Where these are more than a multiprocessor holds CTAs, a CTA may read several parts of a KV
     * head; 0: it reads one. */
    uint32_t multiprocessor_parts;
    uint32_t multiprocessors; /* of the device */
    uint32_t *arrived;        /* [n_rows][Hk], zeros; left so */
    /* The rows' queries, keys and values, where the launch appends them before it reads, as those of some forms can (codec.h); else its q
     * are NULL. It puts the rotated queries where `q` are. */
    struct append_decode append;
};

#endif
