/* Takes rows into the coordinates of both bases by elimination, without any metric. */
#include "support/fit_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PROFILE_ROWS 32.0

static double *doubles(size_t n) {
    double *all = calloc(n, sizeof *all);
    assert_non_null(all);
    return all;
}

/* inverse[component][channel] = B^-1 of a record's basis, whose columns are basis_c; by Gauss and Jordan. */
static void invert_basis(const struct transform_fitted *record, uint32_t head_dim, double *inverse) {
    const size_t hd = head_dim;
    float *basis = malloc(hd * hd * sizeof *basis);
    double *a = doubles(hd * hd);
    assert_non_null(basis);
    transform_record_basis(record, head_dim, hd, basis);
    for (size_t i = 0; i < hd * hd; i++) {
        a[i] = (double)basis[i % hd * hd + i / hd];
        inverse[i] = i % (hd + 1) == 0;
    }
    for (size_t k = 0; k < hd; k++) {
        size_t most = k;
        for (size_t i = k; i < hd; i++)
            if (fabs(a[i * hd + k]) > fabs(a[most * hd + k])) most = i;
        const double pivot = a[most * hd + k];
        assert_true(fabs(pivot) > 1e-30);
        for (size_t j = 0; j < hd; j++) {
            double own = a[most * hd + j], other = inverse[most * hd + j];
            a[most * hd + j] = a[k * hd + j], inverse[most * hd + j] = inverse[k * hd + j];
            a[k * hd + j] = own / pivot, inverse[k * hd + j] = other / pivot;
        }
        for (size_t i = 0; i < hd; i++) {
            const double factor = a[i * hd + k];
            for (size_t j = 0; j < hd && i != k; j++) {
                a[i * hd + j] -= factor * a[k * hd + j];
                inverse[i * hd + j] -= factor * inverse[k * hd + j];
            }
        }
    }
    free(basis);
    free(a);
}

/* z[head_dim] = inverse x; returns its root mean square. */
static double coordinates(const double *inverse, const double *x, size_t hd, double *z) {
    double squares = 0;
    for (size_t c = 0; c < hd; c++) {
        z[c] = 0;
        for (size_t j = 0; j < hd; j++) z[c] += inverse[c * hd + j] * x[j];
        squares += z[c] * z[c] / (double)hd;
    }
    return sqrt(squares);
}

static void check_near(double number, double wanted, double most, const char *what, size_t i) {
    if (!(fabs(number - wanted) <= most)) fail_msg("%s %zu: %g, not %g within %g", what, i, number, wanted, most);
}

/* Adds weight times the profile's covariance: a component of its size along each of its directions. */
static void add_profile(const struct transform_fitted *profile, uint32_t head_dim, const double *inverse, double weight,
                        double *covariance) {
    const size_t hd = head_dim;
    float *basis = malloc(hd * hd * sizeof *basis);
    double *x = doubles(2 * hd), *z = x + hd;
    assert_non_null(basis);
    transform_record_basis(profile, head_dim, hd, basis);
    for (size_t c = 0; c < hd; c++) {
        for (size_t j = 0; j < hd; j++) x[j] = (double)basis[c * hd + j] * (double)profile->size[c];
        coordinates(inverse, x, hd, z);
        for (size_t i = 0; i < hd * hd; i++) covariance[i] += weight * z[i / hd] * z[i % hd];
    }
    free(basis);
    free(x);
}

void fit_oracle_check(const void *profile, const void *record, uint32_t head_dim, const double *rows, size_t n, double tolerance) {
    const size_t hd = head_dim;
    const struct transform_fitted of_weights = transform_fitted_at(profile, head_dim), own = transform_fitted_at(record, head_dim);
    double *before = doubles(3 * hd * hd + 3 * hd), *after = before + hd * hd, *covariance = after + hd * hd,
           *mean = covariance + hd * hd, *x = mean + hd, *z = x + hd, least = INFINITY, most = 0, squares = 0, power = 0;
    invert_basis(&of_weights, head_dim, before);
    invert_basis(&own, head_dim, after);
    for (size_t i = 0; i < n * hd; i++) {
        mean[i % hd] += rows[i] / (double)n;
        power += rows[i] * rows[i] / (double)(n * hd);
    }
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < hd; c++) x[c] = rows[t * hd + c] - mean[c];
        const double size = coordinates(before, x, hd, z);
        check_near(coordinates(after, x, hd, z) / size, 1, tolerance, "size of row", t);
        for (size_t i = 0; i < hd * hd; i++) covariance[i] += z[i / hd] * z[i % hd] / (size * size) / ((double)n + PROFILE_ROWS);
        least = fmin(least, size);
        most = fmax(most, size);
        squares += size * size / (double)n;
    }
    add_profile(&of_weights, head_dim, after, PROFILE_ROWS / ((double)n + PROFILE_ROWS), covariance);
    for (size_t c = 0; c < hd; c++) {
        check_near((double)own.mean[c], mean[c], tolerance * sqrt(power), "mean of channel", c);
        assert_true(c == 0 || own.size[c] <= own.size[c - 1]);
    }
    for (size_t i = 0; i < hd * hd; i++) {
        const double a = (double)own.size[i / hd], b = (double)own.size[i % hd];
        /* What rounding leaves of the largest component in others is a part of the largest. */
        check_near(covariance[i], i % (hd + 1) ? 0 : a * a, tolerance * (double)own.size[0] * (a + b) / 2, "covariance", i);
    }
    /* Rows are rounded to halves before their mean is taken off, so that the smallest err by as much as others do. */
    check_near((double)own.gain_least, least / 2, tolerance * sqrt(squares), "least gain", 0);
    check_near((double)own.gain_most, most * 2, tolerance * most * 2, "largest gain", 0);
    check_near((double)own.gain, sqrt(squares), tolerance * sqrt(squares), "mean gain", 0);
    free(before);
}
