/* Eigenvalues and eigenvectors of symmetric matrices in double precision. */
#ifndef TERSE_BASE_EIGEN_H
#define TERSE_BASE_EIGEN_H

#include <stddef.h>

/* Doubles that symmetric_eigen needs beside its results. */
size_t symmetric_eigen_scratch(size_t n);

/* matrix[n][n], symmetric: values[n] fall, vectors[n][n] has an eigenvector of length 1 in each row. Errors are some n times the last
 * digit of a double, relative to the largest value. The matrix is destroyed; numbers that are not finite give some that are not.
 * The same input gives the same bits. Some 3 ms for n = 128. */
void symmetric_eigen(double *matrix, size_t n, double *values, double *vectors, double *scratch);

#endif
