/* Indexes of signs made in other ways than index_sign's, for comparison with it: same blocks, same look-up, other learning. */
#ifndef TERSE_BENCH_FIDELITY_INDEX_H
#define TERSE_BENCH_FIDELITY_INDEX_H

#include "backend/cpu/codec/index.h"

/* By name:
 *     median       centred on each channel's lower median instead of its mean
 *     signs        centred; centroids are the signs alone, +-1
 *     magnitudes   centred; centroids are signs times the mean magnitude of their channel
 *     raw          not centred; centroids as index_sign's, the means of keys of the same signs
 *     raw-signs    neither: the signs of keys as they are
 *     kmeans       centred; centroids of 20 rounds of k-means in each group, codes are those of the nearest
 *     sign, quest  the library's own
 * NULL: there is none of that name. Threads: only one may be the first to ask for a name. What kmeans learns is not finite where it was refused memory. */
const struct index *index_variant(const char *name);
#define INDEX_VARIANTS "sign, quest, median, signs, magnitudes, raw, raw-signs and kmeans"

/* What the centroids leave of rows[n][hd] less their means, as a part of that, in squares. */
double index_sign_error(const struct index *index, size_t head_dim, const void *learned, const float *rows, size_t n,
                        size_t stride);

#endif
