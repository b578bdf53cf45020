/* Normalizes samples, and rounds centroids to a grid. */
#include "train/codec_learning.h"

#include "backend/cpu/codec/normalization.h"
#include "base/half.h"
#include "format/pq.h"

#include <math.h>

/* ---- Normalization */

static size_t normalization_at(const struct codec *codec, struct codec_shape shape) {
    return codec_parameters(codec, shape) - codec_normalization_floats(codec, shape);
}

void codec_fit_normalization(const struct codec *codec, struct codec_shape shape, const float *rows, size_t n, float *parameters) {
    normalization_fit(rows, n, shape.head_dim, parameters + normalization_at(codec, shape));
}

void codec_fit_scale(const struct codec *codec, struct codec_shape shape, const float *rows, size_t n, float *parameters) {
    normalization_fit_scale(rows, n, shape.head_dim, parameters + normalization_at(codec, shape));
}

float codec_normalize_row(const struct codec *codec, struct codec_shape shape, const float *parameters, float *row) {
    return normalization_apply(row, parameters + normalization_at(codec, shape), shape.head_dim, row);
}

/* ---- The grid */

/* Rounds x[k], `apart` numbers between them, to at most 256 multiples of a step that is a quarter, five, six or seven eighths of a
 * power of two: the smallest such that all are halves. */
static void snap_channel(float *x, size_t k, size_t apart) {
    float least = x[0], most = x[0];
    for (size_t j = 1; j < k; j++) {
        least = fminf(least, x[j * apart]);
        most = fmaxf(most, x[j * apart]);
    }
    if (!(most - least > 0) || !isfinite(most - least)) return;
    int exponent;
    int quarters = (int)floorf(8 * frexpf((most - least) / 255, &exponent)); /* 4 to 7 */
    for (exponent = exponent < -21 ? -21 : exponent;; quarters++) {
        if (quarters == 8) quarters = 4, exponent++;
        float step = ldexpf((float)quarters, exponent - 3), first = floorf(least / step + 0.5f);
        bool fits = floorf(most / step + 0.5f) - first <= 255;
        for (size_t j = 0; fits && j < k; j++) {
            float snapped = step * floorf(x[j * apart] / step + 0.5f);
            fits = half_to_float(half_from_float(snapped)) == snapped || !isfinite(half_to_float(half_from_float(x[j * apart])));
        }
        if (!fits && exponent < 16) continue;
        for (size_t j = 0; fits && j < k; j++) x[j * apart] = step * floorf(x[j * apart] / step + 0.5f);
        return;
    }
}

void codec_snap_to_grid(const struct codec *codec, struct codec_shape shape, float *parameters) {
    size_t width = shape.width;
    if (codec->learner != CODEC_LEARNS_KMEANS || !pq_may_read_u8(width, shape.bits)) return;
    size_t k = (size_t)1 << shape.bits;
    for (size_t c = 0; c < shape.head_dim; c++) snap_channel(parameters + c / width * k * width + c % width, k, width);
}
