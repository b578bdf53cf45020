/* Calls the kernels for exponentials; the rest are loops that the compiler vectorises. */
#include "backend/cpu/cap.h"

#include "backend/cpu/kernels/vector/ops.h"

#include <math.h>

#define PIECE 256 /* numbers at a time, on the stack */

/* tanh |u| = (1 - e) / (1 + e) with e = exp(-2 |u|), which cannot overflow. */
void cap_row(float *x, float cap, size_t n) {
    float e[PIECE];
    for (size_t first = 0; first < n; first += PIECE, x += PIECE) {
        size_t count = n - first < PIECE ? n - first : PIECE;
        for (size_t i = 0; i < count; i++) e[i] = -2 / cap * fabsf(x[i]);
        vector_ops()->exp_sum(e, 0, count);
        for (size_t i = 0; i < count; i++) x[i] = copysignf(cap * (1 - e[i]) / (1 + e[i]), x[i]);
    }
}
