/* Declares the launch of attend_decode.h where keys and values both are of codecs with centroids. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CODEBOOKS_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_CODEBOOKS_H

#include "backend/cuda/kv/attend_launch.h"

/* Launches the kernel that looks up products of queries with centroids where it serves, else the one that looks up centroids. */
cudaError_t attend_codebooks(const struct attend_decode *attend, cudaStream_t stream);

#endif
