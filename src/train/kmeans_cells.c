/* Starts k-means where centroids are many: D^2 sampling cell by cell. Drawing k centroids from n points looks at n k distances;
 * drawn within sqrt(k) cells of the points, which a k-means of few centroids has made, it looks at n sqrt(k). The number of
 * centroids for a cell follows from the error that they would leave: c centroids in d channels leave an error of P c^(-2/d), P
 * being that of the cell's centre alone. Where each centroid leaves the same part of it, c grows as P^(d / (d + 2)) (the point
 * density of high-rate quantization, Zador 1982). */
#include "base/memory.h"
#include "base/random.h"
#include "train/kmeans_private.h"

#include <math.h>
#include <string.h>

#define CELL_ROUNDS 8
#define CELL_TOLERANCE 1e-2

struct cells {
    size_t n, d, count;
    struct kmeans_taken sample; /* the points that are drawn from */
    float *centers;             /* [count][d] */
    uint16_t *cell;             /* [n] of a point */
    size_t *begin, *order;      /* [count + 1], [n] points by cell */
    float *rows, *weights;      /* [n][d], [n] in that order */
    double *wanted;             /* [count] centroids, as a fraction */
    size_t *given;              /* [count] */
};

static void cells_free(struct cells *c) {
    void *all[] = {c->centers, c->cell, c->begin, c->order, c->rows, c->weights, c->wanted, c->given};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    kmeans_release(&c->sample);
}

static enum terse_status cells_new(const struct kmeans_points *points, size_t k, uint64_t seed, struct cells *c,
                                   struct terse_error *error) {
    enum terse_status status = kmeans_take(points, kmeans_sample_least(k), seed, &c->sample, error);
    if (status) return status;
    c->n = c->sample.points.n;
    c->d = points->d;
    c->count = (size_t)sqrt((double)k);
    c->centers = memory_array(c->count, c->d * sizeof *c->centers);
    c->cell = memory_array(c->n, sizeof *c->cell);
    c->begin = memory_array(c->count + 1, sizeof *c->begin);
    c->order = memory_array(c->n, sizeof *c->order);
    c->rows = memory_array(c->n, c->d * sizeof *c->rows);
    c->weights = memory_array(c->n, sizeof *c->weights);
    c->wanted = memory_array(c->count, sizeof *c->wanted);
    c->given = memory_array(c->count, sizeof *c->given);
    if (c->centers && c->cell && c->begin && c->order && c->rows && c->weights && c->wanted && c->given) return TERSE_OK;
    return status_no_memory(error, c->n * (c->d + 5) * sizeof(float), "the start of k-means");
}

/* Copies the points so that those of a cell lie together. */
static void sort_points(struct cells *c) {
    kmeans_sort(c->cell, NULL, c->n, c->count, c->begin, c->order);
    for (size_t i = 0; i < c->n; i++) {
        memcpy(c->rows + i * c->d, c->sample.points.rows + c->order[i] * c->d, c->d * sizeof *c->rows);
        c->weights[i] = c->sample.points.weights[c->order[i]];
    }
}

/* Sets how many centroids each cell should have. Errors are taken relative to the largest offset, so that none overflows. Returns
 * false when all points are where their centres are. */
static bool set_wanted(struct cells *c, size_t k) {
    double largest = 0, total = 0;
    for (int measured = 0; measured < 2; measured++) {
        for (size_t cell = 0; cell < c->count; cell++) {
            double error = 0;
            for (size_t i = c->begin[cell] * c->d; i < c->begin[cell + 1] * c->d; i++) {
                double offset = (double)c->rows[i] - (double)c->centers[cell * c->d + i % c->d];
                if (measured)
                    error += (double)c->weights[i / c->d] * (offset / largest) * (offset / largest);
                else
                    largest = fmax(largest, fabs(offset));
            }
            c->wanted[cell] = pow(error, (double)c->d / ((double)c->d + 2));
            if (measured) total += c->wanted[cell];
        }
        if (!(largest > 0)) return false;
    }
    for (size_t cell = 0; cell < c->count; cell++) c->wanted[cell] *= (double)k / total;
    return true;
}

/* Turns them into whole numbers that add up to k, or to all points where these are fewer: at least one for a cell with points, at
 * most one for each point. */
static size_t give(struct cells *c, size_t k) {
    size_t sum = 0;
    for (size_t cell = 0; cell < c->count; cell++) {
        size_t points = c->begin[cell + 1] - c->begin[cell], whole = (size_t)c->wanted[cell];
        c->given[cell] = whole < 1 ? points > 0 : whole < points ? whole : points;
        sum += c->given[cell];
    }
    while (sum != k) {
        size_t best = c->count;
        double most = 0;
        for (size_t cell = 0; cell < c->count; cell++) {
            double lack = c->wanted[cell] - (double)c->given[cell], urgency = sum < k ? lack : -lack;
            bool can = sum < k ? c->given[cell] < c->begin[cell + 1] - c->begin[cell] : c->given[cell] > 1;
            if (!can || (best < c->count && urgency <= most)) continue;
            best = cell;
            most = urgency;
        }
        if (best == c->count) break;
        c->given[best] += sum < k ? 1 : (size_t)-1;
        sum += sum < k ? 1 : (size_t)-1;
    }
    return sum;
}

static enum terse_status draw_cells(const struct cells *c, const struct kmeans_options *options, float *centroids,
                                    struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t cell = 0; cell < c->count && !status; cell++) {
        struct kmeans_options own = *options;
        struct kmeans_points points = {.rows = c->rows + c->begin[cell] * c->d,
                                       .n = c->begin[cell + 1] - c->begin[cell],
                                       .d = c->d,
                                       .stride = c->d,
                                       .weights = c->weights + c->begin[cell]};
        own.seed = random_mix(options->seed + (cell + 1) * RANDOM_STEP);
        if (c->given[cell]) status = kmeans_start(&points, c->given[cell], &own, centroids, error);
        centroids += c->given[cell] * c->d;
    }
    return status;
}

enum terse_status kmeans_start_cells(const struct kmeans_points *points, size_t k, const struct kmeans_options *options,
                                     float *centroids, struct terse_error *error) {
    struct cells c = {0};
    const struct kmeans_options coarse = {.rounds = CELL_ROUNDS, .tolerance = CELL_TOLERANCE, .seed = options->seed};
    enum terse_status status = cells_new(points, k, options->seed, &c, error);
    if (!status) status = kmeans_fit_by(NULL, &c.sample.points, c.count, &coarse, c.centers, NULL, error);
    if (!status) status = kmeans_assign(&c.sample.points, c.centers, c.count, c.cell, error);
    if (status) goto done;
    sort_points(&c);
    if (!set_wanted(&c, k)) {
        status = kmeans_start(points, k, options, centroids, error);
        goto done;
    }
    size_t drawn = give(&c, k);
    status = draw_cells(&c, options, centroids, error);
    /* With fewer points than centroids the rest repeat them; the first repair moves them if it can. */
    for (size_t i = drawn; i < k; i++) memcpy(centroids + i * c.d, centroids + (i - drawn) * c.d, c.d * sizeof *centroids);
done:
    cells_free(&c);
    return status;
}
