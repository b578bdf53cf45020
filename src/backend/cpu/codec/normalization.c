/* Normalizes rows: about their mean and to a size of 1. */
#include "backend/cpu/codec/normalization.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "format/codec.h"

float normalization_centre(const float *row, const float *mean, size_t hd, float *centred) {
    for (size_t c = 0; c < hd; c++) centred[c] = row[c] - mean[c];
    return sqrtf(vector_ops()->dot(centred, centred, hd) / (float)hd);
}

float normalization_apply(const float *row, const float *mean, size_t hd, float *to) {
    float rms = normalization_centre(row, mean, hd, to), inverse = rms > 0 ? 1 / rms : 0;
    for (size_t c = 0; c < hd; c++) to[c] *= inverse;
    return rms;
}

/* Sets the scale: the mean rms of rows[n][hd] about the mean. */
static void fit_scale(const float *rows, size_t n, size_t hd, float *normalization) {
    float centred[CODEC_HEAD_DIM_MAX];
    double size = 0;
    for (size_t i = 0; i < n; i++) size += (double)normalization_centre(rows + i * hd, normalization, hd, centred);
    normalization[hd] = (float)(size / (double)n);
}

void normalization_fit(const float *rows, size_t n, size_t hd, float *normalization) {
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < hd; c++) sum[c] += (double)rows[i * hd + c];
    for (size_t c = 0; c < hd; c++) normalization[c] = (float)(sum[c] / (double)n);
    fit_scale(rows, n, hd, normalization);
}

void normalization_fit_scale(const float *rows, size_t n, size_t hd, float *normalization) {
    for (size_t c = 0; c < hd; c++) normalization[c] = 0;
    fit_scale(rows, n, hd, normalization);
}
