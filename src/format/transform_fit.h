/* Fits the parameters of the codec transform (format/transform.h) to the moments of rows. Plain C in double precision, for learning and
 * for backends that fit to a prompt.
 *
 * An error d in a row costs d^T M d, with the metric M of the head: of values sum over the G query heads that share it of W^T W, W
 * the part of the output projection that reads the head; of keys a diagonal, the mean squared queries of each RoPE pair, which do not
 * depend on where they are rotated to. With A = M^(1/2), rows are described as
 *
 *     u = A (row - mean) / rms(A (row - mean)),   U the eigenvectors of u's covariance, in columns
 *     basis_c = column c of A^-1 U,   size_c = the root of the c-th eigenvalue,   z = gain U^T u = U^T A (row - mean)
 *
 * so that the z_c are uncorrelated and an error in z costs its square. A basis that was found so needs no metric to be fitted to other rows: it
 * serves for A^-1, and the coefficients of these rows for u, since an error in them costs its square, and the fit turns it.
 */
#ifndef TERSE_FORMAT_TRANSFORM_FIT_H
#define TERSE_FORMAT_TRANSFORM_FIT_H

#include "format/transform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes root[hd][hd] = A and inverse[hd][hd] = A^-1 of metric[hd][hd], symmetric: scaled to a trace of hd, its eigenvalues clamped to 1e-4
 * of the largest, so that A can be inverted. A metric without any finite positive trace counts as the identity. TERSE_E_MEMORY. */
enum terse_status transform_fit_metric(const double *metric, uint32_t head_dim, double *root, double *inverse,
                                       struct terse_error *error);

/* The range of gains[n] that rows have: from the 0.01 % quantile to the 99.99 % one, and half as much again either way. Sorts the gains; 0 and
 * 0 without any. */
void transform_fit_gains(float *gains, size_t n, float *least, float *most);

/* The moments of rows that the parameters are computed from. */
struct transform_moments {
    const double *mean;          /* [hd] */
    const float *pre_rope_mean;  /* [hd], which is not in the rows; NULL: zeros */
    const double *directions;    /* [hd][hd], what a coefficient of u adds to a row: A^-1, whose rows are its columns */
    const double *covariance;    /* [hd][hd], of u */
    float gain_least, gain_most; /* transform_fit_gains of rms(A (row - mean)) */
    float gain;                  /* root mean square of these */
    float residual, importance;  /* as in struct transform_parameters */
};
/* Fits floats[transform_parameter_floats]. Sizes below a millionth of the largest are 0. Finite for finite moments, the basis regular, whatever
 * the covariance. TERSE_E_MEMORY. */
enum terse_status transform_fit(const struct transform_moments *moments, uint32_t head_dim, float *floats,
                                struct terse_error *error);

/* Computes metric[hd][hd] = (B B^T)^-1 of a basis B, whose columns are basis_c: the metric, up to a factor, for which the basis was made, and for
 * which all are that are fitted in it. B^T metric is B^-1. TERSE_E_FORMAT: the basis is singular. */
enum terse_status transform_metric(const float *basis, uint32_t head_dim, float *metric, struct terse_error *error);

/* ---- The rows of a sequence */

#define TRANSFORM_GAIN_LEAST 1e-6f /* of the size of the mean: what rounding leaves of a row that is the mean */

/* The moments of a sequence's rows are in coefficients of a profile's basis: the mean of the rows and, of those that are something else than that and
 * finite, the products of the coefficients of what they are about it, each row taken to size 1, and their sizes, root mean squares of
 * coefficients. */
struct transform_row_moments {
    const float *mean;          /* [hd] */
    const float *pre_rope_mean; /* [hd], which was taken from the rows before; NULL: zeros */
    const double *products;     /* [hd][hd], sums over rows */
    size_t used;                /* rows that these and the sizes are of */
    float gain, least, most;    /* the root mean square of their sizes, the least and the largest */
};
/* Fits a record, of which the profile's rows count as a few more. Finite for finite moments. TERSE_E_MEMORY. */
enum terse_status transform_fit_moments(const void *profile, uint32_t head_dim, const struct transform_row_moments *moments,
                                        void *record, struct terse_error *error);

/* out[m][n] = a[m][k] b[k][n], rows lda, ldb and ldo floats apart; n a multiple of 16. A backend's own, or transform_multiply. */
typedef void transform_multiply_rows(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb,
                                     float *out, size_t ldo);
transform_multiply_rows transform_multiply;

/* Fits a record to rows[n][hd], which pre_rope_mean[hd] was taken from (NULL: none), in the metric of a profile's record: their mean, the
 * Karhunen-Loeve transform of what they are about it, and their gains. What is fitted is finite whatever the rows are. The same rows give the same bits. TERSE_E_MEMORY. */
enum terse_status transform_fit_rows(transform_multiply_rows *multiply, const void *profile, const float *metric, uint32_t head_dim,
                                     const float *rows, size_t n, const float *pre_rope_mean, void *record,
                                     struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
