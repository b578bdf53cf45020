/* Declares the arguments of a launch that writes pages or reads them back, which encode.h passes to the families of codecs. Plain
 * C. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_LAUNCH_H
#define TERSE_BACKEND_CUDA_KV_ENCODE_LAUNCH_H

#include "backend/cuda/kv/view.h"
#include "format/codec.h"
#include "format/index.h"

#include <cuda_runtime_api.h>

/* An encode_sides names the sides that a launch takes, one or both. */
struct encode_sides {
    int first, n;
};

/* An encode_item is a page set with the place of its rows, which are read or written; device [n]. For layer l in [layer, layer +
 * n_layers), head h and slot t the row is rows[side] + l' layer_stride + h head_stride + t token_stride, l' = l - layer of the
 * launch; rows begin at multiples of 16 bytes. Slots from `set.count` on are encoded as zeros. */
struct encode_item {
    struct page_set_view set;
    device_half *rows[2];  /* keys rotated by their own positions, values; written by decode_pages */
    struct rate_view rate; /* of the page */
};

/* All pointers are to the device's memory. */
struct encode {
    struct head_view heads;
    uint32_t layer, n_layers;
    enum codec_id codec[2];
    const struct place_view *places;   /* [layers][Hk] */
    struct centroid_shape centroid[2]; /* by side */
    const void *learned[2];            /* as in struct attend_decode */
    const float *run_angles;           /* as in struct attend_decode; for keys in runs and before rotation */
    struct pre_rope_view pre_rope;
    uint32_t index_bytes; /* of a page of an index of its own, which encode_pages writes too; 0: there is none */
    enum index_id index;
    const float *own_learned; /* as in struct sequence_view */
    uint32_t learned_floats;
    const struct encode_item *items; /* [n] */
    uint32_t n;
    size_t layer_stride, head_stride, token_stride; /* of rows, in halves */
};

/* A fit_sign is what codec sign and index sign learn from keys, rotated by their own positions: of each layer and KV head the mean[hd],
 * centroids[hd / 4][16][4] (format/index.h) and, of the codec, alpha[hd]. Rows lie as those of items. */
struct fit_sign {
    uint32_t kv_heads, head_dim, layer, n_layers;
    const device_half *rows; /* [n] of the launch's first layer and head 0 */
    size_t n;                /* at least 1 */
    size_t layer_stride, head_stride, token_stride;
    float *own_learned; /* of layer 0 */
    uint32_t learned_floats;
    bool alpha;
};

/* The moments of the rows of a launch's items, in a layer, KV head and side, are a struct transform_row_moments as floats:
 * products[hd][hd], mean[hd], pre_rope_mean[hd], and these numbers. */
enum { MOMENTS_USED, MOMENTS_GAIN, MOMENTS_LEAST, MOMENTS_MOST, MOMENTS_NUMBERS };
#define ENCODE_MOMENTS_FLOATS(hd) ((size_t)(hd) * (hd) + 2 * (size_t)(hd) + MOMENTS_NUMBERS)

#endif
