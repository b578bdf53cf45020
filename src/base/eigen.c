/* Householder reflections take the matrix to a tridiagonal one, rotations take that to a diagonal one (Golub and Van Loan 2013,
 * algorithms 8.3.1 and 8.3.3: symmetric QR steps with Wilkinson's shift). Every loop over n^2 numbers adds multiples of whole rows, so
 * that compilers vectorize it without changing the order of a sum. */
#include "base/eigen.h"

#include "base/wider_vectors.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define STEPS_PER_VALUE 60 /* at most; two are usual. More are needed by no matrix of finite numbers */

size_t symmetric_eigen_scratch(size_t n) { return 3 * n; }

WITHIN double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* ---- To a tridiagonal matrix */

/* Turns x[n] into the vector v of the reflection I - factor v v^T that takes x to (*first, 0, 0, ...). Returns the factor: 0 where
 * only x[0] is not 0. */
WITHIN double reflection(double *x, size_t n, double *first) {
    double largest = 0, sum;
    for (size_t i = 1; i < n; i++) largest = fmax(largest, fabs(x[i]));
    *first = x[0];
    if (!(largest > 0)) return 0;
    largest = fmax(largest, fabs(x[0]));
    for (size_t i = 0; i < n; i++) x[i] /= largest; /* squares neither over- nor underflow */
    sum = dot(x, x, n);
    double length = x[0] > 0 ? -sqrt(sum) : sqrt(sum);
    *first = length * largest;
    x[0] -= length;
    return 1 / (sum - length * (x[0] + length));
}

/* Reduces the matrix to a tridiagonal one with the same eigenvalues: diagonal[n] and beside[n - 1]. Leaves the vector of the k-th
 * reflection in row k of the matrix, from column k + 1 on, and its factor in factors[k]. */
WITHIN void tridiagonalize(double *matrix, size_t n, double *diagonal, double *beside, double *factors, double *w) {
    for (size_t k = 0; k + 1 < n; k++) {
        double *v = matrix + k * n + k + 1, factor;
        size_t rest = n - k - 1;
        diagonal[k] = matrix[k * n + k];
        factors[k] = factor = reflection(v, rest, &beside[k]);
        if (factor == 0) continue;
        /* The rest becomes (I - factor v v^T) rest (I - factor v v^T) = rest - v w^T - w v^T. */
        memset(w, 0, rest * sizeof *w);
        for (size_t i = 0; i < rest; i++) add_multiple(w, factor * v[i], matrix + (k + 1 + i) * n + k + 1, rest);
        add_multiple(w, -factor / 2 * dot(w, v, rest), v, rest);
        for (size_t i = 0; i < rest; i++) {
            double *row = matrix + (k + 1 + i) * n + k + 1;
            double vi = v[i], wi = w[i];
            for (size_t j = 0; j < rest; j++) row[j] -= vi * w[j] + wi * v[j];
        }
    }
    diagonal[n - 1] = matrix[n * n - 1];
}

/* Writes the product of all reflections, transposed, to vectors[n][n]. */
WITHIN void multiply_reflections(const double *matrix, size_t n, const double *factors, double *vectors, double *w) {
    memset(vectors, 0, n * n * sizeof *vectors);
    for (size_t i = 0; i < n; i++) vectors[i * n + i] = 1;
    for (size_t k = n - 1; k-- > 0;) { /* from the smallest block up, so that the others are still unit vectors */
        const double *v = matrix + k * n + k + 1;
        size_t rest = n - k - 1;
        double *block = vectors + (k + 1) * n + k + 1;
        memset(w, 0, rest * sizeof *w);
        for (size_t i = 0; i < rest; i++) add_multiple(w, factors[k] * v[i], block + i * n, rest);
        for (size_t i = 0; i < rest; i++) add_multiple(block + i * n, -v[i], w, rest);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            double upper = vectors[j * n + i];
            vectors[j * n + i] = vectors[i * n + j];
            vectors[i * n + j] = upper;
        }
    }
}

/* ---- To a diagonal one */

/* Takes one QR step on rows low to high, between which no number beside the diagonal is 0. */
WITHIN void step(double *diagonal, double *beside, size_t low, size_t high, double *vectors, size_t n) {
    double half = (diagonal[high - 1] - diagonal[high]) / 2, last = beside[high - 1];
    double x = diagonal[low] - (diagonal[high] - last * last / (half + copysign(hypot(half, last), half))), z = beside[low];
    for (size_t k = low; k < high; k++) {
        double length = hypot(x, z), c = length > 0 ? x / length : 1, s = length > 0 ? z / length : 0;
        double a = diagonal[k], b = beside[k], d = diagonal[k + 1];
        if (k > low) beside[k - 1] = length;
        diagonal[k] = c * c * a + 2 * c * s * b + s * s * d;
        diagonal[k + 1] = s * s * a - 2 * c * s * b + c * c * d;
        x = beside[k] = c * s * (d - a) + (c * c - s * s) * b;
        if (k + 1 < high) {
            z = s * beside[k + 1];
            beside[k + 1] *= c;
        }
        double *restrict upper = vectors + k * n, *restrict lower = upper + n;
        for (size_t i = 0; i < n; i++) {
            double u = upper[i], l = lower[i];
            upper[i] = c * u + s * l;
            lower[i] = c * l - s * u;
        }
    }
}

WITHIN void diagonalize(double *diagonal, double *beside, size_t n, double *vectors) {
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(diagonal[i]) + (i + 1 < n ? fabs(beside[i]) : 0));
    size_t high = n - 1;
    for (size_t steps = 0; high > 0 && steps < STEPS_PER_VALUE * n; steps++) {
        while (high > 0 && !(fabs(beside[high - 1]) > largest * DBL_EPSILON)) high--;
        size_t low = high;
        while (low > 0 && fabs(beside[low - 1]) > largest * DBL_EPSILON) low--;
        if (low < high) step(diagonal, beside, low, high, vectors, n);
    }
}

WITHIN void sort_falling(double *values, double *vectors, size_t n, double *row) {
    for (size_t i = 0; i + 1 < n; i++) {
        size_t most = i;
        for (size_t j = i + 1; j < n; j++)
            if (values[j] > values[most]) most = j;
        if (most == i) continue;
        double value = values[i];
        values[i] = values[most];
        values[most] = value;
        memcpy(row, vectors + i * n, n * sizeof *row);
        memcpy(vectors + i * n, vectors + most * n, n * sizeof *row);
        memcpy(vectors + most * n, row, n * sizeof *row);
    }
}

FOR_WIDER_VECTORS static void decompose(double *matrix, size_t n, double *values, double *vectors, double *scratch) {
    double *beside = scratch, *factors = scratch + n, *w = factors + n;
    if (!n) return;
    tridiagonalize(matrix, n, values, beside, factors, w);
    multiply_reflections(matrix, n, factors, vectors, w);
    diagonalize(values, beside, n, vectors);
    sort_falling(values, vectors, n, w);
}

void symmetric_eigen(double *matrix, size_t n, double *values, double *vectors, double *scratch) {
    decompose(matrix, n, values, vectors, scratch);
}
