/* Returns the lesser and the greater of two sizes. */
#ifndef TERSE_BASE_SIZE_H
#define TERSE_BASE_SIZE_H

#include <stddef.h>

static inline size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t size_max(size_t a, size_t b) { return a > b ? a : b; }

#endif
