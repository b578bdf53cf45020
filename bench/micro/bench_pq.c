/* Times every way to read product-quantized keys and values, over the caches of several layers, so that memory bandwidth counts:
 * time per token and KV head as a share of f16's for the same side in the same run, below 1 where it is faster.
 * src/backend/cpu/codec/pq.c chooses by these figures.
 *
 *     bench_pq [all|short] [THREADS [TOKENS]]         8192 tokens
 *
 * Keys are read by look-up in a query's tables, which are made once for all tokens of a head; the same in 16-bit integers
 * (score_i16); and by decoding once for all queries. Values are decoded once for all queries, and weights accumulated by code, with
 * the codebook read once for 32 pages. */
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "base/memory.h"
#include "format/page_layout.h"
#include "support/kernel_check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef LAYERS
#define LAYERS 32
#endif
#define HEADS 8
#define RUN 32 /* pages between two calls of finish_code_sums */
#define RUNS 4 /* the fastest counts */

static int threads;
static size_t tokens = 8192;

static void *allocate(size_t bytes) {
    void *memory = memory_array(bytes, 1);
    if (memory) return memory;
    fprintf(stderr, "bench_pq: no memory for %zu bytes: use fewer tokens\n", bytes);
    exit(1);
}

enum operation {
    SCORE_F16,
    ACCUMULATE_F16,
    SCORE_Q8_0,
    ACCUMULATE_Q8_0,
    SCORE_Q4_0,
    ACCUMULATE_Q4_0,
    LOOK_UP,
    SCORE_I16,
    DECODE,
    ACCUMULATE,
    BY_CODE
};

struct bench {
    size_t G, hd, width;
    unsigned bits;
    struct pq_codebook codes[LAYERS * HEADS];
    char *halves, *pages; /* [LAYERS][HEADS][pages of a head]: f16's and the others' */
};

static size_t page_bytes(const struct bench *b, enum operation operation) {
    if (operation <= ACCUMULATE_F16) return PAGE_BYTES_F16(b->hd);
    if (operation <= ACCUMULATE_Q8_0) return PAGE_BYTES_Q8_0(b->hd);
    if (operation <= ACCUMULATE_Q4_0) return PAGE_BYTES_Q4_0(b->hd);
    return PAGE_BYTES_PQ(b->hd / b->width, b->bits);
}

/* A scratch is the workspace of one thread. */
struct scratch {
    float *q, *tables, *channels, *logits, *weights, *code_sums, *acc;
};

static struct scratch make_scratch(const struct bench *b) {
    size_t table = b->width ? pq_table_floats(&b->codes[0], b->G) : 0;
    struct scratch s = {
        allocate(b->G * b->hd * 4),       allocate(table * 4), allocate(b->hd * PAGE_TOKENS * 4), allocate(b->G * PAGE_TOKENS * 4),
        allocate(b->G * PAGE_TOKENS * 4), allocate(table * 4), allocate(b->G * b->hd * 4)};
    for (size_t i = 0; i < b->G * b->hd; i++) s.q[i] = (float)(i % 7) / 64, s.acc[i] = 0;
    for (size_t i = 0; i < b->G * PAGE_TOKENS; i++) s.weights[i] = (float)(i % 11) / 64;
    memset(s.code_sums, 0, table * 4);
    return s;
}

static void free_scratch(struct scratch *s) {
    float *all[] = {s->q, s->tables, s->channels, s->logits, s->weights, s->code_sums, s->acc};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
}

static void read_page(const struct bench *b, enum operation operation, const struct pq_codebook *p, const char *page,
                      const struct scratch *s) {
    size_t G = b->G, hd = b->hd;
    switch (operation) {
    case SCORE_F16: scaled_ops()->score_f16(s->q, G, hd, page, s->logits); break;
    case SCORE_Q8_0: scaled_ops()->score_q8_0(s->q, G, hd, page, s->logits); break;
    case SCORE_Q4_0: scaled_ops()->score_q4_0(s->q, G, hd, page, s->logits); break;
    case ACCUMULATE_F16: scaled_ops()->accumulate_f16(s->weights, G, hd, page, s->acc); break;
    case ACCUMULATE_Q8_0: scaled_ops()->accumulate_q8_0(s->weights, G, hd, page, s->acc); break;
    case ACCUMULATE_Q4_0: scaled_ops()->accumulate_q4_0(s->weights, G, hd, page, s->acc); break;
    case LOOK_UP: pq_ops()->look_up(p, s->tables, G, page, s->logits); break;
    case SCORE_I16: pq_ops()->score_i16(p, s->tables, G, page, s->logits); break;
    case DECODE: pq_ops()->score(p, s->q, G, page, s->logits); break;
    case ACCUMULATE: pq_ops()->accumulate(p, s->weights, G, page, s->acc); break;
    case BY_CODE: pq_ops()->accumulate_by_code(p, s->weights, G, page, s->code_sums); break;
    }
}

/* Returns nanoseconds per token and KV head, summed over the threads. */
static double time_operation(const struct bench *b, enum operation operation) {
    const struct pq_ops *k = pq_ops();
    size_t bytes = page_bytes(b, operation), pages = tokens / PAGE_TOKENS;
    double best = INFINITY;
    for (int run = 0; run < RUNS; run++) {
        double start = 0;
#pragma omp parallel num_threads(threads)
        {
            struct scratch s = make_scratch(b);
#pragma omp barrier
#pragma omp single
            start = clock_seconds();
#pragma omp for schedule(dynamic, 1)
            for (size_t head = 0; head < LAYERS * HEADS; head++) {
                const struct pq_codebook *p = &b->codes[head];
                if (operation == LOOK_UP) k->prepare(p, s.q, b->G, s.tables);
                if (operation == SCORE_I16) k->quantize_query(p, s.q, b->G, s.tables);
                for (size_t i = 0; i < pages; i++) {
                    read_page(b, operation, p, (operation <= ACCUMULATE_F16 ? b->halves : b->pages) + (head * pages + i) * bytes,
                              &s);
                    if (operation != BY_CODE || ((i + 1) % RUN && i + 1 < pages)) continue;
                    k->finish_code_sums(p, s.code_sums, b->G, s.acc);
                    memset(s.code_sums, 0, pq_table_floats(p, b->G) * sizeof *s.code_sums);
                }
            }
#pragma omp single
            best = fmin(best, clock_seconds() - start);
            free_scratch(&s);
        }
    }
    return 1e9 * best * threads / (double)(LAYERS * HEADS * pages * PAGE_TOKENS);
}

/* Makes centroids and codes: every layer and head has its own centroids, as in a codebook. */
static void make_codes(struct bench *b) {
    size_t parts = b->hd / b->width, k = (size_t)1 << b->bits, plane = PQ_CHANNEL_ENTRIES(b->bits);
    for (size_t i = 0; i < LAYERS * HEADS; i++) {
        uint16_t *rows = allocate(k * b->hd * sizeof *rows);
        for (size_t j = 0; j < k * b->hd; j++) rows[j] = (uint16_t)(0x2000 + j % 4096); /* halves near 0.01 */
        b->codes[i] = (struct pq_codebook){.parts = parts, .width = b->width, .bits = b->bits, .rows = rows};
        bool by_row = b->bits > PQ_CHANNEL_BITS;
        if (!pq_may_read_u8(b->width, b->bits)) continue;
        uint8_t *centroids_u8 = allocate(b->hd * plane);
        float *low = allocate(b->hd * sizeof *low), *step = allocate(b->hd * sizeof *step), *from = allocate(b->hd * sizeof *from);
        for (size_t j = 0; j < b->hd * plane; j++) centroids_u8[j] = (uint8_t)(j % 251);
        for (size_t c = 0; c < b->hd; c++) low[c] = -0x1p-6f, step[c] = 0x1p-13f, from[c] = low[c] - 0x1p17f * step[c];
        *(by_row ? &b->codes[i].centroid_rows_u8 : &b->codes[i].centroids_u8) = centroids_u8;
        b->codes[i].low = low;
        b->codes[i].step = step;
        b->codes[i].from = from;
        if (!pq_ops()->reads_rows_i16 || by_row || b->width % 2) continue;
        int16_t *words = allocate(k * b->hd * sizeof *words);
        for (size_t j = 0; j < k * b->hd; j++) words[j] = (int16_t)(j % 251);
        b->codes[i].rows_i16 = words;
    }
}

static void free_codes(struct bench *b) {
    for (size_t i = 0; i < LAYERS * HEADS; i++) {
        memory_free((void *)b->codes[i].rows);
        memory_free((void *)b->codes[i].centroids_u8);
        memory_free((void *)b->codes[i].rows_i16);
        memory_free((void *)b->codes[i].centroid_rows_u8);
        memory_free((void *)b->codes[i].low);
        memory_free((void *)b->codes[i].step);
        memory_free((void *)b->codes[i].from);
        b->codes[i] = (struct pq_codebook){0};
    }
}

static void bench_code(struct bench *b, size_t width, unsigned bits) {
    static const enum operation operations[] = {LOOK_UP, SCORE_I16, DECODE, ACCUMULATE, BY_CODE};
    b->width = width;
    b->bits = bits;
    make_codes(b);
    double keys = time_operation(b, SCORE_F16), values = time_operation(b, ACCUMULATE_F16), ratio[5];
    for (size_t i = 0; i < 5; i++) {
        bool too_large = (operations[i] == LOOK_UP || operations[i] == BY_CODE) && pq_table_floats(&b->codes[0], b->G) > 1 << 20;
        bool fixed = pq_ops()->has_register_lut ? pq_reads_u8(&b->codes[0]) : b->codes[0].rows_i16 != NULL;
        bool none = operations[i] == SCORE_I16 && !fixed;
        ratio[i] = too_large || none ? NAN : time_operation(b, operations[i]) / (operations[i] < ACCUMULATE ? keys : values);
    }
    printf("%3zu %2zu %4zu x %2u %6.3f %8.1f %8.1f", b->hd, b->G, width, bits, (double)bits / (double)width, keys, values);
    for (size_t i = 0; i < 5; i++) {
        if (isnan(ratio[i]))
            printf(" %8s", "-");
        else
            printf(" %8.2f", ratio[i]);
    }
    printf("\n");
    fflush(stdout);
    free_codes(b);
}

static void bench_shape(size_t hd, size_t G, bool all) {
    static const struct {
        size_t width;
        unsigned bits;
        bool named; /* some method uses it */
    } codes[] = {{2, 8, true},   {4, 8, true},  {8, 8, true},   {16, 8, false}, {32, 8, false},
                 {2, 12, false}, {4, 12, true}, {8, 12, false}, {16, 12, true}, {32, 12, true}};
    struct bench b = {.G = G, .hd = hd};
    size_t bytes = LAYERS * HEADS * tokens * hd * 2;
    b.halves = allocate(bytes);
    b.pages = allocate(bytes);
    struct random random = {1};
    fill_bytes(&random, b.pages, (size_t)1 << 20);
    fill_halves(&random, FILL_NORMAL, (uint16_t *)b.halves, (size_t)1 << 19);
    for (size_t at = (size_t)1 << 20; at < bytes; at += (size_t)1 << 20) {
        memcpy(b.pages + at, b.pages, (size_t)1 << 20);
        memcpy(b.halves + at, b.halves, (size_t)1 << 20);
    }
    double keys = time_operation(&b, SCORE_F16), values = time_operation(&b, ACCUMULATE_F16);
    printf("%3zu %2zu q8_0 %16s %8.1f %8.1f %8s %8s %8.2f %8.2f\n", hd, G, "", keys, values, "", "",
           time_operation(&b, SCORE_Q8_0) / keys, time_operation(&b, ACCUMULATE_Q8_0) / values);
    printf("%3zu %2zu q4_0 %16s %8.1f %8.1f %8s %8s %8.2f %8.2f\n", hd, G, "", keys, values, "", "",
           time_operation(&b, SCORE_Q4_0) / keys, time_operation(&b, ACCUMULATE_Q4_0) / values);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (all || codes[i].named) bench_code(&b, codes[i].width, codes[i].bits);
    memory_free(b.halves);
    memory_free(b.pages);
}

int main(int argc, char **argv) {
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    threads = argc > 2 ? atoi(argv[2]) : omp_get_num_procs();
    if (argc > 3) tokens = (size_t)atol(argv[3]) / PAGE_TOKENS * PAGE_TOKENS;
    if ((argc > 1 && !all && strcmp(argv[1], "short") != 0) || threads < 1 || !tokens) {
        fprintf(stderr, "usage: bench_pq [all|short] [THREADS [TOKENS]]\n");
        return 1;
    }
    printf("%d threads, %s kernels, %zu tokens, %d layers of %d KV heads; ns of one thread per token and KV head, then shares of "
           "f16's\n",
           threads, cpu_isa_name(cpu_isa()), tokens, LAYERS, HEADS);
    printf("%3s %2s %4s x %2s %6s %8s %8s %8s %8s %8s %8s %8s\n", "hd", "G", "w", "", "bits", "f16 keys", "values", "look up",
           "i16", "decode", "accum", "by code");
    static const size_t groups[] = {1, 3, 4, 8};
    for (size_t hd = 64; hd <= 128; hd += 64)
        for (size_t i = 0; i < 4; i++)
            if (all || groups[i] == 4) bench_shape(hd, groups[i], all);
    return 0;
}
