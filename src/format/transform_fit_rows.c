/* Fits a transform to a sequence's rows: the moments that transform_fit takes. */
#include "base/memory.h"
#include "format/page_layout.h"
#include "format/transform_fit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define PROFILE_ROWS 32.0 /* for which the weights' profile counts */
#define GAIN_MARGIN 2     /* beyond the rows at hand, either way: others may be larger or smaller */
#define GAIN_LEAST 1e-6   /* of the size of the mean: what rounding leaves of a row that is the mean */

void transform_multiply(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb, float *out,
                        size_t ldo) {
    for (size_t i = 0; i < m; i++) {
        float *restrict to = out + i * ldo;
        memset(to, 0, n * sizeof *to);
        for (size_t c = 0; c < k; c++) {
            const float *restrict from = b + c * ldb, factor = a[i * lda + c];
            for (size_t j = 0; j < n; j++) to[j] += factor * from[j];
        }
    }
}

/* A fit works in this memory: matrices[hd][hd], and a page's numbers. */
struct work {
    transform_multiply_rows *multiply;
    float *basis, *inverse, *product; /* product[hd][hd] = u^T u of a page's rows */
    float *centred, *u, *rows;        /* [hd][64], [hd][64], [64][hd] */
    double *covariance, *directions, *mean;
    float *parameters; /* [transform_parameter_floats(hd)] */
    double least, most;
    double squares; /* sum of the squares of sizes */
    size_t used;    /* rows that say something */
};

static enum terse_status work_new(size_t hd, struct work *work, struct terse_error *error) {
    const size_t matrix = hd * hd, page = hd * PAGE_TOKENS, parameters = transform_parameter_floats((uint32_t)hd);
    *work = (struct work){.least = INFINITY};
    work->basis = memory_zeros(3 * matrix + 3 * page + parameters, sizeof(float));
    work->covariance = memory_zeros(2 * matrix + hd, sizeof(double));
    if (!work->basis || !work->covariance) {
        memory_free(work->basis);
        memory_free(work->covariance);
        return status_no_memory(error, (2 * matrix + hd) * sizeof(double) + (3 * matrix + 3 * page + parameters) * sizeof(float),
                                "a transform");
    }
    work->inverse = work->basis + matrix;
    work->product = work->inverse + matrix;
    work->centred = work->product + matrix;
    work->u = work->centred + page;
    work->rows = work->u + page;
    work->parameters = work->rows + page;
    work->directions = work->covariance + matrix;
    work->mean = work->directions + matrix;
    return TERSE_OK;
}

static void find_mean(const float *rows, size_t n, size_t hd, double *mean) {
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < hd; c++) mean[c] += (double)rows[t * hd + c];
    for (size_t c = 0; c < hd; c++) mean[c] = isfinite(mean[c]) ? (double)(float)(mean[c] / (double)n) : 0;
}

/* Returns the size of the mean in the metric. A row that is smaller than GAIN_LEAST times that is treated as the mean itself. */
static double mean_size(const struct work *work, size_t hd) {
    double square = 0;
    for (size_t c = 0; c < hd; c++) {
        double z = 0;
        for (size_t i = 0; i < hd; i++) z += (double)work->inverse[c * hd + i] * work->mean[i];
        square += z * z;
    }
    return sqrt(square / (double)hd);
}

/* Adds up to 64 rows to the covariance, each taken to size 1. */
static void add_page(struct work *work, const float *rows, size_t n, size_t hd, double constant) {
    double unit[PAGE_TOKENS] = {0}; /* a float would not hold it of the smallest rows */
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            work->centred[c * PAGE_TOKENS + t] = t < n ? rows[t * hd + c] - (float)work->mean[c] : 0;
    work->multiply(work->inverse, hd, hd, hd, work->centred, PAGE_TOKENS, PAGE_TOKENS, work->u, PAGE_TOKENS);
    for (size_t t = 0; t < n; t++) {
        double square = 0;
        for (size_t c = 0; c < hd; c++) square += (double)work->u[c * PAGE_TOKENS + t] * (double)work->u[c * PAGE_TOKENS + t];
        double size = sqrt(square / (double)hd);
        if (!(size > constant) || !isfinite(size)) continue;
        unit[t] = 1 / size;
        work->used++;
        work->squares += size * size;
        work->least = fmin(work->least, size);
        work->most = fmax(work->most, size);
    }
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float own = unit[t] > 0 ? (float)((double)work->u[c * PAGE_TOKENS + t] * unit[t]) : 0;
            work->u[c * PAGE_TOKENS + t] = own;
            work->rows[t * hd + c] = own;
        }
    work->multiply(work->u, hd, PAGE_TOKENS, PAGE_TOKENS, work->rows, hd, hd, work->product, hd);
    for (size_t i = 0; i < hd * hd; i++) work->covariance[i] += (double)work->product[i];
}

/* Makes sums means, the profile, whose coefficients are uncorrelated, among them. */
static void pool_profile(struct work *work, const float *size, size_t hd) {
    const double all = (double)work->used + PROFILE_ROWS;
    for (size_t i = 0; i < hd * hd; i++) {
        double own = i % (hd + 1) ? 0 : (double)size[i / hd];
        work->covariance[i] = (work->covariance[i] + PROFILE_ROWS * own * own) / all;
        work->directions[i] = (double)work->basis[i];
    }
}

static float root_mean(double squares, size_t n) { return (float)fmin(sqrt(squares / (double)n), FLT_MAX); }

enum terse_status transform_fit_rows(transform_multiply_rows *multiply, const void *record_of_profile, const float *metric,
                                     uint32_t head_dim, const float *rows, size_t n, const float *pre_rope_mean, void *record,
                                     struct terse_error *error) {
    const size_t hd = head_dim;
    const struct transform_fitted profile = transform_fitted_at(record_of_profile, head_dim);
    struct work work;
    enum terse_status status = work_new(hd, &work, error);
    if (status) return status;
    work.multiply = multiply;
    transform_record_basis(&profile, head_dim, hd, work.basis);
    multiply(work.basis, hd, hd, hd, metric, hd, hd, work.inverse, hd);
    find_mean(rows, n, hd, work.mean);
    const double constant = GAIN_LEAST * mean_size(&work, hd);
    for (size_t first = 0; first < n; first += PAGE_TOKENS)
        add_page(&work, rows + first * hd, n - first < PAGE_TOKENS ? n - first : PAGE_TOKENS, hd, constant);
    pool_profile(&work, profile.size, hd);
    const struct transform_moments moments = {.mean = work.mean,
                                              .pre_rope_mean = pre_rope_mean,
                                              .directions = work.directions,
                                              .covariance = work.covariance,
                                              .gain_least = work.used ? (float)(work.least / GAIN_MARGIN) : profile.gain_least,
                                              .gain_most =
                                                  work.used ? (float)fmin(work.most * GAIN_MARGIN, FLT_MAX) : profile.gain_most,
                                              .gain = work.used ? root_mean(work.squares, work.used) : profile.gain};
    status = transform_fit(&moments, head_dim, work.parameters, error);
    if (!status) transform_record_set(transform_parameters_at(work.parameters, head_dim), head_dim, record);
    memory_free(work.basis);
    memory_free(work.covariance);
    return status;
}
