/* Inverts by Gauss-Jordan elimination. */
#include "base/inverse.h"

#include <math.h>
#include <string.h>

bool invert_transposed(const float *matrix, size_t n, double *work, float *inverse) {
    size_t width = 2 * n;
    for (size_t r = 0; r < n; r++) {
        for (size_t c = 0; c < n; c++) work[r * width + c] = (double)matrix[r * n + c];
        memset(work + r * width + n, 0, n * sizeof *work);
        work[r * width + n + r] = 1;
    }
    for (size_t k = 0; k < n; k++) {
        size_t pivot = k;
        for (size_t r = k + 1; r < n; r++)
            if (fabs(work[r * width + k]) > fabs(work[pivot * width + k])) pivot = r;
        if (!(fabs(work[pivot * width + k]) > 0)) return false;
        for (size_t c = k; pivot != k && c < width; c++) {
            double kept = work[k * width + c];
            work[k * width + c] = work[pivot * width + c];
            work[pivot * width + c] = kept;
        }
        double scale = 1 / work[k * width + k];
        for (size_t c = k; c < width; c++) work[k * width + c] *= scale;
        for (size_t r = 0; r < n; r++) {
            double factor = work[r * width + k];
            if (r == k || factor == 0) continue;
            for (size_t c = k; c < width; c++) work[r * width + c] -= factor * work[k * width + c];
        }
    }
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < n; c++) inverse[c * n + r] = (float)work[r * width + n + c];
    return true;
}
