/* Kernels of attend_decode.h where keys and values both are of codecs with centroids; attend_decode calls them. By head_dim. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_H

#include "backend/cuda/kv/attend_launch.h"

/* Whether sub-vectors of these widths are served: powers of two. */
static inline bool attend_centroids_supports(const struct centroid_shape shape[2]) {
    for (int side = 0; side < 2; side++)
        if (shape[side].width < 2 || (shape[side].width & (shape[side].width - 1))) return false;
    return true;
}

cudaError_t attend_centroids_64(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_96(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_128(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_256(const struct attend_decode *attend, cudaStream_t stream);

#endif
