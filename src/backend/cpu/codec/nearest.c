/* Searches for the nearest centroid: centroids by channel in panels that stay in the first-level cache, rows in tiles that stay in
 * the second. */
#include "backend/cpu/codec/nearest.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "base/memory.h"
#include "format/pq.h"

#include <math.h>
#include <string.h>

#define PANEL_FLOATS 8192 /* 32 KB */
#define TILE_FLOATS 8192  /* on the stack */
#define TILE_ROWS 256

_Static_assert(TILE_FLOATS >= NEAREST_MOST_CHANNELS, "a tile holds a row");

enum terse_status nearest_new(size_t k, size_t d, struct nearest *nearest, struct terse_error *error) {
    *nearest = (struct nearest){.k = k, .d = d, .scale = 1};
    if (k < 1 || k > NEAREST_MOST_CENTROIDS || d < 1 || d > NEAREST_MOST_CHANNELS) {
        return status_fail(error, TERSE_E_ARGUMENT, "%zu centroids of %zu channels: use 1 to %d centroids of 1 to %d channels", k,
                           d, NEAREST_MOST_CENTROIDS, NEAREST_MOST_CHANNELS);
    }
    nearest->columns = memory_round_up(k, NEAREST_WIDTH);
    nearest->width = PANEL_FLOATS / d / NEAREST_WIDTH * NEAREST_WIDTH;
    if (nearest->width < NEAREST_WIDTH) nearest->width = NEAREST_WIDTH;
    if (nearest->width > nearest->columns) nearest->width = nearest->columns;
    nearest->origin = memory_zeros(d, sizeof(float));
    nearest->half = memory_array(nearest->columns, sizeof(float));
    nearest->panels = memory_zeros(nearest->columns * d, sizeof(float));
    if (nearest->origin && nearest->half && nearest->panels) return TERSE_OK;
    nearest_free(nearest);
    return status_no_memory(error, nearest->columns * (d + 1) * sizeof(float), "the centroids of a search");
}

void nearest_free(struct nearest *nearest) {
    memory_free(nearest->origin);
    memory_free(nearest->half);
    memory_free(nearest->panels);
    nearest->origin = nearest->half = nearest->panels = NULL;
}

size_t nearest_bytes(const struct nearest *nearest) { return (nearest->d + nearest->columns * (nearest->d + 1)) * sizeof(float); }

size_t nearest_bytes_of(size_t k, size_t d) {
    return nearest_bytes(&(struct nearest){.d = d, .columns = memory_round_up(k, NEAREST_WIDTH)});
}

void nearest_set(struct nearest *nearest, const float *centroids) {
    const size_t d = nearest->d;
    float z[NEAREST_MOST_CHANNELS];
    nearest->scale = pq_search_origin(centroids, nearest->k, d, nearest->origin);
    for (size_t first = 0; first < nearest->columns; first += nearest->width) {
        size_t width = nearest->columns - first < nearest->width ? nearest->columns - first : nearest->width;
        float *panel = nearest->panels + first * d;
        for (size_t j = 0; j < width; j++) {
            if (first + j >= nearest->k) {
                nearest->half[first + j] = INFINITY;
                continue;
            }
            nearest->half[first + j] = pq_search_centroid(centroids + (first + j) * d, d, nearest->origin, nearest->scale, z);
            for (size_t i = 0; i < d; i++) panel[i * width + j] = z[i];
        }
    }
}

/* Moves d channels of n rows to tile[n][d]; d is a constant in calls for small d. */
static inline __attribute__((always_inline)) void move_rows(const struct nearest *nearest, const float *rows, size_t n,
                                                            size_t stride, size_t d, float *tile) {
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) tile[r * d + i] = (rows[r * stride + i] - nearest->origin[i]) * nearest->scale;
    }
}

void nearest_search(const struct nearest *nearest, const float *rows, size_t n, size_t stride, uint16_t *codes) {
    _Alignas(MEMORY_ALIGN) float tile[TILE_FLOATS];
    float best[TILE_ROWS];
    uint32_t code[TILE_ROWS];
    const size_t d = nearest->d, most = TILE_FLOATS / d < TILE_ROWS ? TILE_FLOATS / d : TILE_ROWS;
    const struct pq_ops *kernel = pq_ops();
    for (size_t row = 0; row < n; row += most) {
        size_t count = n - row < most ? n - row : most;
        for (size_t r = 0; r < count; r++) {
            best[r] = INFINITY;
            code[r] = 0;
        }
        switch (d) {
        case 2: move_rows(nearest, rows + row * stride, count, stride, 2, tile); break;
        case 4: move_rows(nearest, rows + row * stride, count, stride, 4, tile); break;
        case 8: move_rows(nearest, rows + row * stride, count, stride, 8, tile); break;
        default: move_rows(nearest, rows + row * stride, count, stride, d, tile); break;
        }
        for (size_t first = 0; first < nearest->columns; first += nearest->width) {
            size_t width = nearest->columns - first < nearest->width ? nearest->columns - first : nearest->width;
            kernel->nearest(tile, count, d, nearest->panels + first * d, nearest->half + first, width, (uint32_t)first, best, code);
        }
        for (size_t r = 0; r < count; r++) codes[row + r] = (uint16_t)code[r];
    }
}
