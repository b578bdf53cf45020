/* Writing pages, and reading them back whole: what each codec makes of 64 rows, for many pages, layers and heads in one launch. The bytes are
 * the CPU's (backend/cpu/codec): bit for bit where its arithmetic is exact in fp32 in one order, else within what tests state. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_H
#define TERSE_BACKEND_CUDA_KV_ENCODE_H

#include "backend/cuda/kv/view.h"
#include "format/codec.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the rows of a page set lie, and where they go to; device [n]. Of layer l in [layer, layer + n_layers), head h and slot t the row is
 * rows[side] + l' layer_stride + h head_stride + t token_stride, l' = l - layer of the launch; rows begin at multiples of 16 bytes. Slots from
 * `set.end` on are zeros' codes. */
struct encode_item {
    struct page_set_view set;
    device_half *rows[2]; /* keys rotated by their own positions, values; written by decode_pages */
    const float *fitted;  /* of the sequence, as in struct sequence_view */
};

/* All pointers are the device's. */
struct encode {
    struct head_view heads;
    uint32_t layer, n_layers;
    enum codec_id codec[2];
    const struct place_view *places;         /* [layers][Hk] */
    const struct transform_view *transforms; /* [layers][Hk][2], or NULL */
    const struct centroid_view *centroids;   /* [layers][Hk][2], or NULL */
    const float *run_angles;                 /* as in struct attend_decode; for keys in runs */
    const struct encode_item *items;         /* [n] */
    uint32_t n;
    size_t layer_stride, head_stride, token_stride; /* of rows, in halves */
};

bool encode_supports(const struct head_view *heads, const enum codec_id codec[2]);

/* Encodes both sides of all pages. Keys in runs are rotated back by their run's position first. */
cudaError_t encode_pages(const struct encode *encode, cudaStream_t stream);

/* The rows that pages stand for, keys rotated by their own positions again: what a prompt's attention reads, and the tests' oracle. Slots
 * from `set.end` on are not written. */
cudaError_t decode_pages(const struct encode *encode, cudaStream_t stream);

/* Codec transform without a profile of the model: what each layer, KV head and side of the launch takes as mean, sizes and gains, from the
 * rows of the items, which are of one sequence and at most 32 (FIT_PAGES of the CPU); fitted[layers][Hk][2][transform_fitted_floats(hd)]
 * is written. */
cudaError_t fit_transforms(const struct encode *encode, float *fitted, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
