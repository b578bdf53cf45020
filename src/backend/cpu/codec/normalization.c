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

void normalization_fit(const float *rows, size_t n, size_t hd, float *normalization) {
    float centred[CODEC_HEAD_DIM_MAX];
    double sum[CODEC_HEAD_DIM_MAX] = {0}, size = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < hd; c++) sum[c] += (double)rows[i * hd + c];
    for (size_t c = 0; c < hd; c++) normalization[c] = (float)(sum[c] / (double)n);
    for (size_t i = 0; i < n; i++) size += (double)normalization_centre(rows + i * hd, normalization, hd, centred);
    normalization[hd] = (float)(size / (double)n);
}
