/* Computes angles of the rotary embedding and applies them to rows of heads. rope_scaling.c computes the frequencies. */
#include "model/rope.h"

#include <math.h>
#include <stddef.h>

void rope_angles(const struct rope *rope, int64_t position, float *cosine, float *sine) {
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        /* The product of a 24-bit frequency and a position up to 1e9 needs 54 bits, so the double `angle` may lose `rest` (up to
         * 1e-7 radians). It enters by the first-order term; the second is below 1e-14. */
        double offset = (double)position, frequency = rope->frequency[i];
        double angle = offset * frequency;
        double rest = fma(offset, frequency, -angle);
        double c = cos(angle), s = sin(angle);
        cosine[i] = (float)(c - rest * s);
        sine[i] = (float)(s + rest * c);
    }
}

/* Rotates pairs `step` floats apart whose numbers are `apart` from each other. */
static inline void rotate_row(size_t step, size_t apart, size_t pairs, float magnitude, const float *restrict cosine,
                              const float *restrict sine, float *restrict row) {
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        float a = row[step * i] * magnitude, b = row[step * i + apart] * magnitude;
        row[step * i] = a * cosine[i] - b * sine[i];
        row[step * i + apart] = a * sine[i] + b * cosine[i];
    }
}

void rope_rotate(const struct rope *rope, const float *cosine, const float *sine, float *rows, uint32_t n, uint32_t stride) {
    size_t pairs = rope->n_rot / 2;
    for (uint32_t r = 0; r < n; r++) {
        float *row = rows + (size_t)r * stride;
        if (rope->pairing == ROPE_ADJACENT)
            rotate_row(2, 1, pairs, rope->magnitude, cosine, sine, row);
        else
            rotate_row(1, pairs, pairs, rope->magnitude, cosine, sine, row);
    }
}
