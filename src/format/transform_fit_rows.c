/* Fits a transform to a sequence's rows: computes the moments that transform_fit takes. */
#include "base/memory.h"
#include "format/page_layout.h"
#include "format/transform_fit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define PROFILE_ROWS 32.0 /* for which the weights' profile counts */
#define STRIP 16          /* rows of products that are computed together; heads have a multiple of it */
#define GAIN_MARGIN 2     /* beyond the rows at hand, either way: others may be larger or smaller */

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

/* The moments of rows are computed in this memory: matrices[hd][hd], and a page's numbers. */
struct work {
    transform_multiply_rows *multiply;
    float *basis, *inverse, *product; /* product[hd][hd] = u^T u of a page's rows, from the diagonal on */
    float *centred, *u, *rows;        /* [hd][64], [hd][64], [64][hd] */
    float *mean;                      /* [hd] */
    double *products;
    double least, most;
    double squares; /* sum of the squares of sizes */
    size_t used;    /* rows that say something */
};

static enum terse_status work_new(size_t hd, struct work *work, struct terse_error *error) {
    const size_t matrix = hd * hd, page = hd * PAGE_TOKENS;
    *work = (struct work){.least = INFINITY};
    work->basis = memory_zeros(3 * matrix + 3 * page + hd, sizeof(float));
    work->products = memory_zeros(matrix, sizeof(double));
    if (!work->basis || !work->products) {
        memory_free(work->basis);
        memory_free(work->products);
        return status_no_memory(error, matrix * sizeof(double) + (3 * matrix + 3 * page + hd) * sizeof(float), "a transform");
    }
    work->inverse = work->basis + matrix;
    work->product = work->inverse + matrix;
    work->centred = work->product + matrix;
    work->u = work->centred + page;
    work->rows = work->u + page;
    work->mean = work->rows + page;
    return TERSE_OK;
}

static void find_mean(const float *rows, size_t n, size_t hd, float *mean) {
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < hd; c++) sum[c] += (double)rows[t * hd + c];
    for (size_t c = 0; c < hd; c++) mean[c] = isfinite(sum[c]) ? (float)(sum[c] / (double)n) : 0;
}

/* Returns the size of the mean in the metric. A row that is smaller than TRANSFORM_GAIN_LEAST times that is treated as the mean itself. */
static double mean_size(const struct work *work, size_t hd) {
    double square = 0;
    for (size_t c = 0; c < hd; c++) {
        double z = 0;
        for (size_t i = 0; i < hd; i++) z += (double)work->inverse[c * hd + i] * (double)work->mean[i];
        square += z * z;
    }
    return sqrt(square / (double)hd);
}

/* Adds the products of up to 64 rows, each scaled to size 1. */
static void add_page(struct work *work, const float *rows, size_t n, size_t hd, double constant) {
    double squares[PAGE_TOKENS] = {0};
    double unit[PAGE_TOKENS] = {0}; /* a float would not hold it of the smallest rows */
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) work->centred[c * PAGE_TOKENS + t] = t < n ? rows[t * hd + c] - work->mean[c] : 0;
    work->multiply(work->inverse, hd, hd, hd, work->centred, PAGE_TOKENS, PAGE_TOKENS, work->u, PAGE_TOKENS);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            squares[t] += (double)work->u[c * PAGE_TOKENS + t] * (double)work->u[c * PAGE_TOKENS + t];
    for (size_t t = 0; t < n; t++) {
        double size = sqrt(squares[t] / (double)hd);
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
    for (size_t first = 0; first < hd; first += STRIP) { /* each strip from its diagonal on: the products are symmetric */
        const size_t n_columns = hd - first;
        float *product = work->product + first * hd + first;
        double *products = work->products + first * hd + first;
        work->multiply(work->u + first * PAGE_TOKENS, STRIP, PAGE_TOKENS, PAGE_TOKENS, work->rows + first, n_columns, hd, product,
                       hd);
        for (size_t i = 0; i < STRIP; i++)
            for (size_t j = 0; j < n_columns; j++) products[i * hd + j] += (double)product[i * hd + j];
    }
}

/* Completes the products below the diagonal. */
static void mirror(double *products, size_t hd) {
    for (size_t i = 0; i < hd; i++)
        for (size_t j = 0; j < i; j++) products[i * hd + j] = products[j * hd + i];
}

/* Pools the covariance of the rows' coefficients with that of the profile, whose coefficients are uncorrelated. */
static void pool_profile(const struct transform_row_moments *moments, const float *size, size_t hd, double *covariance) {
    const double all = (double)moments->used + PROFILE_ROWS;
    for (size_t i = 0; i < hd * hd; i++) {
        double own = i % (hd + 1) ? 0 : (double)size[i / hd];
        covariance[i] = (moments->products[i] + PROFILE_ROWS * own * own) / all;
    }
}

static enum terse_status fit_in_basis(const struct transform_fitted *profile, uint32_t head_dim,
                                      const struct transform_row_moments *from, double *doubles, float *floats,
                                      struct terse_error *error) {
    const size_t hd = head_dim, matrix = hd * hd;
    double *covariance = doubles, *directions = covariance + matrix, *mean = directions + matrix;
    pool_profile(from, profile->size, hd, covariance);
    transform_record_basis(profile, head_dim, hd, floats);
    for (size_t i = 0; i < matrix; i++) directions[i] = (double)floats[i];
    for (size_t c = 0; c < hd; c++) mean[c] = (double)from->mean[c];
    const struct transform_moments moments = {.mean = mean,
                                              .pre_rope_mean = from->pre_rope_mean,
                                              .directions = directions,
                                              .covariance = covariance,
                                              .gain_least = from->used ? from->least / GAIN_MARGIN : profile->gain_least,
                                              .gain_most =
                                                  from->used ? fminf(from->most * GAIN_MARGIN, FLT_MAX) : profile->gain_most,
                                              .gain = from->used ? from->gain : profile->gain};
    return transform_fit(&moments, head_dim, floats, error);
}

enum terse_status transform_fit_moments(const void *profile, uint32_t head_dim, const struct transform_row_moments *moments,
                                        void *record, struct terse_error *error) {
    const struct transform_fitted from = transform_fitted_at(profile, head_dim);
    const size_t hd = head_dim, n_doubles = 2 * hd * hd + hd, n_floats = transform_parameter_floats(head_dim);
    double *doubles = memory_array(n_doubles, sizeof *doubles);
    float *floats = memory_array(n_floats, sizeof *floats);
    enum terse_status status = TERSE_OK;
    if (!doubles || !floats)
        status = status_no_memory(error, n_doubles * sizeof *doubles + n_floats * sizeof *floats, "a transform");
    if (!status) status = fit_in_basis(&from, head_dim, moments, doubles, floats, error);
    if (!status) transform_record_set(transform_parameters_at(floats, head_dim), head_dim, record);
    memory_free(doubles);
    memory_free(floats);
    return status;
}

/* ---- Rows */

static float as_float(double x) { return (float)fmin(x, FLT_MAX); }

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
    const double constant = (double)TRANSFORM_GAIN_LEAST * mean_size(&work, hd);
    for (size_t first = 0; first < n; first += PAGE_TOKENS)
        add_page(&work, rows + first * hd, n - first < PAGE_TOKENS ? n - first : PAGE_TOKENS, hd, constant);
    mirror(work.products, hd);
    const struct transform_row_moments moments = {.mean = work.mean,
                                                  .pre_rope_mean = pre_rope_mean,
                                                  .products = work.products,
                                                  .used = work.used,
                                                  .gain = work.used ? as_float(sqrt(work.squares / (double)work.used)) : 0,
                                                  .least = work.used ? as_float(work.least) : 0,
                                                  .most = as_float(work.most)};
    status = transform_fit_moments(record_of_profile, head_dim, &moments, record, error);
    memory_free(work.basis);
    memory_free(work.products);
    return status;
}
