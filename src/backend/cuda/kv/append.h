/* Moves keys, values and queries of a step: they are rotated (RoPE) and rounded to halves on their way into a cache, and copied
 * from the window and the exact rows to the rows that a prompt attends to, and back. */
#ifndef TERSE_BACKEND_CUDA_KV_APPEND_H
#define TERSE_BACKEND_CUDA_KV_APPEND_H

#include "backend/cuda/kv/append_decode.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Appends a decoding step's rows of one layer. */
cudaError_t append_decode(const struct append_decode *append, cudaStream_t stream);

/* Rotates q[count][heads][hd] of consecutive positions, in place. */
cudaError_t rotate_rows(const struct head_view *heads, const struct rotary_view *rotary, uint32_t n_heads, float *q, size_t count,
                        uint64_t position, cudaStream_t stream);

/* A layer_rows says where one layer's rows of one sequence are for a prompt, and where they stay. Rows are [row][Hk][hd]. */
struct layer_rows {
    struct head_view heads;
    struct rotary_view rotary;
    uint32_t layer;
    device_half *k, *v;                   /* rows of all tokens that the prompt's queries may read, the exact ones first */
    const struct sequence_view *sequence; /* on the device */
};
/* Copies k, v[count][Hk][hd] of tokens from `position` on to rows from `row` on, with keys rotated; those that belong there also to
 * the exact rows. */
cudaError_t append_rows(const struct layer_rows *rows, const float *k, const float *v, size_t count, uint64_t position, size_t row,
                        cudaStream_t stream);
/* Copies the first `n` exact rows to rows 0 .. n - 1, their keys rotated further by `evicted`: to the positions in front of the
 * others. */
cudaError_t rows_from_exact(const struct layer_rows *rows, size_t n, uint64_t evicted, cudaStream_t stream);
/* Copy tokens [first, first + count) of the window to rows from `row` on, or back. */
cudaError_t rows_from_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream);
cudaError_t rows_to_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream);

/* Writes n normally distributed numbers, n even: rows of hd channels that fall in size by so many octaves. */
cudaError_t random_rows(float *numbers, size_t n, uint32_t hd, float octaves, uint64_t seed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
