/* Exact attention of many queries: tiled, on tensor cores, never an L x L matrix (Dao 2023, FlashAttention-2). */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of keys and values in order of their tokens: first what the queries' sequence has behind it, then the new tokens. */
struct attend_prefill {
    struct head_view heads;
    const float *q; /* [n][Hq][hd], rotated by their own positions */
    size_t n;       /* queries: of rows first_query .. first_query + n - 1 */
    size_t first_query;
    const device_half *k, *v; /* [rows][Hk][hd], keys rotated by their own positions; row r is read by queries of rows >= r */
    size_t begin;             /* rows before this one are read by nobody */
    uint32_t first_position;  /* of row 0, for ALiBi; rows follow one another */
    float *out;               /* [n][Hq][hd], may be q */
};

bool attend_prefill_supports(const struct head_view *heads);
cudaError_t attend_prefill(const struct attend_prefill *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
