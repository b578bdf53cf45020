/* Transposes from channel-major to token-major, for decoders of keys. */
#ifndef TERSE_BACKEND_CPU_CODEC_TRANSPOSE_H
#define TERSE_BACKEND_CPU_CODEC_TRANSPOSE_H

#include "format/page_layout.h"

#include <stddef.h>
#include <string.h>

/* Transposes channels[n][64] to rows[64][stride], n a multiple of 4: four by four in registers, as stores of single floats would
 * take longest. */
static inline void transpose_channels(const float *channels, size_t n, float *rows, size_t stride) {
    typedef float four __attribute__((vector_size(16)));
    for (size_t t = 0; t < PAGE_TOKENS; t += 4) {
        for (size_t c = 0; c < n; c += 4) {
            four a[4], b[4];
            for (size_t i = 0; i < 4; i++) memcpy(&a[i], channels + (c + i) * PAGE_TOKENS + t, sizeof a[i]);
            b[0] = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
            b[1] = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
            b[2] = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
            b[3] = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
            a[0] = __builtin_shufflevector(b[0], b[2], 0, 1, 4, 5);
            a[1] = __builtin_shufflevector(b[0], b[2], 2, 3, 6, 7);
            a[2] = __builtin_shufflevector(b[1], b[3], 0, 1, 4, 5);
            a[3] = __builtin_shufflevector(b[1], b[3], 2, 3, 6, 7);
            for (size_t i = 0; i < 4; i++) memcpy(rows + (t + i) * stride + c, &a[i], sizeof a[i]);
        }
    }
}

#endif
