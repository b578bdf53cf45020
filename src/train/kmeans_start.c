/* Starts k-means by exact weighted D^2 sampling (k-means++), on a part of the points where they are many.
 *
 * Each draw must look at every point: k draws from all points cost as much arithmetic as a Lloyd round, but pass over the memory k
 * times. At 262,144 x 32 and k = 4096 that is a dozen rounds (bench_kmeans: an eighth of the points costs 1.5). k-means|| would
 * need several passes over all points against thousands of candidates, each as dear as a round. So beyond KMEANS_SAMPLE_LEAST
 * points and KMEANS_SAMPLE_PER_CENTROID for each centroid a sample by weight gives the points to draw from. Lloyd's rounds over all
 * points and their repair of empty clusters correct what it misses. */
#include "base/memory.h"
#include "base/random.h"
#include "train/kmeans_private.h"

#include <math.h>
#include <string.h>

#define BLOCK 1024             /* points whose mass is summed together, whatever the threads */
#define PARALLEL_FLOATS 131072 /* less work than this is done before a thread pool has started */
#define DRAWS_PER_REPORT 256

struct start {
    size_t n, d;     /* points to draw from */
    size_t *index;   /* [n] of the point */
    double *weight;  /* [n] */
    float *x;        /* [d][n] moved by the mean and scaled, so that no square overflows */
    float *distance; /* [n] squared, to the nearest point drawn */
    double *mass;    /* [blocks] sum of weight * distance */
    size_t blocks;
};

enum terse_status kmeans_report(const struct terse_progress *progress, const char *what, uint64_t done, uint64_t total,
                                struct terse_error *error) {
    if (!progress->report || progress->report(progress->user, what, done, total)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "k-means was stopped before round %llu of %llu", (unsigned long long)done + 1,
                       (unsigned long long)total);
}

/* Returns the number at position `counter` of the seed's sequence, in [0, 1). */
static double uniform(uint64_t seed, uint64_t counter) { return random_uniform(random_mix(seed + (counter + 1) * RANDOM_STEP)); }

size_t kmeans_sample(const struct kmeans_points *points, size_t most, uint64_t seed, size_t *index, double *weights) {
    double total = 0, running = 0, offset = uniform(seed, 0);
    size_t taken = 0 /* steps */, n = 0;
    for (size_t i = 0; i < points->n; i++) total += kmeans_weight(points, i);
    for (size_t i = 0; i < points->n; i++) {
        double weight = kmeans_weight(points, i);
        if (!(weight > 0)) continue;
        if (points->n > most) {
            size_t before = taken;
            running += weight;
            while (taken < most && ((double)taken + offset) * (total / (double)most) < running) taken++;
            if (taken == before) continue;
            weight = (double)(taken - before);
        }
        index[n] = i;
        weights[n++] = weight;
    }
    return n;
}

enum terse_status kmeans_take(const struct kmeans_points *points, size_t most, uint64_t seed, struct kmeans_taken *taken,
                              struct terse_error *error) {
    const size_t d = points->d, capacity = points->n < most ? points->n : most;
    size_t *index = memory_array(capacity, sizeof *index);
    double *counts = memory_array(capacity, sizeof *counts);
    enum terse_status status = TERSE_OK;
    *taken = (struct kmeans_taken){.rows = memory_array(capacity, d * sizeof *taken->rows),
                                   .weights = memory_array(capacity, sizeof *taken->weights)};
    if (index && counts && taken->rows && taken->weights) {
        size_t n = kmeans_sample(points, most, seed, index, counts);
        for (size_t i = 0; i < n; i++) {
            memcpy(taken->rows + i * d, points->rows + index[i] * points->stride, d * sizeof *taken->rows);
            taken->weights[i] = (float)counts[i];
        }
        taken->points = (struct kmeans_points){.rows = taken->rows, .n = n, .d = d, .stride = d, .weights = taken->weights};
    } else {
        status = status_no_memory(error, capacity * (d + 5) * sizeof(float), "a sample of k-means");
        kmeans_release(taken);
    }
    memory_free(index);
    memory_free(counts);
    return status;
}

void kmeans_release(struct kmeans_taken *taken) {
    memory_free(taken->rows);
    memory_free(taken->weights);
    *taken = (struct kmeans_taken){0};
}

static void copy_points(const struct kmeans_points *points, struct start *s) {
    double largest = 0, total = 0;
    for (size_t j = 0; j < s->n; j++) total += s->weight[j];
    for (size_t i = 0; i < s->d; i++) {
        double mean = 0;
        for (size_t j = 0; j < s->n; j++) mean += s->weight[j] / total * (double)points->rows[s->index[j] * points->stride + i];
        for (size_t j = 0; j < s->n; j++) {
            double x = (double)points->rows[s->index[j] * points->stride + i];
            s->x[i * s->n + j] = (float)(x / 2 - mean / 2); /* halves: the difference itself may be beyond a float */
            largest = fmax(largest, fabs(x / 2 - mean / 2));
        }
    }
    int exponent = 0;
    if (largest > 0) (void)frexp(largest, &exponent);
    float scale = ldexpf(1, exponent < -126 ? 126 : exponent > 126 ? -126 : -exponent);
    for (size_t j = 0; j < s->n * s->d; j++) s->x[j] *= scale;
}

/* Updates the squared distances of a block's points to their nearest drawn point after `drawn` was added, and the block's mass. */
static void update_distances(struct start *s, size_t block, size_t drawn) {
    const size_t from = block * BLOCK, count = s->n - from < BLOCK ? s->n - from : BLOCK;
    float square[BLOCK] = {0}, *distance = s->distance + from;
    double mass = 0;
    for (size_t i = 0; i < s->d; i++) {
        const float *x = s->x + i * s->n + from, c = s->x[i * s->n + drawn];
        for (size_t j = 0; j < count; j++) square[j] += (x[j] - c) * (x[j] - c);
    }
    for (size_t j = 0; j < count; j++) distance[j] = square[j] < distance[j] ? square[j] : distance[j];
    for (size_t j = 0; j < count; j++) mass += s->weight[from + j] * (double)distance[j];
    s->mass[block] = mass;
}

/* Returns the point at which the running sum of masses passes `share` of the whole; s->n when there is no mass left. */
static size_t draw(const struct start *s, double share) {
    double total = 0;
    size_t block = 0, found = s->n;
    for (size_t b = 0; b < s->blocks; b++) total += s->mass[b];
    if (!(total > 0)) return s->n;
    double left = share * total;
    while (block + 1 < s->blocks && left >= s->mass[block]) left -= s->mass[block++];
    while (!(s->mass[block] > 0)) block--; /* rounding has led past the last mass */
    for (size_t j = block * BLOCK; j < s->n && j < (block + 1) * BLOCK; j++) {
        double mass = s->weight[j] * (double)s->distance[j];
        if (!(mass > 0)) continue;
        found = j;
        if (left < mass) break;
        left -= mass;
    }
    return found;
}

static enum terse_status draw_all(const struct kmeans_points *points, struct start *s, size_t k,
                                  const struct kmeans_options *options, float *centroids, struct terse_error *error) {
    const size_t bytes = s->d * sizeof(float);
    for (size_t j = 0; j < s->n; j++) s->distance[j] = 1; /* the first draw is by weight only */
    for (size_t b = 0; b < s->blocks; b++) {
        s->mass[b] = 0;
        for (size_t j = b * BLOCK; j < s->n && j < (b + 1) * BLOCK; j++) s->mass[b] += s->weight[j];
    }
    for (size_t c = 0; c < k; c++) {
        if (c % DRAWS_PER_REPORT == 0) {
            enum terse_status status = kmeans_report(&options->progress, "k-means start", 0, options->rounds, error);
            if (status) return status;
        }
        size_t drawn = draw(s, uniform(options->seed, c + 1));
        if (drawn == s->n) { /* every point is a centroid: the rest repeat them, to be moved by the first repair if at all */
            for (size_t again = c; again < k; again++) memcpy(centroids + again * s->d, centroids + (again - c) * s->d, bytes);
            break;
        }
        memcpy(centroids + c * s->d, points->rows + s->index[drawn] * points->stride, bytes);
        if (c == 0) {
            for (size_t j = 0; j < s->n; j++) s->distance[j] = INFINITY;
        }
#pragma omp parallel for schedule(static) if (s->n * s->d >= PARALLEL_FLOATS)
        for (size_t b = 0; b < s->blocks; b++) update_distances(s, b, drawn);
    }
    return TERSE_OK;
}

enum terse_status kmeans_start(const struct kmeans_points *points, size_t k, const struct kmeans_options *options, float *centroids,
                               struct terse_error *error) {
    const size_t most = kmeans_sample_least(k), capacity = points->n < most ? points->n : most;
    enum terse_status status;
    struct start s = {.d = points->d, .blocks = (capacity + BLOCK - 1) / BLOCK};
    s.index = memory_array(capacity, sizeof *s.index);
    s.weight = memory_array(capacity, sizeof *s.weight);
    s.x = memory_array(capacity, points->d * sizeof *s.x);
    s.distance = memory_array(capacity, sizeof *s.distance);
    s.mass = memory_array(s.blocks, sizeof *s.mass);
    if (!s.index || !s.weight || !s.x || !s.distance || !s.mass) {
        status = status_no_memory(error, capacity * (points->d + 6) * sizeof(float), "the start of k-means");
        goto done;
    }
    s.n = kmeans_sample(points, most, options->seed, s.index, s.weight);
    s.blocks = (s.n + BLOCK - 1) / BLOCK;
    copy_points(points, &s);
    status = draw_all(points, &s, k, options, centroids, error);
done:
    memory_free(s.index);
    memory_free(s.weight);
    memory_free(s.x);
    memory_free(s.distance);
    memory_free(s.mass);
    return status;
}
