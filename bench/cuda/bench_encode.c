/* bench_encode_cuda [METHOD...] measures the time to encode and to decode one layer of a prompt of 8192 tokens, 8 KV heads of 128,
 * keys and values. Launches go over copies that together are larger than the L2; medians. Prints lines "METHOD encode|decode
 * MICROSECONDS GB/s", of rows and pages together. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/centroids.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/encode.h"
#include "base/random.h"
#include "kv/pre_rope.h"
#include "support/random_codebook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terse.h>

#define HEADS 8
#define HD 128
#define TOKENS 8192
#define PAGES (TOKENS / PAGE_TOKENS)
#define COPIES 4   /* layers of a model, 32 MiB of rows each */
#define LAUNCHES 8 /* that are timed together */
#define REPEATS 11

static const char *const methods[] = {"f16",     "q8_0",       "q4_0",        "kivi-4",    "kivi-2",    "terse-1", "terse-2",
                                      "terse-3", "terse-4",    "million-4",   "million-3", "million-2", "antkv-4", "antkv-2",
                                      "antkv-1", "antkv-0.75", "antkv-0.375", "commvq-2",  "commvq-1"};

static void check(cudaError_t result, const char *doing) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "bench_encode_cuda: %s: %s\n", doing, cudaGetErrorString(result));
    exit(1);
}

static void refused(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_encode_cuda: %s\n", error->message);
    exit(1);
}

static void *device(size_t bytes, const void *from) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "memory");
    if (from) check(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "copying");
    return memory;
}

static void *host(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) exit(1);
    return memory;
}

/* ---- What is encoded: rows[copies][2][tokens][heads][hd] of halves between 1/8 and 1, either sign */

struct work {
    struct method method;
    struct rope rope;
    float frequency[HD / 2];
    struct cache_shape shape;
    struct encode encode; /* of the first copy */
    struct encode_item *items;
    double bytes; /* of rows and pages, of a copy */
    void *memory[6];
    void *learned[2]; /* by side; NULL where the codec learns nothing */
};

static uint16_t *make_rows(void) {
    size_t n = (size_t)2 * TOKENS * HEADS * HD;
    uint16_t *rows = host(n * sizeof *rows);
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) rows[i] = (uint16_t)(0x3000 + (random_next(&state) & 0x8bff));
    return rows;
}

static size_t set_places(const struct work *w, struct place_view *places) {
    size_t offset = 0;
    for (uint32_t i = 0; i < COPIES * HEADS; i++) {
        places[i].offset = offset;
        for (int side = 0; side < 2; side++) {
            struct codec_shape shape = method_shape(&w->method, (enum codec_side)side, i / HEADS, i % HEADS, HD, 1);
            const struct codec *codec = side ? w->method.value.codec : w->method.key.codec;
            offset += places[i].bytes[side] = (uint32_t)codec_page_bytes(codec, shape, (enum codec_side)side);
        }
    }
    return offset;
}

static void set_method(struct work *w, const char *name) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_error error;
    options.method = name;
    refused(method_resolve(&options, HD, &w->method, &error), &error);
    refused(random_codebook(&w->method, COPIES, HEADS, HD, 1, false, &error), &error);
    for (int i = 0; i < HD / 2; i++) w->frequency[i] = (float)pow(500000, -2.0 * i / HD);
    w->rope = (struct rope){.pairing = ROPE_HALF_SPLIT, .head_dim = HD, .n_rot = HD, .frequency = w->frequency, .magnitude = 1};
    w->shape = (struct cache_shape){
        .layers = COPIES, .query_heads = HEADS, .kv_heads = HEADS, .head_dim = HD, .scale = 1, .rope = &w->rope};
    for (int side = 0; side < 2; side++) {
        const struct codec *codec = side ? w->method.value.codec : w->method.key.codec;
        const struct cuda_codec *row = cuda_codec_of(codec->id);
        if (row->learned_new)
            refused(row->learned_new(&w->shape, &w->method, (enum codec_side)side, &w->learned[side], &error), &error);
    }
}

/* Returns the angles of positions 0, step, ..., [n][HD / 2][cosine, sine]. */
static float *make_angles(const struct rope *rope, size_t n, int64_t step) {
    size_t pairs = HD / 2;
    float *angles = host(n * 2 * pairs * sizeof *angles), cosine[HD / 2], sine[HD / 2];
    for (size_t t = 0; t < n; t++) {
        rope_angles(rope, (int64_t)t * step, cosine, sine);
        for (size_t i = 0; i < pairs; i++) {
            angles[(t * pairs + i) * 2] = cosine[i];
            angles[(t * pairs + i) * 2 + 1] = sine[i];
        }
    }
    float *there = device(n * 2 * pairs * sizeof *angles, angles);
    free(angles);
    return there;
}

static void set_up(struct work *w, const char *name, const uint16_t *rows) {
    static struct place_view places[COPIES * HEADS];
    static struct encode_item items[COPIES * PAGES];
    size_t side = (size_t)TOKENS * HEADS * HD;
    set_method(w, name);
    size_t set_bytes = set_places(w, places);
    uint8_t *chunk = w->memory[0] = device(set_bytes * PAGES, NULL);
    uint16_t *there = w->memory[1] = device(COPIES * 2 * side * sizeof *rows, NULL);
    for (size_t copy = 0; copy < COPIES; copy++)
        check(cudaMemcpy(there + copy * 2 * side, rows, 2 * side * sizeof *rows, cudaMemcpyHostToDevice), "copying");
    for (uint32_t i = 0; i < COPIES * PAGES; i++) {
        device_half *own = (device_half *)there + i / PAGES * 2 * side + (size_t)(i % PAGES) * PAGE_TOKENS * HEADS * HD;
        items[i] = (struct encode_item){
            .set = {.chunk = chunk, .sets = PAGES, .index = i % PAGES, .first = i % PAGES * PAGE_TOKENS, .count = PAGE_TOKENS},
            .rows = {own, own + side}};
    }
    w->items = w->memory[2] = device(sizeof items, items);
    w->encode = (struct encode){.heads = {.layers = COPIES,
                                          .query_heads = HEADS,
                                          .kv_heads = HEADS,
                                          .head_dim = HD,
                                          .scale = 1,
                                          .n_rot = HD,
                                          .pairing = ROPE_HALF_SPLIT,
                                          .magnitude = 1},
                                .n_layers = 1,
                                .codec = {w->method.key.codec->id, w->method.value.codec->id},
                                .places = w->memory[3] = device(sizeof places, places),
                                .centroid = {centroid_shape_of(&w->method.key), centroid_shape_of(&w->method.value)},
                                .learned = {w->learned[0], w->learned[1]},
                                .run_angles = w->memory[4] = make_angles(&w->rope, TOKENS / ROPE_RUN_TOKENS + 1, ROPE_RUN_TOKENS),
                                .pre_rope = {.pairs = (uint32_t)pre_rope_pairs(&w->rope),
                                             .offsets = w->memory[5] = make_angles(&w->rope, PRE_ROPE_OFFSETS, 1)},
                                .items = w->items,
                                .n = PAGES,
                                .head_stride = HD,
                                .token_stride = HEADS * HD};
    w->bytes = (double)(2 * side * sizeof *rows) + (double)set_bytes * PAGES / COPIES;
}

static void release(struct work *w) {
    for (size_t i = 0; i < sizeof w->memory / sizeof *w->memory; i++) check(cudaFree(w->memory[i]), "memory");
    for (int side = 0; side < 2; side++)
        check(cudaFree(w->learned[side]), "memory"); /* the codebook lives as long as the program */
}

/* ---- Timing */

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(const struct work *w, const char *what,
                    cudaError_t (*launch)(const struct encode *encode, cudaStream_t stream)) {
    cudaEvent_t begin, end;
    float took[REPEATS];
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");
    for (int i = -2; i < REPEATS; i++) {
        check(cudaEventRecord(begin, device_stream()), "an event");
        for (uint32_t k = 0; k < LAUNCHES; k++) {
            struct encode own = w->encode;
            own.layer = k % COPIES;
            own.items = w->items + k % COPIES * PAGES;
            check(launch(&own, device_stream()), what);
        }
        check(cudaEventRecord(end, device_stream()), "an event");
        check(cudaEventSynchronize(end), what);
        if (i >= 0) check(cudaEventElapsedTime(&took[i], begin, end), "an event");
    }
    qsort(took, REPEATS, sizeof *took, by_size);
    double us = (double)took[REPEATS / 2] * 1000 / LAUNCHES;
    printf("%s %s %.1f %.0f\n", w->method.name, what, us, w->bytes / us / 1e3);
    fflush(stdout);
    check(cudaEventDestroy(begin), "an event");
    check(cudaEventDestroy(end), "an event");
}

static bool is_known(const char *name) {
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        if (!strcmp(name, methods[m])) return true;
    return false;
}

int main(int argc, char **argv) {
    struct terse_error error;
    for (int i = 1; i < argc; i++) {
        if (is_known(argv[i])) continue;
        fprintf(stderr, "bench_encode_cuda: does not time '%s': name methods among those at the top of bench/cuda/bench_encode.c\n",
                argv[i]);
        return 1;
    }
    if (device_available(&error)) {
        fprintf(stderr, "bench_encode_cuda: %s\n", error.message);
        return 1;
    }
    uint16_t *rows = make_rows();
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        bool asked = argc == 1;
        for (int i = 1; i < argc; i++) asked |= !strcmp(argv[i], methods[m]);
        if (!asked) continue;
        struct work w = {0};
        set_up(&w, methods[m], rows);
        measure(&w, "encode", encode_pages);
        measure(&w, "decode", decode_pages);
        release(&w);
    }
    free(rows);
    return 0;
}
