/* Inverts by Gauss-Jordan elimination in place: the column of a pivot, which elimination leaves a unit vector, has room for the one column of the
 * inverse that the step begins. */
#include "base/inverse.h"

#include "base/wider_vectors.h"

#include <math.h>

/* Exchanges row k with the one that has the largest number of column k from row k on, and their places in `origin`, which are doubles as the
 * scratch is. Returns that number. */
WITHIN double take_pivot(double *work, double *origin, size_t n, size_t k) {
    size_t pivot = k;
    for (size_t r = k + 1; r < n; r++)
        if (fabs(work[r * n + k]) > fabs(work[pivot * n + k])) pivot = r;
    for (size_t c = 0; pivot != k && c < n; c++) {
        const double kept = work[k * n + c];
        work[k * n + c] = work[pivot * n + c];
        work[pivot * n + c] = kept;
    }
    const double kept = origin[k];
    origin[k] = origin[pivot];
    origin[pivot] = kept;
    return work[k * n + k];
}

/* Replaces work[n][n] by its inverse, whose column origin[k] is at k. */
FOR_WIDER_VECTORS static bool eliminate(double *work, double *origin, size_t n) {
    for (size_t k = 0; k < n; k++) {
        const double pivot = take_pivot(work, origin, n, k);
        if (!(fabs(pivot) > 0)) return false;
        const double scale = 1 / pivot;
        work[k * n + k] = 1;
        for (size_t c = 0; c < n; c++) work[k * n + c] *= scale;
        for (size_t r = 0; r < n; r++) {
            const double factor = work[r * n + k];
            if (r == k || factor == 0) continue;
            work[r * n + k] = 0;
            add_multiple(work + r * n, -factor, work + k * n, n);
        }
    }
    return true;
}

bool invert_transposed(const float *matrix, size_t n, double *work, float *inverse) {
    double *origin = work + n * n;
    for (size_t i = 0; i < n * n; i++) work[i] = (double)matrix[i];
    for (size_t k = 0; k < n; k++) origin[k] = (double)k;
    if (!eliminate(work, origin, n)) return false;
    for (size_t c = 0; c < n; c++)
        for (size_t r = 0; r < n; r++) inverse[(size_t)origin[c] * n + r] = (float)work[r * n + c];
    return true;
}
