/* What the parts of k-means share. */
#ifndef TERSE_LEARN_KMEANS_PRIVATE_H
#define TERSE_LEARN_KMEANS_PRIVATE_H

#include "learn/kmeans.h"

static inline double kmeans_weight(const struct kmeans_points *points, size_t i) {
    return points->weights ? (double)points->weights[i] : 1;
}

/* Tells the caller; TERSE_E_INTERRUPTED when it wants no more. */
enum terse_status kmeans_report(const struct terse_progress *progress, const char *what, uint64_t done, uint64_t total,
                                struct terse_error *error);

/* Fewer points than these are not worth a sample: some hundreds for each of a few centroids, as many as a start needs of many. */
#define KMEANS_SAMPLE_LEAST 16384
#define KMEANS_SAMPLE_PER_CENTROID 8
static inline size_t kmeans_sample_least(size_t k) {
    return k * KMEANS_SAMPLE_PER_CENTROID > KMEANS_SAMPLE_LEAST ? k * KMEANS_SAMPLE_PER_CENTROID : KMEANS_SAMPLE_LEAST;
}

/* Systematic sampling by weight: equal steps over the running sum of weights from a random offset, `most` of them, so that a point is
 * taken in proportion to its weight, a heavy one several times over. Writes each point that was taken to index and how often to
 * weights, and returns how many there are: at most `most`, in order. With no more points than that, all of positive weight. */
size_t kmeans_sample(const struct kmeans_points *points, size_t most, uint64_t seed, size_t *index, double *weights);

/* Weighted k-means++: centroids[k][d] are points, each drawn with probability proportional to w times the squared distance to those
 * drawn before it. The points have been checked. */
enum terse_status kmeans_start(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                               struct terse_error *error);

/* Gives every cluster c without members[c] (points of positive weight) one point of large w ||x - c||^2 = errors[i], and its code.
 * Points of different value, largest first, the lower index where equal, none that its cluster cannot spare. What finds no point
 * stays as it is. heap[n], next[n] and head[k] are scratch. Returns how many clusters got a point. */
uint32_t kmeans_repair(const struct kmeans_points *points, size_t k, const double *errors, uint64_t *members, uint16_t *codes,
                       size_t *heap, size_t *next, size_t *head);

#endif
