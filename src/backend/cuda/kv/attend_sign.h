/* Declares kernels of attend_decode.h where keys and values both are of the codec sign. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_SIGN_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_SIGN_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel for the head_dim; returns cudaErrorInvalidValue for others. */
cudaError_t attend_sign(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
