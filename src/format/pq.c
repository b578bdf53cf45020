/* Computes the numbers that searches for the nearest centroid compare with, the same on every backend. */
#include "format/pq.h"

#include <math.h>

float pq_search_origin(const float *centroids, size_t k, size_t d, float *origin) {
    float largest = 0;
    for (size_t i = 0; i < d; i++) {
        double sum = 0;
        for (size_t j = 0; j < k; j++) sum += (double)centroids[j * d + i];
        origin[i] = (float)(sum / (double)k);
        for (size_t j = 0; j < k; j++) largest = fmaxf(largest, fabsf(centroids[j * d + i] - origin[i]));
    }
    /* The exponent is clamped to where the scale itself is a normal float. */
    int exponent = 0;
    if (largest > 0) (void)frexpf(largest, &exponent);
    return ldexpf(1, exponent < -126 ? 126 : exponent > 126 ? -126 : -exponent);
}

float pq_search_centroid(const float *centroid, size_t d, const float *origin, float scale, float *z) {
    double norm = 0;
    for (size_t i = 0; i < d; i++) {
        z[i] = (centroid[i] - origin[i]) * scale;
        norm += (double)z[i] * (double)z[i];
    }
    return (float)(norm / 2);
}
