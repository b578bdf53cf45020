/* Finds numbers that are not finite, by a loop that compilers turn into vector instructions. */
#ifndef TERSE_BASE_FINITE_H
#define TERSE_BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns whether none of x[n] is NaN or infinite. All exponent bits of such a number are set; adding 1 to the lowest of them carries into the
 * place of the sign. */
static inline bool all_finite(const float *x, size_t n) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= (bits & 0x7fffffff) + 0x00800000;
    }
    return !(any >> 31);
}

#endif
