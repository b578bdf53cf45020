/* Defines normalized rows and gains, which the codecs that quantize a row's shape share.
 *
 *     row = mean + gain * shape,   shapes learned from rows (x - mean) / rms(x - mean)
 *     gain = scale * 2^((code - 128) / 20),   scale the mean rms of the head; code 0 is no gain at all
 *
 * So sizes from 1/80 to 80 times the usual have a gain within 1.8 %, in one byte a row. A codebook's parameters of such a codec end
 * with mean[hd] and then scale. */
#ifndef TERSE_FORMAT_NORMALIZATION_H
#define TERSE_FORMAT_NORMALIZATION_H

#include "base/status.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define GAIN_STEPS 20 /* codes for which a gain doubles */
#define GAIN_MIDDLE 128

static inline size_t normalization_floats(size_t hd) { return hd + 1; }

/* Returns TERSE_E_FORMAT unless mean and scale are finite, and the scale is not negative. */
static inline enum terse_status normalization_check(const float *normalization, size_t hd, struct terse_error *error) {
    for (size_t c = 0; c < hd; c++)
        if (!isfinite(normalization[c])) return status_fail(error, TERSE_E_FORMAT, "channel %zu of a mean is not finite", c);
    if (normalization[hd] >= 0 && isfinite(normalization[hd])) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT, "the scale of gains is %g", (double)normalization[hd]);
}

/* Writes gains[256] of all codes. */
static inline void gain_table(float scale, float *gains) {
    gains[0] = 0;
    for (int code = 1; code < 256; code++) gains[code] = scale * exp2f((float)(code - GAIN_MIDDLE) / GAIN_STEPS);
}

static inline uint8_t gain_code(float scale, float gain) {
    if (!(gain > 0) || !(scale > 0)) return 0;
    float code = roundf(GAIN_MIDDLE + GAIN_STEPS * log2f(gain / scale));
    return (uint8_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}

#endif
