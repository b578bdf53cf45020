/* Exchanges partial states between ranks, where the pages of a sequence are dealt to several (kv/deal.h): each rank attends to its own
 * tokens, one exchange gathers what all have, and each merges it in the order of ranks. So all have the same outputs, and always the
 * same with as many ranks.
 *
 * Of what is no page, rank 0 alone reads the exact tokens and the window, and in a step of many tokens the new ones. */
#ifndef TERSE_BACKEND_CUDA_KV_EXCHANGE_H
#define TERSE_BACKEND_CUDA_KV_EXCHANGE_H

#include "backend/cuda/kv/view.h"
#include "base/status.h"
#include "kv/shape.h"

/* A rank_exchange is memory for the blocks of all ranks (attend_ranks.h); zeros: none. */
struct rank_exchange {
    float *blocks;
    size_t floats;
};

#define EXCHANGE_ROWS 512 /* of queries or tokens of a prompt that are exchanged together, at most */

/* Reserves memory for n queries. Returns in *moved, unless that is NULL, whether it lies elsewhere now. Waits for work that is queued
 * with the memory that is given up. */
enum terse_status rank_exchange_reserve(struct rank_exchange *exchange, const struct cache_shape *shape, size_t n, bool *moved,
                                        struct terse_error *error);
void rank_exchange_free(struct rank_exchange *exchange);

/* Return where this rank's attention to n queries writes its outputs, and the logarithms of sums. */
float *rank_exchange_outputs(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n);
float *rank_exchange_log_sums(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n);

/* Queues the exchange for n queries and the merging, which writes out[n][Hq][hd]. `by_head`: as in struct merge_ranks. */
enum terse_status rank_exchange_finish(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n,
                                       bool by_head, float *out, struct terse_error *error);

/* Queues the exchange of keys or values rows[n][Hk][hd] of tokens from `first` on, with which a page begins: those of other ranks' pages become
 * those that they have. n <= EXCHANGE_ROWS, with memory for as many queries. */
enum terse_status rank_exchange_rows(const struct rank_exchange *exchange, const struct cache_shape *shape, uint64_t first,
                                     size_t n, device_half *rows, struct terse_error *error);

#endif
