/* Allocates aligned memory from the system's allocator, so that leak and bounds checkers see every allocation. */
#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_LEAST (2 * HUGE_PAGE)

/* Asks for huge pages: a cache is read in pieces that lie far apart, and the processor's TLB holds few of the system's small
 * pages. */
static void advise_huge_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a refusal costs only time */
#else
    (void)memory, (void)bytes;
#endif
}

void *memory_array(size_t count, size_t size) {
    void *memory = NULL;
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    bool large = bytes >= HUGE_LEAST;
    if (posix_memalign(&memory, large ? HUGE_PAGE : MEMORY_ALIGN, bytes ? bytes : 1)) return NULL;
    if (large) advise_huge_pages(memory, bytes);
    return memory;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) { free(memory); }
