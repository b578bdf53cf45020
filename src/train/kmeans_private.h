/* Declares what the parts of k-means share. */
#ifndef TERSE_TRAIN_KMEANS_PRIVATE_H
#define TERSE_TRAIN_KMEANS_PRIVATE_H

#include "train/kmeans.h"

static inline double kmeans_weight(const struct kmeans_points *points, size_t i) {
    return points->weights ? (double)points->weights[i] : 1;
}

/* Reports to the caller; TERSE_E_INTERRUPTED when it wants the work to stop. */
enum terse_status kmeans_report(const struct terse_progress *progress, const char *what, uint64_t done, uint64_t total,
                                struct terse_error *error);

/* Fewer points than these are not worth a sample: some hundreds for each of a few centroids, as many as a start needs of many. */
#define KMEANS_SAMPLE_LEAST 16384
#define KMEANS_SAMPLE_PER_CENTROID 8
static inline size_t kmeans_sample_least(size_t k) {
    return k * KMEANS_SAMPLE_PER_CENTROID > KMEANS_SAMPLE_LEAST ? k * KMEANS_SAMPLE_PER_CENTROID : KMEANS_SAMPLE_LEAST;
}

/* Samples systematically by weight: in `most` equal steps over the running sum of weights from a random offset, so that a point is
 * taken in proportion to its weight, a heavy one several times. Writes each point that was taken to index and how often to weights,
 * and returns how many there are: at most `most`, in order. With no more points than that, it takes all of positive weight. */
size_t kmeans_sample(const struct kmeans_points *points, size_t most, uint64_t seed, size_t *index, double *weights);

/* A kmeans_taken holds such a sample as points of their own. */
struct kmeans_taken {
    float *rows, *weights;
    struct kmeans_points points;
};
enum terse_status kmeans_take(const struct kmeans_points *points, size_t most, uint64_t seed, struct kmeans_taken *taken,
                              struct terse_error *error);
/* Accepts a zeroed struct. */
void kmeans_release(struct kmeans_taken *taken);

/* Sorts all i < n by their cluster, which is cluster[i], or cluster[codes[i]] where codes are given, into order[n]; within one
 * cluster they keep their order. A cluster's range lies from begin[cluster] to begin[cluster + 1]; begin[clusters + 1]. */
void kmeans_sort(const uint16_t *cluster, const uint16_t *codes, size_t n, size_t clusters, size_t *begin, size_t *order);

/* Starts by weighted k-means++: centroids[k][d] are points, each drawn with probability proportional to w times the squared distance to those
 * drawn before it. The points have been checked. */
enum terse_status kmeans_start(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                               struct terse_error *error);

/* Does the same cell by cell, where centroids are many. */
enum terse_status kmeans_start_cells(const struct kmeans_points *points, size_t k, const struct kmeans_options *options,
                                     float *centroids, struct terse_error *error);

#define KMEANS_NEAR_CLUSTERS 256 /* at most: the square root of as many centroids as a search has */

struct near;
enum terse_status near_new(size_t n, size_t k, size_t d, struct near **near, struct terse_error *error);
void near_free(struct near *near);
/* Writes the codes[n] of about the nearest of centroids[k][d]. `known`: codes hold those of the last time, and no point gets a
 * worse one; else codes are not read. */
enum terse_status near_assign(struct near *near, const struct kmeans_points *points, const float *centroids, bool known,
                              uint16_t *codes, struct terse_error *error);

/* A fit of many centroids starts and searches by these functions in place of kmeans_start and of a search among all; their
 * contracts are those above. */
struct kmeans_many {
    enum terse_status (*start)(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                               struct terse_error *error);
    enum terse_status (*new)(size_t n, size_t k, size_t d, struct near **near, struct terse_error *error);
    enum terse_status (*assign)(struct near *near, const struct kmeans_points *points, const float *centroids, bool known,
                                uint16_t *codes, struct terse_error *error);
    void (*free)(struct near *near);
};
/* Does kmeans_fit by `many`; NULL: by a search among all centroids. */
enum terse_status kmeans_fit_by(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                                const struct kmeans_options *options, float *centroids, struct kmeans_result *result,
                                struct terse_error *error);

/* Gives every cluster c without members[c] (points of positive weight) one point of large w ||x - c||^2 = errors[i], and its code.
 * It takes points of different value, largest first, the lower index where equal, none that its cluster cannot spare. A cluster for
 * which there is no point stays empty. heap[n], next[n] and head[k] are scratch. Returns how many clusters got a point. */
uint32_t kmeans_repair(const struct kmeans_points *points, size_t k, const double *errors, uint64_t *members, uint16_t *codes,
                       size_t *heap, size_t *next, size_t *head);

#endif
