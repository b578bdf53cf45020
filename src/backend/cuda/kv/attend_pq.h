/* Declares the launch of attend_decode.h for keys and values of codec pq. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_PQ_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_PQ_H

#include "backend/cuda/kv/attend_launch.h"

/* Launches the kernel that looks up products of queries where it serves, else the one that looks up centroids. */
cudaError_t attend_pq(const struct attend_decode *attend, cudaStream_t stream);

#endif
