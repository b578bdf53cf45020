/* Times one layer's attention over keys and values of CommVQ (Li et al. 2025, table 5) in several implementations in one run: milliseconds
 * of processor time for a decoding step, all threads together, and each implementation's time over that of the shipped one.
 *
 *     shipped   the cache's: keys are decoded in registers once for all queries of a KV head, rotated and multiplied by the queries;
 *               value weights are accumulated by code
 *     tables    the paper's: each query's tables are made once, their sums rotated by the token's whole angle; values as shipped
 *     decoded   the paper's baseline: every key and value is decoded into rows, keys are rotated, then two matrix products; by the
 *               codec's own decoder
 *     summed    the same, but keys are decoded literally by the formula: sums of float table rows, two for each round
 *     f16       the cache's, in half precision
 *
 *     bench_commvq [THREADS [DEPTH...]]         depths 8192, 32768 and 131072
 *
 * It prints first of which commit it is. bench/experiments/quality.py calls it for docs/reports/commvq.md. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/commvq.h"
#include "backend/cpu/codec/prepared.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/fill.h"
#include "base/memory.h"
#include "base/random.h"
#include "commit.h"
#include "support/kernel_check.h"
#include "support/llama_rope.h"
#include "support/random_codebook.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PASSES 3 /* over all variants in turn, so that other load on the machine hits none of them alone; the fastest run counts */
#define SECONDS 0.2 /* of a variant in a pass, about */
#define RUN 32      /* pages between two calls of finish_code_sums */

#define MOST_THREADS 64

enum variant { SHIPPED, TABLES, DECODED, SUMMED, EXACT, VARIANTS };

static int threads;

static void *allocate(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) return memory;
    fprintf(stderr, "bench_commvq: no memory for %zu bytes: use smaller depths\n", count * size);
    exit(1);
}

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_commvq: %s\n", error->message);
    exit(1);
}

static float *random_floats(size_t n, uint64_t seed) {
    float *x = allocate(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(random_next(&seed) >> 40) / (1 << 23) - 1;
    return x;
}

/* A scratch is the workspace of a thread for one KV head. */
struct scratch {
    float *logits;    /* [G][tokens] */
    float *rows[2];   /* [tokens][hd] of decoded keys and values */
    float *tables;    /* of queries, for TABLES */
    float *page;      /* [G][64] logits or weights of one page */
    float *code_sums; /* of values */
};

/* A layer is one layer of one sequence. */
struct layer {
    struct cache_shape shape;
    struct method method; /* with a codebook of random parameters */
    const struct cpu_codebook *codebook;
    size_t G, hd, pages;
    size_t bytes[2];            /* of a page */
    uint8_t *memory[2];         /* [kv_heads][pages] of random codes, apart from the caches' */
    float *cosine, *sine;       /* [pages][pairs][64] */
    float *row_angles[2];       /* [tokens][pairs]: cosines and sines by row */
    float *tables[2];           /* [rounds][64][pairs]: real and imaginary parts of a head's tables */
    float *q, *out;             /* [query_heads][hd] */
    struct cache *cache, *half; /* the method's, and f16's */
    struct scratch scratch[MOST_THREADS];
};

static struct codec_shape side_of(const struct layer *l, enum codec_side side, uint32_t head) {
    struct coding coding = side == CODEC_KEYS ? l->method.key : l->method.value;
    return (struct codec_shape){.head_dim = l->shape.head_dim,
                                .group = (uint32_t)l->G,
                                .width = coding.width,
                                .bits = coding.bits,
                                .learned = cpu_codebook_learned(l->codebook, side, 0, head)};
}

/* ---- Setup */

static struct method make_method(const struct cache_shape *shape, const char *name) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_error error;
    struct method method;
    options.method = name;
    must(method_resolve(&options, shape->head_dim, &method, &error), &error);
    must(random_codebook(&method, 1, shape->kv_heads, shape->head_dim, 0, true, &error), &error);
    return method;
}

static struct cache *make_cache(const struct cache_shape *shape, const struct method *method, size_t tokens) {
    struct cache *cache;
    struct terse_error error;
    must(cache_create(shape, method, (uint32_t)threads, &cache, &error), &error);
    cache_set_seal_ahead(cache, false); /* a worker's processor time would count */
    must(cache_fill_random(cache, tokens, 1, &error), &error);
    return cache;
}

/* Computes the cosines and sines of every token, by page and by row. */
static void make_angles(struct layer *l) {
    size_t pairs = l->hd / 2, tokens = l->pages * PAGE_TOKENS;
    l->cosine = allocate(tokens * pairs, sizeof(float));
    l->sine = allocate(tokens * pairs, sizeof(float));
    for (int i = 0; i < 2; i++) l->row_angles[i] = allocate(tokens * pairs, sizeof(float));
    for (size_t t = 0; t < tokens; t++) {
        float *cosine = l->row_angles[0] + t * pairs, *sine = l->row_angles[1] + t * pairs;
        rope_angles(l->shape.rope, (int64_t)t, cosine, sine);
        for (size_t j = 0; j < pairs; j++) {
            size_t at = (t / PAGE_TOKENS * pairs + j) * PAGE_TOKENS + t % PAGE_TOKENS;
            l->cosine[at] = cosine[j];
            l->sine[at] = sine[j];
        }
    }
}

static struct scratch make_scratch(const struct layer *l) {
    size_t tokens = l->pages * PAGE_TOKENS, code_sums = 1;
    struct codec_shape value = side_of(l, CODEC_VALUES, 0);
    code_sums += cpu_codec_code_sum_floats(cpu_codec_of(l->method.value.codec), value);
    struct scratch s = {.logits = allocate(l->G * tokens, sizeof(float))};
    for (int i = 0; i < 2; i++) s.rows[i] = allocate(tokens * l->hd, sizeof(float));
    s.tables = allocate(l->G * commvq_table_floats(commvq_code_of(side_of(l, CODEC_KEYS, 0))), sizeof(float));
    s.page = allocate(l->G * PAGE_TOKENS, sizeof(float));
    s.code_sums = allocate(code_sums, sizeof(float));
    return s;
}

static void free_scratch(struct scratch *s) {
    float *all[] = {s->logits, s->rows[0], s->rows[1], s->tables, s->page, s->code_sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
}

static struct layer make_layer(const struct cache_shape *shape, const char *method, size_t tokens) {
    struct layer l = {.shape = *shape, .G = shape->query_heads / shape->kv_heads, .hd = shape->head_dim};
    l.method = make_method(shape, method);
    struct terse_error error;
    must(cpu_codebook_prepare(l.method.learned, &l.codebook, &error), &error);
    l.pages = tokens / PAGE_TOKENS;
    for (int side = 0; side < 2; side++) {
        struct codec_shape s = side_of(&l, (enum codec_side)side, 0);
        struct random random = {1 + (uint64_t)side};
        l.bytes[side] = codec_page_bytes((side == CODEC_KEYS ? l.method.key : l.method.value).codec, s, (enum codec_side)side);
        l.memory[side] = allocate(shape->kv_heads * l.pages, l.bytes[side]);
        fill_bytes(&random, l.memory[side], shape->kv_heads * l.pages * l.bytes[side]);
    }
    size_t rounds = commvq_rounds(side_of(&l, CODEC_KEYS, 0)), q = shape->query_heads * l.hd;
    make_angles(&l);
    for (int i = 0; i < 2; i++) l.tables[i] = random_floats(rounds * COMMVQ_ENTRIES * l.hd / 2, 7 + (uint64_t)i);
    l.q = random_floats(q, 5);
    l.out = random_floats(q, 6);
    struct method half = make_method(shape, "f16");
    l.cache = make_cache(shape, &l.method, tokens);
    l.half = make_cache(shape, &half, tokens);
    for (int i = 0; i < threads; i++) l.scratch[i] = make_scratch(&l);
    return l;
}

static void free_layer(struct layer *l) {
    float *all[] = {l->cosine, l->sine, l->row_angles[0], l->row_angles[1], l->tables[0], l->tables[1], l->q, l->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
    memory_free(l->memory[0]);
    memory_free(l->memory[1]);
    for (int i = 0; i < threads; i++) free_scratch(&l->scratch[i]);
    cache_destroy(l->cache);
    cache_destroy(l->half);
    terse_codebook_free((struct terse_codebook *)l->method.learned);
}

/* ---- The caches */

/* Returns the processor time of all threads together, in seconds. Other load on the machine disturbs it less than wall-clock time. */
static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double attend_cache(struct layer *l, struct cache *cache) {
    size_t width = l->shape.kv_heads * l->hd;
    float *k = random_floats(width, 3);
    struct terse_error error;
    must(cache_begin(cache, CACHE_STEP_DECODE, 1, &error), &error);
    must(cache_append(cache, 0, k, k, &error), &error);
    double start = processor_seconds();
    must(cache_attend(cache, l->q, 0, 1, l->out, &error), &error);
    double seconds = processor_seconds() - start;
    must(cache_end_layer(cache, &error), &error);
    must(cache_commit(cache, &error), &error);
    memory_free(k);
    return seconds;
}

/* ---- The other variants: one thread computes a KV head */

static const uint8_t *page_at(const struct layer *l, enum codec_side side, size_t head, size_t i) {
    return l->memory[side] + (head * l->pages + i) * l->bytes[side];
}

static void softmax(const struct layer *l, float *logits) {
    size_t tokens = l->pages * PAGE_TOKENS;
    for (size_t g = 0; g < l->G; g++) {
        float *row = logits + g * tokens, sum;
        for (size_t t = 0; t < tokens; t++) row[t] *= l->shape.scale;
        sum = vector_ops()->exp_sum(row, vector_ops()->max(row, tokens), tokens);
        for (size_t t = 0; t < tokens; t++) row[t] /= sum;
    }
}

static void score_by_tables(const struct layer *l, uint32_t head, struct scratch *s) {
    struct codec_shape shape = side_of(l, CODEC_KEYS, head);
    size_t pairs = l->hd / 2, tokens = l->pages * PAGE_TOKENS;
    commvq_prepare(shape, l->q + head * l->G * l->hd, s->tables);
    for (size_t i = 0; i < l->pages; i++) {
        const struct key_rotation rotation = {.cosine = l->cosine + i * pairs * PAGE_TOKENS,
                                              .sine = l->sine + i * pairs * PAGE_TOKENS,
                                              .pairs = pairs,
                                              .adjacent = true};
        commvq_score_by_table(shape, s->tables, &rotation, page_at(l, CODEC_KEYS, head, i), s->page);
        for (size_t g = 0; g < l->G; g++)
            memcpy(s->logits + g * tokens + i * PAGE_TOKENS, s->page + g * PAGE_TOKENS, PAGE_TOKENS * sizeof(float));
    }
}

static void accumulate_by_codes(const struct layer *l, uint32_t head, struct scratch *s, float *out) {
    const struct codec *codec = l->method.value.codec;
    struct codec_shape shape = side_of(l, CODEC_VALUES, head);
    size_t tokens = l->pages * PAGE_TOKENS, code_sums = cpu_codec_code_sum_floats(cpu_codec_of(codec), shape);
    memset(out, 0, l->G * l->hd * sizeof *out);
    memset(s->code_sums, 0, code_sums * sizeof *s->code_sums);
    for (size_t i = 0; i < l->pages; i++) {
        for (size_t g = 0; g < l->G; g++)
            memcpy(s->page + g * PAGE_TOKENS, s->logits + g * tokens + i * PAGE_TOKENS, PAGE_TOKENS * sizeof(float));
        if (!code_sums) {
            cpu_codec_of(codec)->accumulate_values(shape, s->page, page_at(l, CODEC_VALUES, head, i), out);
            continue;
        }
        cpu_codec_of(codec)->code_sums->add(shape, s->page, page_at(l, CODEC_VALUES, head, i), s->code_sums);
        if ((i + 1) % RUN && i + 1 < l->pages) continue;
        cpu_codec_of(codec)->code_sums->finish(shape, s->code_sums, out);
        memset(s->code_sums, 0, code_sums * sizeof *s->code_sums);
    }
}

/* Computes rows[64][hd], a page's keys as sums of table rows, before rotation. */
static void sum_keys(const struct layer *l, uint32_t head, const uint8_t *page, float *rows) {
    const struct vector_ops *k = vector_ops();
    struct codec_shape shape = side_of(l, CODEC_KEYS, head);
    size_t pairs = l->hd / 2, rounds = commvq_rounds(shape);
    uint16_t codes[COMMVQ_MOST_ROUNDS][PAGE_TOKENS];
    float gains[PAGE_TOKENS], x[CODEC_HEAD_DIM_MAX];
    const float *mean = commvq_code_of(shape)->mean;
    commvq_gains(shape, page, gains);
    for (size_t r = 0; r < rounds; r++)
        code_planes_read((const uint8_t *)commvq_codes(page) + r * COMMVQ_PART, COMMVQ_BITS, codes[r]);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        memset(x, 0, l->hd * sizeof *x);
        for (size_t r = 0; r < rounds; r++) {
            size_t a = (r * COMMVQ_ENTRIES + codes[r][t] % COMMVQ_ENTRIES) * pairs,
                   b = (r * COMMVQ_ENTRIES + codes[r][t] / COMMVQ_ENTRIES) * pairs;
            k->axpy(1, l->tables[0] + a, x, pairs);
            k->axpy(1, l->tables[1] + a, x + pairs, pairs);
            k->axpy(-1, l->tables[1] + b, x, pairs);
            k->axpy(1, l->tables[0] + b, x + pairs, pairs);
        }
        for (size_t j = 0; j < pairs; j++) {
            rows[t * l->hd + 2 * j] = mean[2 * j] + gains[t] * x[j];
            rows[t * l->hd + 2 * j + 1] = mean[2 * j + 1] + gains[t] * x[pairs + j];
        }
    }
}

static void decode_head(const struct layer *l, enum variant variant, uint32_t head, struct scratch *s) {
    const struct cpu_codec *value = cpu_codec_of(l->method.value.codec);
    for (size_t i = 0; i < l->pages; i++) {
        float *keys = s->rows[0] + i * PAGE_TOKENS * l->hd;
        if (variant == DECODED)
            cpu_codec_commvq.decode(side_of(l, CODEC_KEYS, head), CODEC_KEYS, page_at(l, CODEC_KEYS, head, i), keys);
        else
            sum_keys(l, head, page_at(l, CODEC_KEYS, head, i), keys);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            size_t at = (i * PAGE_TOKENS + t) * l->hd / 2;
            rope_rotate(l->shape.rope, l->row_angles[0] + at, l->row_angles[1] + at, keys + t * l->hd, 1, (uint32_t)l->hd);
        }
        value->decode(side_of(l, CODEC_VALUES, head), CODEC_VALUES, page_at(l, CODEC_VALUES, head, i),
                      s->rows[1] + i * PAGE_TOKENS * l->hd);
    }
}

static void attend_head(const struct layer *l, enum variant variant, uint32_t head, struct scratch *s) {
    size_t tokens = l->pages * PAGE_TOKENS, hd = l->hd;
    const float *q = l->q + head * l->G * hd;
    float *out = l->out + head * l->G * hd;
    if (variant == TABLES) {
        score_by_tables(l, head, s);
        softmax(l, s->logits);
        accumulate_by_codes(l, head, s, out);
        return;
    }
    decode_head(l, variant, head, s);
    gemm(true, l->G, tokens, hd, q, hd, s->rows[0], hd, false, s->logits, tokens);
    softmax(l, s->logits);
    gemm(false, l->G, hd, tokens, s->logits, tokens, s->rows[1], hd, false, out, hd);
}

static double attend(struct layer *l, enum variant variant) {
    if (variant == SHIPPED || variant == EXACT) return attend_cache(l, variant == EXACT ? l->half : l->cache);
    double start = processor_seconds();
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (uint32_t head = 0; head < l->shape.kv_heads; head++) attend_head(l, variant, head, &l->scratch[omp_get_thread_num()]);
    return processor_seconds() - start;
}

/* ---- Timing */

static void bench(const char *title, const struct cache_shape *shape, const char *method, size_t tokens) {
    struct layer l = make_layer(shape, method, tokens);
    double seconds[VARIANTS];
    for (int variant = 0; variant < VARIANTS; variant++) seconds[variant] = attend(&l, (enum variant)variant); /* warm up */
    for (int pass = 0; pass < PASSES; pass++) {
        for (int variant = 0; variant < VARIANTS; variant++) {
            double start = clock_seconds();
            do seconds[variant] = fmin(seconds[variant], attend(&l, (enum variant)variant));
            while (clock_seconds() - start < SECONDS);
        }
    }
    printf("%-18s %-9s %7zu", title, method, tokens);
    for (int variant = 0; variant < VARIANTS; variant++) printf(" %9.3f", 1e3 * seconds[variant]);
    for (int variant = TABLES; variant < VARIANTS; variant++) printf(" %8.2f", seconds[variant] / seconds[SHIPPED]);
    printf("\n");
    fflush(stdout);
    free_layer(&l);
}

int main(int argc, char **argv) {
    static const char *const methods[] = {"commvq-1", "commvq-2"};
    size_t depths[16] = {8192, 32768, 131072}, n_depths = 3;
    threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
    if (threads < 1 || threads > MOST_THREADS || argc > 18) {
        fprintf(stderr, "usage: bench_commvq [THREADS [DEPTH...]] (at most 64 threads, 16 depths)\n");
        return 1;
    }
    omp_set_num_threads(threads);
    if (argc > 2) n_depths = 0;
    for (int i = 2; i < argc; i++) depths[n_depths++] = (size_t)atol(argv[i]) / PAGE_TOKENS * PAGE_TOKENS;

    static float frequency64[32], frequency128[64];
    struct rope rope64 = llama_rope(64, frequency64), rope128 = llama_rope(128, frequency128);
    const struct {
        const char *title;
        struct cache_shape shape;
    } shapes[] = {{"1B: 32 x 8 x 64", {1, 32, 8, 64, 0.125f, &rope64, .slopes = NULL}},
                  {"8B: 32 x 8 x 128", {1, 32, 8, 128, 0.0884f, &rope128, .slopes = NULL}},
                  {"lab: 6 x 2 x 128", {1, 6, 2, 128, 0.0884f, &rope128, .slopes = NULL}}};
    printf("commit %s\n", build_commit());
    printf("attention of one layer, one token, processor time of %d threads, %s kernels\n%-18s %-9s %7s %48s   %s\n", threads,
           cpu_isa_name(cpu_isa()), "", "", "", "milliseconds", "times as long as shipped");
    printf("%-18s %-9s %7s %9s %9s %9s %9s %9s %8s %8s %8s %8s\n", "shape", "method", "tokens", "shipped", "tables", "decoded",
           "summed", "f16", "tables", "decoded", "summed", "f16");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t m = 0; m < 2; m++)
            for (size_t d = 0; d < n_depths; d++)
                if (depths[d]) bench(shapes[i].title, &shapes[i].shape, methods[m], depths[d]);
    return 0;
}
