/* Declares kernels of attend_decode.h where keys and values both are of the codec transform; each head_dim has a file. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel for the head_dim; returns cudaErrorInvalidValue for others. */
cudaError_t attend_transform(const struct attend_decode *attend, cudaStream_t stream);

cudaError_t attend_transform_64(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_transform_96(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_transform_128(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_transform_256(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
