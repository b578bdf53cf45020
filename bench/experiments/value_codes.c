/* Compares encodings of a model's values: error of the values, plain and weighted by the loss's gradients, error of attention's output
 * after the output matrix, and times. The choices in src/backend/cpu/codec/additive.c and src/method/method.c rest on these figures.
 *
 *     value_codes -f TEXT [options]
 *
 * learns from the text's first half and measures on its second. It prints of which commit it is, and a line for each encoding.
 * bench/experiments/quality.py calls it for docs/reports/commvq.md. Errors are shares of the error that the values' mean alone leaves, on text that nothing was learned from. All encodings of a head share
 * mean, gain (one byte) and samples. kivi-1 has two levels for 32 channels, their minimum and maximum. "search" is that of
 * backend/cpu/codec/binary_code_search.h, "greedy" its first half alone. "beam" decides the bits one after the other by a triangular form
 * of the same problem, keeps the best 8 prefixes and ends with the local search; its codebook is fitted like the others' and then further
 * with this search. "encoder" is the paper's network (tests/support/encoder.h), "its C" the search with the codebook that was trained with
 * the encoder. A head's attention is that of the model itself, over windows of 512 tokens. */
#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/linear.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "commit.h"
#include "console.h"
#include "format/commvq.h"
#include "options.h"
#include "support/encoder.h"
#include "text.h"
#include "train/additive.h"
#include "train/backward.h"
#include "train/calibrate.h"
#include "train/capture.h"
#include "train/codec_learning.h"
#include "train/kmeans.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, TRAIN = 12, TEST = 4, BEAM = 8, MOST = ADDITIVE_MOST_CODES, HD = CODEC_HEAD_DIM_MAX, BATCH = 512 };
#define RIDGE 0.1 /* of the beam's triangular form, as a share of the codebook rows' mean square */

static struct terse_model *model;

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "value_codes: %s\n", what);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    must(memory, "no memory");
    return memory;
}

static float dot(const float *x, const float *y, size_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void axpy(float a, const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* ---- The model's attention ----------------------------------------------------------------------------------------------------- */

/* An `attended` is the inputs of a window's attention: [layers][WINDOW] rows, queries and keys rotated. */
struct attended {
    float *q, *k, *v;
};
static struct attended attended[TRAIN + TEST];

static void record_layer(void *user, uint32_t layer, const struct captured *rows) {
    struct attended *to = user;
    size_t q = (size_t)model->query_heads * model->head_dim * WINDOW, k = (size_t)model->kv_heads * model->head_dim * WINDOW;
    memcpy(to->q + layer * q, rows->q, q * sizeof(float));
    memcpy(to->k + layer * k, rows->k_rotated, k * sizeof(float));
    memcpy(to->v + layer * k, rows->v, k * sizeof(float));
}

static void record(const int32_t *tokens, struct attended *to) {
    struct backward *backward;
    struct backward_sink sink = {record_layer, to};
    struct terse_error error;
    size_t n = (size_t)model->layers * WINDOW * model->head_dim;
    *to =
        (struct attended){allocate(n * model->query_heads, 4), allocate(n * model->kv_heads, 4), allocate(n * model->kv_heads, 4)};
    must(!backward_new(NULL, model, WINDOW, false, NULL, &backward, &error), error.message);
    must(!backward_run(backward, tokens, WINDOW, &sink, NULL, NULL, &error), error.message);
    backward_free(backward);
}

/* ---- One layer's KV head --------------------------------------------------------------------------------------------------------- */

struct rows {
    size_t n;
    float *x, *unit, *weights; /* as captured; normalized; weights of errors of the latter */
};

struct head {
    uint32_t layer, head;
    size_t hd, G;
    float norm[HD + 1];
    struct rows train, test;
    struct rows windows[TRAIN + TEST]; /* without weights */
    float *A[TRAIN + TEST];            /* [G][WINDOW][WINDOW] */
    float *W;                          /* [G][hd][width] */
    double attention_scale;            /* mean over training windows of |A x W|^2 */
};

static void normalize(const struct head *h, struct rows *rows, float *factors) {
    rows->unit = allocate(rows->n * h->hd, 4);
    for (size_t i = 0; i < rows->n; i++) {
        float rms = normalization_apply(rows->x + i * h->hd, h->norm, h->hd, rows->unit + i * h->hd);
        if (factors) factors[i] = rms;
    }
}

static struct rows captured_rows(struct head *h, const struct capture *capture, bool learn) {
    struct rows rows = {.n = capture_samples(capture)};
    struct capture_reading reading = {CODEC_VALUES, h->layer, h->head, 0, 1, rows.n};
    float *factors = allocate(rows.n, 4);
    rows.x = allocate(rows.n * h->hd, 4);
    rows.weights = allocate(rows.n, 4);
    capture_rows(capture, &reading, 0, h->hd, rows.x);
    capture_norms(capture, &reading, 0, h->hd, rows.weights);
    if (learn) normalization_fit(rows.x, rows.n, h->hd, h->norm);
    normalize(h, &rows, factors);
    calibrate_weigh(rows.weights, factors, rows.n, 2, (double)rows.n); /* none is cut, since they weigh errors, too */
    memory_free(factors);
    return rows;
}

static void attend(struct head *h, size_t w) {
    const struct attended *from = &attended[w];
    size_t hd = h->hd, Hq = model->query_heads, Hk = model->kv_heads;
    const float *q = from->q + h->layer * WINDOW * Hq * hd, *k = from->k + h->layer * WINDOW * Hk * hd + h->head * hd;
    const float *v = from->v + h->layer * WINDOW * Hk * hd + h->head * hd;
    h->A[w] = allocate(h->G * WINDOW * WINDOW, 4);
    for (size_t g = 0; g < h->G; g++) {
        float *A = h->A[w] + g * WINDOW * WINDOW;
        gemm(true, WINDOW, WINDOW, hd, q + (h->head * h->G + g) * hd, Hq * hd, k, Hk * hd, false, A, WINDOW);
        for (size_t t = 0; t < WINDOW; t++) {
            float *row = A + t * WINDOW, max = -INFINITY;
            for (size_t s = 0; s <= t; s++) max = fmaxf(max, row[s] /= sqrtf((float)hd));
            float sum = 0;
            for (size_t s = 0; s <= t; s++) sum += row[s] = expf(row[s] - max);
            for (size_t s = 0; s < WINDOW; s++) row[s] = s <= t ? row[s] / sum : 0;
        }
    }
    h->windows[w] = (struct rows){.n = WINDOW, .x = allocate(WINDOW * hd, 4)};
    for (size_t t = 0; t < WINDOW; t++) memcpy(h->windows[w].x + t * hd, v + t * Hk * hd, hd * sizeof(float));
    normalize(h, &h->windows[w], NULL);
}

/* Computes W: the columns of the output matrix that belong to the KV head's query heads, one after another, as its products with
 * unit vectors. */
static void output_matrix(struct head *h) {
    const struct matrix *o = &model->layer[h->layer].o;
    size_t n = h->G * h->hd;
    float *unit = memory_zeros(n, o->columns * sizeof *unit),
          *scratch = allocate(linear_scratch(o, (uint32_t)omp_get_max_threads()), 4);
    must(unit, "no memory");
    h->W = allocate(n * o->rows, 4);
    for (size_t i = 0; i < n; i++) unit[i * o->columns + h->head * n + i] = 1;
    linear(&(struct linear_op){o, h->W}, 1, unit, n, scratch);
    memory_free(unit);
    memory_free(scratch);
}

/* Returns |sum over queries of A_g e W_g|^2 of errors[WINDOW][hd]; adds `by` times half its gradient, unless NULL. */
static double through_attention(const struct head *h, size_t w, const float *errors, double by, float *gradient) {
    size_t width = model->layer[h->layer].o.rows, hd = h->hd;
    float *accumulated = allocate(WINDOW * hd, 4), *out = allocate(WINDOW * width, 4);
    double sum = 0;
    for (size_t g = 0; g < h->G; g++) {
        gemm(false, WINDOW, hd, WINDOW, h->A[w] + g * WINDOW * WINDOW, WINDOW, errors, hd, false, accumulated, hd);
        gemm(false, WINDOW, width, hd, accumulated, hd, h->W + g * hd * width, width, g > 0, out, width);
    }
    for (size_t i = 0; i < WINDOW * width; i++) sum += (double)out[i] * (double)out[i];
    for (size_t i = 0; i < WINDOW * width; i++) out[i] *= (float)by;
    for (size_t g = 0; gradient && g < h->G; g++) {
        gemm(true, WINDOW, hd, width, out, width, h->W + g * hd * width, width, false, accumulated, hd);
        gemm_outer(WINDOW, hd, WINDOW, h->A[w] + g * WINDOW * WINDOW, WINDOW, accumulated, hd, true, gradient, hd);
    }
    memory_free(accumulated);
    memory_free(out);
    return sum;
}

static float *centred_of(const struct head *h, const struct rows *rows) {
    float *centred = allocate(rows->n * h->hd, 4);
    for (size_t i = 0; i < rows->n; i++) normalization_centre(rows->x + i * h->hd, h->norm, h->hd, centred + i * h->hd);
    return centred;
}

/* ---- Encodings ------------------------------------------------------------------------------------------------------------------- */

struct encoding {
    const char *name;
    double bits; /* per value, resident */
    /* Encodes and decodes the rows: to[n][hd]. */
    void (*code)(const struct encoding *encoding, const struct head *h, const struct rows *rows, float *to);
    const struct codec *codec;
    struct codec_shape shape;
    const float *C;
    struct encoder *encoder;
    size_t codes;
    void (*find)(const struct encoding *encoding, const struct head *h, const float *unit, size_t n, uint8_t *bits);
};

static void code_by_codec(const struct encoding *encoding, const struct head *h, const struct rows *rows, float *to) {
    void *page = allocate(codec_page_bytes(encoding->codec, encoding->shape, CODEC_VALUES), 1);
    float decoded[PAGE_TOKENS * HD];
    for (size_t i = 0; i < rows->n; i += PAGE_TOKENS) {
        size_t n = rows->n - i < PAGE_TOKENS ? rows->n - i : PAGE_TOKENS;
        cpu_codec_of(encoding->codec)->encode(encoding->shape, CODEC_VALUES, rows->x + i * h->hd, n, page);
        cpu_codec_of(encoding->codec)->decode(encoding->shape, CODEC_VALUES, page, decoded);
        memcpy(to + i * h->hd, decoded, n * h->hd * sizeof *to);
    }
    memory_free(page);
}

static void code_by_two_levels(const struct encoding *encoding, const struct head *h, const struct rows *rows, float *to) {
    (void)encoding;
    for (size_t i = 0; i < rows->n * h->hd; i += 32) {
        float least = rows->x[i], most = least;
        for (size_t c = i; c < i + 32; c++) least = fminf(least, rows->x[c]), most = fmaxf(most, rows->x[c]);
        for (size_t c = i; c < i + 32; c++) to[c] = rows->x[c] - least < most - rows->x[c] ? least : most;
    }
}

static void code_by_bits(const struct encoding *encoding, const struct head *h, const struct rows *rows, float *to) {
    size_t hd = h->hd, codes = encoding->codes;
    uint8_t *bits = allocate(rows->n, codes / 8);
    float gains[256], centred[HD];
    gain_table(h->norm[hd], gains);
    encoding->find(encoding, h, rows->unit, rows->n, bits);
    for (size_t r = 0; r < rows->n; r++) {
        float *shape = to + r * hd;
        memset(shape, 0, hd * sizeof *shape);
        for (size_t i = 0; i < codes; i++)
            if (bits[(r * codes + i) / 8] >> i % 8 & 1) axpy(1, encoding->C + i * hd, shape, hd);
        normalization_centre(rows->x + r * hd, h->norm, hd, centred);
        float square = dot(shape, shape, hd), product = dot(shape, centred, hd);
        float gain = gains[gain_code(h->norm[hd], square > 0 ? product / square : 0)];
        for (size_t c = 0; c < hd; c++) shape[c] = h->norm[c] + gain * shape[c];
    }
    memory_free(bits);
}

static void find_by_encoder(const struct encoding *encoding, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    (void)h;
    encoder_find(encoding->encoder, unit, n, bits);
}

static void find_by_search(const struct encoding *encoding, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    struct additive_search search;
    struct terse_error error;
    must(!additive_search_new(h->hd, encoding->codes, &search, &error), error.message);
    additive_search_set(&search, encoding->C);
    additive_search_find(&search, unit, n, h->hd, bits);
    additive_search_free(&search);
}

/* Does the first half of the search alone: signs of bits are set one after another, that with the largest field first. */
static void find_greedy(const struct encoding *encoding, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    struct additive_search s;
    struct terse_error error;
    size_t codes = encoding->codes;
    float *fields = allocate(n * codes, 4);
    must(!additive_search_new(h->hd, codes, &s, &error), error.message);
    additive_search_set(&s, encoding->C);
    gemm(false, n, codes, h->hd, unit, h->hd, s.panel, codes, false, fields, codes);
    memset(bits, 0, n * codes / 8);
#pragma omp parallel for
    for (size_t r = 0; r < n; r++) {
        float *field = fields + r * codes;
        bool set[MOST] = {false};
        for (size_t i = 0; i < codes; i++) field[i] -= s.offset[i];
        for (size_t step = 0; step < codes; step++) {
            size_t at = codes;
            for (size_t i = 0; i < codes; i++)
                if (!set[i] && (at == codes || fabsf(field[i]) > fabsf(field[at]))) at = i;
            float sign = field[at] < 0 ? -1 : 1;
            set[at] = true;
            if (sign > 0) bits[(r * codes + at) / 8] |= (uint8_t)(1u << at % 8);
            axpy(-sign, s.couplings + at * codes, field, codes);
        }
    }
    additive_search_free(&s);
    memory_free(fields);
}

/* ---- The beam: |x - s C|^2 + ridge |s - 1/2|^2, which differs from the error by a constant, is |y - s L|^2 with a triangular L, the
 * Cholesky factor of C C^T + ridge. Bits are ordered so that those with the least conditional variance are decided first. */

struct beam {
    struct additive_search search;
    size_t n;
    double ridge;
    size_t *order; /* [n]: the last is decided first */
    float *L;      /* [n][n], lower */
};

static void invert(double *a, double *inverse, size_t n) {
    for (size_t i = 0; i < n * n; i++) inverse[i] = i % (n + 1) == 0;
    for (size_t p = 0; p < n; p++) {
        double pivot = 1 / a[p * n + p];
        for (size_t j = 0; j < n; j++) a[p * n + j] *= pivot, inverse[p * n + j] *= pivot;
        for (size_t i = 0; i < n; i++) {
            double by = a[i * n + p];
            for (size_t j = 0; i != p && j < n; j++)
                a[i * n + j] -= by * a[p * n + j], inverse[i * n + j] -= by * inverse[p * n + j];
        }
    }
}

/* Orders bits by their variance given the bits that are not ordered yet, the least first (Schur complements of the inverse). */
static void put_in_order(double *inverse, size_t n, size_t *order) {
    bool done[MOST] = {false};
    double row[MOST];
    for (size_t left = n; left-- > 0;) {
        size_t at = n;
        for (size_t i = 0; i < n; i++)
            if (!done[i] && (at == n || inverse[i * n + i] < inverse[at * n + at])) at = i;
        done[at] = true;
        order[left] = at;
        memcpy(row, inverse + at * n, n * sizeof *row);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; !done[i] && j < n; j++) inverse[i * n + j] -= row[i] / row[at] * row[j];
    }
}

static struct beam beam_new(const float *C, size_t n, size_t hd) {
    struct beam b = {.n = n, .order = allocate(n, sizeof *b.order), .L = allocate(n * n, 4)};
    double *gram = allocate(n * n, 8), *copy = allocate(n * n, 8), *inverse = allocate(n * n, 8), mean = 0;
    struct terse_error error;
    must(!additive_search_new(hd, n, &b.search, &error), error.message);
    additive_search_set(&b.search, C);
    for (size_t i = 0; i < n; i++) mean += (double)dot(C + i * hd, C + i * hd, hd) / (double)n;
    b.ridge = RIDGE * mean;
    for (size_t i = 0; i < n * n; i++) gram[i] = (double)dot(C + i / n * hd, C + i % n * hd, hd) + (i % (n + 1) ? 0 : b.ridge);
    memcpy(copy, gram, n * n * sizeof *gram);
    invert(copy, inverse, n);
    put_in_order(inverse, n, b.order);
    for (size_t i = 0; i < n * n; i++) copy[i] = gram[b.order[i / n] * n + b.order[i % n]];
    for (size_t j = 0; j < n; j++)
        for (size_t i = j; i < n; i++) {
            double sum = copy[i * n + j];
            for (size_t k = 0; k < j; k++) sum -= copy[i * n + k] * copy[j * n + k];
            copy[i * n + j] = i == j ? sqrt(sum) : sum / copy[j * n + j];
        }
    for (size_t i = 0; i < n * n; i++) b.L[i] = i % n <= i / n ? (float)copy[i] : 0;
    memory_free(gram), memory_free(copy), memory_free(inverse);
    return b;
}

struct prefix {
    float y[MOST], error;
    int8_t sign[MOST]; /* of a bit: 1 where it is set, else -1 */
};

/* Finds signs[n] for one row with fields p = D (x - m), so that C x = 2 (p + offset). */
static void beam_row(const struct beam *b, const float *p, struct prefix *from, struct prefix *to, float *signs) {
    size_t n = b->n, have = 1;
    for (size_t i = 0; i < n; i++) {
        size_t at = b->order[i];
        float x = 2 * (p[at] + b->search.offset[at]) + 0.5f * (float)b->ridge;
        from->y[i] = (x - dot(b->L + i * n, from->y, i)) / b->L[i * n + i];
    }
    from->error = 0;
    for (size_t i = n; i-- > 0;) {
        const float *l = b->L + i * n;
        float errors[2 * BEAM];
        size_t keep = 2 * have < BEAM ? 2 * have : BEAM;
        for (size_t c = 0; c < 2 * have; c++) {
            float rest = from[c / 2].y[i] - (c % 2 ? l[i] : 0);
            errors[c] = from[c / 2].error + rest * rest;
        }
        for (size_t k = 0; k < keep; k++) {
            size_t least = 0;
            for (size_t c = 1; c < 2 * have; c++)
                if (errors[c] < errors[least]) least = c;
            to[k] = from[least / 2];
            to[k].error = errors[least];
            to[k].sign[i] = least % 2 ? 1 : -1;
            if (least % 2) axpy(-1, l, to[k].y, i);
            errors[least] = INFINITY;
        }
        have = keep;
        struct prefix *other = from;
        from = to;
        to = other;
    }
    for (size_t i = 0; i < n; i++) signs[b->order[i]] = from->sign[i];
}

/* Flips signs as long as that lowers the error, as the second half of the search does. */
static void local_search(const struct beam *b, float *field, float *signs) {
    size_t n = b->n;
    for (size_t i = 0; i < n; i++) axpy(-signs[i], b->search.couplings + i * n, field, n);
    for (size_t flips = 0; flips < n; flips++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (signs[i] * field[i] < signs[at] * field[at]) at = i;
        if (!(signs[at] * field[at] < -ADDITIVE_LEAST_FIELD)) return;
        signs[at] = -signs[at];
        axpy(-2 * signs[at], b->search.couplings + at * n, field, n);
    }
}

static void find_by_beam(const struct encoding *encoding, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    size_t codes = encoding->codes;
    struct beam b = beam_new(encoding->C, codes, h->hd);
    float *fields = allocate(n * codes, 4);
    gemm(false, n, codes, h->hd, unit, h->hd, b.search.panel, codes, false, fields, codes);
    memset(bits, 0, n * codes / 8);
#pragma omp parallel
    {
        struct prefix *some = allocate(2 * BEAM, sizeof *some);
#pragma omp for
        for (size_t r = 0; r < n; r++) {
            float *field = fields + r * codes, signs[MOST];
            for (size_t i = 0; i < codes; i++) field[i] -= b.search.offset[i];
            beam_row(&b, field, some, some + BEAM, signs);
            local_search(&b, field, signs);
            for (size_t i = 0; i < codes; i++)
                if (signs[i] > 0) bits[(r * codes + i) / 8] |= (uint8_t)(1u << i % 8);
        }
        memory_free(some);
    }
    additive_search_free(&b.search);
    memory_free(b.order), memory_free(b.L), memory_free(fields);
}

/* Refits C `rounds` times with the beam's codes of some training rows. */
static void refit_by_beam(struct encoding *encoding, const struct head *h, float *C, int rounds) {
    size_t n = h->train.n < 6144 ? h->train.n : 6144, hd = h->hd, codes = encoding->codes;
    uint8_t *bits = allocate(n, codes / 8);
    double *normal = allocate(codes * codes, 8), *right = allocate(codes * hd, 8);
    float *s = allocate(n * codes, 4), *weighted = allocate(n * codes, 4),
          *products = allocate(codes * (codes > hd ? codes : hd), 4);
    for (int round = 0; round < rounds; round++) {
        double mass = 0;
        find_by_beam(encoding, h, h->train.unit, n, bits);
        for (size_t i = 0; i < n * codes; i++) {
            s[i] = (float)(bits[i / 8] >> i % 8 & 1);
            weighted[i] = s[i] * h->train.weights[i / codes];
        }
        gemm_outer(codes, codes, n, weighted, codes, s, codes, false, products, codes);
        for (size_t i = 0; i < codes * codes; i++) normal[i] = (double)products[i];
        for (size_t i = 0; i < codes; i++) mass += normal[i * codes + i] / (double)codes;
        gemm_outer(codes, hd, n, weighted, codes, h->train.unit, hd, false, products, hd);
        for (size_t i = 0; i < codes * hd; i++) right[i] = (double)products[i];
        additive_solve(codes, hd, normal, right, 1e-3 * mass, C);
    }
    memory_free(bits), memory_free(normal), memory_free(right), memory_free(s), memory_free(weighted), memory_free(products);
}

/* ---- Learning -------------------------------------------------------------------------------------------------------------------- */

static void open_encoding(struct encoding *encoding, float *parameters) {
    void *learned;
    struct terse_error error;
    if ((encoding->codec->learner == CODEC_LEARNS_KMEANS)) codec_snap_to_grid(encoding->codec, encoding->shape, parameters);
    must(!cpu_codec_of(encoding->codec)->learned->make(encoding->shape, CODEC_VALUES, parameters, &learned, &error), error.message);
    encoding->shape.learned = learned;
    memory_free(parameters);
}

static void learn_gain_shape(struct encoding *encoding, const struct head *h, uint32_t width) {
    struct kmeans_options options = kmeans_options_defaults();
    struct terse_error error;
    encoding->shape = (struct codec_shape){.head_dim = (uint32_t)h->hd, .group = (uint32_t)h->G, .width = width, .bits = 8};
    float *parameters = allocate(codec_parameters(encoding->codec, encoding->shape), 4);
    options.rounds = 4;
    options.tolerance = 2e-3;
    for (size_t m = 0; m < h->hd / width; m++) {
        struct kmeans_points points = {h->train.unit + m * width, h->train.n, width, h->hd, h->train.weights};
        must(!kmeans_fit(&points, 256, &options, parameters + m * 256 * width, NULL, &error), error.message);
    }
    memcpy(parameters + 256 * h->hd, h->norm, (h->hd + 1) * sizeof(float));
    open_encoding(encoding, parameters);
}

static float *learn_additive(struct encoding *encoding, const struct head *h, uint32_t bits) {
    struct additive_options options = additive_options_defaults();
    struct coding coding = additive_coding((uint32_t)h->hd, bits);
    struct terse_error error;
    encoding->shape =
        (struct codec_shape){.head_dim = (uint32_t)h->hd, .group = (uint32_t)h->G, .width = coding.width, .bits = coding.bits};
    float *parameters = allocate(codec_parameters(encoding->codec, encoding->shape), 4), *C = allocate(coding.bits * h->hd, 4);
    struct additive_points points = {h->train.unit, h->train.n, h->hd, h->train.weights};
    must(!additive_fit(&points, h->hd, coding.bits, &options, C, NULL, NULL, &error), error.message);
    memcpy(parameters, C, coding.bits * h->hd * sizeof *C);
    memcpy(parameters + coding.bits * h->hd, h->norm, (h->hd + 1) * sizeof(float));
    open_encoding(encoding, parameters);
    return C;
}

/* An attention_window is one training window for the encoder's loss. */
struct attention_window {
    const struct head *h;
    size_t window;
};

/* Returns the loss of errors[n][hd] of normalized rows; the errors of the rows themselves are larger by the rows' rms. */
static double attention_loss(void *user, const float *errors, size_t n, float *gradient) {
    const struct attention_window *at = user;
    const struct head *h = at->h;
    const struct rows *rows = &h->windows[at->window];
    float *outside = allocate(n * h->hd, 4), *back = memory_zeros(n * h->hd, 4), rms[WINDOW], centred[HD];
    for (size_t r = 0; r < n; r++) {
        rms[r] = normalization_centre(rows->x + r * h->hd, h->norm, h->hd, centred);
        for (size_t c = 0; c < h->hd; c++) outside[r * h->hd + c] = rms[r] * errors[r * h->hd + c];
    }
    double by = 1 / h->attention_scale, loss = 0.5 * by * through_attention(h, at->window, outside, by, back);
    for (size_t i = 0; i < n * h->hd; i++) gradient[i] += rms[i / h->hd] * back[i];
    memory_free(outside);
    memory_free(back);
    return loss;
}

/* Alternates steps on random samples with steps on windows, whose loss is the error of attention's output. */
static struct encoder *learn_encoder(const struct head *h, size_t codes, size_t steps) {
    float scale[HD] = {0}, *rows = allocate(BATCH * h->hd, 4), weights[BATCH];
    uint64_t state = 1;
    for (size_t i = 0; i < h->train.n * h->hd; i++) scale[i % h->hd] += fabsf(h->train.unit[i]) / (float)h->train.n;
    struct encoder *e = encoder_new(h->hd, codes, 0, scale, NULL, 1);
    must(e, "no memory");
    for (size_t step = 0; step < steps; step++) {
        struct attention_window window = {h, step / 2 % TRAIN};
        struct encoder_batch batch = {rows, BATCH, weights, random_next(&state) | 1, NULL, &window};
        for (size_t i = 0; i < BATCH && step % 2 == 0; i++) {
            size_t at = (size_t)(random_uniform(random_next(&state)) * (double)h->train.n);
            memcpy(rows + i * h->hd, h->train.unit + at * h->hd, h->hd * sizeof *rows);
            weights[i] = h->train.weights[at];
        }
        if (step % 2)
            batch = (struct encoder_batch){h->windows[window.window].unit, WINDOW, NULL, batch.noise, attention_loss, &window};
        encoder_loss(e, &batch, ENCODER_STRAIGHT);
        encoder_step(e, step, steps);
    }
    memory_free(rows);
    return e;
}

/* ---- Figures --------------------------------------------------------------------------------------------------------------------- */

enum { ENCODINGS = 8 };
struct figures {
    double plain, weighted, attention, encode, read;
};

/* Returns the seconds to encode n rows, the fastest of many runs. */
static double seconds_of(const struct encoding *encoding, const struct head *h, size_t n, char *pages, uint8_t *bits) {
    size_t bytes = encoding->codec ? codec_page_bytes(encoding->codec, encoding->shape, CODEC_VALUES) : 0;
    double best = INFINITY, end = clock_now() + 0.5;
    for (int run = 0; run < 100 && (run < 3 || clock_now() < end); run++) {
        double start = clock_now();
        for (size_t i = 0; encoding->codec && i < n; i += PAGE_TOKENS)
            cpu_codec_of(encoding->codec)
                ->encode(encoding->shape, CODEC_VALUES, h->test.x + i * h->hd, PAGE_TOKENS, pages + i / PAGE_TOKENS * bytes);
        if (encoding->find) encoding->find(encoding, h, h->test.unit, n, bits);
        best = fmin(best, clock_now() - start);
    }
    return best;
}

/* Adds the microseconds to encode a token, without set-up, and the nanoseconds to accumulate one, from 1024 tokens with the shape's
 * queries. */
static void time_encoding(const struct encoding *encoding, const struct head *h, struct figures *f) {
    enum { TOKENS = 1024, FEW = 64, MORE = 192 };
    size_t bytes = encoding->codec ? codec_page_bytes(encoding->codec, encoding->shape, CODEC_VALUES) : 0;
    float *weights = allocate(h->G * PAGE_TOKENS, 4), *acc = memory_zeros(h->G, h->hd * 4);
    uint8_t *bits = allocate(MORE, MOST / 8);
    char *pages = allocate(TOKENS / PAGE_TOKENS, bytes);
    double best = INFINITY;
    must(acc && h->test.n >= TOKENS, "no memory, or too few tokens");
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    f->encode += 1e6 * (seconds_of(encoding, h, MORE, pages, bits) - seconds_of(encoding, h, FEW, pages, bits)) / (MORE - FEW);
    for (size_t i = 0; encoding->codec && i < TOKENS; i += PAGE_TOKENS)
        cpu_codec_of(encoding->codec)
            ->encode(encoding->shape, CODEC_VALUES, h->test.x + i * h->hd, PAGE_TOKENS, pages + i / PAGE_TOKENS * bytes);
    for (size_t i = 0; i < h->G * PAGE_TOKENS; i++) weights[i] = (float)(i % 11) / 64;
    for (int run = 0; encoding->codec && run < 500; run++) {
        size_t floats = cpu_codec_code_sum_floats(cpu_codec_of(encoding->codec), encoding->shape);
        float *code_sums = memory_zeros(floats, 4);
        double start = clock_now();
        for (size_t i = 0; i < TOKENS / PAGE_TOKENS; i++)
            if (floats)
                cpu_codec_of(encoding->codec)->code_sums->add(encoding->shape, weights, pages + i * bytes, code_sums);
            else
                cpu_codec_of(encoding->codec)->accumulate_values(encoding->shape, weights, pages + i * bytes, acc);
        if (floats) cpu_codec_of(encoding->codec)->code_sums->finish(encoding->shape, code_sums, acc);
        best = fmin(best, clock_now() - start);
        memory_free(code_sums);
    }
    omp_set_num_threads(threads);
    f->read += encoding->codec ? 1e9 * best / TOKENS : NAN;
    memory_free(weights), memory_free(acc), memory_free(bits), memory_free(pages);
}

static void measure(const struct encoding *encoding, const struct head *h, struct figures *f) {
    size_t hd = h->hd;
    float *read = allocate(h->test.n * hd, 4), *centred = centred_of(h, &h->test);
    double plain = 0, all = 0, weighted = 0, weight = 0, attention = 0, whole = 0;
    encoding->code(encoding, h, &h->test, read);
    for (size_t r = 0; r < h->test.n; r++) {
        double error = 0, size = 0;
        for (size_t c = 0; c < hd; c++) {
            double x = (double)h->test.x[r * hd + c] - (double)read[r * hd + c];
            error += x * x;
            size += (double)centred[r * hd + c] * (double)centred[r * hd + c];
        }
        plain += error;
        all += size;
        weighted += size > 0 ? (double)h->test.weights[r] * error / size : 0; /* weights are those of normalized errors */
        weight += (double)h->test.weights[r];
    }
    for (size_t w = TRAIN; w < TRAIN + TEST; w++) {
        float *window = centred_of(h, &h->windows[w]);
        whole += through_attention(h, w, window, 0, NULL);
        encoding->code(encoding, h, &h->windows[w], read);
        for (size_t i = 0; i < WINDOW * hd; i++) read[i] = h->windows[w].x[i] - read[i];
        attention += through_attention(h, w, read, 0, NULL);
        memory_free(window);
    }
    f->plain += plain / all;
    f->weighted += weighted / weight;
    f->attention += attention / whole;
    time_encoding(encoding, h, f);
    memory_free(read), memory_free(centred);
}

static void make_head(struct head *h, uint32_t set, const struct capture *train, const struct capture *test) {
    *h = (struct head){set / model->kv_heads, set % model->kv_heads, model->head_dim, model->query_heads / model->kv_heads,
                       .norm = {0}};
    h->train = captured_rows(h, train, true);
    h->test = captured_rows(h, test, false);
    for (size_t w = 0; w < TRAIN + TEST; w++) attend(h, w);
    output_matrix(h);
    for (size_t w = 0; w < TRAIN; w++) {
        float *window = centred_of(h, &h->windows[w]);
        h->attention_scale += through_attention(h, w, window, 0, NULL) / TRAIN;
        memory_free(window);
    }
}

static void free_rows(struct rows *rows) { memory_free(rows->x), memory_free(rows->unit), memory_free(rows->weights); }

static void free_head(struct head *h) {
    free_rows(&h->train);
    free_rows(&h->test);
    for (size_t w = 0; w < TRAIN + TEST; w++) {
        free_rows(&h->windows[w]);
        memory_free(h->A[w]);
    }
    memory_free(h->W);
}

/* Adds the figures of all encodings at this number of bits. */
static size_t compare(const struct head *h, uint32_t bits, size_t steps, struct figures *figures, struct encoding *encodings) {
    size_t codes = bits * h->hd;
    double resident = bits + 8.0 / (double)h->hd;
    encodings[0] = (struct encoding){.name = bits == 2 ? "kivi-2" : "kivi-1", .bits = bits + 1};
    encodings[0].code = bits == 2 ? code_by_codec : code_by_two_levels;
    if (bits == 2) encodings[0].codec = &codec_kivi_2;
    encodings[0].shape = (struct codec_shape){.head_dim = (uint32_t)h->hd, .group = (uint32_t)h->G, .width = 0, .bits = 0};
    encodings[1] = (struct encoding){"gain-shape", resident, code_by_codec, .codec = &codec_gain_shape};
    learn_gain_shape(&encodings[1], h, 8 / bits);
    encodings[2] = (struct encoding){"additive", resident, code_by_codec, .codec = &codec_additive};
    float *C = learn_additive(&encodings[2], h, bits), *refitted = allocate(codes * h->hd, 4);
    memcpy(refitted, C, codes * h->hd * sizeof *C);
    encodings[3] = (struct encoding){"  greedy", resident, code_by_bits, .C = C, .codes = codes, .find = find_greedy};
    encodings[4] = (struct encoding){"  search", resident, code_by_bits, .C = C, .codes = codes, .find = find_by_search};
    encodings[5] = (struct encoding){"  beam", resident, code_by_bits, .C = refitted, .codes = codes, .find = find_by_beam};
    refit_by_beam(&encodings[5], h, refitted, 4);
    struct encoder *e = learn_encoder(h, codes, steps);
    double each =
        16.0 * (double)encoder_network_numbers(e) / (8192.0 * (double)h->hd); /* in half precision, spread over 8K tokens */
    encodings[6] = (struct encoding){"encoder",    resident + each, code_by_bits,           .C = encoder_codebook(e),
                                     .encoder = e, .codes = codes,  .find = find_by_encoder};
    encodings[7] =
        (struct encoding){"  its C", resident, code_by_bits, .C = encoder_codebook(e), .codes = codes, .find = find_by_search};
    for (size_t i = 0; i < ENCODINGS; i++) measure(&encodings[i], h, &figures[i]);
    cpu_codec_gain_shape.learned->free((void *)encodings[1].shape.learned);
    cpu_codec_additive.learned->free((void *)encodings[2].shape.learned);
    encoder_free(e);
    memory_free(C), memory_free(refitted);
    return ENCODINGS;
}

struct values {
    const char *model_path, *file;
    int64_t heads, windows, steps;
};

static enum options_result parse(struct values *v, int argc, char **argv) {
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &v->model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &v->file, 0, 0, "text, to learn from its first half and to measure on its second"},
        {"--chunks", "K", OPTION_INTEGER, &v->windows, 1, 4096, "windows of 2048 tokens to learn from"},
        {"--heads", "N", OPTION_INTEGER, &v->heads, 1, 1 << 16, "KV heads to measure, spread evenly over all layers but the last"},
        {"--steps", "N", OPTION_INTEGER, &v->steps, 1, 1 << 30, "of the paper's encoder; the paper trains it for 100000 or more"},
    };
    const struct option_set set = {
        .usage = "value_codes -f TEXT [options]",
        .about = "Errors and times of encodings of a model's values.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

static void print_figures(const struct values *v, struct figures figures[2][ENCODINGS], struct encoding encodings[2][ENCODINGS]) {
    printf("commit %s\n%lld heads, %lld tokens to learn from, %u queries, %s kernels; ", build_commit(), (long long)v->heads,
           2048 * (long long)v->windows, model->query_heads / model->kv_heads, terse_cpu_name());
    printf("times are of one run, in parts of gain-shape's\n");
    printf("%-12s %8s %8s %8s %9s %14s %16s\n", "encoding", "bits", "plain", "weighted", "attention", "encode us", "read ns");
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < ENCODINGS; i++) {
            const struct figures *f = &figures[b][i], *than = &figures[b][1];
            double n = (double)v->heads;
            printf("%-12s %8.3f %8.4f %8.4f %9.4f %7.2f %6.2f %8.2f %7.2f\n", encodings[b][i].name, encodings[b][i].bits,
                   f->plain / n, f->weighted / n, f->attention / n, f->encode / n, f->encode / than->encode, f->read / n,
                   f->read / than->read);
        }
}

static int run(const struct values *v) {
    struct figures figures[2][ENCODINGS] = {{{0}}};
    struct encoding encodings[2][ENCODINGS];
    struct capture *train, *test;
    struct terse_error error;
    struct head h;
    char *text;
    int32_t *tokens;
    size_t n_bytes, n;
    if (terse_model_load(v->model_path, &model, &error)) return complain_error(&error);
    const size_t all = (model->layers - 1) * model->kv_heads;
    if ((size_t)v->heads > all) return complain("--heads %lld: there are %zu", (long long)v->heads, all);
    int status = text_read(v->file, &text, &n_bytes);
    if (status == EXIT_OK) status = text_tokenize(model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &tokens, &n);
    if (status != EXIT_OK) return status;
    free(text);
    struct capture_options options = {
        .side = {[CODEC_VALUES] = {true, false, model->head_dim}}, .window = 2048, .drawn = true, .seed = 1};
    options.budget = (size_t)4 << 30;
    options.positions = model->context;
    options.windows = (uint32_t)v->windows;
    if (capture_new(model, &options, tokens, n / 2, &train, &error)) return complain_error(&error);
    options.windows = 2;
    if (capture_new(model, &options, tokens + n / 2, n / 2, &test, &error)) return complain_error(&error);
    for (size_t w = 0; w < TRAIN + TEST; w++) {
        size_t at = w < TRAIN ? w * (n / 2 - WINDOW) / TRAIN : n / 2 + (w - TRAIN) * (n / 2 - WINDOW) / TEST;
        record(tokens + at, &attended[w]);
    }
    for (size_t i = 0; i < (size_t)v->heads; i++) {
        make_head(&h, (uint32_t)((2 * i + 1) * all / (2 * (size_t)v->heads)), train, test);
        for (uint32_t bits = 1; bits <= 2; bits++) compare(&h, bits, (size_t)v->steps, figures[bits - 1], encodings[bits - 1]);
        free_head(&h);
        progress_show(NULL, "heads", i + 1, (uint64_t)v->heads);
    }
    progress_clear();
    print_figures(v, figures, encodings);
    capture_free(train);
    capture_free(test);
    free(tokens);
    return EXIT_OK;
}

int main(int argc, char **argv) {
    struct values v = {.model_path = PROJECT_DIR "/models/lab-27m-q8_0.gguf", .heads = 2, .windows = 8, .steps = 1500};
    console_begin("value_codes");
    enum options_result parsed = parse(&v, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    int status = v.file ? run(&v) : complain("give -f TEXT");
    terse_model_free(model);
    return console_end(status);
}
