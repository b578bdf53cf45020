/* Times selecting and reading a few tokens instead of all, as ratios within one run:
 *
 *   retrieval   finding the best 7.5 % of the tokens (query tables, scores of all tokens, top-k) against the full product of queries
 *               and f16 keys
 *   attention   over those tokens (gathered, scored, accumulated) against f16 over all; single tokens, groups of 16 and whole pages
 *   fit         the one-pass centroids against 20 rounds of k-means with as many
 *
 *     bench_retrieval [THREADS [DEPTH...]]             random keys, depths 16384, 32768 and 131072
 *     bench_retrieval MODEL.gguf [THREADS [DEPTH...]]  keys and values of a model on the text in data/, DEPTH at most some 100000
 *
 * Each KV head is timed by itself. Every round times everything once, and the fastest round of a head counts, so that other load on the
 * machine matters little. Beyond 16384 tokens the pages are copies, at addresses of their own: memory traffic is that of the depth. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/codec/nearest.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/top_k.h"
#include "backend/cpu/partial.h"
#include "base/memory.h"
#include "base/random.h"
#include "support/kernel_check.h"
#include "train/capture.h"
#include "train/codec_learning.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISTINCT ((size_t)16384) /* tokens of a KV head before pages repeat */
#define RUN 16                   /* pages that share one update of the running maximum */
#define ROUNDS 5
#define MOST_HEADS 64
#define MOST_GROUP 8                /* query heads of a KV head */
#define ALL_TOKENS ((size_t)131072) /* of as many layers as it takes, one after another: exceeds every processor cache */
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
    size_t heads; /* of all layers; heads from kv_heads on are copies */
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

/* Fills with random data. Every channel has its own mean and deviation; queries are scaled as attention scales them. */
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

/* Fills with keys and values of one layer. The model's queries are not captured: keys less their mean stand in for them, since they
 * too single out some tokens. */
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

/* ---- Pages in some codec */

struct format {
    const char *name;
    const struct codec *codec[2];
    uint32_t width, bits; /* of both sides, where they learn */
};

struct store {
    const struct format *format;
    struct codec_shape shape;
    size_t heads, pages, bytes[2];
    uint8_t *memory[2]; /* [heads][pages] */
    void **learned[2];  /* [heads], of a codebook or, where the codec is `fitted`, of the rows */
};

static struct codec_shape shape_of(const struct store *s, int side, size_t head) {
    struct codec_shape shape = s->shape;
    if (s->format->codec[side]->fitted)
        shape.fitted = s->learned[side][head];
    else
        shape.learned = s->learned[side][head];
    return shape;
}

static const uint8_t *page_at(const struct store *s, int side, size_t head, size_t page) {
    return s->memory[side] + (head * s->pages + page) * s->bytes[side];
}

static void *learn(const struct codec *codec, struct codec_shape shape, int side, const float *rows, size_t n) {
    void *learned = NULL;
    struct terse_error error;
    if (codec->fitted && codec_fitted_bytes(codec, shape, (enum codec_side)side)) {
        struct index_options options = index_options_defaults();
        learned = allocate(codec_fitted_bytes(codec, shape, (enum codec_side)side), 1);
        cpu_codec_of(codec)->fit(shape, (enum codec_side)side, rows, n, shape.head_dim, &options, learned);
    }
    if (codec_learns(codec)) { /* centroids are sub-vectors of some rows: better ones would not change the cost of reading */
        size_t count = codec_parameters(codec, shape), k = (size_t)1 << shape.bits;
        float *floats = allocate(count, sizeof *floats);
        for (size_t i = 0; i < count; i++) {
            size_t part = i / (k * shape.width), row = i / shape.width % k;
            floats[i] = rows[row * 37 % n * shape.head_dim + part * shape.width + i % shape.width];
        }
        if ((codec->learner == CODEC_LEARNS_KMEANS)) codec_snap_to_grid(codec, shape, floats);
        if (cpu_codec_of(codec)->learned->make(shape, (enum codec_side)side, floats, &learned, &error)) fail(error.message);
        memory_free(floats);
    }
    return learned;
}

static struct store new_store(const struct format *format, const struct data *d, size_t depth) {
    size_t hd = d->shape.head_dim, heads = d->heads, distinct = d->distinct / PAGE_TOKENS, G = group(d);
    struct store s = {.format = format, .heads = heads, .pages = depth / PAGE_TOKENS};
    s.shape = (struct codec_shape){.head_dim = (uint32_t)hd, .group = (uint32_t)G, .width = format->width, .bits = format->bits};
    for (int side = 0; side < 2; side++) {
        const struct codec *codec = format->codec[side];
        s.bytes[side] = codec_page_bytes(codec, s.shape, (enum codec_side)side);
        s.memory[side] = allocate(heads * s.pages, s.bytes[side]);
        s.learned[side] = allocate(heads, sizeof(void *));
        for (size_t head = 0; head < heads; head++) {
            const float *rows = rows_of(d, side, head);
            s.learned[side][head] = learn(codec, s.shape, side, rows, d->distinct);
            struct codec_shape shape = shape_of(&s, side, head);
            for (size_t b = 0; b < s.pages; b++) {
                uint8_t *to = s.memory[side] + (head * s.pages + b) * s.bytes[side];
                size_t before = head < d->shape.kv_heads ? distinct : d->shape.kv_heads * s.pages;
                if (head >= d->shape.kv_heads || b >= distinct)
                    memcpy(to, to - before * s.bytes[side], s.bytes[side]);
                else
                    cpu_codec_of(codec)->encode(shape, (enum codec_side)side, rows + b * PAGE_TOKENS * hd, PAGE_TOKENS, to);
            }
        }
    }
    return s;
}

static void free_store(struct store *s) {
    for (int side = 0; side < 2; side++) {
        for (size_t head = 0; head < s->heads; head++) {
            if (cpu_codec_of(s->format->codec[side])->learned)
                cpu_codec_of(s->format->codec[side])->learned->free(s->learned[side][head]);
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
    size_t heads, pages;
    uint8_t *memory; /* [heads][pages], or inside the pages of a store */
    size_t step;
    void **learned;
    uint16_t *scores; /* [heads][pages][64] */
    uint32_t *tokens; /* [heads][k] */
};

static struct finder new_finder(const struct index *index, const struct data *d, size_t depth) {
    size_t hd = d->shape.head_dim, heads = d->heads, bytes = index_bytes(index, hd), distinct = d->distinct / PAGE_TOKENS;
    struct finder f = {.index = index, .heads = heads, .pages = depth / PAGE_TOKENS, .step = bytes};
    struct index_options options = index_options_defaults();
    f.memory = allocate(heads * f.pages, bytes);
    f.learned = allocate(heads, sizeof(void *));
    f.scores = allocate(heads * depth, sizeof *f.scores);
    f.tokens = allocate(heads * SHARE(depth), sizeof *f.tokens);
    for (size_t head = 0; head < heads; head++) {
        const float *rows = rows_of(d, CODEC_KEYS, head);
        f.learned[head] = allocate(index_learned_bytes(index, hd) + 1, 1);
        cpu_index_of(index)->fit(hd, rows, d->distinct, hd, &options, f.learned[head]);
        for (size_t b = 0; b < f.pages; b++)
            cpu_index_of(index)->encode(hd, f.learned[head], rows + b % distinct * PAGE_TOKENS * hd, PAGE_TOKENS,
                                        f.memory + (head * f.pages + b) * bytes);
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
    cpu_index_of(f->index)->prepare(hd, f->learned[head], queries_of(d, head), G, tables);
    for (size_t b = 0; b < f->pages; b++)
        cpu_index_of(f->index)->scores(hd, tables, f->memory + (head * f->pages + b) * f->step,
                                       f->scores + (head * f->pages + b) * PAGE_TOKENS);
}

static void find_head(const struct finder *f, const struct data *d, size_t head) {
    size_t n = f->pages * PAGE_TOKENS;
    score_head(f, d, head);
    top_tokens(f->scores + head * n, n, SHARE(n), f->tokens + head * SHARE(n));
}

static void product_head(const struct store *s, const struct data *d, size_t head) {
    float logits[MOST_GROUP * PAGE_TOKENS];
    for (size_t b = 0; b < s->pages; b++)
        scaled_ops()->score_f16(queries_of(d, head), s->shape.group, s->shape.head_dim, page_at(s, CODEC_KEYS, head, b), logits);
}

/* ---- Attention: pages are read in runs that share one running maximum, as in the cache */

struct run {
    const uint8_t *page[2][RUN];
    size_t tokens[RUN]; /* slots from 0 on that hold tokens */
    size_t n;
};

static void read_run(const struct store *s, size_t head, const float *q, const float *tables, const struct run *run,
                     struct partial *partial) {
    const struct vector_ops *kernel = vector_ops();
    size_t G = s->shape.group, step = G * PAGE_TOKENS;
    float logits[RUN * MOST_GROUP * PAGE_TOKENS];
    for (size_t r = 0; r < run->n; r++)
        cpu_codec_of(s->format->codec[0])->score(shape_of(s, CODEC_KEYS, head), q, tables, run->page[0][r], logits + r * step);
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
        cpu_codec_of(s->format->codec[1])
            ->accumulate_values(shape_of(s, CODEC_VALUES, head), logits + r * step, run->page[1][r], partial->acc);
}

/* A reader is the workspace of one thread. */
struct reader {
    float *tables, *partial;
    uint8_t *packed[2]; /* [RUN] pages */
};

static const float *begin(const struct store *s, const struct data *d, size_t head, const struct reader *reader,
                          struct partial *partial, const float **q) {
    const struct codec *codec = s->format->codec[0];
    struct codec_shape shape = shape_of(s, CODEC_KEYS, head);
    *q = queries_of(d, head);
    *partial = partial_at(reader->partial, shape.group, shape.head_dim);
    partial_clear(partial);
    if (!cpu_codec_query_floats(cpu_codec_of(codec), shape)) return NULL;
    cpu_codec_of(codec)->queries->prepare(shape, *q, reader->tables);
    return reader->tables;
}

/* Reads all pages, or listed[n]. */
static void read_pages(const struct store *s, const struct data *d, size_t head, const struct reader *reader,
                       const uint32_t *listed, size_t n) {
    struct partial partial;
    const float *q, *tables = begin(s, d, head, reader, &partial, &q);
    for (size_t first = 0; first < n; first += RUN) {
        struct run run = {.n = n - first < RUN ? n - first : RUN};
        for (size_t r = 0; r < run.n; r++) {
            size_t b = listed ? listed[first + r] : first + r;
            for (int side = 0; side < 2; side++) run.page[side][r] = page_at(s, side, head, b);
            run.tokens[r] = PAGE_TOKENS;
        }
        read_run(s, head, q, tables, &run, &partial);
    }
}

/* A piece is tokens of one page that are gathered into one packed page. */
struct piece {
    uint32_t page;
    uint8_t at, count;
    size_t to; /* packed page */
};

/* Cuts tokens[n], ascending, into pieces until RUN pages are full, and writes their slots. Returns the number of tokens. */
static size_t cut(const uint32_t *tokens, size_t n, uint8_t *slots, struct piece *pieces, size_t *n_pieces) {
    size_t i = 0, count = 0;
    n = n < RUN * PAGE_TOKENS ? n : RUN * PAGE_TOKENS;
    for (; i < n; i++) {
        uint32_t page = tokens[i] / PAGE_TOKENS;
        slots[i] = tokens[i] % PAGE_TOKENS;
        if (i % PAGE_TOKENS && pieces[count - 1].page == page)
            pieces[count - 1].count++;
        else
            pieces[count++] = (struct piece){page, (uint8_t)(i % PAGE_TOKENS), 1, i / PAGE_TOKENS};
    }
    *n_pieces = count;
    return n;
}

#define AHEAD 3 /* pieces between prefetching and gathering */

/* Gathers tokens[n], ascending, into up to RUN packed pages; returns how many tokens that were. */
static size_t pack(const struct store *s, size_t head, const struct reader *reader, const uint32_t *tokens, size_t n,
                   struct run *run) {
    uint8_t slots[RUN * PAGE_TOKENS];
    struct piece pieces[RUN * PAGE_TOKENS];
    size_t count, all = cut(tokens, n, slots, pieces, &count);
    for (int side = 0; side < 2; side++) {
        const struct codec *codec = s->format->codec[side];
        struct codec_shape shape = shape_of(s, side, head);
        for (size_t i = 0; i < count + AHEAD; i++) {
            if (i < count && cpu_codec_of(codec)->prefetch_tokens)
                cpu_codec_of(codec)->prefetch_tokens(shape, (enum codec_side)side, page_at(s, side, head, pieces[i].page),
                                                     slots + pieces[i].to * PAGE_TOKENS + pieces[i].at, pieces[i].count);
            if (i < AHEAD) continue;
            const struct piece *p = &pieces[i - AHEAD];
            cpu_codec_of(codec)->gather_tokens(shape, (enum codec_side)side, page_at(s, side, head, p->page),
                                               slots + p->to * PAGE_TOKENS + p->at, p->count,
                                               reader->packed[side] + p->to * s->bytes[side], p->at);
        }
    }
    run->n = (all + PAGE_TOKENS - 1) / PAGE_TOKENS;
    for (size_t r = 0; r < run->n; r++) {
        for (int side = 0; side < 2; side++) run->page[side][r] = reader->packed[side] + r * s->bytes[side];
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
    for (size_t head = 0; head < s->heads; head++) {
        size_t more = cpu_codec_query_floats(cpu_codec_of(s->format->codec[0]), shape_of(s, CODEC_KEYS, head));
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

/* ---- Timing: a round times everything once, the fastest round counts */

enum operation { PRODUCT, SIGN_SCORES, SIGN, QUEST, FULL, TOKENS, PACKING, BOTH, GROUPS, PAGES, DENSE, WHATS };

struct bench {
    const struct data *data;
    const struct store *f16, *store;
    const struct finder *sign, *quest;
    const uint32_t *groups, *pages; /* [heads][k] tokens of whole groups of 16, [heads][k / 64] pages */
    size_t depth;
    int threads;
};

static void do_head(const struct bench *b, enum operation what, size_t head, const struct reader *reader) {
    size_t k = SHARE(b->depth), n_pages = k / PAGE_TOKENS;
    switch (what) {
    case PRODUCT: product_head(b->f16, b->data, head); break;
    case SIGN_SCORES: score_head(b->sign, b->data, head); break;
    case SIGN: find_head(b->sign, b->data, head); break;
    case QUEST: find_head(b->quest, b->data, head); break;
    case FULL: read_pages(b->f16, b->data, head, reader, NULL, b->f16->pages); break;
    case TOKENS: read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, false); break;
    case PACKING: read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, true); break;
    case BOTH:
        find_head(b->sign, b->data, head);
        read_tokens(b->store, b->data, head, reader, b->sign->tokens + head * k, k, false);
        break;
    case GROUPS: read_tokens(b->store, b->data, head, reader, b->groups + head * k, k / 16 * 16, false); break;
    case PAGES: read_pages(b->store, b->data, head, reader, b->pages + head * n_pages, n_pages); break;
    case DENSE: read_pages(b->store, b->data, head, reader, NULL, b->store->pages); break;
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
                do_head(b, (enum operation)what, head, &readers[2 * omp_get_thread_num() + (what != FULL)]);
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

/* Returns the groups of `size` tokens whose best token scores highest, as tokens, or as numbers of groups. */
static uint32_t *best_groups(const struct finder *f, size_t depth, size_t size, bool as_tokens) {
    size_t k = SHARE(depth), groups = depth / size, each = as_tokens ? k : k / size;
    uint32_t *list = allocate(f->heads * k, sizeof *list), *selected = allocate(k, sizeof *selected);
    uint16_t *best = allocate(groups, sizeof *best);
    for (size_t head = 0; head < f->heads; head++) {
        const uint16_t *scores = f->scores + head * depth;
        for (size_t p = 0; p < groups; p++) {
            best[p] = 0;
            for (size_t t = 0; t < size; t++) best[p] = scores[p * size + t] > best[p] ? scores[p * size + t] : best[p];
        }
        size_t n = top_tokens(best, groups, k / size, selected);
        for (size_t i = 0; i < n; i++) {
            if (!as_tokens) list[head * each + i] = selected[i];
            for (size_t t = 0; as_tokens && t < size; t++) list[head * each + i * size + t] = (uint32_t)(selected[i] * size + t);
        }
    }
    memory_free(best);
    memory_free(selected);
    return list;
}

/* Runs the rounds of Lloyd's k-means for one group of four channels, by the kernels of codebook learning. */
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
    void *learned = allocate(index_learned_bytes(&index_sign, hd), 1);
    struct index_options options = index_options_defaults();
    double best[2] = {INFINITY, INFINITY};
    for (int round = 0; round < ROUNDS; round++) {
        double start = clock_seconds();
        cpu_index_sign.fit(hd, keys, n, hd, &options, learned);
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
    static const struct format formats[] = {{"f16", {&codec_f16, &codec_f16}, 0, 0},
                                            {"sign", {&codec_sign, &codec_sign}, 0, 0},
                                            {"q8_0", {&codec_q8_0, &codec_q8_0}, 0, 0},
                                            {"q4_0", {&codec_q4_0, &codec_q4_0}, 0, 0},
                                            {"pq 4x8", {&codec_pq, &codec_pq}, 4, 8}};
    size_t layers = depth < ALL_TOKENS ? ALL_TOKENS / depth : 1;
    while (layers > 1 && layers * d->shape.kv_heads > MOST_HEADS) layers--;
    d->heads = layers * d->shape.kv_heads;
    struct store f16 = new_store(&formats[0], d, depth);
    struct finder sign = new_finder(&index_sign, d, depth), quest = new_finder(&index_quest, d, depth);
    struct bench b = {.data = d, .f16 = &f16, .store = &f16, .sign = &sign, .quest = &quest, .depth = depth, .threads = threads};
    double t[WHATS], tokens = (double)depth * (double)d->heads, ns = 1e9 / tokens;
    measure(&b, 1u << PRODUCT | 1u << SIGN_SCORES | 1u << SIGN | 1u << QUEST, t);
    printf("%s, %zu tokens\n  retrieval, ns per token and KV head: full product %.2f  sign %.2f (scores %.2f): %.1fx  quest %.2f: "
           "%.1fx\n",
           d->shape.name, depth, ns * t[PRODUCT], ns * t[SIGN], ns * t[SIGN_SCORES], t[PRODUCT] / t[SIGN], ns * t[QUEST],
           t[PRODUCT] / t[QUEST]);
    uint32_t *groups = best_groups(&sign, depth, 16, true), *pages = best_groups(&sign, depth, PAGE_TOKENS, false);
    b.groups = groups;
    b.pages = pages;
    printf("  attention to 7.5 %%, f16 over all being 1:   tokens  (packing)  groups of 16  of 64  | retrieval too | dense\n");
    for (size_t w = 0; w < sizeof formats / sizeof formats[0]; w++) {
        struct store store = w ? new_store(&formats[w], d, depth) : f16;
        struct finder inside = sign; /* codec_sign's key pages begin with the index's codes */
        if (formats[w].codec[0] == &codec_sign) {
            inside.memory = store.memory[0];
            inside.step = store.bytes[0];
        }
        b.store = &store;
        b.sign = &inside;
        measure(&b, 1u << FULL | 1u << BOTH | 1u << TOKENS | 1u << PACKING | 1u << GROUPS | 1u << PAGES | 1u << DENSE, t);
        printf("    %-8s f16 %6.2f ns per token %14.1fx %8.2f ns %9.1fx %8.1fx %12.1fx %10.2fx\n", formats[w].name, ns * t[FULL],
               t[FULL] / t[TOKENS], ns / 0.075 * t[PACKING], t[FULL] / t[GROUPS], t[FULL] / t[PAGES], t[FULL] / t[BOTH],
               t[FULL] / t[DENSE]);
        fflush(stdout);
        if (w) free_store(&store);
    }
    bench_fit(d, depth);
    memory_free(groups);
    memory_free(pages);
    free_finder(&sign);
    free_finder(&quest);
    free_store(&f16);
}

/* ---- Keys and values of a model */

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
    if (model->query_heads > MOST_GROUP * model->kv_heads) fail("more than 8 query heads of this model share a KV head");
    struct shape shape = {model->name, model->query_heads, model->kv_heads, model->head_dim};
    struct data d = new_data(shape, capture_samples(capture) / PAGE_TOKENS * PAGE_TOKENS);
    fill_captured(&d, capture, model->layers / 2);
    for (size_t i = 0; i < n; i++) bench_depth(&d, depths[i], threads);
    capture_free(capture);
    terse_model_free(model);
}

/* Returns how many different random rows are needed: DISTINCT, or the deepest depth if that is less. */
static size_t distinct_of(const size_t *depths, size_t n) {
    size_t deepest = PAGE_TOKENS;
    for (size_t i = 0; i < n; i++) deepest = depths[i] > deepest ? depths[i] : deepest;
    return deepest < DISTINCT ? deepest : DISTINCT;
}

int main(int argc, char **argv) {
    static const struct shape shapes[] = {{"1B: 32 x 8 x 64", 32, 8, 64}, {"8B: 32 x 8 x 128", 32, 8, 128}};
    size_t depths[16] = {16384, 32768, 131072}, n = 3;
    const char *model = argc > 1 && strstr(argv[1], ".gguf") ? argv[1] : NULL;
    int first = model ? 2 : 1, threads = argc > first ? atoi(argv[first]) : omp_get_num_procs();
    if (threads < 1 || argc > first + 17) fail("usage: bench_retrieval [MODEL.gguf] [THREADS [DEPTH...]] (at most 16 depths)");
    if (argc > first + 1) n = 0;
    for (int i = first + 1; i < argc; i++) depths[n++] = (size_t)atol(argv[i]) / PAGE_TOKENS * PAGE_TOKENS;
    printf("selecting tokens, %d threads, %s kernels\n", threads, cpu_isa_name(cpu_isa()));
    if (model) {
        bench_model(model, depths, n, threads);
        return 0;
    }
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        struct data d = new_data(shapes[s], distinct_of(depths, n));
        fill_random(&d, 1 + s);
        for (size_t i = 0; i < n; i++) bench_depth(&d, depths[i], threads);
        for (int side = 0; side < 2; side++) memory_free(d.rows[side]);
        memory_free(d.q);
    }
    return 0;
}
