/* Aligned memory. The system's allocator underneath, so that leak and bounds checkers see every piece. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void *memory_array(size_t count, size_t size) {
    void *memory = NULL;
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    if (posix_memalign(&memory, MEMORY_ALIGN, bytes ? bytes : 1)) return NULL;
    return memory;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) { free(memory); }
