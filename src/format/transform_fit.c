/* Computes the parameters of the codec transform from moments. */
#include "format/transform_fit.h"

#include "base/eigen.h"
#include "base/inverse.h"
#include "base/memory.h"
#include "base/wider_vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define METRIC_LEAST 1e-4 /* eigenvalue of a metric, of its largest */
#define SIZE_LEAST 1e-6   /* of a component, of the largest: what rounding leaves of nothing is smaller */
#define GAIN_TAIL 1e-4    /* part of the rows whose gain may lie below the range, or above */
#define GAIN_MARGIN 1.5f

/* Computes out[n][n] = a^T diag(weights) a for rows a[n][n]. */
static void recompose(const double *a, const double *weights, size_t n, double *out) {
    memset(out, 0, n * n * sizeof *out);
    for (size_t k = 0; k < n; k++) {
        const double *restrict row = a + k * n;
        for (size_t i = 0; i < n; i++) {
            double factor = weights[k] * row[i];
            double *restrict to = out + i * n;
            for (size_t j = 0; j < n; j++) to[j] += factor * row[j];
        }
    }
}

enum terse_status transform_fit_metric(const double *metric, uint32_t head_dim, double *root, double *inverse,
                                       struct terse_error *error) {
    size_t n = head_dim;
    double trace = 0, *values = memory_array(n * n + 2 * n + symmetric_eigen_scratch(n), sizeof *values);
    if (!values) return status_no_memory(error, n * n * sizeof *values, "a metric");
    double *weights = values + n, *vectors = weights + n, *scratch = vectors + n * n;
    for (size_t i = 0; i < n; i++) trace += metric[i * n + i];
    bool some = trace > 0 && isfinite(trace);
    for (size_t i = 0; i < n * n; i++) root[i] = some ? metric[i] / trace * (double)n : i % (n + 1) == 0;
    symmetric_eigen(root, n, values, vectors, scratch);
    for (size_t i = 0; i < n; i++) weights[i] = sqrt(fmax(values[i], values[0] * METRIC_LEAST));
    recompose(vectors, weights, n, root);
    for (size_t i = 0; i < n; i++) weights[i] = 1 / weights[i];
    recompose(vectors, weights, n, inverse);
    memory_free(values);
    return TERSE_OK;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void transform_fit_gains(float *gains, size_t n, float *least, float *most) {
    *least = *most = 0;
    if (!n) return;
    size_t beyond = (size_t)(GAIN_TAIL * (double)n);
    qsort(gains, n, sizeof *gains, by_size);
    *least = gains[beyond] / GAIN_MARGIN;
    *most = gains[n - 1 - beyond] * GAIN_MARGIN;
}

/* Computes row[n], the sum of factors[i] times row i of matrix[n][n]: four rows at a time, n being a multiple of that, so that the sum is
 * read and written once for them. */
WITHIN void combine(const double *restrict factors, const double *restrict matrix, size_t n, double *restrict row) {
    memset(row, 0, n * sizeof *row);
    for (size_t i = 0; i < n; i += 4) {
        const double *restrict a = matrix + i * n, *restrict b = a + n, *restrict c = b + n, *restrict d = c + n;
        const double fa = factors[i], fb = factors[i + 1], fc = factors[i + 2], fd = factors[i + 3];
        for (size_t j = 0; j < n; j++) row[j] = row[j] + fa * a[j] + fb * b[j] + fc * c[j] + fd * d[j];
    }
}

enum terse_status transform_fit(const struct transform_moments *moments, uint32_t head_dim, float *floats,
                                struct terse_error *error) {
    size_t n = head_dim;
    float *mean = floats, *pre_rope_mean = mean + n, *size = pre_rope_mean + n, *basis = size + n, *rest = basis + n * n;
    double *values = memory_array(2 * n * n + 2 * n + symmetric_eigen_scratch(n), sizeof *values);
    if (!values) return status_no_memory(error, 2 * n * n * sizeof *values, "a transform");
    double *row = values + n, *vectors = row + n, *covariance = vectors + n * n, *scratch = covariance + n * n;
    memcpy(covariance, moments->covariance, n * n * sizeof *covariance);
    symmetric_eigen(covariance, n, values, vectors, scratch);
    double largest = sqrt(fmax(values[0], 0));
    for (size_t c = 0; c < n; c++) {
        double own = sqrt(fmax(values[c], 0));
        mean[c] = (float)moments->mean[c];
        pre_rope_mean[c] = moments->pre_rope_mean ? moments->pre_rope_mean[c] : 0;
        size[c] = (float)(own > largest * SIZE_LEAST ? own : 0);
        combine(vectors + c * n, moments->directions, n, row);
        for (size_t j = 0; j < n; j++) basis[c * n + j] = (float)row[j];
    }
    rest[0] = moments->gain_least;
    rest[1] = moments->gain_most;
    rest[2] = moments->gain;
    rest[3] = moments->residual;
    rest[4] = moments->importance;
    memory_free(values);
    return TERSE_OK;
}

/* Computes metric[n][n] = a^T a for rows a[n][n]: rounded sums in double precision, over the rows in their order, by a row of sums and one of factors. */
FOR_WIDER_VECTORS static void square(const double *restrict a, size_t n, double *restrict sums, double *restrict factors,
                                     float *restrict metric) {
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < n; c++) factors[c] = a[c * n + i];
        combine(factors, a, n, sums);
        for (size_t j = 0; j < n; j++) metric[i * n + j] = (float)sums[j];
    }
}

enum terse_status transform_metric(const float *basis, uint32_t head_dim, float *metric, struct terse_error *error) {
    const size_t n = head_dim;
    double *work = memory_array(n * n + 2 * n, sizeof *work);
    float *inverse = memory_array(n * n, sizeof *inverse);
    enum terse_status status = TERSE_OK;
    if (!work || !inverse) {
        status = status_no_memory(error, (n * n + 2 * n) * sizeof *work, "a transform");
    } else if (!invert_transposed(basis, n, work, inverse)) {
        status = status_fail(error, TERSE_E_FORMAT,
                             "the basis of a transform is singular: the profile is damaged, make it again with terse calibrate");
    } else {
        for (size_t i = 0; i < n * n; i++) work[i] = (double)inverse[i];
        square(work, n, work + n * n, work + n * n + n, metric);
    }
    memory_free(work);
    memory_free(inverse);
    return status;
}
