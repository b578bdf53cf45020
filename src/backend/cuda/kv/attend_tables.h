/* Declares the launch of attend_decode.h for keys and values of codec pq. Where a KV head has one query head its kernel has a table of the query's
 * products with all centroids. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel where it serves the heads and codes, and the device has room for its tables; else attend_centroids. */
cudaError_t attend_tables(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
