/* base/memory that counts and refuses: included by one source file of a test program, it takes the place of the library's. */
#ifndef TERSE_TESTS_SUPPORT_COUNTING_MEMORY_H
#define TERSE_TESTS_SUPPORT_COUNTING_MEMORY_H

#include "base/memory.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Threads that compute allocate, too. */
static atomic_size_t live_bytes, allocations;
static size_t allowed = SIZE_MAX; /* of allocations: the next one is refused when so many were made */

/* The size lies before the memory. */
void *memory_array(size_t count, size_t size) {
    void *memory;
    if (allocations == allowed) return NULL;
    if (posix_memalign(&memory, MEMORY_ALIGN, MEMORY_ALIGN + count * size)) return NULL;
    *(size_t *)memory = count * size;
    live_bytes += count * size;
    allocations++;
    return (char *)memory + MEMORY_ALIGN;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) {
    if (!memory) return;
    size_t *size = (size_t *)((char *)memory - MEMORY_ALIGN);
    live_bytes -= *size;
    free(size);
}

#endif
