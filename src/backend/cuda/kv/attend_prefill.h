/* Computes exact attention of many queries: tiled, on tensor cores, without ever an L x L matrix (Dao 2023, FlashAttention-2; Shah
 * et al. 2024, FlashAttention-3).
 *
 * A tile holds some queries' heads that share a KV head: row r of all of them is query r / G, head r % G of the group. So keys and
 * values are read once for a group, and few queries fill a tile. Queries are rounded to halves (scale and log2 e included), weights
 * too; sums and the softmax are fp32.
 *
 * attend_prefill.cu chooses: attend_prefill_mma.cu runs on compute capability 8.0 and later, attend_prefill_wgmma.cu on 9.0. Where
 * there are fewer tiles than multiprocessors the rows of keys are read in several parts, whose states a second kernel merges. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_PREFILL_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of keys and values are in order of their tokens: first those that the sequence has stored, then the new tokens. Rows follow
 * one another, so that two of them are as many positions apart as rows, unless `places` says otherwise. All pointers are to the
 * device's memory, aligned to 16 bytes. */
struct attend_prefill {
    struct head_view heads;
    uint32_t layer; /* by which heads.sinks has a layer's */
    const float *q; /* [n][Hq][hd], rotated by their own positions */
    size_t n;       /* queries: of rows first_query .. first_query + n - 1 */
    size_t first_query;
    const device_half *k, *v; /* [rows][Hk][hd], keys rotated by their own positions; row r is read by queries of rows >= r */
    size_t begin;             /* rows before this one are not read; at most first_query */
    bool ends;                /* rows from `end` on, which is at least `begin`, are not read either */
    size_t end;
    struct row_places places; /* by which ALiBi counts distances; queries are rows of the last span */
    float *out;               /* [n][Hq][hd], may be q */
    /* [Hk][log_stride] of the rows of a tile's comment: log2 of the sum of exp2(logit log2 e), so that a weight is exp2(logit log2
     * e - this); INFINITY where a row reads nothing. NULL: they are not wanted. */
    float *log_sums;
    size_t log_stride;
    float
        *parts; /* attend_prefill_part_floats(...); NULL: rows are never read in parts, which is slow where there are few queries */
};

/* Returns how many floats the partial states of any launch with these heads have. */
size_t attend_prefill_part_floats(const struct head_view *heads);

bool attend_prefill_supports(const struct head_view *heads);
cudaError_t attend_prefill_launch(const struct attend_prefill *attend, cudaStream_t stream);
/* Launches, for tests, the kernel that needs only compute capability 8.0, on any device. */
cudaError_t attend_prefill_mma(const struct attend_prefill *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
