/* This template implements vector_ops.rotate on the lanes of an instruction set. A file includes it after multiply_template.h and
 * defines
 *
 *     rotate_adjacent(x, cosine, sine)      LANES / 2 pairs of neighbours in x, times their angles */
#include "backend/cpu/kernels/compiler.h"

#include <stdbool.h>

INLINE void rotate_pair(float *a, float *b, float cosine, float sine) {
    float x = *a, y = *b;
    *a = x * cosine - y * sine;
    *b = x * sine + y * cosine;
}

INLINE void rotate_neighbours(float *row, const float *cosine, const float *sine, size_t pairs) {
    size_t i = 0;
    for (; i + LANES / 2 <= pairs; i += LANES / 2)
        vec_store(row + 2 * i, rotate_adjacent(vec_load(row + 2 * i), cosine + i, sine + i));
    for (; i < pairs; i++) rotate_pair(row + 2 * i, row + 2 * i + 1, cosine[i], sine[i]);
}

INLINE void rotate_halves(float *row, const float *cosine, const float *sine, size_t pairs) {
    size_t i = 0;
    for (; i + LANES <= pairs; i += LANES) {
        vec a = vec_load(row + i), b = vec_load(row + pairs + i), c = vec_load(cosine + i), s = vec_load(sine + i);
        vec_store(row + i, vec_fnma(b, s, vec_mul(a, c)));
        vec_store(row + pairs + i, vec_fma(a, s, vec_mul(b, c)));
    }
    for (; i < pairs; i++) rotate_pair(row + i, row + pairs + i, cosine[i], sine[i]);
}

static void PASTE(rotate, ISA)(float *rows, size_t n, size_t stride, const float *cosine, const float *sine, size_t pairs,
                               bool adjacent) {
    for (; n > 0; n--, rows += stride) {
        if (adjacent)
            rotate_neighbours(rows, cosine, sine, pairs);
        else
            rotate_halves(rows, cosine, sine, pairs);
    }
}
