/* Reads a clock that only goes forward. */
#ifndef TERSE_BASE_CLOCK_H
#define TERSE_BASE_CLOCK_H

#include <time.h>

static inline double clock_now(void) { /* seconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
