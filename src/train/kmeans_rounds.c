/* Runs a weighted k-means: checks, samples and Lloyd's rounds. kmeans_start.c starts, kmeans_repair.c chooses points for empty
 * clusters, backend/cpu/codec/nearest.h searches. Where centroids are many the caller gives another start and another search
 * (struct kmeans_many), which use a k-means of few centroids themselves.
 *
 * The search decides in single precision; all else is summed in double from the points themselves. Errors, the objective and the
 * centroids are then right to the last bits of a float whatever offset the points share, and a cluster of equal points has error 0.
 * Sums are made in slices of points that depend only on the shape and are added in the order of the slices, so that the number of
 * threads changes no bit. Where points are many, the first rounds run on a sample of them. */
#include "train/kmeans_private.h"

#include "backend/cpu/codec/nearest.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LARGEST 1e38f                     /* the difference of two such values is still a float */
#define TILE 1024                         /* points that a thread assigns at a time */
#define TILES_TOGETHER 128                /* that are assigned between two reports */
#define ELSEWHERE_LEAST ((size_t)1 << 24) /* numbers compared in a round: a millisecond of one thread */
#define SLICE_LEAST 1024
#define SLICES_MOST 32
#define SLICES_BYTES ((size_t)64 << 20)

/* ---- Checks -------------------------------------------------------------------------------------------------------------- */

static enum terse_status check_rows(const char *what, const float *rows, size_t n, size_t d, size_t stride,
                                    struct terse_error *error) {
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) {
            float x = rows[r * stride + i];
            if (!(fabsf(x) <= LARGEST)) { /* NaN too */
                return status_fail(error, TERSE_E_ARGUMENT, "%s %zu of k-means has %g in channel %zu: give finite numbers up to %g",
                                   what, r, (double)x, i, (double)LARGEST);
            }
        }
    }
    return TERSE_OK;
}

static enum terse_status check_shape(const struct kmeans_points *points, struct terse_error *error) {
    if (points->n && points->stride >= points->d) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT,
                       "k-means was given %zu points of %zu channels, %zu floats apart: give at least one "
                       "point, and rows that do not overlap",
                       points->n, points->d, points->stride);
}

static enum terse_status check_weights(const struct kmeans_points *points, double *effective, struct terse_error *error) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < points->n; i++) {
        double w = kmeans_weight(points, i);
        if (!(w >= 0) || isinf(w)) {
            return status_fail(error, TERSE_E_ARGUMENT, "weight %zu of k-means is %g: give finite numbers, none below 0", i, w);
        }
        sum += w;
        squares += w * w;
    }
    if (!(sum > 0)) {
        return status_fail(error, TERSE_E_ARGUMENT, "all %zu weights of k-means are 0: give at least one point a weight above 0",
                           points->n);
    }
    *effective = sum / squares * sum;
    return TERSE_OK;
}

static enum terse_status check_all(const struct kmeans_points *points, size_t k, const struct kmeans_options *options,
                                   double *effective, struct terse_error *error) {
    enum terse_status status = check_shape(points, error);
    if (!status && !(options->tolerance >= 0)) {
        status = status_fail(error, TERSE_E_ARGUMENT, "the tolerance of k-means is %g: give 0 or more", options->tolerance);
    }
    if (!status) status = check_rows("point", points->rows, points->n, points->d, points->stride, error);
    if (!status) status = check_weights(points, effective, error);
    if (!status && options->initial) status = check_rows("first centroid", options->initial, k, points->d, points->d, error);
    return status;
}

/* ---- One round ----------------------------------------------------------------------------------------------------------- */

struct lloyd {
    const struct kmeans_points *points;
    size_t k, d, slices;
    struct nearest search;
    const struct kmeans_many *many; /* or NULL */
    struct near *near;              /* of `many`, instead of the search; else NULL */
    const struct learning_ops *ops; /* of `elsewhere` */
    struct search *elsewhere;       /* on another backend, instead of both; else NULL */
    bool known;                     /* codes are those of a round */
    uint16_t *codes;                /* [n] */
    double *errors;                 /* [n] w ||x - c||^2 */
    double *sums;                   /* [slices][k][d] sum of w x; after merging, slice 0 has them all */
    double *mass;                   /* [slices][k] sum of w */
    uint64_t *members;              /* [slices][k] points with w > 0 */
    double *objective;              /* [slices] */
    size_t *heap, *next;            /* [n] for repairs */
    size_t *head;                   /* [k] */
    float *best;                    /* [k][d] */
};

static void lloyd_free(struct lloyd *l) {
    nearest_free(&l->search);
    if (l->elsewhere) l->ops->close_search(l->elsewhere);
    if (l->many) l->many->free(l->near);
    memory_free(l->codes);
    memory_free(l->errors);
    memory_free(l->sums);
    memory_free(l->mass);
    memory_free(l->members);
    memory_free(l->objective);
    memory_free(l->heap);
    memory_free(l->next);
    memory_free(l->head);
    memory_free(l->best);
}

/* Returns whether comparing takes longer than sending points elsewhere. */
static bool may_search_elsewhere(const struct learning_ops *ops, const struct kmeans_points *points, size_t k) {
    return ops && ops->open_search && points->n * k * points->d >= ELSEWHERE_LEAST;
}

static enum terse_status lloyd_new(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                                   const struct kmeans_options *options, struct lloyd *l, struct terse_error *error) {
    const size_t n = points->n, d = points->d, slice_bytes = k * (d + 2) * sizeof(double);
    enum terse_status status = nearest_new(k, d, &l->search, error);
    l->many = many;
    l->ops = options->ops;
    if (!status && may_search_elsewhere(l->ops, points, k))
        l->elsewhere = l->ops->open_search(points->rows, n, d, points->stride, k);
    if (!status && many && !l->elsewhere) status = many->new (n, k, d, &l->near, error);
    if (status) return status;
    size_t slices = n / SLICE_LEAST < SLICES_MOST ? n / SLICE_LEAST : SLICES_MOST;
    if (slices > SLICES_BYTES / slice_bytes) slices = SLICES_BYTES / slice_bytes;
    if (slices < 1) slices = 1;
    l->points = points;
    l->k = k;
    l->d = d;
    l->slices = slices;
    l->codes = memory_array(n, sizeof *l->codes);
    l->errors = memory_array(n, sizeof *l->errors);
    l->sums = memory_array(slices * k, d * sizeof *l->sums);
    l->mass = memory_array(slices * k, sizeof *l->mass);
    l->members = memory_array(slices * k, sizeof *l->members);
    l->objective = memory_array(slices, sizeof *l->objective);
    l->heap = memory_array(n, sizeof *l->heap);
    l->next = memory_array(n, sizeof *l->next);
    l->head = memory_array(k, sizeof *l->head);
    l->best = memory_array(k, d * sizeof *l->best);
    if (l->codes && l->errors && l->sums && l->mass && l->members && l->objective && l->heap && l->next && l->head && l->best) {
        return TERSE_OK;
    }
    return status_no_memory(error, slices * slice_bytes + n * 26 + k * d * sizeof(float), "k-means");
}

/* Adds a slice's points to its sums. d channels are a compile-time constant where they are few, since a loop of two is mostly its
 * own overhead. */
static inline __attribute__((always_inline)) void slice_add(struct lloyd *l, size_t slice, const float *centroids, size_t d) {
    const struct kmeans_points *points = l->points;
    const size_t from = slice * points->n / l->slices, to = (slice + 1) * points->n / l->slices;
    double *sums = l->sums + slice * l->k * d, *mass = l->mass + slice * l->k, objective = 0;
    uint64_t *members = l->members + slice * l->k;
    for (size_t p = from; p < to; p++) {
        const float *x = points->rows + p * points->stride, *c = centroids + l->codes[p] * d;
        double w = kmeans_weight(points, p), square = 0, *sum = sums + l->codes[p] * d;
        for (size_t i = 0; i < d; i++) {
            double difference = (double)x[i] - (double)c[i];
            square += difference * difference;
            sum[i] += w * (double)x[i];
        }
        l->errors[p] = w * square;
        objective += w * square;
        mass[l->codes[p]] += w;
        members[l->codes[p]] += w > 0;
    }
    l->objective[slice] = objective;
}

static void slice_sum(struct lloyd *l, size_t slice, const float *centroids) {
    memset(l->sums + slice * l->k * l->d, 0, l->k * l->d * sizeof *l->sums);
    memset(l->mass + slice * l->k, 0, l->k * sizeof *l->mass);
    memset(l->members + slice * l->k, 0, l->k * sizeof *l->members);
    switch (l->d) {
    case 2: slice_add(l, slice, centroids, 2); break;
    case 4: slice_add(l, slice, centroids, 4); break;
    case 8: slice_add(l, slice, centroids, 8); break;
    case 16: slice_add(l, slice, centroids, 16); break;
    default: slice_add(l, slice, centroids, l->d); break;
    }
}

/* Computes the sums and the objective of the points under l->codes. */
static double lloyd_sum(struct lloyd *l, const float *centroids) {
    double objective = 0;
#pragma omp parallel for schedule(static)
    for (size_t slice = 0; slice < l->slices; slice++) slice_sum(l, slice, centroids);
#pragma omp parallel for schedule(static) if (l->slices > 1)
    for (size_t c = 0; c < l->k; c++) {
        for (size_t slice = 1; slice < l->slices; slice++) {
            const double *sums = l->sums + (slice * l->k + c) * l->d;
            for (size_t i = 0; i < l->d; i++) l->sums[c * l->d + i] += sums[i];
            l->mass[c] += l->mass[slice * l->k + c];
            l->members[c] += l->members[slice * l->k + c];
        }
    }
    for (size_t slice = 0; slice < l->slices; slice++) objective += l->objective[slice];
    return objective;
}

/* Asks `options` between pieces whether to go on; NULL: does not ask. */
static enum terse_status assign(const struct kmeans_points *points, const struct nearest *search, uint16_t *codes,
                                const struct kmeans_options *options, uint32_t round, struct terse_error *error) {
    const size_t tiles = (points->n + TILE - 1) / TILE;
    enum terse_status status = TERSE_OK;
    for (size_t first = 0; first < tiles && !status; first += TILES_TOGETHER) {
        const size_t end = tiles - first < TILES_TOGETHER ? tiles : first + TILES_TOGETHER;
#pragma omp parallel for schedule(dynamic)
        for (size_t tile = first; tile < end; tile++) {
            size_t from = tile * TILE, count = points->n - from < TILE ? points->n - from : TILE;
            nearest_search(search, points->rows + from * points->stride, count, points->stride, codes + from);
        }
        if (options) status = kmeans_report(&options->progress, "k-means", round, options->rounds, error);
    }
    return status;
}

static enum terse_status lloyd_evaluate(struct lloyd *l, const struct kmeans_options *options, uint32_t round,
                                        const float *centroids, double *objective, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    if (l->elsewhere) {
        status = l->ops->find(l->elsewhere, centroids, l->codes, error);
    } else if (l->near) {
        status = l->many->assign(l->near, l->points, centroids, l->known, l->codes, error);
    } else {
        nearest_set(&l->search, centroids);
        status = assign(l->points, &l->search, l->codes, options, round, error);
    }
    l->known = true;
    if (!status) *objective = lloyd_sum(l, centroids);
    return status;
}

/* Moves the centroids to the means of what they serve; returns how many had to be repaired. */
static uint32_t lloyd_update(struct lloyd *l, float *centroids) {
    uint32_t repaired = 0;
    bool empty = false;
    for (size_t c = 0; c < l->k; c++) empty |= l->members[c] == 0;
    if (empty) repaired = kmeans_repair(l->points, l->k, l->errors, l->members, l->codes, l->heap, l->next, l->head);
    /* The sums are computed anew: subtracting a point of large weight from a sum would cancel the digits of those of small
     * weight. */
    if (repaired) lloyd_sum(l, centroids);
    for (size_t c = 0; c < l->k; c++) {
        if (!l->members[c]) continue;
        for (size_t i = 0; i < l->d; i++) centroids[c * l->d + i] = (float)(l->sums[c * l->d + i] / l->mass[c]);
    }
    return repaired;
}

/* ---- All rounds ---------------------------------------------------------------------------------------------------------- */

/* Leaves the best centroids in `centroids`. A round without repairs cannot raise the objective but by rounding; then it is over. */
static enum terse_status lloyd_run(struct lloyd *l, const struct kmeans_options *options, float *centroids,
                                   struct kmeans_result *result, struct terse_error *error) {
    const size_t bytes = l->k * l->d * sizeof *centroids;
    uint32_t repaired = 0;
    result->objective = INFINITY;
    for (uint32_t round = 0;; round++) {
        double last = result->objective, objective;
        enum terse_status status = lloyd_evaluate(l, options, round, centroids, &objective, error);
        if (status) return status;
        if (!(objective < last)) break;
        result->objective = objective;
        result->rounds = round;
        result->repaired += repaired;
        memcpy(l->best, centroids, bytes);
        char what[64];
        snprintf(what, sizeof what, "k-means, objective %.6g", objective);
        if ((status = kmeans_report(&options->progress, what, round, options->rounds, error))) return status;
        bool converged = round > 0 && !repaired && last - objective <= options->tolerance * last;
        if (round == options->rounds || converged || !(objective > 0)) break;
        repaired = lloyd_update(l, centroids);
    }
    memcpy(centroids, l->best, bytes);
    return TERSE_OK;
}

/* ---- From few points to all: a sample gives most of what rounds can gain, at a fraction of the cost ------------------ */

#define COARSER 4 /* times fewer points */
#define COARSE_ROUNDS 20
#define COARSE_TOLERANCE 1e-3

/* Rounds on a sample are not counted among the caller's. */
static bool report_coarse(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct kmeans_options *options = user;
    (void)done, (void)total;
    return options->progress.report(options->progress.user, what, 0, options->rounds);
}

static enum terse_status begin(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                               const struct kmeans_options *options, float *centroids, struct terse_error *error);

/* Fits the centroids of a sample, themselves started on a sample of that sample. */
static enum terse_status fit_sample(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                                    struct kmeans_options *options, float *centroids, struct terse_error *error) {
    struct kmeans_options coarse = {
        .rounds = COARSE_ROUNDS, .tolerance = COARSE_TOLERANCE, .seed = options->seed, .ops = options->ops};
    struct kmeans_result result = {0};
    struct kmeans_taken taken;
    struct lloyd l = {0};
    enum terse_status status = kmeans_take(points, points->n / COARSER, options->seed, &taken, error);
    if (options->progress.report) coarse.progress = (struct terse_progress){report_coarse, options};
    if (!status) status = begin(many, &taken.points, k, &coarse, centroids, error);
    if (!status) status = lloyd_new(many, &taken.points, k, &coarse, &l, error);
    if (!status) status = lloyd_run(&l, &coarse, centroids, &result, error);
    lloyd_free(&l);
    kmeans_release(&taken);
    return status;
}

/* Finds the centroids that the rounds begin with. */
static enum terse_status begin(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                               const struct kmeans_options *options, float *centroids, struct terse_error *error) {
    if (options->initial) {
        memcpy(centroids, options->initial, k * points->d * sizeof *centroids);
        return TERSE_OK;
    }
    struct kmeans_options own = *options;
    if (points->n / COARSER >= kmeans_sample_least(k)) return fit_sample(many, points, k, &own, centroids, error);
    return (many ? many->start : kmeans_start)(points, k, options, centroids, error);
}

enum terse_status kmeans_fit_by(const struct kmeans_many *many, const struct kmeans_points *points, size_t k,
                                const struct kmeans_options *options, float *centroids, struct kmeans_result *result,
                                struct terse_error *error) {
    struct lloyd l = {0};
    struct kmeans_result done = {0};
    enum terse_status status = lloyd_new(many, points, k, options, &l, error);
    if (!status) status = check_all(points, k, options, &done.effective_samples, error);
    if (!status) status = begin(many, points, k, options, centroids, error);
    if (!status) status = lloyd_run(&l, options, centroids, &done, error);
    if (result) *result = status ? (struct kmeans_result){0} : done;
    lloyd_free(&l);
    return status;
}

enum terse_status kmeans_assign(const struct kmeans_points *points, const float *centroids, size_t k, uint16_t *codes,
                                struct terse_error *error) {
    struct nearest search = {0};
    enum terse_status status = nearest_new(k, points->d, &search, error);
    if (!status) status = check_shape(points, error);
    if (!status) status = check_rows("point", points->rows, points->n, points->d, points->stride, error);
    if (!status) status = check_rows("centroid", centroids, k, points->d, points->d, error);
    if (!status) {
        nearest_set(&search, centroids);
        status = assign(points, &search, codes, NULL, 0, error);
    }
    nearest_free(&search);
    return status;
}
