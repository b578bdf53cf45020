/* Declares the kernels of attend_decode.h where keys are of CommVQ's codec and values of its additive one; each head_dim has a
 * file. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel for the head_dim; returns cudaErrorInvalidValue for others. */
cudaError_t attend_commvq(const struct attend_decode *attend, cudaStream_t stream);

cudaError_t attend_commvq_64(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_commvq_128(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_commvq_256(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
