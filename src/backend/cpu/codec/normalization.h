/* Normalizes rows, about a mean and to a size of 1, and finds the mean and the usual size, for encoding and learning alike.
 * format/normalization.h says what the numbers are. */
#ifndef TERSE_BACKEND_CPU_CODEC_NORMALIZATION_H
#define TERSE_BACKEND_CPU_CODEC_NORMALIZATION_H

#include "format/normalization.h"

/* Returns the root of a row's mean square about the mean; writes the row less the mean to `centred`[hd], which may be the row. */
float normalization_centre(const float *row, const float *mean, size_t hd, float *centred);
/* Normalizes a row, whose rms becomes 1 or 0, and returns the rms that it had: `to` may be the row. */
float normalization_apply(const float *row, const float *mean, size_t hd, float *to);
/* Learns normalization[hd + 1] from rows[n][hd]. */
void normalization_fit(const float *rows, size_t n, size_t hd, float *normalization);
/* Learns the scale alone, about a mean of zero. */
void normalization_fit_scale(const float *rows, size_t n, size_t hd, float *normalization);

#endif
