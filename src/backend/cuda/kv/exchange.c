/* Keeps the memory of exchanges, and queues them. */
#include "backend/cuda/kv/exchange.h"

#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_ranks.h"
#include "backend/cuda/ranks.h"
#include "base/size.h"
#include "kv/deal.h"

static size_t block_floats(const struct cache_shape *shape, size_t n) {
    return rank_block_floats(n, shape->query_heads, shape->head_dim);
}

void rank_exchange_free(struct rank_exchange *exchange) {
    device_free(NULL, exchange->blocks, exchange->floats * sizeof(float));
    *exchange = (struct rank_exchange){0};
}

enum terse_status rank_exchange_reserve(struct rank_exchange *exchange, const struct cache_shape *shape, size_t n, bool *moved,
                                        struct terse_error *error) {
    const size_t floats = shape->ranks->ranks * block_floats(shape, n);
    if (moved) *moved = floats > exchange->floats;
    if (floats <= exchange->floats) return TERSE_OK;
    if (exchange->blocks) cudaStreamSynchronize(device_stream());
    rank_exchange_free(exchange);
    exchange->blocks = device_alloc(NULL, floats * sizeof(float), "the exchange between ranks", error);
    if (!exchange->blocks) return TERSE_E_MEMORY;
    exchange->floats = floats;
    return TERSE_OK;
}

float *rank_exchange_outputs(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n) {
    return exchange->blocks + shape->ranks->rank * block_floats(shape, n);
}

float *rank_exchange_log_sums(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n) {
    return rank_exchange_outputs(exchange, shape, n) + n * cache_shape_query_width(shape);
}

enum terse_status rank_exchange_finish(const struct rank_exchange *exchange, const struct cache_shape *shape, size_t n,
                                       bool by_head, float *out, struct terse_error *error) {
    const struct merge_ranks merge = {.blocks = exchange->blocks,
                                      .out = out,
                                      .ranks = shape->ranks->ranks,
                                      .n = (uint32_t)n,
                                      .query_heads = shape->query_heads,
                                      .kv_heads = shape->kv_heads,
                                      .head_dim = shape->head_dim,
                                      .by_head = by_head};
    enum terse_status status = ranks_gather(shape->ranks, exchange->blocks, block_floats(shape, n) * sizeof(float), error);
    return status ? status : device_check(merge_ranks_launch(&merge, device_stream()), "merging what ranks have read", error);
}

static enum terse_status copy_rows(device_half *to, const device_half *from, size_t halves, struct terse_error *error) {
    return device_check(cudaMemcpyAsync(to, from, halves * sizeof *to, cudaMemcpyDeviceToDevice, device_stream()),
                        "exchanging rows between ranks", error);
}

enum terse_status rank_exchange_rows(const struct rank_exchange *exchange, const struct cache_shape *shape, uint64_t first,
                                     size_t n, device_half *rows, struct terse_error *error) {
    const size_t width = cache_shape_kv_width(shape), block = n * width, pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    device_half *const blocks = (device_half *)(void *)exchange->blocks;
    enum terse_status status = copy_rows(blocks + shape->ranks->rank * block, rows, block, error);
    if (!status) status = ranks_gather(shape->ranks, blocks, block * sizeof *blocks, error);
    for (size_t i = 0, run; i < pages && !status; i += run) {
        uint32_t owner;
        run = deal_run(shape, first + i * PAGE_TOKENS, pages - i, &owner);
        const size_t at = i * PAGE_TOKENS, tokens = size_min(run * PAGE_TOKENS, n - at);
        if (owner != shape->ranks->rank)
            status = copy_rows(rows + at * width, blocks + owner * block + at * width, tokens * width, error);
    }
    return status;
}
