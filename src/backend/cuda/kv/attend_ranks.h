/* Merges what several ranks' attention gave for the same queries, each of other tokens (kv/deal.h). Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_RANKS_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_RANKS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's block has the outputs of its own tokens [n][Hq][hd], then the logarithms of their sums of weights, log2 of the sum of
 * exp2(logit log2 e), INFINITY where it has read nothing: [n][Hq], or `by_head` [Hk][n][G]. Together they are a partial state
 * (elsewhere: output and log-sum-exp). */
struct merge_ranks {
    const float *blocks;                                /* [ranks][rank_block_floats(n, Hq, hd)] */
    float *out;                                         /* [n][Hq][hd] */
    uint32_t ranks, n, query_heads, kv_heads, head_dim; /* hd a multiple of 4 */
    bool by_head;
};

/* Returns how many floats the block of n queries has: a multiple of 4. */
static inline size_t rank_block_floats(size_t n, uint32_t query_heads, uint32_t head_dim) {
    return (n * query_heads * (head_dim + 1) + 3) / 4 * 4;
}

/* Launches the kernel. Each sum is taken in the order of ranks, so that all ranks get the same bits from the same blocks. */
cudaError_t merge_ranks_launch(const struct merge_ranks *merge, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
