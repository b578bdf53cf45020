/* Angles of the rotary embedding and their application to rows of heads. Where the frequencies come from is the model's. */
#include "kernels/rope.h"

#include <math.h>
#include <stddef.h>

void rope_angles(const struct rope *rope, int64_t position, float *cosine, float *sine) {
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        /* The product of a 24-bit frequency and a position up to 1e9 needs 54 bits, so the double `angle` may lose `rest`
         * (up to 1e-7 radians); it enters by the first-order term, the second being below 1e-14. */
        double turns = (double)position, frequency = rope->frequency[i];
        double angle = turns * frequency;
        double rest = fma(turns, frequency, -angle);
        double c = cos(angle), s = sin(angle);
        cosine[i] = (float)(c - rest * s);
        sine[i] = (float)(s + rest * c);
    }
}

void rope_rotate(const struct rope *rope, const float *cosine, const float *sine, float *rows, uint32_t n, uint32_t stride) {
    uint32_t pairs = rope->n_rot / 2;
    float magnitude = rope->magnitude;
    for (uint32_t r = 0; r < n; r++) {
        float *row = rows + (size_t)r * stride;
        if (rope->pairing == ROPE_ADJACENT) {
            for (uint32_t i = 0; i < pairs; i++) {
                float a = row[2 * i] * magnitude, b = row[2 * i + 1] * magnitude;
                row[2 * i] = a * cosine[i] - b * sine[i];
                row[2 * i + 1] = a * sine[i] + b * cosine[i];
            }
        } else {
            for (uint32_t i = 0; i < pairs; i++) {
                float a = row[i] * magnitude, b = row[i + pairs] * magnitude;
                row[i] = a * cosine[i] - b * sine[i];
                row[i + pairs] = a * sine[i] + b * cosine[i];
            }
        }
    }
}
