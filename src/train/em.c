/* Implements expectation maximization for commuting tables: the schedule, both steps and the repair of unused entries.
 * backend/cpu/codec/commvq_search.h computes distances.
 *
 * Points are cut into slices that do not depend on the number of threads; each slice has sums of its own, which are added in
 * order. */
#include "train/em.h"

#include "backend/cpu/codec/commvq_search.h"
#include "backend/cpu/vector.h"
#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ITERATIONS 24
#define MOST_ITERATIONS 10000
#define SLICES 32
#define SLICE_LEAST 512 /* points */
#define BATCH 64        /* points whose shares are summed together */
#define WIDEST (2 * COMMVQ_MOST_PAIRS)
#define LARGEST 1e15f /* numbers whose squares, summed, are far from overflow */
/* The schedule was chosen on keys of the built-in model by the error that 11 rounds of 64 entries leave of keys not learned from.
 * Iterations look at samples of the points, each at others: always the same points leave 5 % more, samples of twice as many 0.2 %
 * less in 1.6 times the time. 16 iterations leave 1.2 % more, 32 leave 1 % less. START 0.1 leaves 0.6 % more, 0.7 leaves 9 % more,
 * no temperature 0.5 %. */
#define START 0.3        /* entries are so many times a point at first */
#define HOT 0.7          /* the temperature falls from so much to so much of twice the mean squared error of a number, */
#define COLD 0.05        /* where a mixture of this spread would have it */
#define SAMPLE 4096      /* points that an iteration looks at, about, while there is temperature */
#define HARD_PART 4      /* the last iteration of so many is without temperature */
#define HARD_SAMPLE 8192 /* points that those look at */
#define WHOLE 2          /* but for the last ones, which look at all: of these the best table is kept */
#define FAINT 6          /* weights below exp(-FAINT) of the nearest's are left out */
#define RIDGE 1e-6       /* of an entry's mean weight */
#define DEAD 1e-3        /* of an entry's mean weight: an entry with less counts as unused */

struct em_options em_options_defaults(void) {
    return (struct em_options){.iterations = ITERATIONS, .seed = 1};
}

/* ---- The M step ----------------------------------------------------------------------------------------------------------- */

struct complex {
    double re, im;
};

/* Returns a - b conj(c). */
static struct complex minus_times_conjugate(struct complex a, struct complex b, struct complex c) {
    return (struct complex){a.re - b.re * c.re - b.im * c.im, a.im - b.im * c.re + b.re * c.im};
}

/* Returns a - b c. */
static struct complex minus_times(struct complex a, struct complex b, struct complex c) {
    return (struct complex){a.re - b.re * c.re + b.im * c.im, a.im - b.re * c.im - b.im * c.re};
}

/* Computes the lower factor of H = L L^*, in place of H's lower half; the diagonal is real. */
static void factor(struct complex *h, size_t n) {
    for (size_t j = 0; j < n; j++) {
        for (size_t k = 0; k < j; k++) h[j * n + j] = minus_times_conjugate(h[j * n + j], h[j * n + k], h[j * n + k]);
        double pivot = sqrt(fmax(h[j * n + j].re, 1e-300));
        h[j * n + j] = (struct complex){pivot, 0};
        for (size_t i = j + 1; i < n; i++) {
            struct complex x = h[i * n + j];
            for (size_t k = 0; k < j; k++) x = minus_times_conjugate(x, h[i * n + k], h[j * n + k]);
            h[i * n + j] = (struct complex){x.re / pivot, x.im / pivot};
        }
    }
}

/* Solves L L^* x = x in place. */
static void solve(const struct complex *l, size_t n, struct complex *x) {
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) x[i] = minus_times(x[i], l[i * n + k], x[k]);
        x[i] = (struct complex){x[i].re / l[i * n + i].re, x[i].im / l[i * n + i].re};
    }
    for (size_t i = n; i-- > 0;) {
        for (size_t k = i + 1; k < n; k++) x[i] = minus_times_conjugate(x[i], x[k], l[k * n + i]);
        x[i] = (struct complex){x[i].re / l[i * n + i].re, x[i].im / l[i * n + i].re};
    }
}

enum terse_status em_solve(struct em_shape shape, const double *counts, const double *sums, double ridge, double *z,
                           struct terse_error *error) {
    const size_t n = shape.entries, g = shape.pairs;
    struct complex x[COMMVQ_ENTRIES], *h = memory_array(n * n, sizeof *h);
    if (!h) return status_no_memory(error, n * n * sizeof *h, "the equations of a table");
    for (size_t i = 0; i < n; i++) {
        double sum = ridge;
        for (size_t k = 0; k < n; k++) {
            sum += counts[i * n + k] + counts[k * n + i];
            h[i * n + k] = (struct complex){0, counts[i * n + k] - counts[k * n + i]};
        }
        h[i * n + i] = (struct complex){sum, 0};
    }
    factor(h, n);
    for (size_t j = 0; j < g; j++) {
        for (size_t i = 0; i < n; i++) {
            x[i].re = sums[i * 2 * g + j] + ridge * z[i * 2 * g + j];
            x[i].im = sums[i * 2 * g + g + j] + ridge * z[i * 2 * g + g + j];
        }
        solve(h, n, x);
        for (size_t i = 0; i < n; i++) {
            z[i * 2 * g + j] = x[i].re;
            z[i * 2 * g + g + j] = x[i].im;
        }
    }
    memory_free(h);
    return TERSE_OK;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------------- */

/* A batch holds some points of a slice: their rows, which the entries' shares are multiplied with, and the results. */
struct batch {
    float rows[BATCH * WIDEST]; /* [points][wide] */
    float products[BATCH * 2 * COMMVQ_ENTRIES];
    float shares[2 * COMMVQ_ENTRIES * BATCH]; /* of each point, of entries as a and then as b */
    float sums[2 * COMMVQ_ENTRIES * WIDEST];  /* [2 entries][wide] */
    float values[COMMVQ_ENTRIES * COMMVQ_ENTRIES];
    uint32_t cells[COMMVQ_ENTRIES * COMMVQ_ENTRIES];
};

/* A slice holds the sums of some of the points. */
struct slice {
    double *counts, *sums; /* [entries][entries], [entries][2 pairs] */
    double error, mass;
    struct batch *batch;
};

struct fit {
    const struct em_points *points;
    struct em_shape shape;
    size_t d, wide;  /* 2 pairs, and that in a batch */
    float *weights;  /* [n], of sum 1 */
    float *rows;     /* [n][d], what earlier rounds left */
    float *errors;   /* [n] w |x - its codeword|^2 */
    uint16_t *codes; /* [n] */
    uint16_t *kept;  /* [n], those of the best table */
    size_t every;    /* one of so many points is looked at, in each slice from this one on: */
    size_t phase;
    double mass; /* the sum of w of those */
    struct commvq_search search;
    size_t slices;
    struct slice slice[SLICES];
    const struct learning_ops *ops;
    struct mixture *elsewhere; /* the round's points on another backend, which does the E steps; NULL: the CPU */
    uint32_t *ids;             /* [n] what it looks at, and for these: */
    uint16_t *found;           /* [n] codes */
    float *wrong;              /* [n] errors */
    double *z;                 /* [entries][d] */
    float *table;              /* [entries][d] */
    uint32_t repaired;
};

static void fit_free(struct fit *f) {
    memory_free(f->weights);
    memory_free(f->rows);
    memory_free(f->errors);
    memory_free(f->codes);
    memory_free(f->kept);
    if (f->elsewhere) f->ops->close_mixture(f->elsewhere);
    memory_free(f->ids);
    memory_free(f->found);
    memory_free(f->wrong);
    memory_free(f->z);
    memory_free(f->table);
    commvq_search_free(&f->search);
    for (size_t s = 0; s < SLICES; s++) {
        memory_free(f->slice[s].counts);
        memory_free(f->slice[s].sums);
        memory_free(f->slice[s].batch);
    }
}

static enum terse_status fit_new(struct fit *f, const struct em_points *points, struct em_shape shape,
                                 const struct learning_ops *ops, struct terse_error *error) {
    const bool elsewhere = ops && ops->open_mixture;
    size_t n = points->n, K = shape.entries, d = 2 * shape.pairs;
    *f = (struct fit){
        .points = points, .shape = shape, .d = d, .wide = memory_round_up(d, VECTOR_PANEL), .ops = elsewhere ? ops : NULL};
    enum terse_status status = commvq_search_new(shape.pairs, K, &f->search, error);
    if (status) return status;
    f->slices = n / SLICE_LEAST < 1 ? 1 : n / SLICE_LEAST < SLICES ? n / SLICE_LEAST : SLICES;
    f->weights = memory_array(n, sizeof *f->weights);
    f->rows = memory_array(n, d * sizeof *f->rows);
    f->errors = memory_array(n, sizeof *f->errors);
    f->codes = memory_array(n, sizeof *f->codes);
    f->kept = memory_array(n, sizeof *f->kept);
    f->ids = memory_array(elsewhere ? n : 0, sizeof *f->ids);
    f->found = memory_array(elsewhere ? n : 0, sizeof *f->found);
    f->wrong = memory_array(elsewhere ? n : 0, sizeof *f->wrong);
    f->z = memory_array(K, d * sizeof *f->z);
    f->table = memory_array(K, d * sizeof *f->table);
    bool all = f->ids && f->found && f->wrong && f->weights && f->rows && f->errors && f->codes && f->kept && f->z && f->table;
    for (size_t s = 0; s < f->slices; s++) {
        f->slice[s].counts = memory_array(K, K * sizeof(double));
        f->slice[s].sums = memory_array(K, d * sizeof(double));
        f->slice[s].batch = memory_zeros(1, sizeof *f->slice[s].batch);
        all = all && f->slice[s].counts && f->slice[s].sums && f->slice[s].batch;
    }
    if (all) return TERSE_OK;
    return status_no_memory(error, n * (d + 3) * sizeof(float) + f->slices * (K * (K + d) * sizeof(double) + sizeof(struct batch)),
                            "the fit of a table");
}

/* ---- The E step -------------------------------------------------------------------------------------------------------------- */

/* Computes a point's weights over n cells, and adds them to the shares of the entries. `values` are half squared distances, of
 * which `least` is the least. */
static void share(const struct fit *f, struct slice *slice, size_t i, size_t n, float least, double w, double temperature) {
    struct batch *batch = slice->batch;
    const size_t K = f->shape.entries, columns = f->search.columns;
    const double scale = -2 / temperature;
    for (size_t c = 0; c < n; c++) batch->values[c] = (float)(((double)batch->values[c] - (double)least) * scale);
    float part = (float)w / vector_exp_sum(batch->values, 0, n);
    for (size_t c = 0; c < n; c++) {
        size_t a = batch->cells[c] / columns, b = batch->cells[c] % columns;
        float weight = part * batch->values[c];
        slice->counts[a * K + b] += (double)weight;
        batch->shares[a * BATCH + i] += weight;
        batch->shares[(K + b) * BATCH + i] += weight;
    }
}

/* Adds a share of a row to the sums of an entry: w x as a, and -i w x as b. */
static void add_row(size_t g, double w, const float *x, double *a, double *b) {
    for (size_t j = 0; j < 2 * g; j++) a[j] += w * (double)x[j];
    for (size_t j = 0; j < g; j++) b[j] += w * (double)x[g + j];
    for (size_t j = 0; j < g; j++) b[g + j] -= w * (double)x[j];
}

/* Takes point p, the i-th of the batch. Returns whether the batch has shares of it. */
static bool point_step(struct fit *f, struct slice *slice, size_t i, size_t p, double temperature) {
    const struct commvq_search *s = &f->search;
    struct batch *batch = slice->batch;
    const float *x = batch->rows + i * f->wide, *products = batch->products + i * 2 * s->columns;
    double w = (double)f->weights[p], square = (double)vector_dot(x, x, f->d);
    float least;
    uint32_t cell = commvq_search_best(s, products, &least);
    size_t a = cell / s->columns, b = cell % s->columns, n = 1;
    f->codes[p] = (uint16_t)(a + b * s->entries);
    double distance = fmax(square + 2 * (double)least, 0);
    f->errors[p] = (float)(w * distance);
    slice->error += w * distance;
    slice->mass += w;
    if (!(w > 0)) return false;
    float limit = (float)((double)least + FAINT * temperature / 2);
    if (limit > least) n = commvq_search_within(s, products, limit, COMMVQ_ENTRIES * COMMVQ_ENTRIES, batch->cells, batch->values);
    if (n > 1) {
        share(f, slice, i, n, least, w, temperature);
        return true;
    }
    slice->counts[a * s->entries + b] += w;
    add_row(s->pairs, w, x, slice->sums + a * f->d, slice->sums + b * f->d);
    return false;
}

/* Adds the batch to the sums of each entry k: the shares of k as a times rows, less i times those of k as b. */
static void add_batch(const struct fit *f, struct slice *slice, size_t points) {
    struct batch *batch = slice->batch;
    const size_t K = f->shape.entries, g = f->shape.pairs;
    vector_multiply_panel(batch->shares, 2 * K, points, BATCH, batch->rows, f->wide, batch->sums);
    for (size_t k = 0; k < K; k++) {
        const float *a = batch->sums + k * f->wide, *b = batch->sums + (K + k) * f->wide;
        double *re = slice->sums + k * f->d, *im = re + g;
        for (size_t j = 0; j < g; j++) {
            re[j] += (double)(a[j] + b[g + j]);
            im[j] += (double)(a[g + j] - b[j]);
        }
    }
}

static void slice_step(struct fit *f, size_t index, double temperature) {
    struct slice *slice = &f->slice[index];
    struct batch *batch = slice->batch;
    size_t n = f->points->n, from = index * n / f->slices, to = (index + 1) * n / f->slices, K = f->shape.entries;
    memset(f->errors + from, 0, (to - from) * sizeof *f->errors); /* of those that are passed over */
    memset(slice->counts, 0, K * K * sizeof(double));
    memset(slice->sums, 0, K * f->d * sizeof(double));
    slice->error = slice->mass = 0;
    from += f->phase;
    for (size_t p = from, left = (to - from + f->every - 1) / f->every, count; left > 0; left -= count, p += count * f->every) {
        bool any = false;
        count = left < BATCH ? left : BATCH;
        for (size_t i = 0; i < count; i++)
            memcpy(batch->rows + i * f->wide, f->rows + (p + i * f->every) * f->d, f->d * sizeof(float));
        commvq_search_products(&f->search, batch->rows, count, f->wide, batch->products);
        if (temperature > 0) memset(batch->shares, 0, 2 * K * BATCH * sizeof(float));
        for (size_t i = 0; i < count; i++) any |= point_step(f, slice, i, p + i * f->every, temperature);
        if (any) add_batch(f, slice, count);
    }
}

/* Lists the points that are looked at, in order, and returns their number. */
static size_t list_points(struct fit *f) {
    size_t n = f->points->n, count = 0;
    for (size_t s = 0; s < f->slices; s++)
        for (size_t p = s * n / f->slices + f->phase; p < (s + 1) * n / f->slices; p += f->every) f->ids[count++] = (uint32_t)p;
    return count;
}

/* Has the other backend sum, into the first slice. */
static enum terse_status expect_elsewhere(struct fit *f, double temperature, struct terse_error *error) {
    struct slice *first = f->slice;
    const size_t n = list_points(f);
    const struct expectation expectation = {.ids = f->ids,
                                            .n = n,
                                            .panel = f->search.panel,
                                            .half = f->search.half,
                                            .temperature = temperature,
                                            .faint = FAINT,
                                            .codes = f->found,
                                            .errors = f->wrong,
                                            .counts = first->counts,
                                            .sums = first->sums};
    enum terse_status status = f->ops->expect(f->elsewhere, &expectation, error);
    if (status) return status;
    memset(f->errors, 0, f->points->n * sizeof *f->errors);
    first->error = first->mass = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t p = f->ids[i];
        f->codes[p] = f->found[i];
        f->errors[p] = f->wrong[i];
        first->error += (double)f->wrong[i];
        first->mass += (double)f->weights[p];
    }
    f->mass = first->mass;
    return TERSE_OK;
}

/* Sums over one of `every` points, into the first slice, the error of the nearest codewords too. */
static enum terse_status expectation(struct fit *f, size_t every, size_t phase, double temperature, struct terse_error *error) {
    struct slice *first = f->slice;
    const size_t K = f->shape.entries;
    f->every = every;
    f->phase = phase;
    commvq_search_set(&f->search, f->table);
    if (f->elsewhere) return expect_elsewhere(f, temperature, error);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t s = 0; s < f->slices; s++) slice_step(f, s, temperature);
    for (size_t s = 1; s < f->slices; s++) {
        for (size_t i = 0; i < K * K; i++) first->counts[i] += f->slice[s].counts[i];
        for (size_t i = 0; i < K * f->d; i++) first->sums[i] += f->slice[s].sums[i];
        first->error += f->slice[s].error;
        first->mass += f->slice[s].mass;
    }
    f->mass = first->mass;
    return TERSE_OK;
}

/* ---- Unused entries ------------------------------------------------------------------------------------------------------ */

/* Returns the point of largest error, which then counts as 0, so that the next call returns another. */
static size_t take_worst(struct fit *f) {
    size_t worst = 0;
    for (size_t p = 1; p < f->points->n; p++)
        if (f->errors[p] > f->errors[worst]) worst = p;
    return worst;
}

/* Puts each entry of next to no weight where, as `a`, it would represent the point of largest error exactly. */
static void repair(struct fit *f) {
    const size_t K = f->shape.entries, g = f->shape.pairs;
    const double *counts = f->slice->counts;
    for (size_t k = 0; k < K; k++) {
        double mass = 0;
        for (size_t i = 0; i < K; i++) mass += counts[k * K + i] + counts[i * K + k];
        if (mass > DEAD * 2 * f->mass / (double)K) continue;
        size_t p = take_worst(f);
        if (!(f->errors[p] > 0)) return;
        f->errors[p] = 0;
        size_t b = f->codes[p] / K;
        if (b == k) continue; /* it would move what it stands on */
        const double *other = f->z + b * f->d;
        for (size_t j = 0; j < g; j++) {
            f->z[k * f->d + j] = (double)f->rows[p * f->d + j] + other[g + j];
            f->z[k * f->d + g + j] = (double)f->rows[p * f->d + g + j] - other[j];
        }
        f->repaired++;
    }
}

/* ---- A round ------------------------------------------------------------------------------------------------------------- */

static enum terse_status report(const struct em_options *options, double error_now, size_t done, size_t total,
                                struct terse_error *error) {
    char what[64];
    snprintf(what, sizeof what, "tables, error %.4g", error_now);
    if (!options->progress.report || options->progress.report(options->progress.user, what, done, total)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %zu of %zu iterations", done, total);
}

/* Starts with entries that are points drawn by weight. */
static void start(struct fit *f, uint64_t seed) {
    uint64_t state = random_mix(seed);
    for (size_t k = 0; k < f->shape.entries; k++) {
        double at = random_uniform(random_next(&state));
        size_t p = 0, last = 0;
        for (; p < f->points->n; p++) {
            if (f->weights[p] > 0) last = p;
            if ((at -= (double)f->weights[p]) < 0) break;
        }
        for (size_t j = 0; j < f->d; j++) f->z[k * f->d + j] = START * (double)f->rows[last * f->d + j];
    }
}

static void round_table(struct fit *f) {
    for (size_t i = 0; i < f->shape.entries * f->d; i++) f->table[i] = (float)f->z[i];
}

/* Returns how many of n iterations have a temperature. */
static uint32_t soft_of(uint32_t n) { return n - (n + HARD_PART - 1) / HARD_PART; }

/* Returns the temperature of the i-th of them, for rows whose squares sum to `square`. */
static double temperature_of(const struct fit *f, double square, uint32_t i, uint32_t soft) {
    double part = soft > 1 ? (double)i / (double)(soft - 1) : 1;
    return 2 * square / (double)f->d * HOT * pow(COLD / HOT, part);
}

static enum terse_status maximization(struct fit *f, struct terse_error *error) {
    double ridge = RIDGE * 2 * f->mass / (double)f->shape.entries;
    if (!(ridge > 0)) return TERSE_OK; /* a sample that weighs nothing */
    return em_solve(f->shape, f->slice->counts, f->slice->sums, ridge, f->z, error);
}

/* Returns e: the i-th of n iterations looks at one of e points; the last iteration only counts. A slice has more than e points. */
static size_t every_of(const struct fit *f, uint32_t i, uint32_t n) {
    size_t sample = i < soft_of(n) ? SAMPLE : HARD_SAMPLE, every = i + WHOLE > n ? 1 : f->points->n / sample;
    return every < 1 ? 1 : every < SLICE_LEAST ? every : SLICE_LEAST;
}

/* Keeps a table whose error is the least so far, with its codes f->codes. */
static void keep(struct fit *f, double error, float *best, double *least) {
    uint16_t *codes = f->codes;
    if (!(error < *least)) return;
    *least = error;
    memcpy(best, f->table, f->shape.entries * f->d * sizeof *best);
    f->codes = f->kept;
    f->kept = codes;
}

/* Leaves in `best` the table of least error over all points, and its codes in f->kept. */
static enum terse_status fit_round(struct fit *f, const struct em_options *options, size_t round, double square, float *best,
                                   struct terse_error *error) {
    const uint32_t n = options->iterations, soft = soft_of(n);
    double least = INFINITY;
    start(f, options->seed + round * RANDOM_STEP);
    if (f->ops) {
        f->ops->close_mixture(f->elsewhere); /* which has the rows as the round before had them */
        f->elsewhere = f->ops->open_mixture(f->rows, f->weights, f->points->n, f->shape.pairs, f->shape.entries);
    }
    for (uint32_t i = 0; i <= n; i++) {
        size_t every = every_of(f, i, n);
        round_table(f);
        enum terse_status status = expectation(f, every, i % every, i < soft ? temperature_of(f, square, i, soft) : 0, error);
        const double now = f->slice->error;
        if (!status)
            status = report(options, f->mass > 0 ? now / f->mass : 0, round * (n + 1) + i, f->shape.rounds * (n + 1), error);
        if (!status && i < n) status = maximization(f, error);
        if (status) return status;
        if (i + 1 < n) repair(f);
        if (i + WHOLE > n) keep(f, now, best, &least);
    }
    return TERSE_OK;
}

/* Subtracts the kept codewords from the rows; returns the error summed anew. */
static double subtract(struct fit *f, const float *table) {
    double sums[SLICES] = {0}, sum = 0;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t s = 0; s < f->slices; s++) {
        size_t from = s * f->points->n / f->slices, to = (s + 1) * f->points->n / f->slices;
        commvq_subtract(table, f->shape.pairs, f->shape.entries, f->kept + from, to - from, f->rows + from * f->d, f->d);
        for (size_t p = from; p < to; p++)
            sums[s] += (double)f->weights[p] * (double)vector_dot(f->rows + p * f->d, f->rows + p * f->d, f->d);
    }
    for (size_t s = 0; s < f->slices; s++) sum += sums[s];
    return sum;
}

/* ---- All rounds ---------------------------------------------------------------------------------------------------------- */

static enum terse_status check(const struct em_points *points, struct em_shape shape, const struct em_options *options,
                               struct terse_error *error) {
    if (shape.entries < 2 || shape.entries > COMMVQ_ENTRIES || shape.pairs < 1 || shape.pairs > COMMVQ_MOST_PAIRS ||
        shape.rounds < 1 || shape.rounds > COMMVQ_MOST_ROUNDS)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%zu rounds of %zu entries of %zu pairs: use 1 to %d rounds of 2 to %d entries of 1 to %d", shape.rounds,
                           shape.entries, shape.pairs, COMMVQ_MOST_ROUNDS, COMMVQ_ENTRIES, COMMVQ_MOST_PAIRS);
    if (points->n < 1 || points->stride < 2 * shape.pairs)
        return status_fail(error, TERSE_E_ARGUMENT, "%zu rows %zu apart: give at least one, of %zu numbers", points->n,
                           points->stride, 2 * shape.pairs);
    if (options->iterations < 1 || options->iterations > MOST_ITERATIONS)
        return status_fail(error, TERSE_E_ARGUMENT, "%" PRIu32 " iterations: use 1 to %d", options->iterations, MOST_ITERATIONS);
    return TERSE_OK;
}

/* Copies rows and weights, scaled so that they sum to 1; writes the sum of w |x|^2 to *square. */
static enum terse_status take_points(struct fit *f, double *square, double *effective, struct terse_error *error) {
    const struct em_points *points = f->points;
    double total = 0, squares = 0;
    *square = 0;
    for (size_t p = 0; p < points->n; p++) {
        double w = points->weights ? (double)points->weights[p] : 1;
        if (!(w >= 0) || !isfinite(w)) return status_fail(error, TERSE_E_ARGUMENT, "point %zu weighs %g", p, w);
        total += w;
        squares += w * w;
    }
    if (!(total > 0)) return status_fail(error, TERSE_E_ARGUMENT, "all %zu points weigh nothing", points->n);
    *effective = total * total / squares;
    for (size_t p = 0; p < points->n; p++) {
        const float *x = points->rows + p * points->stride;
        f->weights[p] = (float)((points->weights ? (double)points->weights[p] : 1) / total);
        for (size_t j = 0; j < f->d; j++) {
            if (!(fabsf(x[j]) <= LARGEST))
                return status_fail(error, TERSE_E_ARGUMENT, "number %zu of point %zu is %g", j, p, (double)x[j]);
            *square += (double)f->weights[p] * (double)x[j] * (double)x[j];
        }
        memcpy(f->rows + p * f->d, x, f->d * sizeof *x);
    }
    return TERSE_OK;
}

enum terse_status em_fit(const struct em_points *points, struct em_shape shape, const struct em_options *options, float *tables,
                         double *errors, struct em_result *result, struct terse_error *error) {
    struct fit f = {0};
    struct em_result done = {0};
    double square = 0, left;
    enum terse_status status = check(points, shape, options, error);
    if (!status) status = fit_new(&f, points, shape, options->ops, error);
    if (!status) status = take_points(&f, &square, &done.effective_samples, error);
    left = square;
    for (size_t round = 0; round < shape.rounds && !status; round++) {
        float *table = tables + round * shape.entries * f.d;
        status = fit_round(&f, options, round, left, table, error);
        if (status) break;
        left = subtract(&f, table);
        if (errors) errors[round] = square > 0 ? left / square : 0;
    }
    done.error = square > 0 ? left / square : 0;
    done.repaired = f.repaired;
    if (result) *result = status ? (struct em_result){0} : done;
    fit_free(&f);
    return status;
}
