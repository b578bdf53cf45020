/* Computes GELU. Owns no memory. Exponentials are the kernels', the rest are loops that the compiler vectorises: erff for each
 * number was measured to take seven times as long, 20% of the time of the matrix before it. */
#include "backend/cpu/gelu.h"

#include "backend/cpu/kernels/vector/ops.h"

#include <math.h>

#define PIECE 256 /* numbers at a time, on the stack */

#define SQRT_HALF 0.70710678f
#define SQRT_2_PI 0.79788456f      /* sqrt(2/pi) */
#define NORMAL_DENSITY 0.39894228f /* of the normal distribution at 0 */
#define CUBE 0.044715f

/* Computes tail[n <= PIECE] = s(-|x|), the smaller of s(x) and 1 - s(x): both follow from it without cancellation. */

/* The tail of the normal distribution is erfc(a)/2 with a = |x|/sqrt(2), and that is t exp(P(t) - a^2) with t = 1/(1 + a/2). P is a polynomial of
 * degree 9 fitted for a up to 10 (5e-8 off at most); further out exp(-a^2) is 0. */
static void normal_tails(const float *x, float *tail, size_t n) {
    static const float P[] = {-1.9585952f,   0.99863279f,  0.38664040f, 0.034602799f, 0.0012675856f,
                              -0.080280431f, -0.69625193f, 1.1567338f,  -0.68082720f, 0.14493021f};
    float t[PIECE];
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]) * SQRT_HALF, sum = P[9];
        t[i] = 1 / (1 + 0.5f * a);
        for (int power = 8; power >= 0; power--) sum = sum * t[i] + P[power];
        tail[i] = sum - a * a;
    }
    vector_ops()->exp_sum(tail, 0, n);
    for (size_t i = 0; i < n; i++) tail[i] *= t[i];
}

static void tanh_tails(const float *x, float *tail, size_t n) {
    for (size_t i = 0; i < n; i++) tail[i] = -2 * SQRT_2_PI * fabsf(x[i]) * (1 + CUBE * x[i] * x[i]);
    vector_ops()->exp_sum(tail, 0, n);
    for (size_t i = 0; i < n; i++) tail[i] /= 1 + tail[i];
}

static void tails(enum activation activation, const float *x, float *tail, size_t n) {
    (activation == ACTIVATION_GELU ? normal_tails : tanh_tails)(x, tail, n);
}

/* Computes slope[n <= PIECE] = ds/dx. */
static void slopes(enum activation activation, const float *x, const float *tail, float *slope, size_t n) {
    if (activation == ACTIVATION_GELU) {
        for (size_t i = 0; i < n; i++) slope[i] = -0.5f * x[i] * x[i];
        vector_ops()->exp_sum(slope, 0, n);
        for (size_t i = 0; i < n; i++) slope[i] *= NORMAL_DENSITY;
    } else {
        for (size_t i = 0; i < n; i++) slope[i] = 2 * tail[i] * (1 - tail[i]) * SQRT_2_PI * (1 + 3 * CUBE * x[i] * x[i]);
    }
}

void gelu_row(enum activation activation, float *x, size_t n) {
    float tail[PIECE];
    for (size_t first = 0; first < n; first += PIECE, x += PIECE) {
        size_t count = n - first < PIECE ? n - first : PIECE;
        tails(activation, x, tail, count);
        for (size_t i = 0; i < count; i++) x[i] *= x[i] > 0 ? 1 - tail[i] : tail[i];
    }
}

void gelu_backward_row(enum activation activation, float *x, const float *d, size_t n) {
    float tail[PIECE], slope[PIECE];
    for (size_t first = 0; first < n; first += PIECE, x += PIECE, d += PIECE) {
        size_t count = n - first < PIECE ? n - first : PIECE;
        tails(activation, x, tail, count);
        slopes(activation, x, tail, slope, count);
        for (size_t i = 0; i < count; i++) x[i] = d[i] * ((x[i] > 0 ? 1 - tail[i] : tail[i]) + x[i] * slope[i]);
    }
}
