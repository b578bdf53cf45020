/* Owns: a plain read loop over a buffer that no cache holds. */
#include "bandwidth.h"

#include "console.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { PASSES = 12 };

static volatile uint64_t last_sum; /* keeps the reading from being optimised away */

/* Four times the last-level cache, or 256 MiB where the system does not say, but no more than an eighth of the memory. */
static size_t buffer_words(void) {
    uint64_t bytes = 256u << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && (uint64_t)cache * 4 > bytes) bytes = (uint64_t)cache * 4;
#endif
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    if (pages > 0 && page > 0 && bytes > (uint64_t)pages * (uint64_t)page / 8) bytes = (uint64_t)pages * (uint64_t)page / 8;
    return bytes / sizeof(uint64_t);
}

static uint64_t sum_words(const uint64_t *words, size_t n, int threads) {
    uint64_t sum = 0;
#pragma omp parallel for simd schedule(static) num_threads(threads) reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += words[i];
    return sum;
}

double bandwidth_measure(int threads) {
    size_t n = buffer_words();
    uint64_t *words = malloc(n * sizeof *words);
    double best = 0;
    if (!words) return 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t i = 0; i < n; i++) words[i] = i;
    for (int pass = 0; pass < PASSES && !console_interrupted(); pass++) {
        double start = console_seconds();
        last_sum = sum_words(words, n, threads);
        double rate = (double)(n * sizeof *words) / (console_seconds() - start);
        if (rate > best) best = rate;
    }
    free(words);
    return best;
}
