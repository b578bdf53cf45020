/* What a transform that was fitted to rows has to be (format/transform_fit.h), found in double precision from the definition. */
#ifndef TESTS_FIT_ORACLE_H
#define TESTS_FIT_ORACLE_H

#include "format/transform.h"

/* Fails the test unless the record is what rows[n][head_dim] and the record of a profile say, to within `tolerance` of each number's scale: its
 * mean is theirs; in its coordinates, B^-1 (row - mean), the rows at size 1 and the profile's 32 have the covariance diag(size^2), and sizes
 * fall; a row is as large as in the profile's coordinates; the range of gains is that of the rows, twice as wide either way, and their root mean square is the rows'. */
void fit_oracle_check(const void *profile, const void *record, uint32_t head_dim, const double *rows, size_t n, double tolerance);

#endif
