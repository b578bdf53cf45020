/* Implements weighted k-means of any number of centroids: kmeans_rounds.c does it, and where they are many kmeans_cells.c starts it
 * and kmeans_near.c searches. */
#include "train/kmeans.h"
#include "train/kmeans_private.h"

#define MANY 1024 /* from so many centroids on a round compares a point only with those near its own */

struct kmeans_options kmeans_options_defaults(void) {
    return (struct kmeans_options){.rounds = 50, .tolerance = 1e-4, .seed = 1};
}

enum terse_status kmeans_fit(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                             struct kmeans_result *result, struct terse_error *error) {
    static const struct kmeans_many many = {.start = kmeans_start_cells, .new = near_new, .assign = near_assign, .free = near_free};
    return kmeans_fit_by(k < MANY ? NULL : &many, points, k, options, centroids, result, error);
}
