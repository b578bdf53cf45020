/* The codec transform: mean, sizes and range of gains of a sequence's rows, in the basis of a profile. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "format/page_layout.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define PRIOR_ROWS 128.0 /* for which the profile's sizes count */
#define GAIN_MARGIN 2    /* beyond the rows at hand, either way: others may be larger or smaller */
#define GAIN_LEAST 1e-6  /* of the size of the mean: what rounding leaves of a row that is the mean */

static void find_mean(const float *rows, size_t n, size_t stride, size_t hd, float *mean) {
    for (size_t c = 0; c < hd; c++) {
        double sum = 0;
        for (size_t t = 0; t < n; t++) sum += (double)rows[t * stride + c];
        mean[c] = isfinite(sum) ? (float)(sum / (double)n) : 0;
    }
}

/* Returns the size of the mean in the metric. A row that is smaller than GAIN_LEAST times that is treated as the mean itself. */
static double mean_size(const struct transform_learned *learned, const float *mean) {
    double square = 0;
    for (size_t c = 0; c < learned->head_dim; c++) {
        double z = (double)vector_ops()->dot(learned->inverse + c * learned->head_dim, mean, learned->head_dim);
        square += z * z;
    }
    return sqrt(square / learned->head_dim);
}

/* squares[hd] += of up to 64 rows' components, each row taken to size 1; sizes[n] of the rows, 0 where one says nothing. */
static void add_squares(const struct transform_learned *learned, const float *rows, size_t n, size_t stride, const float *mean,
                        double least, double *squares, double *sizes) {
    float centred[CODEC_HEAD_DIM_MAX * PAGE_TOKENS], z[CODEC_HEAD_DIM_MAX * PAGE_TOKENS];
    size_t hd = learned->head_dim;
    double square[PAGE_TOKENS] = {0}, unit[PAGE_TOKENS] = {0};
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) centred[c * PAGE_TOKENS + t] = t < n ? rows[t * stride + c] - mean[c] : 0;
    vector_ops()->multiply(learned->inverse, hd, hd, hd, centred, PAGE_TOKENS, PAGE_TOKENS, z, PAGE_TOKENS);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < n; t++) square[t] += (double)z[c * PAGE_TOKENS + t] * (double)z[c * PAGE_TOKENS + t];
    for (size_t t = 0; t < n; t++) {
        sizes[t] = sqrt(square[t] / (double)hd);
        if (!(sizes[t] > least) || !isfinite(sizes[t])) sizes[t] = 0;
        if (sizes[t] > 0) unit[t] = 1 / (sizes[t] * sizes[t]);
    }
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < n; t++)
            if (unit[t] > 0) squares[c] += (double)z[c * PAGE_TOKENS + t] * (double)z[c * PAGE_TOKENS + t] * unit[t];
}

void transform_fit_rows(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                        const struct index_options *options, void *fitted) {
    const struct transform_learned *learned = shape.learned;
    size_t hd = shape.head_dim, used = 0;
    float *mean = fitted, *size = mean + hd, *gains = size + hd;
    double squares[CODEC_HEAD_DIM_MAX] = {0}, sizes[PAGE_TOKENS], least = INFINITY, most = 0;
    (void)side, (void)options;
    find_mean(rows, n, stride, hd, mean);
    double constant = GAIN_LEAST * mean_size(learned, mean);
    for (size_t first = 0; first < n; first += PAGE_TOKENS) {
        size_t count = n - first < PAGE_TOKENS ? n - first : PAGE_TOKENS;
        add_squares(learned, rows + first * stride, count, stride, mean, constant, squares, sizes);
        for (size_t t = 0; t < count; t++) {
            if (!(sizes[t] > 0)) continue;
            used++;
            least = fmin(least, sizes[t]);
            most = fmax(most, sizes[t]);
        }
    }
    for (size_t c = 0; c < hd; c++) {
        double prior = (double)learned->size[c] * (double)learned->size[c];
        size[c] = (float)sqrt((squares[c] + PRIOR_ROWS * prior) / ((double)used + PRIOR_ROWS));
    }
    gains[0] = used ? (float)(least / GAIN_MARGIN) : learned->gain_least;
    gains[1] = used ? (float)fmin(most * GAIN_MARGIN, FLT_MAX) : learned->gain_least + 255 * learned->gain_step;
}
