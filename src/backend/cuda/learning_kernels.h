/* Declares the kernels of learning: on the rows of a window and their gradients, and a search among centroids. Plain C. All pointers
 * are device memory; functions whose names end as those of train/backward_ops.h compute what these do, within rounding, the same in
 * every run. */
#ifndef TERSE_BACKEND_CUDA_LEARNING_KERNELS_H
#define TERSE_BACKEND_CUDA_LEARNING_KERNELS_H

#include "model/model.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rows: learning_rows.cu */

/* Computes x[count] += y. */
cudaError_t learning_add(float *x, const float *y, size_t count, cudaStream_t stream);
/* Replaces x[count] by its activation; `up`[count] is read by the functions of two inputs alone. */
cudaError_t learning_activate(enum activation activation, float *x, const float *up, size_t count, cudaStream_t stream);

/* Rotates rows[n][heads][head_dim] by the angles of their tokens: cosine, sine [n][n_rot / 2]. `inverse`: the other way round. The
 * rope's `frequency` is not read. */
cudaError_t learning_turn(struct rope rope, const float *cosine, const float *sine, bool inverse, float *rows, uint32_t n,
                          uint32_t heads, cudaStream_t stream);

cudaError_t learning_norm_backward(struct norm norm, const float *x, float *d, uint32_t n, uint32_t width, cudaStream_t stream);
cudaError_t learning_clamp_backward(const float *x, float most, float *d, size_t count, cudaStream_t stream);
cudaError_t learning_cap_backward(const float *capped, float cap, float *d, size_t count, cudaStream_t stream);
cudaError_t learning_activation_backward(enum activation activation, float *x, float *up, const float *d, size_t count,
                                         cudaStream_t stream);
/* Replaces logits[n][vocabulary] by the gradient of their cross entropy against targets[n], times `scale`, and writes loss[n]. Where a
 * target is below 0, it is drawn by draws[n], each in [0, 1). */
cudaError_t learning_cross_entropy(float *logits, const int32_t *targets, const double *draws, uint32_t n, uint32_t vocabulary,
                                   float scale, double *loss, cudaStream_t stream);

/* ---- Attention of a tile of queries, whose logits lie as [G][Hk][count][stride]: learning_attention.cu */

struct learning_tile {
    uint32_t kv_heads, group, head_dim;
    uint32_t first, count;       /* tokens of the queries */
    uint32_t keys;               /* that some of them see, from 0 on */
    size_t stride;               /* numbers of a row of logits, at least `keys` */
    float cap;                   /* 0: none */
    const float *slopes, *sinks; /* [Hq], or NULL */
    uint32_t window;             /* 0: none */
};
/* Replaces logits by weights, 0 where a key is not seen, and writes log_sum[n][Hq] of the tile's tokens. */
cudaError_t learning_softmax(const struct learning_tile *tile, float *logits, float *log_sum, cudaStream_t stream);
/* Computes products[count][Hq] of a[n][Hq][hd] and b, of the tile's tokens. */
cudaError_t learning_products(const struct learning_tile *tile, const float *a, const float *b, float *products,
                              cudaStream_t stream);
/* Replaces logits by weights, and d, the gradients with respect to weights, by those with respect to logits. */
cudaError_t learning_softmax_backward(const struct learning_tile *tile, const float *log_sum, const float *products, float *logits,
                                      float *d, cudaStream_t stream);

/* ---- Centroids: learning_nearest.cu */

/* Writes codes[n]: the nearest of centroids[k][d] to points[n][d], the lowest of equally near ones. d is a power of two from 2 to
 * LEARNING_WIDEST; k at most 65536. */
#define LEARNING_WIDEST 32
cudaError_t learning_nearest(const float *points, uint32_t n, uint32_t d, const float *centroids, uint32_t k, uint16_t *codes,
                             cudaStream_t stream);

/* ---- Tables of complex numbers: learning_mixture.cu */

#define LEARNING_ENTRIES 64        /* of a table */
#define LEARNING_MOST_CHANNELS 128 /* of a row */
#define LEARNING_BLOCKS 256        /* of threads, at most; each leaves so many floats: */
#define LEARNING_PARTIAL(channels) (LEARNING_ENTRIES * LEARNING_ENTRIES + 2 * LEARNING_ENTRIES * (size_t)(channels))

struct learning_mixture {
    uint32_t channels;           /* of a row, a multiple of 8 */
    uint32_t n, chunk;           /* points that are looked at, and those of a block, for at most LEARNING_BLOCKS of these */
    const uint32_t *ids;         /* [n] their rows */
    const float *rows, *weights; /* [points][channels], [points] */
    const float *panel, *half;   /* as of commvq_search (backend/cpu/codec/commvq_search.h) */
    float faint,
        scale;       /* cells count that are less than `faint` above the least, by exp(scale (value - least)); 0: the least alone */
    uint16_t *codes; /* [n] a + 64 b */
    float *errors;   /* [n] */
    float *partial;  /* [LEARNING_BLOCKS][LEARNING_PARTIAL] */
    double *counts, *sums; /* [64][64], [64][channels]: what em_solve takes (train/em.h) */
};
cudaError_t learning_weigh(const struct learning_mixture *mixture, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
