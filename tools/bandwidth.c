/* Reads a buffer that no cache holds, as fast as the machine can. The reader is the C library's memchr, looking for a byte that is not
 * there: it uses the processor's widest registers, chosen at run time, and reads up to a fifth faster than a loop compiled for the baseline. */
#include "bandwidth.h"

#include "apart.h"
#include "console.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEAST_PASSES = 4, MOST_PASSES = 12 };
#define ENOUGH 0.4 /* seconds of passes: behind a large cache one takes a tenth, and is by itself a mean over as long */
#define HUGE_PAGE ((size_t)2 << 20)
#define PART ((size_t)64 << 20) /* bytes between two looks for an interrupt */

/* Returns the number that begins what the system's file says of the last-level cache of a processor, -1 where there is no such file. */
static long cache_number(long processor, const char *name) {
    char path[96];
    long number = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index3/%s", processor, name);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%ld", &number) != 1) number = -1;
    fclose(file);
    return number;
}

/* Returns the bytes of the last-level caches of this machine's processors, 0 where the system does not say. sysconf would say those of the whole
 * socket, of which a virtual machine may have few. */
static uint64_t cache_bytes(void) {
    uint64_t bytes = 0;
    for (long processor = 0; processor < sysconf(_SC_NPROCESSORS_CONF); processor++) {
        if (cache_number(processor, "shared_cpu_list") != processor) continue; /* others share this one's, which is counted */
        long kib = cache_number(processor, "size");
        if (kib > 0) bytes += (uint64_t)kib << 10;
    }
    return bytes;
}

/* Returns four times the last-level caches, but no less than 256 MiB and no more than an eighth of the memory. */
static size_t buffer_bytes(void) {
    uint64_t bytes = 256u << 20, caches = cache_bytes();
    if (caches * 4 > bytes) bytes = caches * 4;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    if (pages > 0 && page > 0 && bytes > (uint64_t)pages * (uint64_t)page / 8) bytes = (uint64_t)pages * (uint64_t)page / 8;
    return (size_t)bytes;
}

/* Gives the buffer its memory. Returns false after an interrupt. */
static bool fill_zeros(char *buffer, size_t n, int threads) {
    for (size_t at = 0; at < n; at += PART) {
        size_t bytes = n - at < PART ? n - at : PART;
        if (console_interrupted()) return false;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
        for (int i = 0; i < threads; i++) {
            size_t first = bytes * (size_t)i / (size_t)threads, end = bytes * ((size_t)i + 1) / (size_t)threads;
            memset(buffer + at + first, 0, end - first);
        }
    }
    return true;
}

/* Reads the buffer by counting the bytes of value 1, of which a buffer of zeros has none. */
static size_t count_ones(const char *buffer, size_t n, int threads) {
    size_t found = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(+ : found)
    for (int i = 0; i < threads; i++) {
        size_t first = n / (size_t)threads * (size_t)i;
        found += memchr(buffer + first, 1, n / (size_t)threads) != NULL;
    }
    return found;
}

struct measurement {
    int threads;
    double best; /* bytes a second */
};

static void measure(void *user) {
    struct measurement *m = user;
    int threads = m->threads;
    const size_t n = buffer_bytes() / HUGE_PAGE * HUGE_PAGE;
    char *buffer = aligned_alloc(HUGE_PAGE, n);
    if (!buffer) return;
#ifdef MADV_HUGEPAGE
    madvise(buffer, n, MADV_HUGEPAGE); /* as the cache's memory has; small ones take longer to get than to read twelve times */
#endif
    bool filled = fill_zeros(buffer, n, threads);
    const double first = console_seconds();
    for (int pass = 0; filled && pass < MOST_PASSES && !console_interrupted(); pass++) {
        double start = console_seconds();
        if (pass >= LEAST_PASSES && start - first > ENOUGH) break;
        size_t found = count_ones(buffer, n, threads);
        double rate = (double)n / (console_seconds() - start);
        if (found == 0 && rate > m->best) m->best = rate;
    }
    free(buffer);
}

double bandwidth_measure(int threads) {
    struct measurement m = {threads, 0};
    run_apart(measure, &m);
    return m.best;
}
