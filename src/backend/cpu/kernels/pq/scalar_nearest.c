/* Has the reference for nearest centroids: one row and one centroid at a time. */
#include "backend/cpu/kernels/pq/init.h"

static void nearest_scalar(const float *x, size_t n, size_t d, const float *panel, const float *half, size_t width, uint32_t first,
                           float *best, uint32_t *code) {
    for (size_t r = 0; r < n; r++) {
        for (size_t j = 0; j < width; j++) {
            float value = half[j];
            for (size_t i = 0; i < d; i++) value -= x[r * d + i] * panel[i * width + j];
            if (value < best[r]) {
                best[r] = value;
                code[r] = first + (uint32_t)j;
            }
        }
    }
}

void pq_init_scalar_nearest(struct pq_ops *ops) { ops->nearest = nearest_scalar; }
