/* Finds the nearest of k centroids by Euclidean distance, for many rows, for learning and encoding alike. Owns the centroids'
 * layout for pq_ops()->nearest; leaves threads to the caller.
 *
 * Rows and centroids are moved by the centroids' mean and scaled by a power of two before they are compared, ||c||^2 / 2 - <x, c>
 * in single precision is worth little where all keys share an offset far larger than their differences. A code depends on its own
 * row and the centroids alone, not on the rows beside it. */
#ifndef TERSE_BACKEND_CPU_CODEC_NEAREST_H
#define TERSE_BACKEND_CPU_CODEC_NEAREST_H

#include "base/status.h"

#define NEAREST_MOST_CHANNELS 1024
#define NEAREST_MOST_CENTROIDS 65536

struct nearest {
    size_t k, d;
    size_t width;   /* centroids in a panel, the last one maybe less */
    size_t columns; /* k rounded up to NEAREST_WIDTH: the columns beyond k are never nearest */
    float scale;
    float *origin; /* [d] */
    float *half;   /* [columns] half the squared norms */
    float *panels; /* [d][width] after one another */
};

/* Allocates memory for k centroids of d channels. TERSE_E_ARGUMENT unless 1 <= k <= NEAREST_MOST_CENTROIDS, 1 <= d <=
 * NEAREST_MOST_CHANNELS. */
enum terse_status nearest_new(size_t k, size_t d, struct nearest *nearest, struct terse_error *error);
/* Accepts a zeroed struct. */
void nearest_free(struct nearest *nearest);
/* Returns the bytes that nearest_new allocated. */
size_t nearest_bytes(const struct nearest *nearest);
/* Returns the bytes that nearest_new would allocate. */
size_t nearest_bytes_of(size_t k, size_t d);
/* Takes over centroids[k][d], finite and at most 1e38 in size; may be called again. Allocates nothing. */
void nearest_set(struct nearest *nearest, const float *centroids);
/* Writes codes[n], the nearest centroid of each of rows[n][d], `stride` floats apart; of equally near ones the lowest. A row with
 * NaN or infinities gets some code below k. It allocates nothing and uses one thread; any number of threads may search at once. */
void nearest_search(const struct nearest *nearest, const float *rows, size_t n, size_t stride, uint16_t *codes);

#endif
