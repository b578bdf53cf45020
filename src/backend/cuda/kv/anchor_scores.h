/* Computes Anchor Scores (AnTKV, theorem 3.1): how far an error in a token's key or value moves the outputs of the queries that see
 * it. backend/cpu/kv/anchor_scores.h has the formula; with A the attention and q_i the rows of the G heads that share a KV head,
 *     AnS_K[j] = sum_i A_ij (1 - A_ij) ||q_i||_2,     AnS_V[j] = sum_i A_ij.
 *
 * A prompt's attention leaves the logarithm of each row's sum of weights (attend_prefill.h), so that one more product of queries
 * and keys gives A: a block of threads keeps some keys in registers and lets all queries that see them pass. There is never an
 * L x L matrix. Queries are the halves that attention multiplied; products and sums are fp32. */
#ifndef TERSE_BACKEND_CUDA_KV_ANCHOR_SCORES_H
#define TERSE_BACKEND_CUDA_KV_ANCHOR_SCORES_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANCHOR_QUERIES 2048 /* of a launch, at most */

/* All pointers are to the device's memory, aligned to 16 bytes, of one layer. Rows are those of a prompt's attention
 * (attend_prefill.h). Row r of a KV head's queries is query r / G, head r % G of the group. */
struct anchor_scores {
    struct head_view heads; /* without a window */
    const float *q;         /* [n][Hq][hd], rotated by their own positions */
    uint32_t n;             /* queries, of rows from first_query on */
    uint32_t first_query;
    const device_half *k;     /* [rows][Hk][hd] */
    uint32_t first, n_tokens; /* rows [first, first + n_tokens) get scores */
    device_half *halves;      /* [Hk][anchor_query_rows][hd] */
    float *norms, *log_sums;  /* [Hk][anchor_query_rows] */
    float *scores;            /* [splits][Hk][keys, values][n_tokens], which are added up */
    uint32_t splits;          /* queries are dealt to so many blocks, where there are few keys */
};

/* Returns how many rows n queries take, a multiple of those that a block takes at a time. */
uint32_t anchor_query_rows(const struct head_view *heads, uint32_t n);
/* Returns in how many splits scores of n tokens are computed well. */
uint32_t anchor_score_splits(const struct head_view *heads, uint32_t multiprocessors, uint32_t n_tokens);

/* Writes `halves` and `norms`. Attention may then write over the queries; it fills in `log_sums`, whose rows lie
 * anchor_query_rows(n) apart. */
cudaError_t prepare_anchor_queries(const struct anchor_scores *scores, cudaStream_t stream);
/* Adds what these queries contribute to `scores`. */
cudaError_t add_anchor_scores(const struct anchor_scores *scores, cudaStream_t stream);

/* Adds up the splits of the scores of tokens [first, first + count), into those of the first split, and multiplies them by
 * ||row - decoded row||_2^2, or by the L1 norm. */
struct anchor_errors {
    bool l1;
    uint32_t kv_heads, head_dim;
    uint32_t first, count, n_tokens, splits;
    const device_half *rows[2], *decoded[2]; /* [count][Hk][hd], by side */
    float *scores;
};
cudaError_t scale_anchor_scores(const struct anchor_errors *errors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
