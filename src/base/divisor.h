/* Computes the greatest common divisor. */
#ifndef TERSE_BASE_DIVISOR_H
#define TERSE_BASE_DIVISOR_H

#include <stdint.h>

/* Returns the greatest common divisor of a and b; that of a and 0 is a. Negative numbers may give a negative one. */
static inline int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
