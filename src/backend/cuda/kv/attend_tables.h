/* Declares the kernel of attend_decode.h for keys and values of codec pq where a KV head has one query head: it has a table of the query's
 * products with all centroids. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel is for such heads and codes, and the device has room for its tables. */
bool attend_tables_serves(const struct attend_decode *attend);

cudaError_t attend_tables(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
