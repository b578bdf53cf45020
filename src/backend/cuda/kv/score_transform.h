/* Declares the scores of tokens by keys of the codec transform (select.h); each head_dim has a file. */
#ifndef TERSE_BACKEND_CUDA_KV_SCORE_TRANSFORM_H
#define TERSE_BACKEND_CUDA_KV_SCORE_TRANSFORM_H

#include "backend/cuda/kv/select.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel for the head_dim; returns cudaErrorInvalidValue for others. */
cudaError_t score_transform(const struct select_tokens *select, cudaStream_t stream);

cudaError_t score_transform_64(const struct select_tokens *select, cudaStream_t stream);
cudaError_t score_transform_96(const struct select_tokens *select, cudaStream_t stream);
cudaError_t score_transform_128(const struct select_tokens *select, cudaStream_t stream);
cudaError_t score_transform_256(const struct select_tokens *select, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
