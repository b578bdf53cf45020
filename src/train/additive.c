/* Fits codebooks of sums: the start and the alternation of codes and rows. backend/cpu/codec/binary_code_search.h searches for
 * codes.
 *
 * Points are cut into slices that do not depend on the number of threads; each slice has sums of its own, which are added in
 * order. */
#include "train/additive.h"

#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/gemm.h"
#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The schedule was measured: for a head of the built-in model, the error on held-out values was 0.100 at the start, 0.092 after 6
 * iterations on all points and 0.090 after 10 at 1 bit; 0.034, 0.032 and 0.0315 at 2. */
#define ITERATIONS 16
#define WHOLE_PART 3 /* the last iteration of so many looks at all points */
#define SAMPLE 8192  /* points that the others look at, about */
#define MOST_ITERATIONS 10000
#define MOST_CHANNELS 256
#define SLICES 32     /* of which threads take one after another */
#define CHUNK 256     /* points whose numbers lie in a slice's memory at once */
#define LARGEST 1e15f /* numbers whose squares, summed, are far from overflow */
#define RIDGE 1e-4    /* of a code's mean weight */

struct additive_options additive_options_defaults(void) {
    return (struct additive_options){.iterations = ITERATIONS, .seed = 1};
}

/* ---- Rows for given codes --------------------------------------------------------------------------------------------------- */

/* Computes the lower factor of A = L L^T, in place of A's lower half. */
static void factor(double *a, size_t n) {
    for (size_t j = 0; j < n; j++) {
        for (size_t i = j; i < n; i++) {
            double sum = a[i * n + j];
            for (size_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(fmax(sum, 1e-300)) : sum / a[j * n + j];
        }
    }
}

static void minus_row(double by, const double *row, size_t d, double *to) {
    for (size_t c = 0; c < d; c++) to[c] -= by * row[c];
}

void additive_solve(size_t n, size_t d, double *normal, double *right, double ridge, float *C) {
    for (size_t i = 0; i < n; i++) {
        normal[i * n + i] += ridge;
        for (size_t c = 0; c < d; c++) right[i * d + c] += ridge * (double)C[i * d + c];
    }
    factor(normal, n);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) minus_row(normal[i * n + k], right + k * d, d, right + i * d);
        for (size_t c = 0; c < d; c++) right[i * d + c] /= normal[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
        for (size_t k = i + 1; k < n; k++) minus_row(normal[k * n + i], right + k * d, d, right + i * d);
        for (size_t c = 0; c < d; c++) right[i * d + c] /= normal[i * n + i];
    }
    for (size_t i = 0; i < n * d; i++) C[i] = (float)right[i];
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------------- */

/* A slice holds the sums of some of the points, and its scratch. */
struct slice {
    double *normal, *right; /* [codes][codes], [codes][channels] */
    float *s, *weighted;    /* [CHUNK][codes] */
    float *sums;            /* [CHUNK][channels] */
    float *products;        /* [codes][the larger of both] of a chunk */
    double error;
};

struct fit {
    const struct additive_points *points;
    size_t d, codes;
    size_t every;  /* one of so many points is looked at */
    size_t used;   /* of the codes: fewer than all in the start */
    uint8_t *bits; /* [n][codes / 8] */
    struct additive_search search;
    size_t slices;
    struct slice slice[SLICES];
    float *C, *best, *directions; /* [codes][channels]; [channels][channels] */
    double weight, total;         /* sums of w and of w |x|^2 */
};

static void fit_free(struct fit *f) {
    for (size_t i = 0; i < f->slices; i++) {
        struct slice *s = &f->slice[i];
        memory_free(s->normal);
        memory_free(s->right);
        memory_free(s->s);
        memory_free(s->weighted);
        memory_free(s->sums);
        memory_free(s->products);
    }
    memory_free(f->bits);
    memory_free(f->C);
    memory_free(f->best);
    memory_free(f->directions);
    additive_search_free(&f->search);
}

static enum terse_status fit_new(struct fit *f, struct terse_error *error) {
    size_t n = f->points->n, d = f->d, codes = f->codes, larger = d > codes ? d : codes;
    bool good = true;
    enum terse_status status = additive_search_new(d, codes, &f->search, error);
    if (status) return status;
    f->slices = n / CHUNK < 1 ? 1 : n / CHUNK < SLICES ? n / CHUNK : SLICES;
    f->bits = memory_zeros(n, codes / 8);
    f->C = memory_zeros(codes * d, sizeof *f->C);
    f->best = memory_zeros(codes * d, sizeof *f->best);
    f->directions = memory_array(d * d, sizeof *f->directions);
    for (size_t i = 0; i < f->slices; i++) {
        struct slice *s = &f->slice[i];
        s->normal = memory_array(codes * codes, sizeof *s->normal);
        s->right = memory_array(codes * d, sizeof *s->right);
        s->s = memory_array(CHUNK * codes, sizeof *s->s);
        s->weighted = memory_array(CHUNK * codes, sizeof *s->weighted);
        s->sums = memory_array(CHUNK * d, sizeof *s->sums);
        s->products = memory_array(codes * larger, sizeof *s->products);
        good = good && s->normal && s->right && s->s && s->weighted && s->sums && s->products;
    }
    if (good && f->bits && f->C && f->best && f->directions) return TERSE_OK;
    return status_no_memory(error, n * codes / 8 + f->slices * codes * (codes + d) * 3 * sizeof(double), "a fit of sums");
}

/* ---- One sweep over the points ------------------------------------------------------------------------------------------------ */

enum finding { BY_SEARCH, BY_DIRECTIONS };

/* Finds codes first to used - 1 of a chunk: each says on which side of its direction the remainder lies that the codes before
 * leave. */
static void find_by_directions(const struct fit *f, struct slice *s, const float *rows, size_t count, size_t first, uint8_t *bits) {
    size_t d = f->d, n = f->used - first;
    gemm(false, count, d, first, s->s, f->used, f->C, d, false, s->sums, d);
    for (size_t r = 0; r < count; r++) {
        float *rest = s->sums + r * d;
        for (size_t c = 0; c < d; c++) rest[c] = rows[r * f->every * f->points->stride + c] - rest[c];
    }
    gemm(true, count, n, d, s->sums, d, f->directions, d, false, s->weighted, n);
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < n; i++)
            if (s->weighted[r * n + i] > 0) bits[(r * f->codes + first + i) / 8] |= (uint8_t)(1u << (first + i) % 8);
}

/* Writes the bits as numbers s[count][used]. */
static void spread_bits(const struct fit *f, const uint8_t *bits, size_t count, float *to) {
    for (size_t r = 0; r < count; r++, bits += f->codes / 8)
        for (size_t i = 0; i < f->used; i++) *to++ = (float)(bits[i / 8] >> i % 8 & 1);
}

static void add_products(const float *products, size_t n, double *sums) {
    for (size_t i = 0; i < n; i++) sums[i] += (double)products[i];
}

static double chunk_error(const struct fit *f, const float *sums, size_t first, size_t count) {
    const struct additive_points *p = f->points;
    double error = 0;
    for (size_t r = 0; r < count; r++) {
        const float *row = p->rows + (first + r) * f->every * p->stride;
        double square = 0;
        for (size_t c = 0; c < f->d; c++) {
            double x = (double)row[c] - (double)sums[r * f->d + c];
            square += x * x;
        }
        error += p->weights ? (double)p->weights[(first + r) * f->every] * square : square;
    }
    return error;
}

/* Takes points [first, first + count) of those looked at: finds their codes by C as it is, and adds their error and what the next C
 * is computed from. */
static void pass_chunk(const struct fit *f, enum finding finding, size_t before, struct slice *s, size_t first, size_t count) {
    const struct additive_points *p = f->points;
    size_t stride = f->every * p->stride;
    const float *rows = p->rows + first * stride;
    uint8_t *bits = f->bits + first * f->codes / 8;
    size_t d = f->d, n = f->used;
    if (finding == BY_SEARCH) {
        additive_search_find(&f->search, rows, count, stride, bits);
    } else {
        spread_bits(f, bits, count, s->s);
        find_by_directions(f, s, rows, count, before, bits);
    }
    spread_bits(f, bits, count, s->s);
    gemm(false, count, d, n, s->s, n, f->C, d, false, s->sums, d);
    s->error += chunk_error(f, s->sums, first, count);
    for (size_t r = 0; r < count; r++) {
        float weight = p->weights ? p->weights[(first + r) * f->every] : 1;
        for (size_t i = 0; i < n; i++) s->weighted[r * n + i] = weight * s->s[r * n + i];
    }
    gemm_outer(n, n, count, s->weighted, n, s->s, n, false, s->products, n);
    add_products(s->products, n * n, s->normal);
    gemm_outer(n, d, count, s->weighted, n, rows, stride, false, s->products, d);
    add_products(s->products, n * d, s->right);
}

/* Returns the error of C. The sums of all slices are then in the first one. */
static double sweep(struct fit *f, enum finding finding, size_t before) {
    size_t n = (f->points->n + f->every - 1) / f->every;
    double error = 0;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < f->slices; i++) {
        struct slice *s = &f->slice[i];
        size_t from = i * n / f->slices, to = (i + 1) * n / f->slices;
        memset(s->normal, 0, f->used * f->used * sizeof *s->normal);
        memset(s->right, 0, f->used * f->d * sizeof *s->right);
        s->error = 0;
        for (size_t first = from; first < to; first += CHUNK)
            pass_chunk(f, finding, before, s, first, to - first < CHUNK ? to - first : CHUNK);
    }
    for (size_t i = 0; i < f->slices; i++) {
        const struct slice *s = &f->slice[i];
        error += s->error;
        for (size_t k = 0; i && k < f->used * f->used; k++) f->slice[0].normal[k] += s->normal[k];
        for (size_t k = 0; i && k < f->used * f->d; k++) f->slice[0].right[k] += s->right[k];
    }
    return f->total > 0 ? error * (double)f->every / f->total : 0;
}

static void update(struct fit *f) {
    double *normal = f->slice[0].normal, mass = 0;
    for (size_t i = 0; i < f->used; i++) mass += normal[i * f->used + i] / (double)f->used;
    additive_solve(f->used, f->d, normal, f->slice[0].right, fmax(RIDGE * mass, RIDGE * 1e-3 * f->weight), f->C);
}

/* ---- The start: a code says on which side of a random direction a point lies, with all directions at right angles to each other;
 * further codes do the same for what the first ones leave. So each bit is set for half of the points, and together the bits tell
 * them apart. */

static double normal_number(uint64_t *state) {
    double radius = sqrt(-2 * log(1 - random_uniform(random_next(state))));
    return radius * cos(6.283185307179586 * random_uniform(random_next(state)));
}

static void draw_directions(struct fit *f, uint64_t *state) {
    size_t d = f->d;
    for (size_t i = 0; i < d; i++) {
        double row[MOST_CHANNELS], square = 0;
        for (size_t c = 0; c < d; c++) row[c] = normal_number(state);
        for (size_t k = 0; k < i; k++) {
            const float *other = f->directions + k * d;
            double product = 0;
            for (size_t c = 0; c < d; c++) product += row[c] * (double)other[c];
            for (size_t c = 0; c < d; c++) row[c] -= product * (double)other[c];
        }
        for (size_t c = 0; c < d; c++) square += row[c] * row[c];
        for (size_t c = 0; c < d; c++) f->directions[i * d + c] = (float)(row[c] / sqrt(fmax(square, 1e-300)));
    }
}

static enum terse_status goes_on(const struct additive_options *o, uint32_t done, struct terse_error *error) {
    if (!o->progress.report || o->progress.report(o->progress.user, "sums", done, o->iterations)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %" PRIu32 " of %" PRIu32 " iterations of sums", done,
                       o->iterations);
}

static enum terse_status start(struct fit *f, const struct additive_options *o, struct terse_error *error) {
    uint64_t state = o->seed;
    f->every = f->points->n / SAMPLE > 1 ? f->points->n / SAMPLE : 1;
    for (size_t before = 0; before < f->codes; before = f->used) {
        enum terse_status status = goes_on(o, 0, error);
        if (status) return status;
        f->used = f->codes - before < f->d ? f->codes : before + f->d;
        draw_directions(f, &state);
        sweep(f, BY_DIRECTIONS, before);
        update(f);
    }
    return TERSE_OK;
}

/* ---- Alternation -------------------------------------------------------------------------------------------------------------- */

static enum terse_status alternate(struct fit *f, const struct additive_options *o, double *errors, double *least,
                                   struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    *least = INFINITY;
    for (uint32_t i = 0; i <= o->iterations && !status; i++) {
        if (i + 1 + o->iterations / WHOLE_PART > o->iterations) f->every = 1;
        additive_search_set(&f->search, f->C);
        double now = sweep(f, BY_SEARCH, 0);
        if (errors) errors[i] = now;
        if (f->every == 1 && now < *least) {
            *least = now;
            memcpy(f->best, f->C, f->codes * f->d * sizeof *f->C);
        }
        if (i < o->iterations) update(f);
        status = goes_on(o, i, error);
    }
    return status;
}

static enum terse_status check(const struct additive_points *p, size_t channels, const struct additive_options *o,
                               struct terse_error *error) {
    double sum = 0;
    if (!p->n || !channels || channels > MOST_CHANNELS || p->stride < channels || o->iterations < 1 ||
        o->iterations > MOST_ITERATIONS)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "a fit of sums to %zu rows of %zu channels, %zu apart, in %" PRIu32
                           " iterations: give rows of up to %d channels, "
                           "no closer, and 1 to %d iterations",
                           p->n, channels, p->stride, o->iterations, MOST_CHANNELS, MOST_ITERATIONS);
    for (size_t r = 0; r < p->n; r++) {
        for (size_t c = 0; c < channels; c++) {
            if (!(fabsf(p->rows[r * p->stride + c]) <= LARGEST))
                return status_fail(error, TERSE_E_ARGUMENT,
                                   "row %zu of a fit of sums has %g in channel %zu: give finite numbers up to %g", r,
                                   (double)p->rows[r * p->stride + c], c, (double)LARGEST);
        }
        float weight = p->weights ? p->weights[r] : 1;
        if (!(weight >= 0 && weight <= LARGEST))
            return status_fail(error, TERSE_E_ARGUMENT, "weight %zu of a fit of sums is %g: give finite numbers, none below 0", r,
                               (double)weight);
        sum += (double)weight;
    }
    if (sum > 0) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "all weights of a fit of sums are 0: give one that is not");
}

/* Returns the effective number of samples. */
static double measure(struct fit *f) {
    const struct additive_points *p = f->points;
    double squares = 0;
    for (size_t r = 0; r < p->n; r++) {
        double weight = p->weights ? (double)p->weights[r] : 1, square = 0;
        for (size_t c = 0; c < f->d; c++) square += (double)p->rows[r * p->stride + c] * (double)p->rows[r * p->stride + c];
        f->weight += weight;
        f->total += weight * square;
        squares += weight * weight;
    }
    return f->weight * f->weight / squares;
}

enum terse_status additive_fit(const struct additive_points *points, size_t channels, size_t codes,
                               const struct additive_options *options, float *C, double *errors, struct additive_result *result,
                               struct terse_error *error) {
    struct fit f = {.points = points, .d = channels, .codes = codes};
    struct additive_result found = {0};
    enum terse_status status = check(points, channels, options, error);
    if (status) return status;
    found.effective_samples = measure(&f);
    status = fit_new(&f, error);
    if (!status) status = start(&f, options, error);
    if (!status) status = alternate(&f, options, errors, &found.error, error);
    if (!status) memcpy(C, f.best, codes * channels * sizeof *C);
    if (!status && result) *result = found;
    fit_free(&f);
    return status;
}
