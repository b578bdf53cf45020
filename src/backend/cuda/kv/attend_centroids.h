/* Declares the kernels of attend_decode.h where keys and values both are of codecs with centroids; each head_dim has a file. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel for the head_dim; returns cudaErrorInvalidValue for others. */
cudaError_t attend_centroids(const struct attend_decode *attend, cudaStream_t stream);

cudaError_t attend_centroids_64(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_96(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_128(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_centroids_256(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
