/* bench_attend_cuda [CODEC...]: the time of a decoding step's attention over one layer of 32 query and 8 KV heads of 128, one query token a sequence.
 * Launches are replayed as a graph over copies of the cache that together are larger than the L2; medians. Prints lines
 * "CODEC SEQUENCESxTOKENS MICROSECONDS TB/s", which f16_attention.py sets beside PyTorch's. A sequence's tokens all lie in pages but the last 64,
 * its window. */
#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUERY_HEADS 32
#define HEADS 8
#define HD 128
#define WINDOW 64
#define SETS 64       /* page sets of a chunk */
#define DIFFERENT 4   /* page sets of random numbers; the others are copies */
#define ROTATED 300e6 /* bytes of all copies together, at least */
#define LAUNCHES 24   /* of a graph, at least */
#define REPLAYS 11

static const struct shape {
    uint32_t sequences, tokens;
} shapes[] = {{1, 1024}, {1, 8192}, {1, 32768}, {1, 131072}, {8, 8192}, {8, 32768}, {8, 131072}};

static void check(cudaError_t result, const char *doing) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "bench_attend_cuda: %s: %s\n", doing, cudaGetErrorString(result));
    exit(1);
}

static void *device(size_t bytes, const void *from) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "memory");
    if (from) check(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "copying");
    return memory;
}

static uint64_t state = 1;
static float random_number(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_uniform(random_next(&state));
    return (sum - 2) * 1.732f;
}

/* A chunk whose page sets are DIFFERENT ones, one after another. */
static uint8_t *make_chunk(const enum codec_id codec[2], const struct place_view *places, size_t set_bytes) {
    struct codec_shape shape = {.head_dim = HD, .group = QUERY_HEADS / HEADS};
    uint8_t *chunk = malloc(set_bytes * SETS);
    float *rows = malloc(sizeof *rows * PAGE_TOKENS * HD);
    if (!chunk || !rows) exit(1);
    for (uint32_t i = 0; i < SETS; i++) {
        struct page_set_view set = {.chunk = chunk, .sets = SETS, .index = i},
                             from = {.chunk = chunk, .sets = SETS, .index = i % DIFFERENT};
        for (uint32_t h = 0; h < HEADS; h++) {
            for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                if (i >= DIFFERENT) {
                    memcpy(page_address(&set, &places[h], side), page_address(&from, &places[h], side), places[h].bytes[side]);
                    continue;
                }
                for (size_t j = 0; j < PAGE_TOKENS * HD; j++) rows[j] = random_number();
                cpu_codec_of(codec_at(codec[side]))->encode(shape, side, rows, PAGE_TOKENS, page_address(&set, &places[h], side));
            }
        }
    }
    free(rows);
    return chunk;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(const enum codec_id codec[2], const struct shape *shape) {
    struct place_view places[HEADS];
    size_t set_bytes = 0;
    for (uint32_t h = 0; h < HEADS; h++) {
        places[h].offset = set_bytes;
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct codec_shape of = {.head_dim = HD, .group = QUERY_HEADS / HEADS};
            set_bytes += places[h].bytes[side] = (uint32_t)codec_page_bytes(codec_at(codec[side]), of, side);
        }
    }
    uint32_t n = shape->sequences, pages = (shape->tokens - WINDOW) / PAGE_TOKENS;
    double bytes = (double)n * pages * set_bytes;
    size_t copies = bytes > ROTATED / 2 ? 2 : (size_t)(ROTATED / bytes) + 1, chunks = (copies * n * pages + SETS - 1) / SETS;
    uint8_t *chunk = make_chunk(codec, places, set_bytes), *pool = device(chunks * set_bytes * SETS, NULL);
    for (size_t c = 0; c < chunks; c++)
        check(cudaMemcpy(pool + c * set_bytes * SETS, chunk, set_bytes * SETS, cudaMemcpyHostToDevice), "copying pages");
    struct page_set_view *sets = calloc(copies * n * pages, sizeof *sets);
    struct sequence_view *sequences = calloc(copies * n, sizeof *sequences);
    struct query_row_view *rows = calloc(n, sizeof *rows);
    float *q = malloc((size_t)n * QUERY_HEADS * HD * sizeof *q);
    uint16_t *window = malloc((size_t)2 * HEADS * WINDOW * HD * sizeof *window);
    if (!sets || !sequences || !rows || !q || !window) exit(1);
    for (size_t i = 0; i < (size_t)n * QUERY_HEADS * HD; i++) q[i] = random_number();
    for (size_t i = 0; i < (size_t)2 * HEADS * WINDOW * HD; i++) window[i] = (uint16_t)(0x3000 | (random_next(&state) & 0x8fff));
    for (size_t i = 0; i < copies * n * pages; i++)
        sets[i] = (struct page_set_view){.chunk = pool + i / SETS * set_bytes * SETS,
                                         .sets = SETS,
                                         .index = (uint32_t)(i % SETS),
                                         .first = (uint32_t)(i % pages * PAGE_TOKENS),
                                         .end = PAGE_TOKENS};
    struct page_set_view *sets_there = device(copies * n * pages * sizeof *sets, sets);
    for (size_t i = 0; i < copies * n; i++)
        sequences[i] = (struct sequence_view){.page_sets = sets_there + i * pages,
                                              .n_sealed = pages,
                                              .window_capacity = WINDOW,
                                              .window_first = pages * PAGE_TOKENS,
                                              .window_origin = pages * PAGE_TOKENS};
    for (size_t i = 0; i < copies * n; i++) sequences[i].window = device((size_t)2 * HEADS * WINDOW * HD * 2, window);
    struct head_view heads = {.layers = 1, .query_heads = QUERY_HEADS, .kv_heads = HEADS, .head_dim = HD, .scale = 1 / sqrtf(HD)};
    uint32_t splits = attend_decode_splits(&heads, codec[0], (uint32_t)device_multiprocessors(), n, pages);
    const char *asked = getenv("SPLITS");
    if (asked) splits = (uint32_t)atoi(asked);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct query_row_view){.sequence = i, .position = pages * PAGE_TOKENS + WINDOW - 1, .splits = splits};
    struct attend_decode attend = {.heads = heads, .codec = {codec[0], codec[1]}, .n_rows = n, .splits = splits};
    attend.places = device(sizeof places, places);
    struct sequence_view *sequences_there = device(copies * n * sizeof *sequences, sequences);
    attend.rows = device(n * sizeof *rows, rows);
    attend.q = attend.q_exact = device((size_t)n * QUERY_HEADS * HD * sizeof *q, q);
    attend.out = device((size_t)n * QUERY_HEADS * HD * sizeof *q, NULL);
    attend.parts = device(attend_decode_part_floats(&heads, n, splits) * sizeof(float), NULL);
    attend.arrived = device((size_t)n * HEADS * sizeof(uint32_t), NULL);
    check(cudaMemset(attend.arrived, 0, (size_t)n * HEADS * sizeof(uint32_t)), "clearing");

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replayed;
    cudaEvent_t begin, end;
    check(cudaStreamCreate(&stream), "a stream");
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");
    size_t launches = (LAUNCHES + copies - 1) / copies * copies;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (size_t i = 0; i < launches; i++) {
        attend.sequences = sequences_there + i % copies * n;
        check(attend_decode_launch(&attend, stream), "attention");
    }
    check(cudaStreamEndCapture(stream, &graph), "capturing");
    check(cudaGraphInstantiate(&replayed, graph, 0), "a graph");
    float took[REPLAYS];
    for (int i = -2; i < REPLAYS; i++) {
        check(cudaEventRecord(begin, stream), "an event");
        check(cudaGraphLaunch(replayed, stream), "replaying");
        check(cudaEventRecord(end, stream), "an event");
        check(cudaEventSynchronize(end), "attention");
        if (i >= 0) check(cudaEventElapsedTime(&took[i], begin, end), "an event");
    }
    qsort(took, REPLAYS, sizeof *took, by_size);
    double us = took[REPLAYS / 2] * 1000 / (double)launches;
    printf("%s %ux%u %.2f %.2f (%u parts)\n", codec_at(codec[0])->name, n, shape->tokens, us, bytes / us / 1e6, splits);
    fflush(stdout);
    check(cudaGraphExecDestroy(replayed), "a graph");
    check(cudaGraphDestroy(graph), "a graph");
    check(cudaStreamDestroy(stream), "a stream");
    for (size_t i = 0; i < copies * n; i++) check(cudaFree(sequences[i].window), "memory");
    void *memory[] = {pool,       sets_there,   (void *)attend.places, sequences_there, (void *)attend.rows, (void *)attend.q,
                      attend.out, attend.parts, attend.arrived};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) check(cudaFree(memory[i]), "memory");
    free(chunk), free(sets), free(sequences), free(rows), free(q), free(window);
}

int main(int argc, char **argv) {
    struct terse_error error;
    if (device_available(&error)) {
        fprintf(stderr, "bench_attend_cuda: %s\n", error.message);
        return 1;
    }
    for (enum codec_id codec = CODEC_F16; codec <= CODEC_KIVI_2; codec++) {
        bool asked = argc == 1;
        for (int i = 1; i < argc; i++) asked |= !strcmp(argv[i], codec_at(codec)->name);
        for (size_t i = 0; asked && i < sizeof shapes / sizeof *shapes; i++) measure((enum codec_id[2]){codec, codec}, &shapes[i]);
    }
    return 0;
}
