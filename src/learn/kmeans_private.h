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
