/* Ranks a prompt's tokens by the attention that its last queries pay to them, and keeps the best, as the CPU does for policies that
 * `rank_by_attention` (backend/cpu/kv/anchor_scores.h; Li et al. 2024, SnapKV, section 4).
 *
 * Softmax weights are computed in fp32, over all rows that a query may read, from the rows that attention reads: keys are halves.
 * Those of the heads of a group and of all queries are summed up, then averaged with the neighbours' as the CPU does. There is
 * never an L x L matrix: products are computed twice, once for the queries' maxima and sums. */
#ifndef TERSE_BACKEND_CUDA_KV_RANK_H
#define TERSE_BACKEND_CUDA_KV_RANK_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are to the device's memory, of one layer. Rows are those of a prompt's attention (attend_prefill.h). */
struct rank_tokens {
    struct head_view heads; /* without slopes */
    const float *q;         /* [n_queries][Hq][hd], rotated by their own positions */
    uint32_t n_queries;     /* at most RANKING_QUERIES */
    uint32_t first_query;   /* the row of the first of them; a query reads rows up to its own */
    const device_half *k;   /* [rows][Hk][hd], rotated by their own positions */
    uint32_t rows;
    uint32_t first, n;   /* rows [first, first + n) are ranked ... */
    uint32_t neighbours; /* ... by means over so many on either side ... */
    uint32_t keep;       /* ... and so many are kept, keep <= n; of equal ones the older */
    float *memory;       /* rank_floats(...) */
    /* One of these is written. */
    uint32_t *kept;  /* [Hk][keep] of 0 .. n - 1, ascending */
    uint64_t *marks; /* [Hk][2][n / 64], zeros before: twice a bit for each token, set where it is kept */
};

size_t rank_floats(const struct head_view *heads, uint32_t n_queries, uint32_t rows, uint32_t n);
cudaError_t rank_tokens(const struct rank_tokens *rank, cudaStream_t stream);

/* Copies the rows that were kept, of both sides, to rows `at` and after of to[Hk][keys, values][capacity][hd], and writes their
 * tokens, first_token + kept, to tokens[Hk][token_capacity] from `at_token` on. */
struct keep_rows {
    const device_half *k, *v; /* [rows][Hk][hd] */
    uint32_t kv_heads, head_dim;
    uint32_t first, keep, first_token;
    const uint32_t *kept;
    device_half *to;
    uint32_t *tokens;
    uint32_t capacity, at, token_capacity, at_token;
};
cudaError_t keep_rows(const struct keep_rows *keep, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
