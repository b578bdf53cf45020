/* Allocates aligned memory and computes sizes without overflow. */
#ifndef TERSE_BASE_MEMORY_H
#define TERSE_BASE_MEMORY_H

#include "base/status.h"

#define MEMORY_ALIGN 64 /* bytes: a cache line and the widest register */

/* Returns `count * size` bytes aligned to MEMORY_ALIGN, not cleared; NULL when refused or when the product overflows. count 0 gives a
 * valid pointer. memory_free releases it. */
void *memory_array(size_t count, size_t size);
/* Does the same as memory_array, with the memory cleared. */
void *memory_zeros(size_t count, size_t size);
void memory_free(void *memory);

static inline size_t memory_round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
