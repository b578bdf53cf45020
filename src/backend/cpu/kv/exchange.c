/* Lays out the states of queries, exchanges and merges them. */
#include "backend/cpu/kv/exchange.h"

#include "backend/cpu/kv/query_rows.h"
#include "base/memory.h"
#include "base/size.h"

#include <string.h>

/* The states of EXCHANGE_TOKENS queries of all heads are a block, one partial state whose rows are [token][Hq]. Memory has the blocks
 * of this rank's states, one after the other, and then a block of each rank. */

static size_t block_floats(const struct cache_shape *shape, size_t tokens) {
    return partial_floats(tokens * shape->query_heads, shape->head_dim);
}

static size_t blocks_of(size_t count) { return (count + EXCHANGE_TOKENS - 1) / EXCHANGE_TOKENS; }

size_t exchange_bytes(const struct cache_shape *shape, size_t n) { return block_floats(shape, n) * sizeof(float); }

enum terse_status exchange_reserve(struct cache *cache, size_t count, struct terse_error *error) {
    struct exchange *exchange = &cache->exchange;
    const struct cache_shape *shape = &cache->base.shape;
    const size_t floats = (blocks_of(count) + shape->ranks->ranks) * block_floats(shape, size_min(count, EXCHANGE_TOKENS));
    exchange->count = count;
    if (floats <= exchange->floats) return TERSE_OK;
    memory_free(exchange->memory);
    exchange->floats = 0;
    exchange->memory = memory_array(floats, sizeof *exchange->memory);
    if (!exchange->memory) return status_no_memory(error, floats * sizeof *exchange->memory, "the exchange between ranks");
    exchange->floats = floats;
    return TERSE_OK;
}

void exchange_free(struct cache *cache) { memory_free(cache->exchange.memory); }

/* Returns a view of this rank's block with the i-th query. */
static struct partial own_block(const struct cache *cache, size_t i) {
    const struct exchange *exchange = &cache->exchange;
    const struct cache_shape *shape = &cache->base.shape;
    const size_t block = i / EXCHANGE_TOKENS, tokens = size_min(EXCHANGE_TOKENS, exchange->count - block * EXCHANGE_TOKENS);
    float *memory = exchange->memory + block * block_floats(shape, size_min(exchange->count, EXCHANGE_TOKENS));
    return partial_at(memory, tokens * shape->query_heads, shape->head_dim);
}

void exchange_put(const struct cache *cache, uint32_t head, size_t i, const struct partial *partial) {
    const size_t G = cache->group, hd = cache->base.shape.head_dim, heads = cache->base.shape.query_heads;
    for (size_t m = 0; m < partial->rows; m++) {
        const size_t token = i + m / G, row = token % EXCHANGE_TOKENS * heads + head * G + m % G;
        const struct partial block = own_block(cache, token);
        block.max[row] = partial->max[m];
        block.sum[row] = partial->sum[m];
        memcpy(block.acc + row * hd, partial->acc + m * hd, hd * sizeof *block.acc);
    }
}

/* Merges the blocks of all ranks into the first rank's, and finishes its rows. */
static void merge(const struct cache *cache, float *all, size_t tokens, float *out) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t rows = tokens * shape->query_heads, floats = block_floats(shape, tokens);
    struct partial whole = partial_at(all, rows, shape->head_dim);
    for (size_t rank = 1; rank < shape->ranks->ranks; rank++) {
        const struct partial part = partial_at(all + rank * floats, rows, shape->head_dim);
        partial_merge(&whole, &part);
    }
    query_rows_add_sinks(cache, &whole, 0, shape->query_heads);
    for (size_t row = 0; row < rows; row++) partial_finish(&whole, row, out + row * shape->head_dim);
}

enum terse_status exchange_finish(struct cache *cache, size_t count, float *out, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    float *all = cache->exchange.memory + blocks_of(count) * block_floats(shape, size_min(count, EXCHANGE_TOKENS));
    for (size_t i = 0; i < count; i += EXCHANGE_TOKENS) {
        const size_t tokens = size_min(EXCHANGE_TOKENS, count - i);
        const struct partial own = own_block(cache, i);
        enum terse_status status = collective_gather(shape->ranks, own.max, exchange_bytes(shape, tokens), all, error);
        if (status) return status;
        merge(cache, all, tokens, out + i * cache_shape_query_width(shape));
    }
    return TERSE_OK;
}
