/* Fits weighted k-means: centroids c that make sum over points of w ||x - c(x)||^2 small, where c(x) is the nearest centroid by
 * plain Euclidean distance. Lloyd 1982; Arthur and Vassilvitskii 2007; weighted by gradients as in KVQuant and AnTKV.
 *
 * The result depends on the points, the options and the kind of processor, not on the number of threads: the calling thread's
 * OpenMP team is used, one thread inside a parallel region. */
#ifndef TERSE_TRAIN_KMEANS_H
#define TERSE_TRAIN_KMEANS_H

#include "backend/learning.h"

struct kmeans_points {
    const float *rows; /* [n][d], finite, at most 1e38 in size */
    size_t n, d;
    size_t stride;        /* floats from one row to the next, at least d: rows may be parts of longer rows */
    const float *weights; /* [n] finite, >= 0, not all 0; NULL: all alike */
};

struct kmeans_options {
    uint32_t rounds;  /* updates of the centroids by all points, at most; where points are many, rounds on samples come before */
    double tolerance; /* stop when a round lowers the objective by no more than this part of it */
    uint64_t seed;    /* of the start */
    const float *initial; /* [k][d] to start from, finite, at most 1e38 in size; NULL: weighted k-means++ */
    /* Rounds over many points search by these operations where they have searches, among all centroids; points are then at most 1e15 in
     * size. NULL: by the CPU's. */
    const struct learning_ops *ops;
    struct terse_progress progress;
};
struct kmeans_options kmeans_options_defaults(void);

struct kmeans_result {
    double objective;         /* sum of w ||x - c||^2 of the centroids returned */
    double effective_samples; /* (sum w)^2 / sum w^2: the number of equally weighted points that carry as much information */
    uint32_t rounds;          /* updates done */
    uint32_t repaired;        /* times that an empty cluster's centroid was moved to a point of large error */
};

/* Writes centroids[k][d], the best that were met, all finite; with fewer distinct points than centroids the objective is 0 and some
 * clusters are empty. From 1024 centroids on rounds compare a point with those near its last one instead of all, and the objective
 * is that of what they found. `result` may be NULL. Refuses with TERSE_E_ARGUMENT shapes beyond those of backend/cpu/codec/nearest.h, no points,
 * and whatever the members above exclude. After a failure the centroids mean nothing. */
enum terse_status kmeans_fit(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                             struct kmeans_result *result, struct terse_error *error);

/* Writes codes[n]: the nearest of centroids[k][d], the lowest of equally near ones. It ignores weights. */
enum terse_status kmeans_assign(const struct kmeans_points *points, const float *centroids, size_t k, uint16_t *codes,
                                struct terse_error *error);

#endif
