/* Declares kernels of attend_decode.h by codec, for heads that attend_decode_supports. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_SCALED_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_SCALED_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* These serve keys and values of one codec. */
cudaError_t attend_scaled_f16(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_scaled_q8_0(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_scaled_q4_0(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_scaled_kivi_4(const struct attend_decode *attend, cudaStream_t stream);
cudaError_t attend_scaled_kivi_2(const struct attend_decode *attend, cudaStream_t stream);
/* Serves keys and values of any two of these codecs: the kernel goes by the codec at each page. */
cudaError_t attend_scaled_mixed(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
