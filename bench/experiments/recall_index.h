/* Variants of index_sign for comparison with it: the same page layout and look-up, fitted in other ways. */
#ifndef TERSE_BENCH_RECALL_INDEX_H
#define TERSE_BENCH_RECALL_INDEX_H

#include "backend/cpu/codec/index.h"

/* Returns an index by its name:
 *     median       centred on each channel's lower median instead of its mean
 *     signs        centred; centroids are the signs alone, +1 or -1
 *     magnitudes   centred; centroids are signs times the mean magnitude of their channel
 *     raw          not centred; centroids as in index_sign, the means of keys with the same signs
 *     raw-signs    not centred; centroids are the signs alone
 *     kmeans       centred; centroids of 20 rounds of k-means in each group, codes of the nearest centroid
 *     sign, quest  the library's own
 * NULL: no index has that name. Threads: the first call for a name must not run beside another call. When kmeans gets no memory,
 * what it learns is not finite. */
const struct cpu_index *index_variant(const char *name);

/* Returns the squared error of rows[n][hd] coded by their centroids, as a share of the rows' squared norm about the mean. */
double index_sign_error(const struct cpu_index *index, size_t head_dim, const void *learned, const float *rows, size_t n,
                        size_t stride);

#endif
