/* Computes eigenvalues and eigenvectors of symmetric matrices in double precision. */
#ifndef TERSE_BASE_EIGEN_H
#define TERSE_BASE_EIGEN_H

#include <stddef.h>

/* Returns how many doubles symmetric_eigen needs as scratch. */
size_t symmetric_eigen_scratch(size_t n);

/* Writes the eigenvalues of the symmetric matrix[n][n] to values[n], in falling order, and an eigenvector of length 1 to each row
 * of vectors[n][n]. Errors are about n times a double's last digit, relative to the largest eigenvalue. The matrix is overwritten.
 * Where it has numbers that are not finite, so have the results. The same input gives the same bits. It takes some 1 ms for n =
 * 128. */
void symmetric_eigen(double *matrix, size_t n, double *values, double *vectors, double *scratch);

#endif
