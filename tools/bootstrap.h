/* Says how well the mean of correlated values is known: an interval by a block bootstrap. */
#ifndef TERSE_TOOLS_BOOTSTRAP_H
#define TERSE_TOOLS_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BOOTSTRAP_BLOCK = 256,       /* neighbouring values that are drawn together */
    BOOTSTRAP_RESAMPLES = 10000, /* means that are drawn, from the same random numbers in every run */
    BOOTSTRAP_LEAST_BLOCKS = 8   /* of fewer the interval would say little */
};

/* Returns the blocks of n values; the last one may be shorter. */
static inline size_t bootstrap_blocks(size_t n) { return (n + BOOTSTRAP_BLOCK - 1) / BOOTSTRAP_BLOCK; }

struct interval {
    double mean, low, high;
};
static inline bool interval_contains(const struct interval *interval, double value) {
    return interval->low <= value && value <= interval->high;
}

/* Writes the mean of values[n], which has BOOTSTRAP_LEAST_BLOCKS at least, and its 95 % interval. It is the percentile interval,
 * widened for few blocks (Hesterberg 2015, "What teachers should know about the bootstrap"). Returns false where there is no memory. */
bool bootstrap_mean(const double *values, size_t n, struct interval *interval);

#endif
