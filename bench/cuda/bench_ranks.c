/* bench_ranks_cuda METHOD TOKENS... measures the attention of a decoding step over one layer of 32 query and 8 KV heads of 128, one query, of a
 * sequence whose pages are dealt to ranks, each with a GPU: started by tests/support/ranks.py RANKS, or by itself for one.
 * Launches are replayed as a graph; medians. Rank 0 prints lines "METHOD TOKENS RANKS MICROSECONDS EXCHANGE": attention with its exchange, and what the
 * exchange takes alone. The caches are random, and must be larger than the L2: from 131,072 tokens on with terse-2. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_ranks.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
#include "backend/cuda/ranks.h"
#include "kv/parts.h"
#include "replay.h"
#include "support/random_codebook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <terse.h>

#define QUERY_HEADS 32
#define HEADS 8
#define HD 128
#define LAUNCHES 24 /* of a graph */

static void refused(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_ranks_cuda: %s\n", error->message);
    _Exit(1); /* what has started the ranks ends the others */
}

static void check(cudaError_t result, const char *doing) {
    struct terse_error error;
    refused(device_check(result, doing, &error), &error);
}

/* A layer's attention, or with `merge` the exchange alone. */
struct work {
    const struct kv_batch *batch;
    struct kv_rows queries;
    struct collective *ranks;
    const struct merge_ranks *merge;
};

static void queue(const struct work *work) {
    struct terse_error error;
    if (!work->merge) {
        refused(cuda_kv_ops.attend(work->batch, &work->queries, &error), &error);
        return;
    }
    const size_t bytes = rank_block_floats(1, QUERY_HEADS, HD) * sizeof(float);
    refused(ranks_gather(work->ranks, (void *)(uintptr_t)work->merge->blocks, bytes, &error), &error);
    check(merge_ranks_launch(work->merge, device_stream()), "merging");
}

/* Returns the median microseconds of one of LAUNCHES in a graph. */
static double time_of(const struct work *work) {
    cudaGraph_t graph;
    double microseconds;
    queue(work); /* which loads the kernels */
    check(cudaStreamSynchronize(device_stream()), "a launch");
    check(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal), "capturing");
    for (int i = 0; i < LAUNCHES; i++) queue(work);
    check(cudaStreamEndCapture(device_stream(), &graph), "capturing");
    check(replay_graph(graph, device_stream(), &microseconds), "replaying");
    return microseconds / LAUNCHES;
}

static float *numbers(size_t n, uint64_t seed) {
    struct terse_error error;
    float *there = device_alloc(NULL, n * sizeof *there, "a token", &error), *host = malloc(n * sizeof *host);
    if (!there || !host) refused(TERSE_E_MEMORY, &error);
    for (size_t i = 0; i < n; i++) host[i] = (float)((i * 2654435761u + seed * 40503u) % 2000) / 1000 - 1;
    check(device_send(there, host, n * sizeof *host), "a token");
    free(host);
    return there;
}

static void measure(struct collective *ranks, const struct cache_shape *shape, const struct method *method, size_t tokens) {
    struct cache *cache;
    struct batch_memory *memory;
    struct terse_error error;
    refused(parts_create(cuda_kv_ops.storage, shape, method, 1, &cache, &error), &error);
    refused(batch_new(shape, &memory, &error), &error);
    refused(cuda_kv_ops.fill_random(cache, tokens, 1, &error), &error);
    const struct kv_batch batch = {&cache, 1, memory};
    float *k = numbers(HEADS * HD, 1), *v = numbers(HEADS * HD, 2), *q = numbers(QUERY_HEADS * HD, 3),
          *out = numbers(QUERY_HEADS * HD, 4), *blocks = numbers(ranks->ranks * rank_block_floats(1, QUERY_HEADS, HD), 5);
    const struct kv_rows rows = {.count = 1, .k = k, .v = v, .q = q, .out = out};
    const struct merge_ranks merge = {blocks, out, ranks->ranks, 1, QUERY_HEADS, HEADS, HD, false};
    refused(cuda_kv_ops.begin(cache, CACHE_STEP_DECODE, 1, &error), &error);
    refused(cuda_kv_ops.join(&batch, &error), &error);
    refused(cuda_kv_ops.append(&batch, &rows, &error), &error);
    const struct work attends = {&batch, rows, ranks, NULL}, exchanges = {&batch, rows, ranks, &merge};
    const double all = time_of(&attends), exchange = ranks->ranks > 1 ? time_of(&exchanges) : 0;
    if (!ranks->rank) printf("%s %zu %u %.1f %.1f\n", method->name, tokens, ranks->ranks, all, exchange);
    fflush(stdout);
    float *const all_numbers[] = {k, v, q, out, blocks};
    for (size_t i = 0; i < sizeof all_numbers / sizeof *all_numbers; i++) device_free(NULL, all_numbers[i], 0);
    batch_free(memory);
    parts_destroy(cache);
}

int main(int argc, char **argv) {
    static float frequency[HD / 2];
    struct terse_cache_options options = terse_cache_options_defaults();
    const struct rope rope = {.pairing = ROPE_ADJACENT, .head_dim = HD, .n_rot = HD, .frequency = frequency, .magnitude = 1};
    struct cache_shape shape = {
        .layers = 1, .query_heads = QUERY_HEADS, .kv_heads = HEADS, .head_dim = HD, .scale = 0.088f, .rope = &rope};
    struct collective *ranks;
    struct method method;
    struct terse_error error;
    if (argc < 3) {
        fprintf(stderr, "usage: [tests/support/ranks.py RANKS] bench_ranks_cuda METHOD TOKENS...\n");
        return 2;
    }
    for (int i = 0; i < HD / 2; i++) frequency[i] = (float)pow(500000, -2.0 * i / HD);
    options.method = argv[1];
    refused(device_available(&error), &error);
    refused(collective_open(&ranks, &error), &error);
    if (ranks->ranks > 1) refused(ranks_connect(ranks, &error), &error);
    if (ranks->ranks > 1) shape.ranks = ranks;
    refused(method_resolve(&options, HD, &method, &error), &error);
    refused(random_codebook(&method, 1, HEADS, HD, 1, true, &error), &error);
    for (int i = 2; i < argc; i++) measure(ranks, &shape, &method, (size_t)strtoull(argv[i], NULL, 10));
    return 0;
}
