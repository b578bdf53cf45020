/* Draws as many blocks as there are, with replacement, again and again. Values that depend on their neighbours, as those of positions of
 * a text do, are not independent samples; sums of blocks nearly are. */
#include "bootstrap.h"

#include "random.h"

#include <math.h>
#include <stdlib.h>

struct block {
    double sum, count;
};

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Returns the part of the means that lies below the interval, and above it. Resamples of n blocks spread too little by a factor of
 * sqrt((n - 1) / n), and few blocks ask for Student's quantile instead of the normal one, which is taken by its expansion in 1 / (n - 1). */
static double tail(size_t n_blocks) {
    const double z = 1.959963984540054, z3 = z * z * z, z5 = z3 * z * z, v = (double)n_blocks - 1;
    double student = z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v);
    return 0.5 * erfc(student * sqrt((double)n_blocks / v) / sqrt(2));
}

static void add_up(const double *values, size_t n, struct block *blocks) {
    for (size_t i = 0; i < n; i++) {
        struct block *block = &blocks[i / BOOTSTRAP_BLOCK];
        block->sum += values[i];
        block->count++;
    }
}

/* Draws the r-th mean. */
static double draw_mean(const struct block *blocks, size_t n_blocks, size_t r) {
    double sum = 0, count = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        const struct block *block = &blocks[random_bits((uint64_t)r * n_blocks + i) % n_blocks];
        sum += block->sum;
        count += block->count;
    }
    return sum / count;
}

bool bootstrap_mean(const double *values, size_t n, struct interval *interval) {
    size_t n_blocks = bootstrap_blocks(n);
    struct block *blocks = calloc(n_blocks, sizeof *blocks);
    double *means = malloc(BOOTSTRAP_RESAMPLES * sizeof *means), sum = 0;
    bool done = blocks && means;
    if (done) {
        add_up(values, n, blocks);
        for (size_t i = 0; i < n_blocks; i++) sum += blocks[i].sum;
        for (size_t r = 0; r < BOOTSTRAP_RESAMPLES; r++) means[r] = draw_mean(blocks, n_blocks, r);
        qsort(means, BOOTSTRAP_RESAMPLES, sizeof *means, by_value);
        size_t below = (size_t)(tail(n_blocks) * BOOTSTRAP_RESAMPLES);
        *interval = (struct interval){sum / (double)n, means[below], means[BOOTSTRAP_RESAMPLES - 1 - below]};
    }
    free(blocks);
    free(means);
    return done;
}
