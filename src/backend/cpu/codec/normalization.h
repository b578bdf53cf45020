/* What the codecs that quantize a row's shape share: the frame that shapes live in, and the gain of a row in one byte.
 *
 *     row = mean + gain * shape,   shapes learned from rows (x - mean) / rms(x - mean)
 *     gain = scale * 2^((code - 128) / 20),   scale the mean rms of the head; code 0 is no gain at all
 *
 * So sizes from 1/80 to 80 times the usual have a gain within 1.8 %. As parameters: mean[hd], then scale. */
#ifndef TERSE_BACKEND_CPU_CODEC_NORMALIZATION_H
#define TERSE_BACKEND_CPU_CODEC_NORMALIZATION_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/status.h"

#include <math.h>

#define GAIN_STEPS 20 /* codes for which a gain doubles */
#define GAIN_MIDDLE 128

static inline size_t normalization_floats(size_t hd) { return hd + 1; }

static inline enum terse_status normalization_check(const float *frame, size_t hd, struct terse_error *error) {
    for (size_t c = 0; c < hd; c++)
        if (!isfinite(frame[c])) return status_fail(error, TERSE_E_FORMAT, "channel %zu of a mean is not finite", c);
    if (frame[hd] >= 0 && isfinite(frame[hd])) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT, "the scale of gains is %g", (double)frame[hd]);
}

/* gains[256] of all codes. */
static inline void gain_table(float scale, float *gains) {
    gains[0] = 0;
    for (int code = 1; code < 256; code++) gains[code] = scale * exp2f((float)(code - GAIN_MIDDLE) / GAIN_STEPS);
}

static inline uint8_t gain_code(float scale, float gain) {
    if (!(gain > 0) || !(scale > 0)) return 0;
    float code = roundf(GAIN_MIDDLE + GAIN_STEPS * log2f(gain / scale));
    return (uint8_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}

/* The root of a row's mean square about the mean; `centred`[hd] is what is left and may be the row. */
static inline float normalization_centre(const float *row, const float *mean, size_t hd, float *centred) {
    for (size_t c = 0; c < hd; c++) centred[c] = row[c] - mean[c];
    return sqrtf(vector_ops()->dot(centred, centred, hd) / (float)hd);
}

/* Takes a row to the frame, where its rms is 1 or 0, and returns the rms that it had: `to` may be the row. */
static inline float normalization_apply(const float *row, const float *mean, size_t hd, float *to) {
    float rms = normalization_centre(row, mean, hd, to), inverse = rms > 0 ? 1 / rms : 0;
    for (size_t c = 0; c < hd; c++) to[c] *= inverse;
    return rms;
}

/* Learns a frame from rows[n][hd]. */
static inline void normalization_fit(const float *rows, size_t n, size_t hd, float *frame) {
    float centred[CODEC_HEAD_DIM_MAX];
    double sum[CODEC_HEAD_DIM_MAX] = {0}, size = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < hd; c++) sum[c] += (double)rows[i * hd + c];
    for (size_t c = 0; c < hd; c++) frame[c] = (float)(sum[c] / (double)n);
    for (size_t i = 0; i < n; i++) size += (double)normalization_centre(rows + i * hd, frame, hd, centred);
    frame[hd] = (float)(size / (double)n);
}

#endif
