/* Declares the kernel by tiles that reads pages of the codec transform back, for decode_transform.cu, which chooses. */
#ifndef TERSE_BACKEND_CUDA_KV_DECODE_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_DECODE_TRANSFORM_CUH

#include "backend/cuda/kv/encode_kernels.h"

/* decode_transform_tiles.cu has these: whether its kernel serves heads on this device, and its launch. */
bool decode_transform_has_tiles(const struct head_view *heads);
cudaError_t decode_transform_tiles(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);

#endif
