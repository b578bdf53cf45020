/* Inverses of matrices in double precision. */
#ifndef TERSE_BASE_INVERSE_H
#define TERSE_BASE_INVERSE_H

#include <stdbool.h>
#include <stddef.h>

/* The transpose inverse[n][n] of the inverse of matrix[n][n] by elimination with pivots; work[n][2 n]. false: it is singular. Some 3 ms for
 * n = 128. */
bool invert_transposed(const float *matrix, size_t n, double *work, float *inverse);

#endif
