/* Ways to code values, on those of a model: error of the values, plain and weighted by the loss's gradients, and error of what
 * attention over them gives, through the output matrix; then times. What src/codec/additive.c and src/method.c choose between.
 *
 *     value_codes [SETS [WINDOWS [STEPS]]]     6 of the layers' KV heads, 8 windows to learn from, 1500 steps for the encoder
 *
 * Errors are parts of what the values' mean alone would leave, of text that nothing was learned from. All of a head's ways share mean,
 * gain (one byte) and samples. kivi-1 is two levels for 32 channels, the least and the most. The search of backend/cpu/codec/binary_code_search.h stands
 * as "snapped", without its second half as "greedy"; "beam" is bits one after the other by a triangular form of the same problem, the
 * best 8 beginnings kept, snapped at the end, with a codebook that was fitted as the others' and then further by this search.
 * "encoder" is the paper's network (tests/support/encoder.h), "its C" the search with the codebook that was trained with it.
 * A head's attention is that of the model itself, over windows of 512 tokens: CMakeLists.txt leads the backward pass's call here. */
#include "backend/cpu/codec/additive.h"
#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kernels/weights/ops.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "support/encoder.h"
#include "train/additive.h"
#include "train/backward.h"
#include "train/backward_attention.h"
#include "train/calibrate.h"
#include "train/capture.h"
#include "train/kmeans.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, TRAIN = 12, TEST = 4, BEAM = 8, MOST = ADDITIVE_MOST_CODES, HD = CODEC_HEAD_DIM_MAX, BATCH = 512 };
#define RIDGE 0.1 /* of the beam's triangular form, of a code's mean square */

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

/* ---- The model's attention ----------------------------------------------------------------------------------------------------- */

struct attended {
    float *q, *k, *v; /* [layers][WINDOW] rows */
};
static struct attended attended[TRAIN + TEST];
static struct attended *recording;
static size_t recorded;

void __real_attention_forward(const struct attention *a, float *out, float *log_sum, uint32_t threads, float *scratch);
void __wrap_attention_forward(const struct attention *a, float *out, float *log_sum, uint32_t threads, float *scratch);

void __wrap_attention_forward(const struct attention *a, float *out, float *log_sum, uint32_t threads, float *scratch) {
    size_t q = (size_t)model->query_heads * model->head_dim * WINDOW, k = (size_t)model->kv_heads * model->head_dim * WINDOW;
    if (recording && recorded < model->layers) {
        memcpy(recording->q + recorded * q, a->q, q * sizeof(float));
        memcpy(recording->k + recorded * k, a->k, k * sizeof(float));
        memcpy(recording->v + recorded * k, a->v, k * sizeof(float));
        recorded++;
    }
    __real_attention_forward(a, out, log_sum, threads, scratch);
}

static void no_layer(void *user, uint32_t layer, const struct captured *rows) { (void)user, (void)layer, (void)rows; }

static void record(const int32_t *tokens, struct attended *to) {
    struct backward *backward;
    struct backward_sink sink = {no_layer, NULL};
    struct terse_error error;
    size_t n = (size_t)model->layers * WINDOW * model->head_dim;
    *to =
        (struct attended){allocate(n * model->query_heads, 4), allocate(n * model->kv_heads, 4), allocate(n * model->kv_heads, 4)};
    must(!backward_new(model, WINDOW, false, &backward, &error), error.message);
    recording = to;
    recorded = 0;
    must(!backward_run(backward, tokens, WINDOW, &sink, NULL, NULL, &error), error.message);
    recording = NULL;
    backward_free(backward);
}

/* ---- One layer's KV head --------------------------------------------------------------------------------------------------------- */

struct rows {
    size_t n;
    float *x, *unit, *weights; /* as they are; in the frame; of their errors there */
};

struct head {
    uint32_t layer, head;
    size_t hd, G;
    float frame[HD + 1];
    struct rows train, test;
    struct rows windows[TRAIN + TEST]; /* without weights */
    float *A[TRAIN + TEST];            /* [G][WINDOW][WINDOW] */
    float *W;                          /* [G][hd][width] */
    double attention_scale;            /* mean over training windows of |A x W|^2 */
};

static void enter(const struct head *h, struct rows *rows, float *factors) {
    rows->unit = allocate(rows->n * h->hd, 4);
    for (size_t i = 0; i < rows->n; i++) {
        float rms = normalization_apply(rows->x + i * h->hd, h->frame, h->hd, rows->unit + i * h->hd);
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
    if (learn) normalization_fit(rows.x, rows.n, h->hd, h->frame);
    enter(h, &rows, factors);
    calibrate_weigh(rows.weights, factors, rows.n, 2);
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
            float sum = vector_ops()->exp_sum(row, max, t + 1);
            for (size_t s = 0; s < WINDOW; s++) row[s] = s <= t ? row[s] / sum : 0;
        }
    }
    h->windows[w] = (struct rows){.n = WINDOW, .x = allocate(WINDOW * hd, 4)};
    for (size_t t = 0; t < WINDOW; t++) memcpy(h->windows[w].x + t * hd, v + t * Hk * hd, hd * sizeof(float));
    enter(h, &h->windows[w], NULL);
}

static void output_matrix(struct head *h) {
    const struct matrix *o = &model->layer[h->layer].o;
    float *row = allocate(o->columns, 4);
    h->W = allocate(h->G * h->hd * o->rows, 4);
    for (size_t r = 0; r < o->rows; r++) {
        weights_ops()->dequantize[o->type]((const char *)o->data + r * o->row_bytes, row, o->columns);
        for (size_t i = 0; i < h->G * h->hd; i++) h->W[i * o->rows + r] = row[h->head * h->G * h->hd + i];
    }
    memory_free(row);
}

/* |sum over queries of A_g e W_g|^2 of errors[WINDOW][hd]; adds `by` times half its gradient, unless NULL. */
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
    for (size_t i = 0; i < rows->n; i++) normalization_centre(rows->x + i * h->hd, h->frame, h->hd, centred + i * h->hd);
    return centred;
}

/* ---- Ways ------------------------------------------------------------------------------------------------------------------------ */

/* Writes what rows are read as once they were coded. */
struct way {
    const char *name;
    double bits; /* per value, resident */
    void (*code)(const struct way *way, const struct head *h, const struct rows *rows, float *to);
    const struct codec *codec;
    struct codec_shape shape;
    const float *C;
    struct encoder *encoder;
    size_t codes;
    void (*find)(const struct way *way, const struct head *h, const float *unit, size_t n, uint8_t *bits);
};

static void code_by_codec(const struct way *way, const struct head *h, const struct rows *rows, float *to) {
    void *block = allocate(way->codec->page_bytes(way->shape, CODEC_VALUES), 1);
    float decoded[PAGE_TOKENS * HD];
    for (size_t i = 0; i < rows->n; i += PAGE_TOKENS) {
        size_t n = rows->n - i < PAGE_TOKENS ? rows->n - i : PAGE_TOKENS;
        way->codec->encode(way->shape, CODEC_VALUES, rows->x + i * h->hd, n, block);
        way->codec->decode(way->shape, CODEC_VALUES, block, decoded);
        memcpy(to + i * h->hd, decoded, n * h->hd * sizeof *to);
    }
    memory_free(block);
}

static void code_by_two_levels(const struct way *way, const struct head *h, const struct rows *rows, float *to) {
    (void)way;
    for (size_t i = 0; i < rows->n * h->hd; i += 32) {
        float least = rows->x[i], most = least;
        for (size_t c = i; c < i + 32; c++) least = fminf(least, rows->x[c]), most = fmaxf(most, rows->x[c]);
        for (size_t c = i; c < i + 32; c++) to[c] = rows->x[c] - least < most - rows->x[c] ? least : most;
    }
}

static void code_by_bits(const struct way *way, const struct head *h, const struct rows *rows, float *to) {
    size_t hd = h->hd, codes = way->codes;
    uint8_t *bits = allocate(rows->n, codes / 8);
    float gains[256], centred[HD];
    gain_table(h->frame[hd], gains);
    way->find(way, h, rows->unit, rows->n, bits);
    for (size_t r = 0; r < rows->n; r++) {
        float *shape = to + r * hd;
        memset(shape, 0, hd * sizeof *shape);
        for (size_t i = 0; i < codes; i++)
            if (bits[(r * codes + i) / 8] >> i % 8 & 1) vector_ops()->axpy(1, way->C + i * hd, shape, hd);
        normalization_centre(rows->x + r * hd, h->frame, hd, centred);
        float square = vector_ops()->dot(shape, shape, hd), product = vector_ops()->dot(shape, centred, hd);
        float gain = gains[gain_code(h->frame[hd], square > 0 ? product / square : 0)];
        for (size_t c = 0; c < hd; c++) shape[c] = h->frame[c] + gain * shape[c];
    }
    memory_free(bits);
}

static void find_by_encoder(const struct way *way, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    (void)h;
    encoder_find(way->encoder, unit, n, bits);
}

static void find_snapped(const struct way *way, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    struct additive_search search;
    struct terse_error error;
    must(!additive_search_new(h->hd, way->codes, &search, &error), error.message);
    additive_search_set(&search, way->C);
    additive_search_find(&search, unit, n, h->hd, bits);
    additive_search_free(&search);
}

/* The search's first half alone. */
static void find_greedy(const struct way *way, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    struct additive_search s;
    struct terse_error error;
    size_t codes = way->codes;
    float *fields = allocate(n * codes, 4);
    must(!additive_search_new(h->hd, codes, &s, &error), error.message);
    additive_search_set(&s, way->C);
    commvq_ops()->multiply_panel(unit, n, h->hd, h->hd, s.panel, codes, fields);
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
            float spin = field[at] < 0 ? -1 : 1;
            set[at] = true;
            if (spin > 0) bits[(r * codes + at) / 8] |= (uint8_t)(1u << at % 8);
            vector_ops()->axpy(-spin, s.couplings + at * codes, field, codes);
        }
    }
    additive_search_free(&s);
    memory_free(fields);
}

/* ---- The beam: |x - s C|^2 + ridge |s - 1/2|^2, which differs by a constant, is |y - s L|^2 with a triangular L, the factor of
 * C C^T + ridge, whose rows are in such an order that the bits that can be told best come first. */

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

/* The bit with the least variance given the others first; what is left of the inverse is that of the rest. */
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
    for (size_t i = 0; i < n; i++) mean += (double)vector_ops()->dot(C + i * hd, C + i * hd, hd) / (double)n;
    b.ridge = RIDGE * mean;
    for (size_t i = 0; i < n * n; i++)
        gram[i] = (double)vector_ops()->dot(C + i / n * hd, C + i % n * hd, hd) + (i % (n + 1) ? 0 : b.ridge);
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

struct beginning {
    float y[MOST], error;
    int8_t spin[MOST];
};

/* Of one row with fields p = D (x - m): C x = 2 (p + offset). */
static void beam_row(const struct beam *b, const float *p, struct beginning *from, struct beginning *to, float *spins) {
    size_t n = b->n, have = 1;
    for (size_t i = 0; i < n; i++) {
        size_t at = b->order[i];
        float x = 2 * (p[at] + b->search.offset[at]) + 0.5f * (float)b->ridge;
        from->y[i] = (x - vector_ops()->dot(b->L + i * n, from->y, i)) / b->L[i * n + i];
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
            to[k].spin[i] = least % 2 ? 1 : -1;
            if (least % 2) vector_ops()->axpy(-1, l, to[k].y, i);
            errors[least] = INFINITY;
        }
        have = keep;
        struct beginning *other = from;
        from = to;
        to = other;
    }
    for (size_t i = 0; i < n; i++) spins[b->order[i]] = from->spin[i];
}

/* Turns spins as long as that wins, as the search does. */
static void settle(const struct beam *b, float *field, float *spins) {
    size_t n = b->n;
    for (size_t i = 0; i < n; i++) vector_ops()->axpy(-spins[i], b->search.couplings + i * n, field, n);
    for (size_t rotated = 0; rotated < n; rotated++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (spins[i] * field[i] < spins[at] * field[at]) at = i;
        if (!(spins[at] * field[at] < -ADDITIVE_LEAST_FIELD)) return;
        spins[at] = -spins[at];
        vector_ops()->axpy(-2 * spins[at], b->search.couplings + at * n, field, n);
    }
}

static void find_by_beam(const struct way *way, const struct head *h, const float *unit, size_t n, uint8_t *bits) {
    size_t codes = way->codes;
    struct beam b = beam_new(way->C, codes, h->hd);
    float *fields = allocate(n * codes, 4);
    commvq_ops()->multiply_panel(unit, n, h->hd, h->hd, b.search.panel, codes, fields);
    memset(bits, 0, n * codes / 8);
#pragma omp parallel
    {
        struct beginning *some = allocate(2 * BEAM, sizeof *some);
#pragma omp for
        for (size_t r = 0; r < n; r++) {
            float *field = fields + r * codes, spins[MOST];
            for (size_t i = 0; i < codes; i++) field[i] -= b.search.offset[i];
            beam_row(&b, field, some, some + BEAM, spins);
            settle(&b, field, spins);
            for (size_t i = 0; i < codes; i++)
                if (spins[i] > 0) bits[(r * codes + i) / 8] |= (uint8_t)(1u << i % 8);
        }
        memory_free(some);
    }
    additive_search_free(&b.search);
    memory_free(b.order), memory_free(b.L), memory_free(fields);
}

/* Goes on fitting C, rounds times, with the beam's codes of some training rows. */
static void refit_by_beam(struct way *way, const struct head *h, float *C, int rounds) {
    size_t n = h->train.n < 6144 ? h->train.n : 6144, hd = h->hd, codes = way->codes;
    uint8_t *bits = allocate(n, codes / 8);
    double *normal = allocate(codes * codes, 8), *right = allocate(codes * hd, 8);
    float *s = allocate(n * codes, 4), *weighted = allocate(n * codes, 4),
          *products = allocate(codes * (codes > hd ? codes : hd), 4);
    for (int round = 0; round < rounds; round++) {
        double mass = 0;
        find_by_beam(way, h, h->train.unit, n, bits);
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

static void open_way(struct way *way, float *parameters) {
    void *learned;
    struct terse_error error;
    if (way->codec->snap_to_grid) way->codec->snap_to_grid(way->shape, CODEC_VALUES, parameters);
    must(!way->codec->open(way->shape, CODEC_VALUES, parameters, &learned, &error), error.message);
    way->shape.learned = learned;
    memory_free(parameters);
}

static void learn_gain_shape(struct way *way, const struct head *h, uint32_t width) {
    struct kmeans_options options = kmeans_options_defaults();
    struct terse_error error;
    way->shape = (struct codec_shape){(uint32_t)h->hd, (uint32_t)h->G, width, 8, NULL};
    float *parameters = allocate(way->codec->parameters(way->shape, CODEC_VALUES), 4);
    options.rounds = 4;
    options.tolerance = 2e-3;
    for (size_t m = 0; m < h->hd / width; m++) {
        struct kmeans_points points = {h->train.unit + m * width, h->train.n, width, h->hd, h->train.weights};
        must(!kmeans_fit(&points, 256, &options, parameters + m * 256 * width, NULL, &error), error.message);
    }
    memcpy(parameters + 256 * h->hd, h->frame, (h->hd + 1) * sizeof(float));
    open_way(way, parameters);
}

static float *learn_additive(struct way *way, const struct head *h, uint32_t bits) {
    struct additive_options options = additive_options_defaults();
    struct coding coding = additive_coding((uint32_t)h->hd, bits);
    struct terse_error error;
    way->shape = (struct codec_shape){(uint32_t)h->hd, (uint32_t)h->G, coding.width, coding.bits, NULL};
    float *parameters = allocate(way->codec->parameters(way->shape, CODEC_VALUES), 4), *C = allocate(coding.bits * h->hd, 4);
    struct additive_points points = {h->train.unit, h->train.n, h->hd, h->train.weights};
    must(!additive_fit(&points, h->hd, coding.bits, &options, C, NULL, NULL, &error), error.message);
    memcpy(parameters, C, coding.bits * h->hd * sizeof *C);
    memcpy(parameters + coding.bits * h->hd, h->frame, (h->hd + 1) * sizeof(float));
    open_way(way, parameters);
    return C;
}

struct lesson {
    const struct head *h;
    size_t window;
};

/* Of errors in the frame: outside they are as much larger as the rows. */
static double attention_loss(void *user, const float *errors, size_t n, float *gradient) {
    const struct lesson *lesson = user;
    const struct head *h = lesson->h;
    const struct rows *rows = &h->windows[lesson->window];
    float *outside = allocate(n * h->hd, 4), *back = memory_zeros(n * h->hd, 4), rms[WINDOW], centred[HD];
    for (size_t r = 0; r < n; r++) {
        rms[r] = normalization_centre(rows->x + r * h->hd, h->frame, h->hd, centred);
        for (size_t c = 0; c < h->hd; c++) outside[r * h->hd + c] = rms[r] * errors[r * h->hd + c];
    }
    double by = 1 / h->attention_scale, loss = 0.5 * by * through_attention(h, lesson->window, outside, by, back);
    for (size_t i = 0; i < n * h->hd; i++) gradient[i] += rms[i / h->hd] * back[i];
    memory_free(outside);
    memory_free(back);
    return loss;
}

/* Steps by turns from random samples, and from windows with the loss of what attention gives. */
static struct encoder *learn_encoder(const struct head *h, size_t codes, size_t steps) {
    float scale[HD] = {0}, *rows = allocate(BATCH * h->hd, 4), weights[BATCH];
    uint64_t state = 1;
    for (size_t i = 0; i < h->train.n * h->hd; i++) scale[i % h->hd] += fabsf(h->train.unit[i]) / (float)h->train.n;
    struct encoder *e = encoder_new(h->hd, codes, 0, scale, NULL, 1);
    must(e, "no memory");
    for (size_t step = 0; step < steps; step++) {
        struct lesson lesson = {h, step / 2 % TRAIN};
        struct encoder_batch batch = {rows, BATCH, weights, random_next(&state) | 1, NULL, &lesson};
        for (size_t i = 0; i < BATCH && step % 2 == 0; i++) {
            size_t at = (size_t)(random_uniform(random_next(&state)) * (double)h->train.n);
            memcpy(rows + i * h->hd, h->train.unit + at * h->hd, h->hd * sizeof *rows);
            weights[i] = h->train.weights[at];
        }
        if (step % 2)
            batch = (struct encoder_batch){h->windows[lesson.window].unit, WINDOW, NULL, batch.noise, attention_loss, &lesson};
        encoder_loss(e, &batch, ENCODER_STRAIGHT);
        encoder_step(e, step, steps);
    }
    memory_free(rows);
    return e;
}

/* ---- Figures --------------------------------------------------------------------------------------------------------------------- */

enum { WAYS = 8 };
struct figures {
    double plain, weighted, attention, encode, read;
};

/* The fastest of many. */
static double seconds_of(const struct way *way, const struct head *h, size_t n, char *blocks, uint8_t *bits) {
    size_t bytes = way->codec ? way->codec->page_bytes(way->shape, CODEC_VALUES) : 0;
    double best = INFINITY, end = clock_now() + 0.5;
    for (int run = 0; run < 100 && (run < 3 || clock_now() < end); run++) {
        double start = clock_now();
        for (size_t i = 0; way->codec && i < n; i += PAGE_TOKENS)
            way->codec->encode(way->shape, CODEC_VALUES, h->test.x + i * h->hd, PAGE_TOKENS, blocks + i / PAGE_TOKENS * bytes);
        if (way->find) way->find(way, h, h->test.unit, n, bits);
        best = fmin(best, clock_now() - start);
    }
    return best;
}

/* Encoding in microseconds for a token, without what is made once for all; reading 1024 of them with the shape's queries, in
 * nanoseconds. */
static void time_way(const struct way *way, const struct head *h, struct figures *f) {
    enum { TOKENS = 1024, FEW = 64, MORE = 192 };
    size_t bytes = way->codec ? way->codec->page_bytes(way->shape, CODEC_VALUES) : 0;
    float *weights = allocate(h->G * PAGE_TOKENS, 4), *acc = memory_zeros(h->G, h->hd * 4);
    uint8_t *bits = allocate(MORE, MOST / 8);
    char *blocks = allocate(TOKENS / PAGE_TOKENS, bytes);
    double best = INFINITY;
    must(acc && h->test.n >= TOKENS, "no memory, or too few tokens");
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    f->encode += 1e6 * (seconds_of(way, h, MORE, blocks, bits) - seconds_of(way, h, FEW, blocks, bits)) / (MORE - FEW);
    for (size_t i = 0; way->codec && i < TOKENS; i += PAGE_TOKENS)
        way->codec->encode(way->shape, CODEC_VALUES, h->test.x + i * h->hd, PAGE_TOKENS, blocks + i / PAGE_TOKENS * bytes);
    for (size_t i = 0; i < h->G * PAGE_TOKENS; i++) weights[i] = (float)(i % 11) / 64;
    for (int run = 0; way->codec && run < 500; run++) {
        size_t floats = way->codec->code_sums ? way->codec->code_sums(way->shape) : 0;
        float *code_sums = memory_zeros(floats, 4);
        double start = clock_now();
        for (size_t i = 0; i < TOKENS / PAGE_TOKENS; i++)
            if (floats)
                way->codec->accumulate_by_code(way->shape, weights, blocks + i * bytes, code_sums);
            else
                way->codec->accumulate(way->shape, weights, blocks + i * bytes, acc);
        if (floats) way->codec->finish_code_sums(way->shape, code_sums, acc);
        best = fmin(best, clock_now() - start);
        memory_free(code_sums);
    }
    omp_set_num_threads(threads);
    f->read += way->codec ? 1e9 * best / TOKENS : NAN;
    memory_free(weights), memory_free(acc), memory_free(bits), memory_free(blocks);
}

static void measure(const struct way *way, const struct head *h, struct figures *f) {
    size_t hd = h->hd;
    float *read = allocate(h->test.n * hd, 4), *centred = centred_of(h, &h->test);
    double plain = 0, all = 0, weighted = 0, weight = 0, attention = 0, whole = 0;
    way->code(way, h, &h->test, read);
    for (size_t r = 0; r < h->test.n; r++) {
        double error = 0, size = 0;
        for (size_t c = 0; c < hd; c++) {
            double x = (double)h->test.x[r * hd + c] - (double)read[r * hd + c];
            error += x * x;
            size += (double)centred[r * hd + c] * (double)centred[r * hd + c];
        }
        plain += error;
        all += size;
        weighted += size > 0 ? (double)h->test.weights[r] * error / size : 0; /* weights are of errors in the frame */
        weight += (double)h->test.weights[r];
    }
    for (size_t w = TRAIN; w < TRAIN + TEST; w++) {
        float *window = centred_of(h, &h->windows[w]);
        whole += through_attention(h, w, window, 0, NULL);
        way->code(way, h, &h->windows[w], read);
        for (size_t i = 0; i < WINDOW * hd; i++) read[i] = h->windows[w].x[i] - read[i];
        attention += through_attention(h, w, read, 0, NULL);
        memory_free(window);
    }
    f->plain += plain / all;
    f->weighted += weighted / weight;
    f->attention += attention / whole;
    time_way(way, h, f);
    memory_free(read), memory_free(centred);
}

static void make_head(struct head *h, uint32_t set, const struct capture *train, const struct capture *test) {
    *h = (struct head){set / model->kv_heads, set % model->kv_heads, model->head_dim, model->query_heads / model->kv_heads,
                       .frame = {0}};
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

/* Adds the figures of all ways at so many bits. */
static size_t compare(const struct head *h, uint32_t bits, size_t steps, struct figures *figures, struct way *ways) {
    size_t codes = bits * h->hd;
    double resident = bits + 8.0 / (double)h->hd;
    ways[0] = (struct way){.name = bits == 2 ? "kivi-2" : "kivi-1", .bits = bits + 1};
    ways[0].code = bits == 2 ? code_by_codec : code_by_two_levels;
    if (bits == 2) ways[0].codec = &codec_kivi_2;
    ways[0].shape = (struct codec_shape){(uint32_t)h->hd, (uint32_t)h->G, 0, 0, NULL};
    ways[1] = (struct way){"gain-shape", resident, code_by_codec, .codec = &codec_gain_shape};
    learn_gain_shape(&ways[1], h, 8 / bits);
    ways[2] = (struct way){"additive", resident, code_by_codec, .codec = &codec_additive};
    float *C = learn_additive(&ways[2], h, bits), *refitted = allocate(codes * h->hd, 4);
    memcpy(refitted, C, codes * h->hd * sizeof *C);
    ways[3] = (struct way){"  greedy", resident, code_by_bits, .C = C, .codes = codes, .find = find_greedy};
    ways[4] = (struct way){"  settled", resident, code_by_bits, .C = C, .codes = codes, .find = find_snapped};
    ways[5] = (struct way){"  beam", resident, code_by_bits, .C = refitted, .codes = codes, .find = find_by_beam};
    refit_by_beam(&ways[5], h, refitted, 4);
    struct encoder *e = learn_encoder(h, codes, steps);
    double each = 16.0 * (double)encoder_network_numbers(e) / (8192.0 * (double)h->hd); /* halves, over 8K tokens */
    ways[6] = (struct way){"encoder",    resident + each, code_by_bits,           .C = encoder_codebook(e),
                           .encoder = e, .codes = codes,  .find = find_by_encoder};
    ways[7] = (struct way){"  its C", resident, code_by_bits, .C = encoder_codebook(e), .codes = codes, .find = find_snapped};
    for (size_t i = 0; i < WAYS; i++) measure(&ways[i], h, &figures[i]);
    codec_gain_shape.close((void *)ways[1].shape.learned);
    codec_additive.close((void *)ways[2].shape.learned);
    encoder_free(e);
    memory_free(C), memory_free(refitted);
    return WAYS;
}

static int32_t *read_tokens(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    struct terse_error error;
    size_t capacity = 4 << 20;
    char *text = malloc(capacity);
    int32_t *tokens = malloc(capacity * sizeof *tokens);
    must(file && text && tokens, path);
    size_t size = fread(text, 1, capacity - 4, file);
    fclose(file);
    must(!terse_tokenize(model, text, size, TERSE_TOKENIZE_ADD_SPECIAL, tokens, capacity, n, &error), error.message);
    free(text);
    return tokens;
}

int main(int argc, char **argv) {
    size_t sets = argc > 1 ? (size_t)atol(argv[1]) : 6, steps = argc > 3 ? (size_t)atol(argv[3]) : 1500, n;
    uint32_t windows = argc > 2 ? (uint32_t)atol(argv[2]) : 8;
    struct figures figures[2][WAYS] = {{{0}}};
    struct way ways[2][WAYS];
    struct capture *train, *test;
    struct terse_error error;
    struct head h;
    must(!terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &model, &error), error.message);
    must(sets && sets <= (model->layers - 1) * model->kv_heads && windows && steps, "usage: value_codes [SETS [WINDOWS [STEPS]]]");
    struct capture_options options = {
        .side = {[CODEC_VALUES] = {true, false, model->head_dim}}, .window = 2048, .drawn = true, .seed = 1};
    options.budget = (size_t)4 << 30;
    options.positions = model->context;
    int32_t *tokens = read_tokens(PROJECT_DIR "/data/wiki.valid.raw", &n); /* its first half to learn from, its second to measure */
    options.windows = windows;
    must(!capture_new(model, &options, tokens, n / 2, &train, &error), error.message);
    options.windows = 2;
    must(!capture_new(model, &options, tokens + n / 2, n / 2, &test, &error), error.message);
    for (size_t w = 0; w < TRAIN + TEST; w++) {
        size_t at = w < TRAIN ? w * (n / 2 - WINDOW) / TRAIN : n / 2 + (w - TRAIN) * (n / 2 - WINDOW) / TEST;
        record(tokens + at, &attended[w]);
    }
    must(recorded + 1 == model->layers, "the backward pass does not attend in each layer but the last"); /* which nothing needs */
    for (size_t i = 0; i < sets; i++) {
        make_head(&h, (uint32_t)((2 * i + 1) * (model->layers - 1) * model->kv_heads / (2 * sets)), train, test);
        for (uint32_t bits = 1; bits <= 2; bits++) compare(&h, bits, steps, figures[bits - 1], ways[bits - 1]);
        free_head(&h);
        fprintf(stderr, "value_codes: %zu of %zu heads\n", i + 1, sets);
    }
    printf("%zu heads, %zu tokens to learn from, %zu queries, %s kernels; times are of one run, in parts of gain-shape's\n", sets,
           (size_t)windows * 2048, (size_t)(model->query_heads / model->kv_heads), cpu_isa_name(cpu_isa()));
    printf("%-12s %8s %8s %8s %9s %14s %16s\n", "way", "bits", "plain", "weighted", "attention", "encode us", "read ns");
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < WAYS; i++) {
            const struct figures *f = &figures[b][i], *than = &figures[b][1];
            double s = (double)sets;
            printf("%-12s %8.3f %8.4f %8.4f %9.4f %7.2f %6.2f %8.2f %7.2f\n", ways[b][i].name, ways[b][i].bits, f->plain / s,
                   f->weighted / s, f->attention / s, f->encode / s, f->encode / than->encode, f->read / s, f->read / than->read);
        }
    return 0;
}
