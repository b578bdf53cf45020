/* The learned encoder and its training. Batches go through backend/cpu/gemm.h. */
#include "support/encoder.h"

#include "backend/cpu/gelu.h"
#include "backend/cpu/gemm.h"
#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define RATE 1e-3
#define DECAY 0.1
#define BETA1 0.9
#define BETA2 0.95
#define EPSILON 1e-8
#define NORM_EPSILON 1e-5f
#define MOST_HIDDEN 4096
#define SOME_ROWS 256 /* that encoder_find takes at once */

static const float kinds[4][2] = {{1, 0}, {0, 1}, {1, 1}, {0, 0}};

struct encoder {
    size_t d, codes, h, n;                              /* n: numbers */
    float *scale, *numbers, *gradient, *first, *second; /* the optimizer's moments */
    float *gain, *bias, *w1, *b1, *w2, *b2, *C;         /* in `numbers` */
    size_t rows;                                        /* that the buffer holds */
    float *buffer, *a, *unit, *inner, *activated, *z, *s, *errors, *d_errors, *d_z, *d_inner, *d_a;
    float *deviation; /* [rows], 1 / standard deviation */
};

static void place(struct encoder *e, float *numbers, float **gain, float **bias, float **w1, float **b1, float **w2, float **b2,
                  float **C) {
    *gain = numbers;
    *bias = *gain + e->d;
    *w1 = *bias + e->d;
    *b1 = *w1 + e->h * e->d;
    *w2 = *b1 + e->h;
    *b2 = *w2 + 2 * e->codes * e->h;
    *C = *b2 + 2 * e->codes;
}

static double normal(uint64_t *state) {
    double radius = sqrt(-2 * log(1 - random_uniform(random_next(state))));
    return radius * cos(6.283185307179586 * random_uniform(random_next(state)));
}

static bool make_room(struct encoder *e, size_t rows) {
    if (rows <= e->rows) return true;
    memory_free(e->buffer);
    e->rows = 0;
    size_t d = e->d, h = e->h, z = 2 * e->codes;
    e->buffer = memory_array(rows * (5 * d + 3 * h + 2 * z + e->codes + 1), sizeof *e->buffer);
    if (!e->buffer) return false;
    e->a = e->buffer;
    e->unit = e->a + rows * d;
    e->errors = e->unit + rows * d;
    e->d_errors = e->errors + rows * d;
    e->d_a = e->d_errors + rows * d;
    e->inner = e->d_a + rows * d;
    e->activated = e->inner + rows * h;
    e->d_inner = e->activated + rows * h;
    e->z = e->d_inner + rows * h;
    e->d_z = e->z + rows * z;
    e->s = e->d_z + rows * z;
    e->deviation = e->s + rows * e->codes;
    e->rows = rows;
    return true;
}

struct encoder *encoder_new(size_t channels, size_t codes, size_t hidden, const float *scale, const float *C, uint64_t seed) {
    struct encoder *e = codes % 2 ? NULL : memory_zeros(1, sizeof *e);
    if (!e) return NULL;
    size_t usual = 2 * codes < MOST_HIDDEN ? 2 * codes : MOST_HIDDEN, d = channels;
    e->d = d;
    e->codes = codes;
    e->h = hidden ? hidden : usual;
    e->n = 2 * d + e->h * (d + 1) + 2 * codes * (e->h + 1) + codes * d;
    e->scale = memory_array(d, sizeof *e->scale);
    e->numbers = memory_zeros(e->n, sizeof *e->numbers);
    e->gradient = memory_zeros(e->n, sizeof *e->gradient);
    e->first = memory_zeros(e->n, sizeof *e->first);
    e->second = memory_zeros(e->n, sizeof *e->second);
    if (!e->scale || !e->numbers || !e->gradient || !e->first || !e->second) {
        encoder_free(e);
        return NULL;
    }
    memcpy(e->scale, scale, d * sizeof *scale);
    place(e, e->numbers, &e->gain, &e->bias, &e->w1, &e->b1, &e->w2, &e->b2, &e->C);
    for (size_t c = 0; c < d; c++) e->gain[c] = 1;
    for (size_t i = 0; i < e->h * d; i++) e->w1[i] = (float)(normal(&seed) / sqrt((double)d));
    for (size_t i = 0; i < 2 * codes * e->h; i++) e->w2[i] = (float)(normal(&seed) / sqrt((double)e->h));
    for (size_t i = 0; i < codes * d; i++) e->C[i] = C ? C[i] : (float)(normal(&seed) * sqrt(4 / (double)codes));
    return e;
}

void encoder_free(struct encoder *e) {
    if (!e) return;
    memory_free(e->scale);
    memory_free(e->numbers);
    memory_free(e->gradient);
    memory_free(e->first);
    memory_free(e->second);
    memory_free(e->buffer);
    memory_free(e);
}

float *encoder_numbers(struct encoder *e, size_t *n) {
    *n = e->n;
    return e->numbers;
}

const float *encoder_gradient(const struct encoder *e) { return e->gradient; }
const float *encoder_codebook(const struct encoder *e) { return e->C; }
size_t encoder_network_numbers(const struct encoder *e) { return e->n - e->codes * e->d + e->d; }

/* ---- Forward ------------------------------------------------------------------------------------------------------------------ */

/* unit: LayerNorm's rows before gain and bias; a: after. */
static void normalise(struct encoder *e, const float *rows, size_t n) {
    size_t d = e->d;
#pragma omp parallel for
    for (size_t r = 0; r < n; r++) {
        float *unit = e->unit + r * d;
        double norm = 0, mean = 0, variance = 0;
        for (size_t c = 0; c < d; c++) {
            unit[c] = rows[r * d + c] / (e->scale[c] + 1e-6f);
            norm += (double)unit[c] * (double)unit[c];
        }
        float factor = (float)(sqrt((double)d) / (sqrt(norm) + 1e-6));
        for (size_t c = 0; c < d; c++) mean += (double)(unit[c] *= factor) / (double)d;
        for (size_t c = 0; c < d; c++) variance += ((double)unit[c] - mean) * ((double)unit[c] - mean) / (double)d;
        e->deviation[r] = (float)(1 / sqrt(variance + (double)NORM_EPSILON));
        for (size_t c = 0; c < d; c++) {
            unit[c] = (unit[c] - (float)mean) * e->deviation[r];
            e->a[r * d + c] = unit[c] * e->gain[c] + e->bias[c];
        }
    }
}

static void network(struct encoder *e, const float *rows, size_t n) {
    size_t z = 2 * e->codes;
    normalise(e, rows, n);
    for (size_t r = 0; r < n; r++) memcpy(e->inner + r * e->h, e->b1, e->h * sizeof *e->b1);
    gemm(true, n, e->h, e->d, e->a, e->d, e->w1, e->d, true, e->inner, e->h);
    memcpy(e->activated, e->inner, n * e->h * sizeof *e->inner);
#pragma omp parallel for
    for (size_t r = 0; r < n; r++) gelu_row(ACTIVATION_GELU, e->activated + r * e->h, e->h);
    for (size_t r = 0; r < n; r++) memcpy(e->z + r * z, e->b2, z * sizeof *e->b2);
    gemm(true, n, z, e->h, e->activated, e->h, e->w2, e->h, true, e->z, z);
}

static size_t largest(const float *x) {
    size_t at = 0;
    for (size_t k = 1; k < 4; k++)
        if (x[k] > x[at]) at = k;
    return at;
}

/* z becomes y, and s what the mode makes of it. */
static void choose(struct encoder *e, size_t n, uint64_t seed, enum encoder_mode mode) {
#pragma omp parallel for
    for (size_t i = 0; i < n * e->codes / 2; i++) {
        float *y = e->z + 4 * i, *s = e->s + 2 * i, most, sum = 0;
        for (size_t k = 0; seed && k < 4; k++) {
            double u = random_uniform(random_mix(seed + (4 * i + k + 1) * RANDOM_STEP));
            y[k] -= (float)log(-log(fmax(u, 1e-12)) + 1e-300);
        }
        size_t at = largest(y);
        most = y[at];
        for (size_t k = 0; k < 4; k++) sum += y[k] = expf(y[k] - most);
        for (size_t k = 0; k < 4; k++) y[k] /= sum;
        for (size_t b = 0; b < 2; b++) s[b] = mode == ENCODER_SOFT ? y[b] + y[2] : kinds[at][b];
    }
}

/* ---- Backward ----------------------------------------------------------------------------------------------------------------- */

/* d_z of the gradient with respect to s. */
static void choose_backward(struct encoder *e, size_t n) {
#pragma omp parallel for
    for (size_t i = 0; i < n * e->codes / 2; i++) {
        const float *y = e->z + 4 * i, *ds = e->s + 2 * i; /* by now */
        float *dz = e->d_z + 4 * i, mean = 0;
        for (size_t k = 0; k < 4; k++) mean += y[k] * (dz[k] = kinds[k][0] * ds[0] + kinds[k][1] * ds[1]);
        for (size_t k = 0; k < 4; k++) dz[k] = y[k] * (dz[k] - mean);
    }
}

static void add_rows(const float *rows, size_t n, size_t width, float *sum) {
    memset(sum, 0, width * sizeof *sum);
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < width; c++) sum[c] += rows[r * width + c];
}

static void network_backward(struct encoder *e, size_t n) {
    size_t d = e->d, h = e->h, z = 2 * e->codes;
    float *gain, *bias, *w1, *b1, *w2, *b2, *C;
    place(e, e->gradient, &gain, &bias, &w1, &b1, &w2, &b2, &C);
    gemm_outer(z, h, n, e->d_z, z, e->activated, h, false, w2, h);
    add_rows(e->d_z, n, z, b2);
    gemm(false, n, h, z, e->d_z, z, e->w2, h, false, e->d_inner, h);
#pragma omp parallel for
    for (size_t r = 0; r < n; r++) gelu_backward_row(ACTIVATION_GELU, e->inner + r * h, e->d_inner + r * h, h);
    gemm_outer(h, d, n, e->inner, h, e->a, d, false, w1, d); /* which is the gradient by now */
    add_rows(e->inner, n, h, b1);
    gemm(false, n, d, h, e->inner, h, e->w1, d, false, e->d_a, d);
    add_rows(e->d_a, n, d, bias);
    memset(gain, 0, d * sizeof *gain);
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < d; c++) gain[c] += e->d_a[r * d + c] * e->unit[r * d + c];
}

double encoder_loss(struct encoder *e, const struct encoder_batch *batch, enum encoder_mode mode) {
    size_t n = batch->n, d = e->d, codes = e->codes;
    double loss = 0;
    if (!make_room(e, n)) return NAN;
    network(e, batch->rows, n);
    choose(e, n, batch->noise, mode);
    gemm(false, n, d, codes, e->s, codes, e->C, d, false, e->errors, d);
    for (size_t r = 0; r < n; r++) {
        float weight = (batch->weights ? batch->weights[r] : 1) / (float)(n * d);
        for (size_t c = 0; c < d; c++) {
            float *error = &e->errors[r * d + c];
            *error = batch->rows[r * d + c] - *error;
            loss += 0.5 * (double)weight * (double)*error * (double)*error;
            e->d_errors[r * d + c] = weight * *error;
        }
    }
    if (batch->loss) loss += batch->loss(batch->user, e->errors, n, e->d_errors);
    for (size_t i = 0; i < n * d; i++) e->d_errors[i] = -e->d_errors[i]; /* with respect to s C */
    gemm_outer(codes, d, n, e->s, codes, e->d_errors, d, false, e->gradient + (e->C - e->numbers), d);
    gemm(true, n, codes, d, e->d_errors, d, e->C, d, false, e->s, codes);
    choose_backward(e, n);
    network_backward(e, n);
    return loss;
}

void encoder_step(struct encoder *e, size_t step, size_t steps) {
    double warm = fmin(1, (double)(step + 1) / fmin(100, 1 + (double)steps / 10));
    double rate = RATE * warm * 0.5 * (1 + cos(3.141592653589793 * (double)step / (double)steps));
    double unbias1 = 1 - pow(BETA1, (double)(step + 1)), unbias2 = 1 - pow(BETA2, (double)(step + 1));
#pragma omp parallel for simd
    for (size_t i = 0; i < e->n; i++) {
        double g = (double)e->gradient[i];
        e->first[i] = (float)(BETA1 * (double)e->first[i] + (1 - BETA1) * g);
        e->second[i] = (float)(BETA2 * (double)e->second[i] + (1 - BETA2) * g * g);
        double along = (double)e->first[i] / unbias1 / (sqrt((double)e->second[i] / unbias2) + EPSILON);
        e->numbers[i] -= (float)(rate * (along + DECAY * (double)e->numbers[i]));
    }
}

void encoder_find(struct encoder *e, const float *rows, size_t n, uint8_t *bits) {
    memset(bits, 0, n * e->codes / 8);
    if (!make_room(e, SOME_ROWS)) return;
    for (size_t first = 0; first < n; first += SOME_ROWS) {
        size_t count = n - first < SOME_ROWS ? n - first : SOME_ROWS;
        network(e, rows + first * e->d, count);
        for (size_t i = 0; i < count * e->codes; i++)
            if (kinds[largest(e->z + i / 2 * 4)][i % 2] > 0) bits[(first * e->codes + i) / 8] |= (uint8_t)(1u << i % 8);
    }
}
