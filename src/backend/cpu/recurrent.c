/* Owns the order of a recurrent layer's work: channels of the convolution, then heads, each with all its tokens, are shared out over
 * the threads. */
#include "backend/cpu/recurrent.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/rows.h"
#include "model/architecture.h"

#include <math.h>
#include <string.h>

#define LANES 16            /* channels that are convolved together */
#define LENGTH_LEAST 1e-6f  /* what is added to a squared length that is divided by */
#define SOFTPLUS_LINEAR 20  /* from here on softplus(x) = x in single precision */
#define PARALLEL_WORK 65536 /* numbers: fewer are not worth waking the threads for */

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static float softplus(float x) { return x > SOFTPLUS_LINEAR ? x : log1pf(expf(x)); }

/* ---- The convolution */

/* Convolves channels [first, first + n) of all tokens, n at most LANES. */
static void convolve_channels(const struct recurrent_job *job, size_t first, size_t n) {
    const size_t taps = job->model->recurrent_conv, width = model_mixed_width(job->model);
    float seen[RECURRENT_CONV_MAX][LANES] = {{0}}, weights[RECURRENT_CONV_MAX][LANES] = {{0}};
    for (size_t tap = 0; tap < taps; tap++)
        for (size_t c = 0; c < n; c++) weights[tap][c] = job->layer->conv[(first + c) * taps + tap];
    for (size_t tap = 0; tap + 1 < taps; tap++) memcpy(seen[tap], job->state + tap * width + first, n * sizeof(float));
    for (size_t t = 0; t < job->n; t++) {
        float *x = job->mixed + t * width + first, sum[LANES] = {0};
        memcpy(seen[taps - 1], x, n * sizeof *x);
        for (size_t tap = 0; tap < taps; tap++)
            for (size_t c = 0; c < LANES; c++) sum[c] += weights[tap][c] * seen[tap][c];
        memmove(seen[0], seen[1], (taps - 1) * sizeof seen[0]);
        memcpy(x, sum, n * sizeof *x);
    }
    for (size_t tap = 0; tap + 1 < taps; tap++) memcpy(job->state + tap * width + first, seen[tap], n * sizeof(float));
}

static void convolve(const struct recurrent_job *job) {
    const size_t width = model_mixed_width(job->model);
#pragma omp parallel for if (job->n * width >= PARALLEL_WORK)
    for (size_t first = 0; first < width; first += LANES)
        convolve_channels(job, first, width - first < LANES ? width - first : LANES);
}

/* Applies SiLU to x[n]. */
static void silu(float *x, size_t n) {
    float ones[256];
    for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++) ones[i] = 1;
    for (size_t first = 0, count; first < n; first += count) {
        count = n - first < sizeof ones / sizeof ones[0] ? n - first : sizeof ones / sizeof ones[0];
        vector_ops()->silu_mul(x + first, ones, count);
    }
}

/* Scales x[n] to this length. */
static void set_length(float *x, size_t n, float length) {
    const float scale = length / sqrtf(vector_ops()->dot(x, x, n) + LENGTH_LEAST);
    for (size_t i = 0; i < n; i++) x[i] *= scale;
}

/* Makes queries, keys and values of the convolution's outputs. */
static void activate(const struct recurrent_job *job) {
    const struct terse_model *m = job->model;
    const size_t width = model_mixed_width(m), size = m->recurrent_state;
    const float length = 1 / sqrtf((float)size);
#pragma omp parallel for if (job->n >= PARALLEL_ROWS)
    for (size_t t = 0; t < job->n; t++) {
        float *x = job->mixed + t * width;
        silu(x, width);
        for (size_t head = 0; head < 2 * m->recurrent_key_heads; head++)
            set_length(x + head * size, size, head < m->recurrent_key_heads ? length : 1);
    }
}

/* ---- The state */

/* Has the state[n][n] of a head take a token in; writes out[n] = S^T q. */
static void take_in(float *state, size_t n, const float *q, const float *k, const float *v, float decay, float beta, float *out) {
    float change[RECURRENT_STATE_MAX];
    memset(change, 0, n * sizeof *change);
    for (size_t i = 0; i < n; i++) vector_ops()->axpy(decay * k[i], state + i * n, change, n);
    for (size_t j = 0; j < n; j++) change[j] = beta * (v[j] - change[j]);
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        float *restrict row = state + i * n;
        const float key = k[i], query = q[i];
        for (size_t j = 0; j < n; j++) {
            row[j] = decay * row[j] + key * change[j];
            out[j] += query * row[j];
        }
    }
}

static void read_head(const struct recurrent_job *job, size_t head) {
    const struct terse_model *m = job->model;
    const struct recurrent *l = job->layer;
    const size_t size = m->recurrent_state, group = m->recurrent_value_heads / m->recurrent_key_heads;
    const size_t key_head = m->architecture->tiled_heads ? head % m->recurrent_key_heads : head / group;
    const size_t place = l->alpha.data ? head : 2 * key_head * group + head % group; /* of its beta and alpha */
    const size_t keys = m->recurrent_key_heads * size, width = model_recurrent_width(m);
    float *state = job->state + (m->recurrent_conv - 1) * model_mixed_width(m) + head * size * size;
    float made[RECURRENT_STATE_MAX];
    for (size_t t = 0; t < job->n; t++) {
        const float *x = job->mixed + t * model_mixed_width(m);
        const float beta = job->beta[t * l->beta.rows + place], alpha = job->alpha[t * l->beta.rows + place];
        const float decay = expf(l->decay[head] * softplus(alpha + l->bias[head]));
        float *gate = job->gate + t * width + head * size;
        take_in(state, size, x + key_head * size, x + keys + key_head * size, x + 2 * keys + head * size, decay, sigmoid(beta),
                made);
        vector_ops()->rms_norm(made, l->norm.gain, l->norm.epsilon, made, size);
        vector_ops()->silu_mul(gate, made, size);
        memcpy(job->out + t * width + head * size, gate, size * sizeof *gate);
    }
}

void recurrent_read(const struct recurrent_job *job) {
    const struct terse_model *m = job->model;
    convolve(job);
    activate(job);
#pragma omp parallel for if (job->n * model_recurrent_width(m) * m->recurrent_state >= PARALLEL_WORK)
    for (size_t head = 0; head < m->recurrent_value_heads; head++) read_head(job, head);
}
