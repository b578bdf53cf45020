/* Inverts matrices in double precision. */
#ifndef TERSE_BASE_INVERSE_H
#define TERSE_BASE_INVERSE_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the transpose of the inverse of matrix[n][n] to inverse[n][n], by elimination with pivots; work[n + 1][n] is scratch.
 * Returns false for a singular matrix. */
bool invert_transposed(const float *matrix, size_t n, double *work, float *inverse);

#endif
