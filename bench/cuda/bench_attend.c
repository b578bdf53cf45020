/* bench_attend_cuda [METHOD...|SHAPE...] measures the time of a decoding step's attention over one layer of 32 query heads of 128, one query token a
 * sequence. A SHAPE is SEQUENCESxTOKENS, of 8 KV heads, or SEQUENCESxTOKENS/KV_HEADS. Launches are replayed as a graph over copies of the cache
 * that together are larger than the L2; medians. Prints lines "METHOD SHAPE MICROSECONDS TB/s (PARTS parts)", which f16_attention.py sets beside
 * PyTorch's. A sequence's tokens all lie in pages but the last 64, its window. Codes are random; antkv's have no anchors. Each sequence is cut into
 * as many parts as if it were alone, as a step of the product cuts it, or into SPLITS parts where the environment says so.
 *
 * "METHOD@PERCENT" chooses so many of the tokens and reads these; a second line, "METHOD@PERCENT/choice", has the time of the choice alone. TB/s
 * counts the bytes of all pages in both. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/centroids.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/commvq.h"
#include "backend/cuda/kv/pre_rope_fragments.h"
#include "backend/cuda/kv/select.h"
#include "backend/cuda/kv/transforms.h"
#include "base/half.h"
#include "base/random.h"
#include "kv/pre_rope.h"
#include "replay.h"
#include "support/random_codebook.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terse.h>

#define QUERY_HEADS 32
#define KV_HEADS 8             /* where a shape names no other */
#define HEADS_MOST QUERY_HEADS /* KV heads */
#define HD 128
#define WINDOW 64
#define LEARNED (18 * HD) /* floats that codec sign learns of a head */
#define SETS 64           /* page sets of a chunk */
#define RUNS 512          /* at most */
#define FALL 0.97         /* of components' sizes */
#define ROTATED 300e6     /* bytes of all copies together, at least */
#define LAUNCHES 24       /* of a graph, at least */

static const struct shape {
    uint32_t sequences, tokens, kv_heads;
} shapes[] = {{1, 1024, KV_HEADS},   {1, 8192, KV_HEADS},  {1, 32768, KV_HEADS},  {1, 131072, KV_HEADS},
              {8, 8192, KV_HEADS},   {8, 32768, KV_HEADS}, {8, 131072, KV_HEADS}, {10, 16384, KV_HEADS},
              {256, 1024, KV_HEADS}, {1, 8192, 32},        {1, 32768, 32},        {8, 32768, 32}};

static const struct bench_method {
    const char *name;
    enum codec_id codec;
    double rate;               /* of transform */
    uint32_t width, bits;      /* of codecs with centroids */
    double percent;            /* of the tokens are chosen; 0: all are read */
    const struct index *index; /* by which they are; NULL: the codec ranks its own */
} methods[] = {{"f16", CODEC_F16, 0, 0, 0, 0, NULL},
               {"q8_0", CODEC_Q8_0, 0, 0, 0, 0, NULL},
               {"q4_0", CODEC_Q4_0, 0, 0, 0, 0, NULL},
               {"kivi-4", CODEC_KIVI_4, 0, 0, 0, 0, NULL},
               {"kivi-2", CODEC_KIVI_2, 0, 0, 0, 0, NULL},
               {"terse-4", CODEC_TRANSFORM, 4, 0, 0, 0, NULL},
               {"terse-3", CODEC_TRANSFORM, 3, 0, 0, 0, NULL},
               {"terse-2", CODEC_TRANSFORM, 2, 0, 0, 0, NULL},
               {"terse-1", CODEC_TRANSFORM, 1, 0, 0, 0, NULL},
               {"million-4", CODEC_PQ, 0, 2, 8, 0, NULL},
               {"million-3", CODEC_PQ, 0, 4, 12, 0, NULL},
               {"million-2", CODEC_PQ, 0, 4, 8, 0, NULL},
               {"antkv-4", CODEC_GAIN_SHAPE, 0, 2, 8, 0, NULL},
               {"antkv-2", CODEC_GAIN_SHAPE, 0, 4, 8, 0, NULL},
               {"antkv-1", CODEC_GAIN_SHAPE, 0, 8, 8, 0, NULL},
               {"antkv-0.375", CODEC_VQ, 0, 32, 12, 0, NULL},
               {"terse-4@7.5", CODEC_TRANSFORM, 4, 0, 0, 7.5, NULL},
               {"terse-2@7.5", CODEC_TRANSFORM, 2, 0, 0, 7.5, NULL},
               {"terse-1@7.5", CODEC_TRANSFORM, 1, 0, 0, 7.5, NULL},
               {"selfindex-2@7.5", CODEC_SIGN, 0, 0, 0, 7.5, &index_sign},
               {"f16@7.5", CODEC_F16, 0, 0, 0, 7.5, &index_sign},
               {"q4_0@7.5", CODEC_Q4_0, 0, 0, 0, 7.5, &index_sign},
               {"quest@7.5", CODEC_F16, 0, 0, 0, 7.5, &index_quest},
               {"commvq-2", CODEC_COMMVQ, 0, 0, 0, 0, NULL},
               {"commvq-1", CODEC_COMMVQ, 0, 0, 0, 0, NULL}};

static void check(cudaError_t result, const char *doing) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "bench_attend_cuda: %s: %s\n", doing, cudaGetErrorString(result));
    exit(1);
}

static void refused(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_attend_cuda: %s\n", error->message);
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

/* A model is a method's layer: everything but the pages. */
struct model {
    const char *name;
    uint32_t kv_heads;
    enum codec_id codec[2];
    struct place_view places[HEADS_MOST];
    size_t set_bytes;
    void *learned[2]; /* device, by side */
    struct centroid_shape centroid[2];
    double percent;
    const struct index *index;
    uint32_t index_bytes;       /* of its page, where it has its own */
    float own_learned[LEARNED]; /* of codec sign and index sign, the same for all heads */
};

/* Makes transforms whose sizes of components fall by 3 % each. */
static void make_transforms(double rate, struct model *model) {
    static struct transform_share shares[2 * HEADS_MOST];
    static float sizes[2 * HEADS_MOST][HD], step[HD], mean[HD];
    static int16_t basis[HD * HD];
    static uint32_t readers[2 * TRANSFORM_PLANES_MAX];
    static uint8_t bits[2 * HEADS_MOST][HD / 4];
    static struct transform_view views[2][HEADS_MOST];
    const uint32_t heads = model->kv_heads;
    for (uint32_t i = 0; i < 2 * heads; i++) {
        for (int c = 0; c < HD; c++) sizes[i][c] = (float)(pow(FALL, c) * sqrt(HD * (1 - FALL * FALL)));
        shares[i] = (struct transform_share){.importance = 0.2f * random_number(), .size = sizes[i], .quad_bits = bits[i]};
    }
    if (transform_share_bits(shares, 2 * heads, HD, rate, NULL)) {
        fprintf(stderr, "bench_attend: no memory\n");
        exit(1);
    }
    for (int i = 0; i < HD * HD; i++) basis[i] = (int16_t)(random_next(&state) & 0xffff);
    for (int c = 0; c < HD; c++) mean[c] = random_number(), step[c] = sizes[0][c] / 32767;
    for (uint32_t h = 0; h < heads; h++) {
        for (int side = 0; side < 2; side++) {
            struct transform_view *view = &views[side][h];
            transform_layout_set(bits[2 * h + (uint32_t)side], HD, &view->layout);
            view->gain_zero = 0.1f, view->gain_step = 4.0f / 255, view->gain = 1;
            view->mean = view->pre_rope_mean = device(sizeof mean, mean);
            view->step = device(sizeof step, step), view->basis = device(sizeof basis, basis);
            transform_readers(&view->layout, (enum codec_side)side, readers);
            view->readers = device(transform_reader_words(&view->layout) * sizeof *readers, readers);
            transform_quads(&view->layout, view->quad);
            transform_set_scored(HD, view);
            model->places[h].bytes[side] = (uint32_t)PAGE_BYTES_TRANSFORM(view->layout.nibbles);
        }
    }
    for (int side = 0; side < 2; side++) model->learned[side] = device(sizeof views[side], views[side]);
}

static void make_centroids(const struct bench_method *method, struct model *model) {
    static struct centroid_view views[2][HEADS_MOST];
    const struct coding coding = {codec_at(method->codec), method->width, method->bits, 0};
    const struct codec_shape shape = {.head_dim = HD, .group = 1, .width = method->width, .bits = method->bits};
    size_t n = codec_parameters(coding.codec, shape);
    float *parameters = malloc(n * sizeof *parameters);
    if (!parameters) exit(1);
    for (size_t i = 0; i < n; i++) parameters[i] = half_to_float(half_from_float(random_number()));
    if (codec_normalization_floats(coding.codec, shape)) parameters[n - 1] = 1;
    for (uint32_t h = 0; h < model->kv_heads; h++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct terse_error error;
            void *there = device(centroid_bytes(&coding, HD), NULL);
            refused(centroid_send(&coding, HD, parameters, there, &views[side][h], &error), &error);
            model->places[h].bytes[side] = (uint32_t)codec_page_bytes(coding.codec, shape, side);
        }
    }
    model->centroid[0] = model->centroid[1] = centroid_shape_of(&coding);
    for (int side = 0; side < 2; side++) model->learned[side] = device(sizeof views[side], views[side]);
    free(parameters);
}

/* Learns from random rows what codec sign and index sign do. */
static void learn(struct model *model) {
    static float rows[512 * HD];
    const struct codec_shape shape = {.head_dim = HD, .group = 1};
    const struct index_options options = index_options_defaults();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i] = random_number();
    cpu_codec_sign.fit(shape, CODEC_KEYS, rows, 512, HD, &options, model->own_learned);
    if (model->codec[0] != CODEC_SIGN) model->index_bytes = (uint32_t)index_bytes(model->index, HD);
}

/* Makes random tables whose rounds shrink as learned ones do. */
static void make_commvq(const char *name, const struct rope *rope, struct model *model) {
    struct terse_cache_options options = terse_cache_options_defaults();
    const struct cache_shape shape = {
        .layers = 1, .query_heads = QUERY_HEADS, .kv_heads = model->kv_heads, .head_dim = HD, .scale = 1, .rope = rope};
    struct method method;
    struct terse_error error;
    options.method = name;
    refused(method_resolve(&options, HD, &method, &error), &error);
    refused(random_codebook(&method, 1, model->kv_heads, HD, 1, rope->pairing == ROPE_ADJACENT, &error), &error);
    refused(commvq_new(&shape, &method, CODEC_KEYS, &model->learned[0], &error), &error);
    refused(additive_new(&shape, &method, CODEC_VALUES, &model->learned[1], &error), &error);
    model->codec[1] = CODEC_ADDITIVE;
    for (uint32_t i = 0; i < 2 * model->kv_heads; i++) {
        const enum codec_side side = i % 2 ? CODEC_VALUES : CODEC_KEYS;
        const struct coding *coding = side ? &method.value : &method.key;
        model->centroid[side] = centroid_shape_of(coding);
        model->places[i / 2].bytes[side] =
            (uint32_t)codec_page_bytes(coding->codec, method_shape(&method, side, 0, i / 2, HD, 1), side);
    }
}

static void make_model(const struct bench_method *method, uint32_t kv_heads, const struct rope *rope, struct model *model) {
    *model = (struct model){.name = method->name,
                            .kv_heads = kv_heads,
                            .codec = {method->codec, method->codec},
                            .percent = method->percent,
                            .index = method->index};
    if (method->index) learn(model);
    if (method->codec == CODEC_COMMVQ) {
        make_commvq(method->name, rope, model);
    } else if (method->rate > 0) {
        make_transforms(method->rate, model);
    } else if (method->width) {
        make_centroids(method, model);
    } else {
        const struct codec_shape shape = {.head_dim = HD, .group = QUERY_HEADS / model->kv_heads};
        for (uint32_t i = 0; i < 2 * model->kv_heads; i++)
            model->places[i / 2].bytes[i % 2] =
                (uint32_t)codec_page_bytes(codec_at(method->codec), shape, i % 2 ? CODEC_VALUES : CODEC_KEYS);
    }
    for (uint32_t h = 0; h < model->kv_heads; h++) {
        model->places[h].offset = model->set_bytes;
        model->set_bytes += model->places[h].bytes[0] + model->places[h].bytes[1] + model->index_bytes;
    }
}

/* Makes a chunk of random pages: any bytes, where all are codes; else a page of random numbers for all of a head and side. */
static uint8_t *make_chunk(const struct model *model) {
    const struct codec_shape shape = {.head_dim = HD, .group = QUERY_HEADS / model->kv_heads, .fitted = model->own_learned};
    uint8_t *chunk = malloc(model->set_bytes * SETS);
    float *rows = malloc(sizeof *rows * PAGE_TOKENS * HD);
    if (!chunk || !rows) exit(1);
    for (size_t i = 0; i < model->set_bytes * SETS; i++) chunk[i] = (uint8_t)(random_next(&state) >> 32);
    for (uint32_t i = 0; model->codec[1] == CODEC_TRANSFORM && i < model->kv_heads * SETS; i++) { /* rows less no mean are rare */
        const struct page_set_view set = {.chunk = chunk, .sets = SETS, .index = i / model->kv_heads};
        uint8_t *gains = page_address(&set, &model->places[i % model->kv_heads], CODEC_VALUES);
        for (size_t t = 0; t < PAGE_TOKENS; t++) gains[t] |= TRANSFORM_NO_MEAN_GAINS;
    }
    for (uint32_t i = 0; !model->learned[0] && i < 2 * model->kv_heads; i++) {
        const enum codec_side side = i % 2 ? CODEC_VALUES : CODEC_KEYS;
        const struct page_set_view first = {.chunk = chunk, .sets = SETS};
        uint8_t *from = page_address(&first, &model->places[i / 2], side);
        for (size_t j = 0; j < PAGE_TOKENS * HD; j++) rows[j] = random_number();
        cpu_codec_of(codec_at(model->codec[side]))->encode(shape, side, rows, PAGE_TOKENS, from);
        for (uint32_t index = 1; index < SETS; index++) {
            const struct page_set_view set = {.chunk = chunk, .sets = SETS, .index = index};
            uint8_t *to = page_address(&set, &model->places[i / 2], side);
            const size_t random = model->codec[side] == CODEC_SIGN && side == CODEC_KEYS ? PAGE_BYTES_SIGNS(HD) : 0;
            memcpy(to + random, from + random, model->places[i / 2].bytes[side] - random);
        }
    }
    for (uint32_t i = 0; model->index == &index_quest && i < model->kv_heads * SETS; i++) {
        const struct page_set_view set = {.chunk = chunk, .sets = SETS, .index = i / model->kv_heads};
        for (size_t j = 0; j < PAGE_TOKENS * HD; j++) rows[j] = random_number();
        cpu_index_quest.encode(HD, NULL, rows, PAGE_TOKENS,
                               index_address(&set, &model->places[i % model->kv_heads], model->index_bytes));
    }
    free(rows);
    return chunk;
}

/* Returns the angles of positions 0, step, ..., [n][HD / 2][cosine, sine]. */
static float *make_angles(const struct rope *rope, size_t n, int64_t step) {
    float *angles = malloc(sizeof *angles * n * HD), cosine[HD / 2], sine[HD / 2];
    if (!angles) exit(1);
    for (size_t t = 0; t < n; t++) {
        rope_angles(rope, (int64_t)t * step, cosine, sine);
        for (size_t i = 0; i < HD / 2; i++) angles[t * HD + 2 * i] = cosine[i], angles[t * HD + 2 * i + 1] = sine[i];
    }
    float *there = device(sizeof *angles * n * HD, angles);
    free(angles);
    return there;
}

struct positions {
    float frequency[HD / 2];
    struct rope rope;
    const float *run_angles;
    struct pre_rope_view pre_rope;
};

static void make_positions(struct positions *positions) {
    struct rope *const rope = &positions->rope;
    *rope = (struct rope){.pairing = ROPE_ADJACENT, .head_dim = HD, .n_rot = HD, .frequency = positions->frequency, .magnitude = 1};
    for (int i = 0; i < HD / 2; i++) positions->frequency[i] = (float)pow(500000, -2.0 * i / HD);
    const size_t pairs = pre_rope_pairs(rope), bytes = pre_rope_fragment_words(pairs) * sizeof(uint32_t);
    uint32_t *fragments = malloc(bytes);
    if (!fragments) exit(1);
    pre_rope_fragments(rope, pairs, fragments);
    positions->run_angles = make_angles(rope, RUNS, ROPE_RUN_TOKENS);
    positions->pre_rope = (struct pre_rope_view){
        .pairs = (uint32_t)pairs, .offsets = make_angles(rope, PRE_ROPE_OFFSETS, 1), .fragments = device(bytes, fragments)};
    free(fragments);
}

/* Returns the median time of a launch, in microseconds: of the choice, of attention, or of both. `sequences` has those of all copies. */
static double time_of(const struct select_tokens *all, score_launch *score, bool attends, const struct sequence_view *sequences,
                      size_t copies) {
    cudaStream_t stream;
    cudaGraph_t graph;
    double microseconds;
    check(cudaStreamCreate(&stream), "a stream");
    size_t launches = (LAUNCHES + copies - 1) / copies * copies;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (size_t i = 0; i < launches; i++) {
        struct select_tokens select = *all;
        select.attend.sequences = sequences + i % copies * all->attend.n_rows;
        if (score) check(select_tokens_launch(&select, score, stream), "choosing");
        if (attends) check(attend_decode_launch(&select.attend, stream), "attention");
    }
    check(cudaStreamEndCapture(stream, &graph), "capturing");
    check(replay_graph(graph, stream, &microseconds), "replaying");
    check(cudaStreamDestroy(stream), "a stream");
    return microseconds / (double)launches;
}

/* The pages by which parts are counted, of so many; with terse-N those of as many rope runs as hold four times the tokens (choice.c). */
static uint32_t pages_read(const struct model *model, uint32_t pages, struct query_row_view *row) {
    if (model->percent == 0) return pages;
    row->tokens_read = (uint32_t)(model->percent / 100 * pages * PAGE_TOKENS);
    if (model->codec[0] == CODEC_SIGN) return row->tokens_read / (PAGE_TOKENS / 2) + 1;
    if (model->index) return pages;
    row->runs_read = (4 * row->tokens_read + ROPE_RUN_TOKENS - 1) / ROPE_RUN_TOKENS;
    if (row->runs_read < 4) row->runs_read = 4;
    const uint32_t of_runs = row->runs_read * (ROPE_RUN_TOKENS / PAGE_TOKENS);
    return of_runs < pages ? of_runs : pages;
}

static void write_shape(const struct shape *shape, char *name, size_t size) {
    int n = snprintf(name, size, "%" PRIu32 "x%" PRIu32, shape->sequences, shape->tokens);
    if (shape->kv_heads != KV_HEADS) snprintf(name + n, size - (size_t)n, "/%" PRIu32, shape->kv_heads);
}

static void measure(const struct model *model, const struct positions *positions, const struct shape *shape) {
    const size_t set_bytes = model->set_bytes;
    const uint32_t kv_heads = model->kv_heads;
    uint32_t n = shape->sequences, pages = (shape->tokens - WINDOW) / PAGE_TOKENS;
    double bytes = (double)n * pages * set_bytes;
    size_t copies = bytes > ROTATED / 2 ? 2 : (size_t)(ROTATED / bytes) + 1, chunks = (copies * n * pages + SETS - 1) / SETS;
    uint8_t *chunk = make_chunk(model), *pool = device(chunks * set_bytes * SETS, NULL);
    struct page_set_view *sets = calloc(copies * n * pages, sizeof *sets);
    struct sequence_view *sequences = calloc(copies * n, sizeof *sequences);
    struct query_row_view *rows = calloc(n, sizeof *rows);
    float *q = malloc((size_t)n * QUERY_HEADS * HD * sizeof *q);
    uint16_t *window = malloc((size_t)2 * kv_heads * WINDOW * HD * sizeof *window);
    if (!sets || !sequences || !rows || !q || !window) exit(1);
    for (size_t c = 0; c < chunks; c++)
        check(cudaMemcpy(pool + c * set_bytes * SETS, chunk, set_bytes * SETS, cudaMemcpyHostToDevice), "copying pages");
    for (size_t i = 0; i < (size_t)n * QUERY_HEADS * HD; i++) q[i] = random_number();
    for (size_t i = 0; i < (size_t)2 * kv_heads * WINDOW * HD; i++) window[i] = (uint16_t)(0x3000 | (random_next(&state) & 0x8fff));
    for (size_t i = 0; i < copies * n * pages; i++)
        sets[i] = (struct page_set_view){.chunk = pool + i / SETS * set_bytes * SETS,
                                         .sets = SETS,
                                         .index = (uint32_t)(i % SETS),
                                         .first = (uint32_t)(i % pages * PAGE_TOKENS),
                                         .count = PAGE_TOKENS};
    struct page_set_view *sets_there = device(copies * n * pages * sizeof *sets, sets);
    struct read_page *list = calloc(pages, sizeof *list);
    if (!list) exit(1);
    for (uint32_t i = 0; i < pages; i++) list[i] = (struct read_page){.live = READ_ALL, .page = i};
    const struct read_page *list_there = device(pages * sizeof *list, list);
    free(list);
    for (size_t i = 0; i < copies * n; i++)
        sequences[i] = (struct sequence_view){.page_sets = sets_there + i * pages,
                                              .list = {.pages = list_there, .n_pages = pages, .window_first = pages * PAGE_TOKENS},
                                              .window_capacity = WINDOW,
                                              .window_origin = pages * PAGE_TOKENS};
    for (size_t i = 0; i < copies * n; i++) sequences[i].window = device((size_t)2 * kv_heads * WINDOW * HD * 2, window);
    struct head_view heads = {.layers = 1,
                              .query_heads = QUERY_HEADS,
                              .kv_heads = kv_heads,
                              .head_dim = HD,
                              .scale = 1 / sqrtf(HD),
                              .n_rot = HD,
                              .magnitude = 1};
    struct query_row_view choice = {0};
    const uint32_t read = pages_read(model, pages, &choice);
    uint32_t splits = attend_decode_splits(&heads, model->codec[0], (uint32_t)device_multiprocessors(), 1, read);
    const char *asked = getenv("SPLITS");
    if (asked) splits = (uint32_t)atoi(asked);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct query_row_view){.sequence = i,
                                          .position = pages * PAGE_TOKENS + WINDOW - 1,
                                          .splits = splits,
                                          .first_part = i * splits,
                                          .tokens_read = choice.tokens_read,
                                          .runs_read = choice.runs_read};
    void *chosen = model->percent > 0 ? device(selection_bytes(&heads, n, pages), NULL) : NULL;
    const struct selection selection = selection_at(chosen, &heads, n, pages, 0);
    float *learned = chosen ? device(kv_heads * sizeof model->own_learned, NULL) : NULL;
    for (size_t h = 0; h < kv_heads && chosen; h++)
        check(cudaMemcpy(learned + h * LEARNED, model->own_learned, sizeof model->own_learned, cudaMemcpyHostToDevice), "copying");
    for (size_t i = 0; i < copies * n && chosen; i++) {
        sequences[i].own = selection.lists + i % n * kv_heads;
        sequences[i].own_learned = learned, sequences[i].learned_floats = LEARNED;
    }
    struct attend_decode attend = {
        .heads = heads, .codec = {model->codec[0], model->codec[1]}, .n_rows = n, .splits = splits, .lists_written = chosen};
    attend.multiprocessors = (uint32_t)device_multiprocessors();
    attend.multiprocessor_parts = attend_decode_multiprocessor_parts(&heads, (uint32_t)device_multiprocessors(), n * splits);
    attend.places = device(sizeof model->places, model->places);
    for (int side = 0; side < 2; side++) attend.learned[side] = model->learned[side], attend.centroid[side] = model->centroid[side];
    attend.run_angles = positions->run_angles, attend.pre_rope = positions->pre_rope;
    struct sequence_view *sequences_there = device(copies * n * sizeof *sequences, sequences);
    attend.rows = device(n * sizeof *rows, rows);
    attend.q = attend.q_exact = device((size_t)n * QUERY_HEADS * HD * sizeof *q, q);
    attend.out = device((size_t)n * QUERY_HEADS * HD * sizeof *q, NULL);
    attend.parts = device(attend_decode_part_floats(&heads, model->codec[0], n, splits) * sizeof(float), NULL);
    attend.run_step = 1, attend.runs = (pages * PAGE_TOKENS + ROPE_RUN_TOKENS - 1) / ROPE_RUN_TOKENS;
    for (uint32_t i = 0; i < 2 * kv_heads; i++)
        if (model->places[i / 2].bytes[i % 2] > attend.page_bytes[i % 2])
            attend.page_bytes[i % 2] = model->places[i / 2].bytes[i % 2];
    size_t run_words = attend_decode_run_words(&heads, model->codec[0], n, attend.runs);
    attend.run_queries = device((run_words + 1) * sizeof(uint32_t), NULL);
    attend.arrived = device((size_t)n * kv_heads * sizeof(uint32_t), NULL);
    check(cudaMemset(attend.arrived, 0, (size_t)n * kv_heads * sizeof(uint32_t)), "clearing");

    const struct method of_index = {.key = {.codec = codec_at(model->codec[0])},
                                    .index = model->index ? model->index : &index_components};
    score_launch *score = chosen ? cuda_scores_of(&of_index) : NULL;
    const struct select_tokens select = {attend, selection, model->index_bytes};
    const double us = time_of(&select, score, true, sequences_there, copies);
    char name[32];
    write_shape(shape, name, sizeof name);
    printf("%s %s %.2f %.2f (%u parts)\n", model->name, name, us, bytes / us / 1e6, splits);
    if (chosen) {
        const double own = time_of(&select, score, false, sequences_there, copies);
        printf("%s/choice %s %.2f %.2f (%u parts)\n", model->name, name, own, bytes / own / 1e6, splits);
    }
    fflush(stdout);
    for (size_t i = 0; i < copies * n; i++) check(cudaFree(sequences[i].window), "memory");
    void *memory[] = {pool,
                      sets_there,
                      (void *)attend.places,
                      sequences_there,
                      (void *)attend.rows,
                      (void *)attend.q,
                      attend.out,
                      attend.parts,
                      attend.arrived,
                      attend.run_queries,
                      chosen,
                      learned};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) check(cudaFree(memory[i]), "memory");
    free(chunk), free(sets), free(sequences), free(rows), free(q), free(window);
}

/* Names of shapes begin with a digit; no method's does. */
static bool is_shape(const char *name) { return name[0] >= '0' && name[0] <= '9'; }

/* Returns whether `name` is among the arguments of its kind, or no argument is of that kind. */
static bool wanted(int argc, char **argv, const char *name) {
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (is_shape(argv[i]) != is_shape(name)) continue;
        if (!strcmp(argv[i], name)) return true;
        any = true;
    }
    return !any;
}

static bool is_known(const char *argument) {
    char name[32];
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        if (!strcmp(argument, methods[m].name)) return true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        write_shape(&shapes[i], name, sizeof name);
        if (!strcmp(argument, name)) return true;
    }
    return false;
}

int main(int argc, char **argv) {
    struct terse_error error;
    for (int i = 1; i < argc; i++) {
        if (is_known(argv[i])) continue;
        fprintf(
            stderr,
            "bench_attend_cuda: does not time '%s': name methods and shapes among those at the top of bench/cuda/bench_attend.c\n",
            argv[i]);
        return 1;
    }
    if (device_available(&error)) {
        fprintf(stderr, "bench_attend_cuda: %s\n", error.message);
        return 1;
    }
    static struct positions positions;
    make_positions(&positions);
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        struct model model;
        if (!wanted(argc, argv, methods[m].name)) continue;
        model.kv_heads = 0;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            char name[32];
            write_shape(&shapes[i], name, sizeof name);
            if (!wanted(argc, argv, name)) continue;
            if (model.kv_heads != shapes[i].kv_heads) make_model(&methods[m], shapes[i].kv_heads, &positions.rope, &model);
            measure(&model, &positions, &shapes[i]);
        }
    }
    return 0;
}
