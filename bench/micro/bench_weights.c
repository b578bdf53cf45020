/* Times the products of quantized weights with a few vectors in every tier that the processor has, by turns with a plain read of the same
 * memory: bytes of weights per second from memory, as a share of what the read gets, and from the second-level cache, where nothing
 * but the arithmetic counts.
 *
 *     bench_weights [THREADS [TYPE [VECTORS]]]     1 thread; types as GGUF names them, say Q4_0; all that have blocks; 1 vector, at most 16
 *
 * Rows have 2,048 and 8,192 weights, as LLaMA-3.2-1B's. One thread is measured in processor time, which others' work does not
 * change.
 */
#include "base/memory.h"
#include "support/kernel_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMORY ((size_t)1 << 30) /* more than any cache */
#define PIECES 8                 /* of it: a turn reads one, which other turns have driven out of the caches */
#define CACHE ((size_t)1 << 19)  /* of each thread */
#define PATTERN ((size_t)1 << 22)
#define VECTORS_MOST 16
#define TURNS 40 /* the fastest counts: it is short, so that other load on the machine does not slow all of them */

static int threads = 1;
static size_t vectors = 1;
static unsigned char *data;
static float x[VECTORS_MOST * 8192], *y;
static void *fixed; /* of the vectors */

static double seconds(void) {
    struct timespec now;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the bytes per second of `repeats` reads of from[bytes], each thread its part: a plain read when there is no product. */
static double rate_of(const struct weights_ops *ops, enum tensor_type type, size_t n, const unsigned char *from, size_t bytes,
                      size_t repeats) {
    const size_t row_bytes = ops ? n / tensor_type_info(type)->block * tensor_type_info(type)->bytes : 512,
                 rows = bytes / row_bytes;
    const void *of[VECTORS_MOST];
    for (size_t t = 0; t < vectors; t++) of[t] = x + t * 8192;
    for (size_t t = 0; ops && ops->fix[type] && t < vectors; t++) {
        char *own = (char *)fixed + t * ops->fixed_bytes[type](8192);
        ops->fix[type](x + t * 8192, n, own);
        of[t] = own;
    }
    double start = seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; thread++) {
        size_t first = rows * (size_t)thread / (size_t)threads, count = rows * (size_t)(thread + 1) / (size_t)threads - first;
        const unsigned char *w = from + first * row_bytes;
        for (size_t i = 0; i < repeats; i++) {
            if (ops)
                ops->matmul[type](w, row_bytes, count, n, of, vectors, y + first, rows);
            else
                y[first] = vector_ops()->max((const float *)(const void *)w, count * row_bytes / sizeof(float));
        }
    }
    return (double)(rows * row_bytes * repeats) / (seconds() - start);
}

static void keep_larger(double *best, double rate) {
    if (rate > *best) *best = rate;
}

static void bench(enum tensor_type type, size_t n) {
    double read = 0, memory[CPU_ISAS] = {0}, cache[CPU_ISAS] = {0};
    const struct tier *k;
    for (size_t turn = 0, at = 0; turn < TURNS; turn++) {
        keep_larger(&read, rate_of(NULL, TENSOR_F32, 0, data + at++ % PIECES * (MEMORY / PIECES), MEMORY / PIECES, 1));
        for (size_t tier = 1; (k = tier_at(tier)); tier++) {
            const unsigned char *piece = data + at++ % PIECES * (MEMORY / PIECES);
            keep_larger(&memory[tier], rate_of(k->weights, type, n, piece, MEMORY / PIECES, 1));
            keep_larger(&cache[tier], rate_of(k->weights, type, n, data, CACHE * (size_t)threads, 8));
        }
    }
    for (size_t tier = 1; (k = tier_at(tier)); tier++)
        printf("%-5s n %4zu %-7s from memory %5.1f GB/s, %3.0f%% of %.1f; from cache %5.1f GB/s\n", tensor_type_info(type)->name, n,
               k->name, memory[tier] * 1e-9, 100 * memory[tier] / read, read * 1e-9, cache[tier] * 1e-9);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1) threads = atoi(argv[1]);
    if (argc > 3) vectors = (size_t)atoi(argv[3]);
    data = memory_array(MEMORY, 1);
    y = memory_array(VECTORS_MOST * MEMORY / 512, sizeof *y);
    fixed = memory_array(VECTORS_MOST, 8192 * 8);
    if (threads < 1 || vectors < 1 || vectors > VECTORS_MOST || !data || !y || !fixed) {
        fprintf(stderr, "usage: bench_weights [THREADS [TYPE [VECTORS]]], with %zu MiB of memory\n", MEMORY >> 20);
        return 1;
    }
    struct random random = {7};
    fill_bytes(&random, data, PATTERN);
    for (size_t i = 1; i < PATTERN; i += 2) data[i] &= 0xbf; /* every half finite */
    for (size_t i = PATTERN; i < MEMORY; i += PATTERN) memcpy(data + i, data, PATTERN);
    fill_floats(&random, FILL_NORMAL, x, VECTORS_MOST * 8192);
    printf("products with %zu vectors, %d threads\n", vectors, threads);
    for (int i = 0; i < TENSOR_TYPES; i++) {
        const struct tensor_type_info *type = tensor_type_info((enum tensor_type)i);
        if (!type || type->block == 1 || !weights_ops()->matmul[i] || (argc > 2 && strcmp(argv[2], type->name) != 0)) continue;
        for (size_t b = 0; b < MEMORY && i == TENSOR_MXFP4; b++) data[b] = (data[b] & 31) | 96; /* no product is subnormal */
        bench((enum tensor_type)i, 2048);
        bench((enum tensor_type)i, 8192);
    }
    memory_free(data);
    memory_free(y);
    memory_free(fixed);
    return 0;
}
