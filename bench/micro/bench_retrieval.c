/* Reading a few tokens instead of all, as ratios within one run:
 *
 *   retrieval   what finds the best 7.5 % of the tokens (query tables, scores of all, the best of them) against the full product of
 *               queries and f16 keys
 *   attention   over those tokens (packed, scored, weighed, mixed) against f16 over all; single tokens, pages of 16 and of 64
 *   fit         the one-pass centroids against 20 rounds of k-means of as many
 *
 *     bench_retrieval [THREADS [DEPTH...]]             random keys, depths 16384, 32768 and 131072
 *     bench_retrieval MODEL.gguf [THREADS [DEPTH...]]  keys and values of a model on the text in data/, DEPTH at most some 100000
 *
 * Each KV head is timed by itself, and of several rounds, in each of which everything is timed once, its fastest counts: other work
 * on the machine then matters little. Beyond 16384 tokens blocks repeat: what is
 * read lies apart, and memory is met as at that depth. */
#include "backend/cpu/codec/index.h"
#include "backend/cpu/codec/nearest.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/top_k.h"
#include "base/memory.h"
#include "base/random.h"
#include "kv/partial.h"
#include "support/kernel_check.h"
#include "train/capture.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISTINCT ((size_t)16384) /* tokens of a KV head before blocks repeat */
#define RUN 16                   /* blocks that share one update of the running maximum */
#define ROUNDS 5
#define MOST_HEADS 64
#define ALL_TOKENS ((size_t)131072) /* of as many layers as it takes, one after another: beyond every cache */
#define SHARE(n) ((n)*3 / 40)       /* 7.5 % */

struct shape {
    const char *name;
    size_t query_heads, kv_heads, head_dim;
};

static void fail(const char *message) {
    fprintf(stderr, "bench_retrieval: %s\n", message);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = memory_zeros(count, size);
    if (!memory) fail("no memory: use smaller depths");
    return memory;
}

/* ---- Keys and values: rows[kv_heads][distinct][hd] of each side, queries [kv_heads][G][hd] */

struct data {
    struct shape shape;
    size_t heads; /* of all layers; what is beyond kv_heads repeats */
    size_t distinct;
    float *rows[2], *q;
};

static size_t group(const struct data *d) { return d->shape.query_heads / d->shape.kv_heads; }

static const float *rows_of(const struct data *d, int side, size_t head) {
    return d->rows[side] + head % d->shape.kv_heads * d->distinct * d->shape.head_dim;
}

static const float *queries_of(const struct data *d, size_t head) {
    return d->q + head % d->shape.kv_heads * group(d) * d->shape.head_dim;
}

static float normal(uint64_t *seed) {
    double u = ((double)(random_next(seed) >> 11) + 0.5) * 0x1p-53, v = (double)(random_next(seed) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

/* Channels with means and sizes of their own; queries scaled as attention scales them. */
static void fill_random(struct data *d, uint64_t seed) {
    size_t hd = d->shape.head_dim, n = d->distinct * hd, G = group(d);
    for (size_t head = 0; head < d->shape.kv_heads; head++) {
        for (int side = 0; side < 2; side++) {
            float size[CODEC_HEAD_DIM_MAX], middle[CODEC_HEAD_DIM_MAX], *rows = d->rows[side] + head * n;
            for (size_t c = 0; c < hd; c++) {
                size[c] = expf(0.5f * normal(&seed));
                middle[c] = side == CODEC_KEYS ? 2 * normal(&seed) : 0;
            }
            for (size_t i = 0; i < n; i++) rows[i] = middle[i % hd] + size[i % hd] * normal(&seed);
        }
        for (size_t i = 0; i < G * hd; i++) d->q[head * G * hd + i] = normal(&seed) / sqrtf((float)hd);
    }
}

/* A layer in the middle; queries are keys less their mean, since those of the model are not captured: what they single out is what
 * matters here. */
static void fill_captured(struct data *d, const struct capture *capture, uint32_t layer) {
    size_t hd = d->shape.head_dim, n = d->distinct * hd, G = group(d);
    for (uint32_t head = 0; head < d->shape.kv_heads; head++) {
        float mean[CODEC_HEAD_DIM_MAX] = {0}, *keys = d->rows[CODEC_KEYS] + head * n;
        for (int side = 0; side < 2; side++) {
            struct capture_reading reading = {(enum codec_side)side, layer, head, 0, 1, d->distinct};
            capture_rows(capture, &reading, 0, hd, d->rows[side] + head * n);
        }
        for (size_t i = 0; i < n; i++) mean[i % hd] += keys[i] / (float)d->distinct;
        for (size_t i = 0; i < G * hd; i++)
            d->q[head * G * hd + i] = (keys[(d->distinct - 1 - i / hd) * hd + i % hd] - mean[i % hd]) / sqrtf((float)hd);
    }
}

static struct data new_data(struct shape shape, size_t distinct) {
    struct data d = {.shape = shape, .distinct = distinct};
    for (int side = 0; side < 2; side++) d.rows[side] = allocate(shape.kv_heads * distinct * shape.head_dim, sizeof(float));
    d.q = allocate(shape.query_heads * shape.head_dim, sizeof(float));
    return d;
}

/* ---- A cache in some codecs */

struct way {
    const char *name;
    const struct codec *codec[2];
    uint32_t width, bits; /* of both sides, where they learn */
};

struct store {
    const struct way *way;
    struct codec_shape shape;
    size_t heads, blocks, bytes[2];
    uint8_t *memory[2]; /* [heads][blocks] */
    void **learned[2];  /* [heads] */
};

static struct codec_shape shape_of(const struct store *s, int side, size_t head) {
    struct codec_shape shape = s->shape;
    shape.learned = s->learned[side][head];
    return shape;
}

static const uint8_t *block_at(const struct store *s, int side, size_t head, size_t block) {
    return s->memory[side] + (head * s->blocks + block) * s->bytes[side];
}

static void *learn(const struct codec *codec, struct codec_shape shape, int side, const float *rows, size_t n) {
    void *learned = NULL;
    struct terse_error error;
    if (codec->fitted_bytes && codec->fitted_bytes(shape, (enum codec_side)side)) {
        struct index_options options = index_options_defaults();
        learned = allocate(codec->fitted_bytes(shape, (enum codec_side)side), 1);
        codec->fit(shape, (enum codec_side)side, rows, n, shape.head_dim, &options, learned);
    }
    if (codec->parameters) { /* centroids are some of the rows' parts: reading costs the same with better ones */
        size_t count = codec->parameters(shape, (enum codec_side)side), k = (size_t)1 << shape.bits;
        float *floats = allocate(count, sizeof *floats);
        for (size_t i = 0; i < count; i++) {
            size_t part = i / (k * shape.width), row = i / shape.width % k;
            floats[i] = rows[row * 37 % n * shape.head_dim + part * shape.width + i % shape.width];
        }
        if (codec->snap_to_grid) codec->snap_to_grid(shape, (enum codec_side)side, floats);
        if (codec->open(shape, (enum codec_side)side, floats, &learned, &error)) fail(error.message);
        memory_free(floats);
    }
    return learned;
}

static struct store new_store(const struct way *way, const struct data *d, size_t depth) {
    size_t hd = d->shape.head_dim, heads = d->heads, distinct = d->distinct / PAGE_TOKENS, G = group(d);
    struct store s = {.way = way, .heads = heads, .blocks = depth / PAGE_TOKENS};
    s.shape = (struct codec_shape){(uint32_t)hd, (uint32_t)G, way->width, way->bits, NULL};
    for (int side = 0; side < 2; side++) {
        const struct codec *codec = way->codec[side];
        s.bytes[side] = codec->page_bytes(s.shape, (enum codec_side)side);
        s.memory[side] = allocate(heads * s.blocks, s.bytes[side]);
        s.learned[side] = allocate(heads, sizeof(void *));
        for (size_t head = 0; head < heads; head++) {
            const float *rows = rows_of(d, side, head);
            s.learned[side][head] = learn(codec, s.shape, side, rows, d->distinct);
            struct codec_shape shape = shape_of(&s, side, head);
            for (size_t b = 0; b < s.blocks; b++) {
                uint8_t *to = s.memory[side] + (head * s.blocks + b) * s.bytes[side];
                size_t before = head < d->shape.kv_heads ? distinct : d->shape.kv_heads * s.blocks;
                if (head >= d->shape.kv_heads || b >= distinct)
                    memcpy(to, to - before * s.bytes[side], s.bytes[side]);
                else
                    codec->encode(shape, (enum codec_side)side, rows + b * PAGE_TOKENS * hd, PAGE_TOKENS, to);
            }
        }
    }
    return s;
}

static void free_store(struct store *s) {
    for (int side = 0; side < 2; side++) {
        for (size_t head = 0; head < s->heads; head++) {
            if (s->way->codec[side]->close)
                s->way->codec[side]->close(s->learned[side][head]);
            else
                memory_free(s->learned[side][head]);
        }
        memory_free(s->memory[side]);
        memory_free(s->learned[side]);
    }
}

/* ---- Retrieval */

struct finder {
    const struct index *index;
    size_t heads, blocks;
    uint8_t *memory; /* [heads][blocks], or in the blocks of a store */
    size_t step;
    void **learned;
    uint16_t *scores; /* [heads][blocks][64] */
    uint32_t *tokens; /* [heads][k] */
};

static struct finder new_finder(const struct index *index, const struct data *d, size_t depth) {
    size_t hd = d->shape.head_dim, heads = d->heads, bytes = index->page_bytes(hd), distinct = d->distinct / PAGE_TOKENS;
    struct finder f = {.index = index, .heads = heads, .blocks = depth / PAGE_TOKENS, .step = bytes};
    struct index_options options = index_options_defaults();
    f.memory = allocate(heads * f.blocks, bytes);
    f.learned = allocate(heads, sizeof(void *));
    f.scores = allocate(heads * depth, sizeof *f.scores);
    f.tokens = allocate(heads * SHARE(depth), sizeof *f.tokens);
    for (size_t head = 0; head < heads; head++) {
        const float *rows = rows_of(d, CODEC_KEYS, head);
        f.learned[head] = allocate(index->learned_bytes(hd) + 1, 1);
        index->fit(hd, rows, d->distinct, hd, &options, f.learned[head]);
        for (size_t b = 0; b < f.blocks; b++)
            index->encode(hd, f.learned[head], rows + b % distinct * PAGE_TOKENS * hd, PAGE_TOKENS,
                          f.memory + (head * f.blocks + b) * bytes);
    }
    return f;
}

static void free_finder(struct finder *f) {
    for (size_t head = 0; head < f->heads; head++) memory_free(f->learned[head]);
    memory_free(f->learned);
    memory_free(f->memory);
    memory_free(f->scores);
    memory_free(f->tokens);
}

static void score_head(const struct finder *f, const struct data *d, size_t head) {
    size_t hd = d->shape.head_dim, G = group(d);
    uint8_t tables[8 * CODEC_HEAD_DIM_MAX];
    f->index->prepare(hd, f->learned[head], queries_of(d, head), G, tables);
    for (size_t b = 0; b < f->blocks; b++)
        f->index->scores(hd, tables, f->memory + (head * f->blocks + b) * f->step,
                         f->scores + (head * f->blocks + b) * PAGE_TOKENS);
}

static void find_head(const struct finder *f, const struct data *d, size_t head) {
    size_t n = f->blocks * PAGE_TOKENS;
    score_head(f, d, head);
    top_tokens(f->scores + head * n, n, SHARE(n), f->tokens + head * SHARE(n));
}

static void product_head(const struct store *s, const struct data *d, size_t head) {
    float logits[32 * PAGE_TOKENS];
    for (size_t b = 0; b < s->blocks; b++)
        scaled_ops()->score_f16(queries_of(d, head), s->shape.group, s->shape.head_dim, block_at(s, CODEC_KEYS, head, b), logits);
}

/* ---- Attention: runs of blocks under one running maximum, as the cache's */

struct run {
    const uint8_t *block[2][RUN];
    size_t tokens[RUN]; /* slots from 0 on that are read */
    size_t n;
};

static void read_run(const struct store *s, size_t head, const float *q, const float *tables, const struct run *run,
                     struct partial *partial) {
    const struct vector_ops *kernel = vector_ops();
    size_t G = s->shape.group, step = G * PAGE_TOKENS;
    float logits[RUN * 8 * PAGE_TOKENS];
    for (size_t r = 0; r < run->n; r++)
        s->way->codec[0]->score(shape_of(s, CODEC_KEYS, head), q, tables, run->block[0][r], logits + r * step);
    for (size_t g = 0; g < G; g++) {
        float *row = logits + g * PAGE_TOKENS, max = -INFINITY;
        for (size_t r = 0; r < run->n; r++) max = fmaxf(max, kernel->max(row + r * step, run->tokens[r]));
        max = partial_raise(partial, g, max);
        for (size_t r = 0; r < run->n; r++) {
            partial->sum[g] += kernel->exp_sum(row + r * step, max, run->tokens[r]);
            memset(row + r * step + run->tokens[r], 0, (PAGE_TOKENS - run->tokens[r]) * sizeof *row);
        }
    }
    for (size_t r = 0; r < run->n; r++)
        s->way->codec[1]->accumulate(shape_of(s, CODEC_VALUES, head), logits + r * step, run->block[1][r], partial->acc);
}

/* Of one thread. */
struct reader {
    float *tables, *partial;
    uint8_t *packed[2]; /* [RUN] blocks */
};

static const float *begin(const struct store *s, const struct data *d, size_t head, const struct reader *reader,
                          struct partial *partial, const float **q) {
    const struct codec *codec = s->way->codec[0];
    struct codec_shape shape = shape_of(s, CODEC_KEYS, head);
    *q = queries_of(d, head);
    *partial = partial_at(reader->partial, shape.group, shape.head_dim);
    partial_clear(partial);
    if (!codec->prepared || !codec->prepared(shape)) return NULL;
    codec->prepare(shape, *q, reader->tables);
    return reader->tables;
}

/* All tokens, or those of the blocks listed[n]. */
static void read_blocks(const struct store *s, const struct data *d, size_t head, const struct reader *reader,
                        const uint32_t *listed, size_t n) {
    struct partial partial;
    const float *q, *tables = begin(s, d, head, reader, &partial, &q);
    for (size_t first = 0; first < n; first += RUN) {
        struct run run = {.n = n - first < RUN ? n - first : RUN};
        for (size_t r = 0; r < run.n; r++) {
            size_t b = listed ? listed[first + r] : first + r;
            for (int side = 0; side < 2; side++) run.block[side][r] = block_at(s, side, head, b);
            run.tokens[r] = PAGE_TOKENS;
        }
        read_run(s, head, q, tables, &run, &partial);
    }
}

/* Tokens of one block that go to one packed block. */
struct piece {
    uint32_t block;
    uint8_t at, count;
    size_t to; /* packed block */
};

/* Cuts tokens[n], ascending, into pieces until RUN blocks are full; their slots are written too. Returns how many tokens. */
static size_t cut(const uint32_t *tokens, size_t n, uint8_t *slots, struct piece *pieces, size_t *n_pieces) {
    size_t i = 0, count = 0;
    n = n < RUN * PAGE_TOKENS ? n : RUN * PAGE_TOKENS;
    for (; i < n; i++) {
        uint32_t block = tokens[i] / PAGE_TOKENS;
        slots[i] = tokens[i] % PAGE_TOKENS;
        if (i % PAGE_TOKENS && pieces[count - 1].block == block)
            pieces[count - 1].count++;
        else
            pieces[count++] = (struct piece){block, (uint8_t)(i % PAGE_TOKENS), 1, i / PAGE_TOKENS};
    }
    *n_pieces = count;
    return n;
}

#define AHEAD 3 /* pieces that are fetched before they are taken */

/* Takes tokens[n], ascending, into packed blocks; returns how many of them fitted into RUN. */
static size_t pack(const struct store *s, size_t head, const struct reader *reader, const uint32_t *tokens, size_t n,
                   struct run *run) {
    uint8_t slots[RUN * PAGE_TOKENS];
    struct piece pieces[RUN * PAGE_TOKENS];
    size_t count, all = cut(tokens, n, slots, pieces, &count);
    for (int side = 0; side < 2; side++) {
        const struct codec *codec = s->way->codec[side];
        struct codec_shape shape = shape_of(s, side, head);
        for (size_t i = 0; i < count + AHEAD; i++) {
            if (i < count && codec->prefetch_tokens)
                codec->prefetch_tokens(shape, (enum codec_side)side, block_at(s, side, head, pieces[i].block),
                                       slots + pieces[i].to * PAGE_TOKENS + pieces[i].at, pieces[i].count);
            if (i < AHEAD) continue;
            const struct piece *p = &pieces[i - AHEAD];
            codec->gather_tokens(shape, (enum codec_side)side, block_at(s, side, head, p->block),
                                 slots + p->to * PAGE_TOKENS + p->at, p->count, reader->packed[side] + p->to * s->bytes[side],
                                 p->at);
        }
    }
    run->n = (all + PAGE_TOKENS - 1) / PAGE_TOKENS;
    for (size_t r = 0; r < run->n; r++) {
        for (int side = 0; side < 2; side++) run->block[side][r] = reader->packed[side] + r * s->bytes[side];
        run->tokens[r] = all - r * PAGE_TOKENS < PAGE_TOKENS ? all - r * PAGE_TOKENS : PAGE_TOKENS;
    }
    return all;
}

static void read_tokens(const struct store *s, const struct data *d, size_t head, const struct reader *reader,
                        const uint32_t *tokens, size_t n, bool pack_only) {
    struct partial partial;
    const float *q, *tables = begin(s, d, head, reader, &partial, &q);
    for (size_t i = 0; i < n;) {
        struct run run;
        i += pack(s, head, reader, tokens + i, n - i, &run);
        if (!pack_only) read_run(s, head, q, tables, &run, &partial);
    }
}

static struct reader new_reader(const struct store *s) {
    struct reader reader = {.partial = allocate(partial_floats(s->shape.group, s->shape.head_dim), sizeof(float))};
    size_t floats = 1;
    for (size_t head = 0; s->way->codec[0]->prepared && head < s->heads; head++) {
        size_t more = s->way->codec[0]->prepared(shape_of(s, CODEC_KEYS, head));
        floats = more > floats ? more : floats;
    }
    reader.tables = allocate(floats, sizeof(float));
    for (int side = 0; side < 2; side++) reader.packed[side] = allocate(RUN, s->bytes[side]);
    return reader;
}

static void free_reader(struct reader *reader) {
    memory_free(reader->partial);
    memory_free(reader->tables);
    for (int side = 0; side < 2; side++) memory_free(reader->packed[side]);
}

/* ---- Timing: everything once a round, the fastest round counts */

enum what { PRODUCT, SIGN_SCORES, SIGN, QUEST, FULL, TOKENS, PACKING, BOTH, PAGES, BLOCKS, DENSE, WHATS };

struct bench {
    const struct data *data;
    const struct store *f16, *store;
    const struct finder *sign, *quest;
    const uint32_t *pages, *blocks; /* [heads][k] tokens of whole pages, [heads][k / 64] blocks */
    size_t depth;
    int threads;
};

static void do_head(const struct bench *b, enum what what, size_t head, const struct reader *reader) {
    size_t k = SHARE(b->depth), few = k / PAGE_TOKENS;
    switch (what) {
    case PRODUCT: product_head(b->f16, b->data, head); break;
    case SIGN_SCORES: score_head(b->sign, b->data, head); break;
    case SIGN: find_head(b->sign, b->data, head); break;
    case QUEST: find_head(b->quest, b->data, head); break;
    case FULL: read_blocks(b->f16, b->data, head, reader, NULL, b->f16->blocks); break;
    case TOKENS: read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, false); break;
    case PACKING: read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, true); break;
    case BOTH:
        find_head(b->sign, b->data, head);
        read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, false);
        break;
    case PAGES: read_tokens(b->store, b->data, head, reader, b->pages + head * k, k / 16 * 16, false); break;
    case BLOCKS: read_blocks(b->store, b->data, head, reader, b->blocks + head * few, few); break;
    case DENSE: read_blocks(b->store, b->data, head, reader, NULL, b->store->blocks); break;
    case WHATS: break;
    }
}

static void measure(const struct bench *b, uint32_t whats, double *best) {
    size_t heads = b->f16->heads;
    double each[WHATS][MOST_HEADS];
    for (size_t i = 0; i < WHATS * MOST_HEADS; i++) each[i / MOST_HEADS][i % MOST_HEADS] = INFINITY;
    struct reader *readers = allocate((size_t)b->threads, 2 * sizeof *readers);
    for (int t = 0; t < b->threads; t++) {
        readers[2 * t] = new_reader(b->f16);
        readers[2 * t + 1] = new_reader(b->store);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int what = 0; what < WHATS; what++) {
            if (!(whats >> what & 1)) continue;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
            for (size_t head = 0; head < heads; head++) {
                double start = clock_seconds();
                do_head(b, (enum what)what, head, &readers[2 * omp_get_thread_num() + (what != FULL)]);
                each[what][head] = fmin(each[what][head], clock_seconds() - start);
            }
        }
    }
    for (int what = 0; what < WHATS; what++) {
        best[what] = 0;
        for (size_t head = 0; head < heads; head++) best[what] += each[what][head];
    }
    for (int t = 0; t < 2 * b->threads; t++) free_reader(&readers[t]);
    memory_free(readers);
}

/* Whole pages of `size` tokens, the best by their best token; as tokens, or as numbers of pages. */
static uint32_t *best_pages(const struct finder *f, size_t depth, size_t size, bool as_tokens) {
    size_t k = SHARE(depth), pages = depth / size, each = as_tokens ? k : k / size;
    uint32_t *list = allocate(f->heads * k, sizeof *list), *chosen = allocate(k, sizeof *chosen);
    uint16_t *best = allocate(pages, sizeof *best);
    for (size_t head = 0; head < f->heads; head++) {
        const uint16_t *scores = f->scores + head * depth;
        for (size_t p = 0; p < pages; p++) {
            best[p] = 0;
            for (size_t t = 0; t < size; t++) best[p] = scores[p * size + t] > best[p] ? scores[p * size + t] : best[p];
        }
        size_t n = top_tokens(best, pages, k / size, chosen);
        for (size_t i = 0; i < n; i++) {
            if (!as_tokens) list[head * each + i] = chosen[i];
            for (size_t t = 0; as_tokens && t < size; t++) list[head * each + i * size + t] = (uint32_t)(chosen[i] * size + t);
        }
    }
    memory_free(best);
    memory_free(chosen);
    return list;
}

/* Lloyd's k-means of one group of four channels, by the kernels that codebooks are learned with; no more than its rounds. */
static void kmeans_group(const float *rows, size_t n, size_t stride, int rounds) {
    enum { K = INDEX_SIGN_CODES, WIDTH = INDEX_SIGN_CHANNELS };
    float centroids[K * WIDTH];
    struct nearest nearest;
    struct terse_error error;
    uint16_t codes[PAGE_TOKENS];
    if (nearest_new(K, WIDTH, &nearest, &error)) fail(error.message);
    for (size_t i = 0; i < K * WIDTH; i++) centroids[i] = rows[i / WIDTH * (n / K) * stride + i % WIDTH];
    for (int round = 0; round < rounds; round++) {
        float sums[K][WIDTH] = {{0}};
        uint32_t counts[K] = {0};
        nearest_set(&nearest, centroids);
        for (size_t first = 0; first < n; first += PAGE_TOKENS) {
            size_t some = n - first < PAGE_TOKENS ? n - first : PAGE_TOKENS;
            nearest_search(&nearest, rows + first * stride, some, stride, codes);
            for (size_t t = 0; t < some; t++) {
                for (size_t i = 0; i < WIDTH; i++) sums[codes[t]][i] += rows[(first + t) * stride + i];
                counts[codes[t]]++;
            }
        }
        for (size_t i = 0; i < K * WIDTH; i++)
            if (counts[i / WIDTH]) centroids[i] = sums[i / WIDTH][i % WIDTH] / (float)counts[i / WIDTH];
    }
    nearest_free(&nearest);
}

static void bench_fit(const struct data *d, size_t depth) {
    size_t hd = d->shape.head_dim, n = depth < d->distinct ? depth : d->distinct;
    const float *keys = d->rows[CODEC_KEYS];
    void *learned = allocate(index_sign.learned_bytes(hd), 1);
    struct index_options options = index_options_defaults();
    double best[2] = {INFINITY, INFINITY};
    for (int round = 0; round < ROUNDS; round++) {
        double start = clock_seconds();
        index_sign.fit(hd, keys, n, hd, &options, learned);
        best[0] = fmin(best[0], clock_seconds() - start);
        start = clock_seconds();
        for (size_t g = 0; g < hd / INDEX_SIGN_CHANNELS; g++) kmeans_group(keys + g * INDEX_SIGN_CHANNELS, n, hd, 20);
        best[1] = fmin(best[1], clock_seconds() - start);
    }
    printf("  fit of %zu keys of a KV head, one thread: one pass %.2f ms, 20 rounds of k-means %.1f ms: %.0fx\n", n, 1e3 * best[0],
           1e3 * best[1], best[1] / best[0]);
    memory_free(learned);
}

static void bench_depth(struct data *d, size_t depth, int threads) {
    static const struct way ways[] = {{"f16", {&codec_f16, &codec_f16}, 0, 0},
                                      {"sign", {&codec_sign, &codec_sign}, 0, 0},
                                      {"q8_0", {&codec_q8_0, &codec_q8_0}, 0, 0},
                                      {"q4_0", {&codec_q4_0, &codec_q4_0}, 0, 0},
                                      {"pq 4x8", {&codec_pq, &codec_pq}, 4, 8}};
    size_t layers = depth < ALL_TOKENS ? ALL_TOKENS / depth : 1;
    while (layers > 1 && layers * d->shape.kv_heads > MOST_HEADS) layers--;
    d->heads = layers * d->shape.kv_heads;
    struct store f16 = new_store(&ways[0], d, depth);
    struct finder sign = new_finder(&index_sign, d, depth), quest = new_finder(&index_quest, d, depth);
    struct bench b = {.data = d, .f16 = &f16, .store = &f16, .sign = &sign, .quest = &quest, .depth = depth, .threads = threads};
    double t[WHATS], tokens = (double)depth * (double)d->heads, ns = 1e9 / tokens;
    measure(&b, 1u << PRODUCT | 1u << SIGN_SCORES | 1u << SIGN | 1u << QUEST, t);
    printf("%s, %zu tokens\n  retrieval, ns per token and KV head: full product %.2f  sign %.2f (scores %.2f): %.1fx  quest %.2f: "
           "%.1fx\n",
           d->shape.name, depth, ns * t[PRODUCT], ns * t[SIGN], ns * t[SIGN_SCORES], t[PRODUCT] / t[SIGN], ns * t[QUEST],
           t[PRODUCT] / t[QUEST]);
    uint32_t *pages = best_pages(&sign, depth, 16, true), *blocks = best_pages(&sign, depth, PAGE_TOKENS, false);
    b.pages = pages;
    b.blocks = blocks;
    printf("  attention to 7.5 %%, f16 over all being 1:   tokens  (packing)  pages of 16  of 64   | retrieval too | dense\n");
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        struct store store = w ? new_store(&ways[w], d, depth) : f16;
        struct finder inside = sign; /* blocks of keys that begin with the index's are found by them */
        if (ways[w].codec[0] == &codec_sign) {
            inside.memory = store.memory[0];
            inside.step = store.bytes[0];
        }
        b.store = &store;
        b.sign = &inside;
        measure(&b, 1u << FULL | 1u << BOTH | 1u << TOKENS | 1u << PACKING | 1u << PAGES | 1u << BLOCKS | 1u << DENSE, t);
        printf("    %-8s f16 %6.2f ns per token %14.1fx %8.2f ns %9.1fx %8.1fx %12.1fx %10.2fx\n", ways[w].name, ns * t[FULL],
               t[FULL] / t[TOKENS], ns / 0.075 * t[PACKING], t[FULL] / t[PAGES], t[FULL] / t[BLOCKS], t[FULL] / t[BOTH],
               t[FULL] / t[DENSE]);
        fflush(stdout);
        if (w) free_store(&store);
    }
    bench_fit(d, depth);
    memory_free(pages);
    memory_free(blocks);
    free_finder(&sign);
    free_finder(&quest);
    free_store(&f16);
}

/* ---- Keys of a model */

static struct capture *capture_text(const struct terse_model *model, size_t tokens) {
    struct terse_error error;
    struct capture *capture;
    size_t capacity = 4 << 20, n;
    char *text = allocate(capacity, 1);
    int32_t *ids = allocate(capacity, sizeof *ids);
    FILE *file = fopen(PROJECT_DIR "/data/wiki.valid.raw", "rb");
    if (!file) fail("cannot read data/wiki.valid.raw");
    size_t size = fread(text, 1, capacity, file);
    fclose(file);
    if (terse_tokenize(model, text, size, TERSE_TOKENIZE_ADD_SPECIAL, ids, capacity, &n, &error)) fail(error.message);
    struct capture_options options = {
        .window = 2048, .windows = (uint32_t)(tokens / 2048), .positions = (uint32_t)tokens, .budget = (size_t)8 << 30};
    for (int side = 0; side < 2; side++) options.side[side] = (struct capture_side){.kept = true, .rotated = side == CODEC_KEYS};
    if (capture_new(model, &options, ids, n, &capture, &error)) fail(error.message);
    memory_free(text);
    memory_free(ids);
    return capture;
}

static void bench_model(const char *path, const size_t *depths, size_t n, int threads) {
    struct terse_model *model;
    struct terse_error error;
    if (terse_model_load(path, &model, &error)) fail(error.message);
    struct capture *capture = capture_text(model, DISTINCT);
    struct shape shape = {model->name, model->query_heads, model->kv_heads, model->head_dim};
    struct data d = new_data(shape, capture_samples(capture) / PAGE_TOKENS * PAGE_TOKENS);
    fill_captured(&d, capture, model->layers / 2);
    for (size_t i = 0; i < n; i++) bench_depth(&d, depths[i], threads);
    capture_free(capture);
    terse_model_free(model);
}

int main(int argc, char **argv) {
    static const struct shape shapes[] = {{"1B: 32 x 8 x 64", 32, 8, 64}, {"8B: 32 x 8 x 128", 32, 8, 128}};
    size_t depths[16] = {16384, 32768, 131072}, n = 3;
    const char *model = argc > 1 && strstr(argv[1], ".gguf") ? argv[1] : NULL;
    int first = model ? 2 : 1, threads = argc > first ? atoi(argv[first]) : omp_get_num_procs();
    if (threads < 1 || argc > first + 17) fail("usage: bench_retrieval [MODEL.gguf] [THREADS [DEPTH...]] (at most 16 depths)");
    if (argc > first + 1) n = 0;
    for (int i = first + 1; i < argc; i++) depths[n++] = (size_t)atol(argv[i]) / PAGE_TOKENS * PAGE_TOKENS;
    printf("choosing tokens, %d threads, %s kernels\n", threads, cpu_isa_name(cpu_isa()));
    if (model) {
        bench_model(model, depths, n, threads);
        return 0;
    }
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        struct data d = new_data(shapes[s], DISTINCT);
        fill_random(&d, 1 + s);
        for (size_t i = 0; i < n; i++) bench_depth(&d, depths[i], threads);
        for (int side = 0; side < 2; side++) memory_free(d.rows[side]);
        memory_free(d.q);
    }
    return 0;
}
