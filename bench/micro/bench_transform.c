/* Times the kernels of the codec transform on pages of keys and of values beside those of f16 and q4_0: nanoseconds for each token
 * and KV head, of one thread, and how many times faster than f16 of the same tier in the same run.
 *
 *     bench_transform [ROWS]        queries of a KV head, 4 without it
 *
 * It measures once on pages that are read from memory and once on pages that stay in the second cache. Kinds take turns; the
 * fastest round of each counts. */
#include "format/page_layout.h"
#include "support/kernel_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES ((size_t)192 << 20) /* of a side: exceeds what a thread has of the caches */
#define CACHE_BYTES ((size_t)128 << 10)
#define ROUNDS 7
#define MOST_ROWS 16
#define MOST_HD 128

static const struct kind {
    const char *name;
    double rate; /* bits of a component, of the transform */
} kinds[] = {{"f16", 0}, {"q4_0", 0}, {"transform 4", 4}, {"transform 3", 3}, {"transform 2", 2}, {"transform 1", 1}};
#define KINDS (sizeof kinds / sizeof *kinds)

/* Makes sizes of components like those of models: bits fall from several to none. */
static void make_layout(double rate, size_t hd, struct transform_layout *layout) {
    float size[MOST_HD];
    uint8_t quad_bits[MOST_HD / TRANSFORM_QUAD];
    for (size_t c = 0; c < hd; c++) size[c] = exp2f(-8 * (float)c / (float)hd);
    struct transform_share share = {.size = size, .quad_bits = quad_bits};
    if (transform_share_bits(&share, 1, (uint32_t)hd, rate, NULL)) {
        fprintf(stderr, "bench_transform: no memory\n");
        exit(1);
    }
    transform_layout_set(quad_bits, (uint32_t)hd, layout);
}

struct work {
    const struct tier *k;
    const struct kind *kind;
    size_t rows, hd, page_bytes;
    struct transform_layout layout;
    struct transform_query queries[MOST_ROWS];
    float steps[TRANSFORM_PLANES_MAX];
    int32_t bias[TRANSFORM_PLANES_MAX];
    _Alignas(4) int8_t bytes[TRANSFORM_PLANES_MAX * 4];
    uint8_t weights[MOST_ROWS * PAGE_TOKENS];
    float in[MOST_ROWS * MOST_HD], tables[MOST_ROWS * MOST_HD], scales[MOST_ROWS];
    _Alignas(64) float out[MOST_ROWS * MOST_HD], sums[MOST_ROWS * TRANSFORM_PLANES_MAX * TRANSFORM_SUM_LANES];
    double keys, values; /* seconds of the fastest round */
};

static void score_page(struct work *w, const uint8_t *page) {
    float gains[PAGE_TOKENS];
    if (w->kind->rate > 0) {
        w->k->transform->gains(page, 0.5f, 0.01f, gains);
        w->k->transform->score(&w->layout, page + PAGE_TOKENS, gains, w->queries, w->rows, w->out);
    } else if (w->kind == kinds) {
        w->k->scaled->score_f16(w->in, w->rows, w->hd, page, w->out);
    } else {
        w->k->scaled->score_q4_0(w->tables, w->rows, w->hd, page, w->out);
    }
}

static void accumulate_page(struct work *w, const uint8_t *page) {
    float gains[PAGE_TOKENS];
    if (w->kind->rate > 0) {
        w->k->transform->gains(page, 0.5f, 0.01f, gains);
        w->k->transform->accumulate(&w->layout, page + PAGE_TOKENS, w->weights, w->scales, w->rows, w->sums);
    } else if (w->kind == kinds) {
        w->k->scaled->accumulate_f16(w->in, w->rows, w->hd, page, w->out);
    } else {
        w->k->scaled->accumulate_int8_q4_0(w->in, w->rows, w->hd, page, w->out);
    }
}

/* Returns the seconds of a page, from `passes` over data[bytes]. */
static double seconds(struct work *w, void (*each)(struct work *, const uint8_t *), const uint8_t *data, size_t bytes,
                      size_t passes) {
    size_t pages = bytes / w->page_bytes;
    double start = clock_seconds();
    for (size_t pass = 0; pass < passes; pass++)
        for (size_t page = 0; page < pages; page++) each(w, data + page * w->page_bytes);
    return (clock_seconds() - start) / (double)(pages * passes);
}

static void make_work(const struct tier *k, const struct kind *kind, size_t rows, size_t hd, struct work *w) {
    struct random random = {7};
    memset(w, 0, sizeof *w);
    w->k = k, w->kind = kind, w->rows = rows, w->hd = hd;
    w->page_bytes = kind == kinds ? PAGE_BYTES_F16(hd) : PAGE_BYTES_Q4_0(hd);
    if (kind->rate > 0) {
        make_layout(kind->rate, hd, &w->layout);
        w->page_bytes = PAGE_BYTES_TRANSFORM(w->layout.nibbles);
    }
    fill_bytes(&random, w->bytes, sizeof w->bytes);
    fill_bytes(&random, w->weights, sizeof w->weights);
    for (size_t i = 0; i < MOST_ROWS; i++) w->queries[i] = (struct transform_query){0, w->steps, w->bias, w->bytes};
    for (size_t i = 0; i < TRANSFORM_PLANES_MAX; i++) w->steps[i] = 0x1p-20f;
    for (size_t i = 0; i < MOST_ROWS * MOST_HD; i++) w->in[i] = (float)(i % 7) / 64;
    k->scaled->prepare_q4_0(w->in, rows, hd, w->tables);
    w->keys = w->values = INFINITY;
}

static void bench(const struct tier *k, size_t rows, size_t hd, const uint8_t *data, const char *from, size_t bytes) {
    static struct work work[KINDS];
    size_t passes = bytes == MEMORY_BYTES ? 1 : 64;
    for (size_t i = 0; i < KINDS; i++) make_work(k, &kinds[i], rows, hd, &work[i]);
    for (int round = 0; round < ROUNDS; round++) {
        for (struct work *w = work; w < work + KINDS; w++) {
            w->keys = fmin(w->keys, seconds(w, score_page, data, bytes, passes));
            w->values = fmin(w->values, seconds(w, accumulate_page, data + MEMORY_BYTES, bytes, passes));
        }
    }
    for (struct work *w = work; w < work + KINDS; w++)
        printf("%-7s %3zu %-7s %-12s %6u %6.2f %8.2f %8.2f %8.2f %7.2f\n", k->name, hd, from, w->kind->name, w->layout.planes,
               (double)w->page_bytes * 8 / PAGE_TOKENS / (double)hd, w->keys / PAGE_TOKENS * 1e9, w->values / PAGE_TOKENS * 1e9,
               (w->keys + w->values) / PAGE_TOKENS * 1e9, (work->keys + work->values) / (w->keys + w->values));
    fflush(stdout);
}

int main(int argc, char **argv) {
    const size_t rows = argc > 1 ? (size_t)atol(argv[1]) : 4, pattern = (size_t)1 << 20;
    uint8_t *data = aligned_alloc(64, 2 * MEMORY_BYTES);
    struct random random = {9};
    if (!data || rows < 1 || rows > MOST_ROWS) {
        fprintf(stderr, "usage: bench_transform [ROWS] (1 to %d; half a gigabyte of memory)\n", MOST_ROWS);
        return 1;
    }
    fill_halves(&random, FILL_NORMAL, (uint16_t *)data, pattern / 2);
    for (size_t i = pattern; i < 2 * MEMORY_BYTES; i += pattern) memcpy(data + i, data, pattern);
    printf("%zu queries; ns for each token and KV head\n%-7s %3s %-7s %-12s %6s %6s %8s %8s %8s %7s\n", rows, "tier", "hd", "from",
           "codec", "planes", "bits", "keys", "values", "both", "faster");
    const struct tier *k;
    for (size_t tier = 1; (k = tier_at(tier)); tier++) {
        for (size_t hd = MOST_HD; hd >= 64; hd -= 64) {
            bench(k, rows, hd, data, "memory", MEMORY_BYTES);
            bench(k, rows, hd, data, "cache", CACHE_BYTES);
        }
    }
    free(data);
    return 0;
}
