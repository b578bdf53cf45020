/* Eigenvectors of symmetric matrices, the parameters of the codec transform from moments, and records of a sequence's rows: held to what
 * defines them. */
#include "base/eigen.h"
#include "base/memory.h"
#include "base/random.h"
#include "format/transform_fit.h"
#include "support/fit_oracle.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double uniform(uint64_t *seed) { return 2 * random_uniform(random_next(seed)) - 1; }

/* About normal. */
static double normal(uint64_t *seed) {
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += uniform(seed);
    return sum / sqrt(2);
}

static double *doubles(size_t n) {
    double *all = memory_zeros(n, sizeof *all);
    assert_non_null(all);
    return all;
}

/* ---- Eigenvectors */

struct eigen {
    size_t n;
    double *values, *vectors;
};

static struct eigen solve(const double *matrix, size_t n) {
    struct eigen e = {n, doubles(n), doubles(n * n)};
    double *copy = doubles(n * n), *scratch = doubles(symmetric_eigen_scratch(n));
    memcpy(copy, matrix, n * n * sizeof *copy);
    symmetric_eigen(copy, n, e.values, e.vectors, scratch);
    memory_free(copy);
    memory_free(scratch);
    return e;
}

static void release(struct eigen e) {
    memory_free(e.values);
    memory_free(e.vectors);
}

/* Values fall, vectors are orthonormal, and each is its matrix's. */
static void check_eigen(const double *matrix, struct eigen e, const char *what) {
    double scale = 0;
    for (size_t i = 0; i < e.n * e.n; i++) scale = fmax(scale, fabs(matrix[i]));
    for (size_t c = 0; c < e.n; c++) {
        const double *v = e.vectors + c * e.n;
        assert_true(c == 0 || e.values[c] <= e.values[c - 1]);
        for (size_t d = 0; d <= c; d++) {
            double product = 0;
            for (size_t i = 0; i < e.n; i++) product += v[i] * e.vectors[d * e.n + i];
            if (!(fabs(product - (c == d)) < 1e-12)) fail_msg("%s, n %zu: vectors %zu and %zu, %g", what, e.n, c, d, product);
        }
        for (size_t i = 0; i < e.n; i++) {
            double image = 0;
            for (size_t j = 0; j < e.n; j++) image += matrix[i * e.n + j] * v[j];
            if (!(fabs(image - e.values[c] * v[i]) <= 1e-12 * scale * (double)e.n))
                fail_msg("%s, n %zu: vector %zu, %g", what, e.n, c, image - e.values[c] * v[i]);
        }
    }
}

static void eigenvectors_are_those_of_their_matrix(void **state) {
    static const size_t sizes[] = {1, 2, 3, 4, 7, 32, 96, 128, 256};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t n = sizes[s];
        uint64_t seed = n;
        double *matrix = doubles(n * n);
        struct eigen e = solve(matrix, n);
        for (size_t i = 0; i < n; i++) assert_true(e.values[i] == 0);
        check_eigen(matrix, e, "zeros");
        release(e);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++) matrix[i * n + j] = matrix[j * n + i] = normal(&seed);
        check_eigen(matrix, e = solve(matrix, n), "random");
        release(e);
        /* Columns of very different size, as covariances have them. */
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) matrix[i * n + j] *= exp2(-20.0 * (double)(i + j) / (double)n);
        check_eigen(matrix, e = solve(matrix, n), "graded");
        release(e);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) matrix[i * n + j] = (double)((i % 3 + 1) * (j % 3 + 1));
        check_eigen(matrix, e = solve(matrix, n), "rank one");
        release(e);
        for (size_t i = 0; i < n * n; i++) matrix[i] = 1e-180 * (i % (n + 1) == 0);
        check_eigen(matrix, e = solve(matrix, n), "tiny");
        release(e);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++) matrix[i * n + j] = matrix[j * n + i] = 1e150 * normal(&seed);
        check_eigen(matrix, e = solve(matrix, n), "huge");
        release(e);
        memory_free(matrix);
    }
}

/* Second differences have the eigenvalues 2 - 2 cos(pi k / (n + 1)). */
static void known_eigenvalues_are_found(void **state) {
    enum { N = 128 };
    double *matrix = doubles((size_t)N * N), pi = acos(-1);
    (void)state;
    for (size_t i = 0; i < N; i++) {
        matrix[i * N + i] = 2;
        if (i) matrix[i * N + i - 1] = matrix[(i - 1) * N + i] = -1;
    }
    struct eigen e = solve(matrix, N);
    for (size_t k = 0; k < N; k++) assert_true(fabs(e.values[k] - (2 - 2 * cos(pi * (double)(N - k) / (N + 1)))) < 1e-12);
    release(e);
    memory_free(matrix);
}

static void numbers_that_are_not_finite_end(void **state) {
    enum { N = 32 };
    double *matrix = doubles((size_t)N * N);
    (void)state;
    for (size_t i = 0; i < (size_t)N * N; i++) matrix[i] = i % 5 ? NAN : INFINITY;
    release(solve(matrix, N));
    memory_free(matrix);
}

/* ---- Metric and transform */

struct fit {
    size_t hd;
    double *metric, *root, *inverse, *mean, *covariance; /* of u */
    float *floats, *gains;
};

static struct fit new_fit(size_t hd, size_t rows) {
    struct fit f = {hd, doubles(hd * hd), doubles(hd * hd), doubles(hd * hd), doubles(hd), doubles(hd * hd), NULL, NULL};
    f.floats = malloc(transform_parameter_floats((uint32_t)hd) * sizeof *f.floats);
    f.gains = malloc((rows + 1) * sizeof *f.gains);
    assert_true(f.floats && f.gains);
    return f;
}

static void free_fit(struct fit f) {
    double *all[] = {f.metric, f.root, f.inverse, f.mean, f.covariance};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    free(f.floats);
    free(f.gains);
}

/* A (row - mean) */
static void enter(const struct fit *f, const double *row, double *out) {
    for (size_t i = 0; i < f->hd; i++) {
        out[i] = 0;
        for (size_t j = 0; j < f->hd; j++) out[i] += f->root[i * f->hd + j] * (row[j] - f->mean[j]);
    }
}

static double rms(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

/* Mean, moments and parameters of rows[n][hd], f->metric given. */
static struct transform_parameters fit(struct fit *f, const double *rows, size_t n) {
    size_t hd = f->hd;
    double *u = doubles(hd);
    struct transform_moments moments = {.mean = f->mean, .directions = f->inverse, .covariance = f->covariance, .importance = -3};
    assert_int_equal(transform_fit_metric(f->metric, (uint32_t)hd, f->root, f->inverse, NULL), TERSE_OK);
    for (size_t i = 0; i < n * hd; i++) f->mean[i % hd] += rows[i];
    for (size_t i = 0; i < hd; i++) f->mean[i] /= (double)n;
    for (size_t i = 0; i < n; i++) {
        enter(f, rows + i * hd, u);
        double size = rms(u, hd);
        f->gains[i] = (float)size;
        for (size_t j = 0; j < hd * hd && size > 0; j++) f->covariance[j] += u[j / hd] * u[j % hd] / (size * size * (double)n);
    }
    transform_fit_gains(f->gains, n, &moments.gain_least, &moments.gain_most);
    assert_int_equal(transform_fit(&moments, (uint32_t)hd, f->floats, NULL), TERSE_OK);
    assert_int_equal(transform_check_parameters(f->floats, (uint32_t)hd, NULL), TERSE_OK);
    memory_free(u);
    return transform_parameters_at(f->floats, (uint32_t)hd);
}

/* Solves sum_c z_c basis_c = x by elimination. */
static void coefficients(const struct transform_parameters *p, size_t hd, const double *x, double *z) {
    double *a = doubles(hd * (hd + 1));
    for (size_t i = 0; i < hd; i++) {
        for (size_t c = 0; c < hd; c++) a[i * (hd + 1) + c] = (double)p->basis[c * hd + i];
        a[i * (hd + 1) + hd] = x[i];
    }
    for (size_t k = 0; k < hd; k++) {
        size_t most = k;
        for (size_t i = k + 1; i < hd; i++)
            if (fabs(a[i * (hd + 1) + k]) > fabs(a[most * (hd + 1) + k])) most = i;
        if (!(fabs(a[most * (hd + 1) + k]) > 1e-4)) fail_msg("the basis is singular");
        for (size_t j = 0; j <= hd && most != k; j++) {
            double x_kj = a[k * (hd + 1) + j];
            a[k * (hd + 1) + j] = a[most * (hd + 1) + j];
            a[most * (hd + 1) + j] = x_kj;
        }
        for (size_t i = 0; i < hd; i++) {
            double factor = a[i * (hd + 1) + k] / a[k * (hd + 1) + k];
            for (size_t j = k; j <= hd && i != k; j++) a[i * (hd + 1) + j] -= factor * a[k * (hd + 1) + j];
        }
    }
    for (size_t i = 0; i < hd; i++) z[i] = a[i * (hd + 1) + hd] / a[i * (hd + 1) + i];
    memory_free(a);
}

/* Rows of a Gaussian whose channels are correlated, of sizes that vary. */
static double *gaussian_rows(size_t n, size_t hd, uint64_t seed) {
    double *rows = doubles(n * hd), *mix = doubles(hd * hd), *own = doubles(hd);
    for (size_t i = 0; i < hd * hd; i++) mix[i] = normal(&seed) * exp2(-5.0 * (double)(i % hd) / (double)hd);
    for (size_t i = 0; i < n; i++) {
        double size = exp2(normal(&seed));
        for (size_t j = 0; j < hd; j++) own[j] = normal(&seed);
        for (size_t j = 0; j < hd; j++) {
            rows[i * hd + j] = (double)(j % 5) - 2;
            for (size_t k = 0; k < hd; k++) rows[i * hd + j] += size * mix[j * hd + k] * own[k];
        }
    }
    memory_free(mix);
    memory_free(own);
    return rows;
}

static void positive_metric(double *metric, size_t hd, uint64_t seed) {
    double *w = doubles(2 * hd * hd);
    for (size_t i = 0; i < 2 * hd * hd; i++) w[i] = normal(&seed);
    memset(metric, 0, hd * hd * sizeof *metric);
    for (size_t k = 0; k < 2 * hd; k++)
        for (size_t i = 0; i < hd; i++)
            for (size_t j = 0; j < hd; j++) metric[i * hd + j] += 1e4 * w[k * hd + i] * w[k * hd + j];
    memory_free(w);
}

/* Coefficients z of a row, found from the basis alone, are uncorrelated and have the sizes that are said; |z|^2 is the cost in the
 * metric, scaled to a trace of hd; the inverse is one. */
static void components_are_uncorrelated_and_cost_their_squares(void **state) {
    enum { HD = 32, N = 400 };
    double *rows = gaussian_rows(N, HD, 7), *products = doubles(HD * HD), z[HD], x[HD], trace = 0;
    struct fit f = new_fit(HD, N);
    (void)state;
    positive_metric(f.metric, HD, 3);
    struct transform_parameters p = fit(&f, rows, N);
    for (size_t i = 0; i < HD; i++) trace += f.metric[i * HD + i] / HD;
    for (size_t i = 0; i < N; i++) {
        double cost = 0, squares = 0;
        for (size_t j = 0; j < HD; j++) x[j] = rows[i * HD + j] - f.mean[j];
        coefficients(&p, HD, x, z);
        for (size_t j = 0; j < HD * HD; j++) cost += x[j / HD] * f.metric[j] * x[j % HD] / trace;
        for (size_t j = 0; j < HD; j++) squares += z[j] * z[j];
        if (!(fabs(squares / cost - 1) < 1e-4)) fail_msg("row %zu: squares %g, cost %g", i, squares, cost);
        for (size_t j = 0; j < HD * HD; j++) products[j] += z[j / HD] * z[j % HD] / (squares / HD) / N;
    }
    double sum = 0;
    for (size_t c = 0; c < HD; c++) {
        double size = (double)p.size[c];
        sum += size * size;
        for (size_t d = 0; d < HD; d++)
            if (!(fabs(products[c * HD + d] - (c == d) * size * size) < 1e-3 * (double)p.size[0] * (double)p.size[0]))
                fail_msg("components %zu and %zu: %g, size %g", c, d, products[c * HD + d], size);
    }
    assert_true(fabs(sum / HD - 1) < 1e-5); /* u has the root mean square 1 */
    assert_true(p.importance == -3);
    for (size_t i = 0; i < HD; i++) {
        for (size_t j = 0; j < HD; j++) {
            double unit = 0;
            for (size_t k = 0; k < HD; k++) unit += f.root[i * HD + k] * f.inverse[k * HD + j];
            assert_true(fabs(unit - (i == j)) < 1e-10);
        }
    }
    memory_free(rows);
    memory_free(products);
    free_fit(f);
}

/* Rows without a metric, all alike, in few directions or weighed in few: parameters that can be used. */
static void degenerate_moments_give_a_regular_basis(void **state) {
    enum { HD = 64, N = 100 };
    double *rows = gaussian_rows(N, HD, 11), z[HD], x[HD] = {1};
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        struct fit f = new_fit(HD, N);
        double *own = doubles((size_t)N * HD);
        if (kind) positive_metric(f.metric, HD, 5); /* else all zeros */
        for (size_t i = 0; i < (size_t)N * HD; i++) own[i] = rows[i];
        for (size_t i = 0; i < (size_t)N * HD && kind == 1; i++) own[i] = (double)(i % HD) * 3;
        for (size_t i = 0; i < (size_t)N * HD && kind == 2; i++)
            if (i % HD > 2) own[i] = 0;
        for (size_t i = 0; i < (size_t)HD * HD && kind == 3; i++)
            if (i % HD > 2 || i / HD > 2) f.metric[i] = 0;
        for (size_t i = 0; i < (size_t)N * HD && kind == 4; i++) own[i] *= 1e-30;
        for (size_t i = 0; i < (size_t)HD * HD && kind == 5; i++) f.metric[i] *= 1e200;
        struct transform_parameters p = fit(&f, own, N);
        coefficients(&p, HD, x, z); /* fails where there are none */
        size_t none = 0;
        while (none < HD && p.size[HD - 1 - none] == 0) none++;
        assert_int_equal(none, kind == 1 ? HD : kind == 2 ? HD - 3 : 0);
        memory_free(own);
        free_fit(f);
    }
    memory_free(rows);
}

static void gains_leave_out_the_rarest(void **state) {
    enum { N = 20480 };
    float *gains = malloc(N * sizeof *gains), least, most;
    uint64_t seed = 1;
    (void)state;
    assert_non_null(gains);
    for (size_t i = 0; i < N; i++) gains[i] = 1 + (float)(uniform(&seed) + 1) / 2;
    gains[17] = gains[300] = 1e-3f;
    gains[500] = gains[2000] = 1e6f;
    transform_fit_gains(gains, N, &least, &most);
    assert_true(least >= 1 / 1.5f && least < 1.01f / 1.5f);
    assert_true(most <= 2 * 1.5f && most > 1.99f * 1.5f);
    transform_fit_gains(gains, 0, &least, &most);
    assert_true(least == 0 && most == 0);
    memcpy(gains, (float[]){3, 6, 4}, 3 * sizeof *gains);
    transform_fit_gains(gains, 3, &least, &most);
    assert_true(least == 2 && most == 9);
    free(gains);
}

/* ---- Rows of a sequence */

/* The record and the metric of a profile that was fitted to rows of its own. */
struct profile {
    void *record;
    float *metric;
};

static struct profile make_profile(size_t hd, uint64_t seed) {
    enum { N = 300 };
    double *rows = gaussian_rows(N, hd, seed);
    struct profile made = {memory_zeros(TRANSFORM_RECORD_BYTES(hd), 1), memory_zeros(hd * hd, sizeof(float))};
    struct fit f = new_fit(hd, N);
    assert_true(made.record && made.metric);
    positive_metric(f.metric, hd, seed + 1);
    struct transform_parameters p = fit(&f, rows, N);
    transform_record_set(p, (uint32_t)hd, made.record);
    assert_int_equal(transform_metric(p.basis, (uint32_t)hd, made.metric, NULL), TERSE_OK);
    memory_free(rows);
    free_fit(f);
    return made;
}

static void free_profile(struct profile made) {
    memory_free(made.record);
    memory_free(made.metric);
}

/* The metric of a basis is that in which it is orthonormal: B^T metric B is the identity. */
static void a_basis_is_orthonormal_in_its_metric(void **state) {
    enum { HD = 64, N = 300 };
    double *rows = gaussian_rows(N, HD, 21), *products = doubles(HD * HD);
    float metric[HD * HD];
    struct fit f = new_fit(HD, N);
    struct terse_error error;
    (void)state;
    positive_metric(f.metric, HD, 22);
    struct transform_parameters p = fit(&f, rows, N);
    assert_int_equal(transform_metric(p.basis, HD, metric, NULL), TERSE_OK);
    for (size_t c = 0; c < HD; c++)
        for (size_t i = 0; i < HD; i++)
            for (size_t j = 0; j < HD; j++) products[c * HD + j] += (double)p.basis[c * HD + i] * (double)metric[i * HD + j];
    for (size_t c = 0; c < HD; c++) {
        for (size_t d = 0; d < HD; d++) {
            double sum = 0;
            for (size_t j = 0; j < HD; j++) sum += products[c * HD + j] * (double)p.basis[d * HD + j];
            assert_true(fabs(sum - (c == d)) < 1e-4);
        }
    }
    memset(f.floats + 3 * HD + 5 * HD, 0, HD * sizeof *f.floats);
    assert_int_equal(transform_metric(p.basis, HD, metric, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "singular"));
    memory_free(rows);
    memory_free(products);
    free_fit(f);
}

/* Rows of another sequence than the profile's: more than components, fewer, and of one page; of every head's dimension. */
static void records_are_of_the_rows_that_they_are_fitted_to(void **state) {
    static const size_t head_dims[] = {32, 64, 96, 128}, numbers[] = {2048, 1000, 200, 20};
    (void)state;
    for (size_t h = 0; h < 4; h++) {
        const size_t hd = head_dims[h], n = numbers[h];
        struct profile profile = make_profile(hd, 31 + h);
        double *rows = gaussian_rows(n, hd, 41 + h);
        float *floats = malloc(n * hd * sizeof *floats);
        void *record = memory_zeros(TRANSFORM_RECORD_BYTES(hd), 1), *again = memory_zeros(TRANSFORM_RECORD_BYTES(hd), 1);
        assert_true(floats && record && again);
        for (size_t i = 0; i < n * hd; i++) rows[i] = (double)(floats[i] = (float)rows[i]);
        for (int pass = 0; pass < 2; pass++)
            assert_int_equal(transform_fit_rows(transform_multiply, profile.record, profile.metric, (uint32_t)hd, floats, n,
                                                h ? floats : NULL, pass ? again : record, NULL),
                             TERSE_OK);
        assert_memory_equal(record, again, TRANSFORM_RECORD_BYTES(hd));
        for (size_t c = 0; c < hd; c++)
            assert_true(transform_fitted_at(record, (uint32_t)hd).pre_rope_mean[c] == (h ? floats[c] : 0));
        fit_oracle_check(profile.record, record, (uint32_t)hd, rows, n, 4e-3);
        memory_free(record);
        memory_free(again);
        free(floats);
        memory_free(rows);
        free_profile(profile);
    }
}

static bool is_finite(const void *record, size_t hd) {
    const float *floats = record;
    float basis[64 * 64];
    const struct transform_fitted fitted = transform_fitted_at(record, (uint32_t)hd);
    bool finite = fitted.gain_least >= 0 && fitted.gain_most >= fitted.gain_least;
    transform_record_basis(&fitted, (uint32_t)hd, hd, basis);
    for (size_t i = 0; i < 4 * hd + 3; i++) finite &= isfinite(floats[i]) != 0;
    for (size_t i = 0; i < hd * hd; i++) finite &= isfinite(basis[i]) != 0;
    for (size_t c = 0; c < hd; c++) finite &= fitted.size[c] >= 0 && (!c || fitted.size[c] <= fitted.size[c - 1]);
    return finite;
}

/* Rows that are all alike, one row, rows too large to be measured, not finite ones among huge and tiny ones, and rows too small to be divided
 * by. Where they say nothing but of the mean, the profile's sizes and gains stand. */
static void odd_rows_can_be_fitted_to(void **state) {
    enum { HD = 64, N = 150 };
    struct profile profile = make_profile(HD, 51);
    const struct transform_fitted of_weights = transform_fitted_at(profile.record, HD);
    void *record = memory_zeros(TRANSFORM_RECORD_BYTES(HD), 1);
    float rows[N * HD];
    uint64_t seed = 5;
    (void)state;
    assert_non_null(record);
    for (int kind = 0; kind < 5; kind++) {
        for (size_t i = 0; i < N * HD; i++) {
            const size_t t = i / HD, c = i % HD;
            const float sign = (t + c) % 2 ? 1 : -1, some = (float)normal(&seed);
            const float kinds[] = {(float)c - 7, (float)c - 7, sign * FLT_MAX,
                                   t == 9  ? (c % 3 ? NAN : INFINITY)
                                   : t % 2 ? 1e30f * some
                                           : 1e-30f * some,
                                   sign * 1e-41f};
            rows[i] = kinds[kind];
        }
        assert_int_equal(
            transform_fit_rows(transform_multiply, profile.record, profile.metric, HD, rows, kind == 1 ? 1 : N, NULL, record, NULL),
            TERSE_OK);
        if (!is_finite(record, HD)) fail_msg("kind %d: not a transform", kind);
        const struct transform_fitted own = transform_fitted_at(record, HD);
        for (size_t c = 0; c < HD && kind < 2; c++) {
            assert_true(own.mean[c] == rows[c]);
            assert_true(fabsf(own.size[c] - of_weights.size[c]) <= 1e-5f * of_weights.size[0]);
        }
        if (kind < 2)
            assert_true(own.gain_least == of_weights.gain_least && own.gain_most == of_weights.gain_most &&
                        own.gain == of_weights.gain);
    }
    memory_free(record);
    free_profile(profile);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eigenvectors_are_those_of_their_matrix),
        cmocka_unit_test(known_eigenvalues_are_found),
        cmocka_unit_test(numbers_that_are_not_finite_end),
        cmocka_unit_test(components_are_uncorrelated_and_cost_their_squares),
        cmocka_unit_test(degenerate_moments_give_a_regular_basis),
        cmocka_unit_test(gains_leave_out_the_rarest),
        cmocka_unit_test(a_basis_is_orthonormal_in_its_metric),
        cmocka_unit_test(records_are_of_the_rows_that_they_are_fitted_to),
        cmocka_unit_test(odd_rows_can_be_fitted_to),
    };
    return cmocka_run_group_tests_name("transform_fit", tests, NULL, NULL);
}
