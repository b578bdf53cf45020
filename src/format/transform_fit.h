/* Fits the parameters of the codec transform (format/transform.h) to the moments of rows. It is plain C in double precision, for
 * learning and for backends that fit to a prompt.
 *
 * An error d in a row costs d^T M d, with the metric M of the head: of values sum over the G query heads that share it of W^T W, W
 * the part of the output projection that reads the head; of keys a diagonal, the mean squared queries of each RoPE pair, which no
 * rotation changes. With A = M^(1/2), rows are described as
 *
 *     u = A (row - mean) / rms(A (row - mean)),   U the eigenvectors of u's covariance, in columns
 *     basis_c = column c of A^-1 U,   size_c = the root of the c-th eigenvalue,   z = gain U^T u = U^T A (row - mean)
 *
 * so that the z_c are uncorrelated and an error in z costs its square. To fit such a basis to other rows needs no metric: the basis
 * serves as A^-1, and the coefficients of the other rows as u, since an error in them costs its square; the fit then rotates the
 * basis. */
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

/* Computes the range of gains[n]: from the 0.01 % quantile to the 99.99 % one, and half as much again either way. Sorts the gains;
 * without any, both ends are 0. */
void transform_fit_gains(float *gains, size_t n, float *least, float *most);

/* The parameters are computed from these moments of rows. */
struct transform_moments {
    const double *mean;          /* [hd] */
    const float *pre_rope_mean;  /* [hd], which is not in the rows; NULL: zeros */
    const double *directions;    /* [hd][hd], what a coefficient of u adds to a row: A^-1, whose rows are its columns */
    const double *covariance;    /* [hd][hd], of u */
    float gain_least, gain_most; /* transform_fit_gains of rms(A (row - mean)) */
    float gain;                  /* root mean square of these */
    float residual, importance;  /* as in struct transform_parameters */
};
/* Fits floats[transform_parameter_floats]. Sizes below a millionth of the largest become 0. For finite moments the result is finite
 * and the basis regular, whatever the covariance. TERSE_E_MEMORY. */
enum terse_status transform_fit(const struct transform_moments *moments, uint32_t head_dim, float *floats,
                                struct terse_error *error);

/* Computes metric[hd][hd] = (B B^T)^-1 of a basis B, whose columns are basis_c. Up to a factor it is the metric for which the basis
 * was fitted, and in which bases are fitted from it. B^T metric is B^-1. TERSE_E_FORMAT: the basis is singular. */
enum terse_status transform_metric(const float *basis, uint32_t head_dim, float *metric, struct terse_error *error);

/* ---- The rows of a sequence */

#define TRANSFORM_GAIN_LEAST 1e-6f /* of the size of the mean: what rounding leaves of a row that is the mean */

/* The moments of a sequence's rows are in coefficients of a profile's basis. They are the mean of all rows and, of the rows that
 * are finite and differ from the mean, the products of the coefficients of (row - mean), each row scaled to size 1, and the sizes,
 * root mean squares of coefficients. */
struct transform_row_moments {
    const float *mean;          /* [hd] */
    const float *pre_rope_mean; /* [hd], which was taken from the rows before; NULL: zeros */
    const double *products;     /* [hd][hd], sums over rows */
    size_t used;                /* rows that these and the sizes are of */
    float gain, least, most;    /* the root mean square of their sizes, the least and the largest */
};
/* Fits a record, in which the profile's rows count as a few more rows. It is finite for finite moments. TERSE_E_MEMORY. */
enum terse_status transform_fit_moments(const void *profile, uint32_t head_dim, const struct transform_row_moments *moments,
                                        void *record, struct terse_error *error);

/* Computes out[m][n] = a[m][k] b[k][n], rows lda, ldb and ldo floats apart; n is a multiple of 16. It is a backend's own, or
 * transform_multiply. */
typedef void transform_multiply_rows(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb,
                                     float *out, size_t ldo);
transform_multiply_rows transform_multiply;

/* Fits a record to rows[n][hd], from which pre_rope_mean[hd] was subtracted (NULL: none was), in the metric of a profile's record:
 * their mean, the Karhunen-Loeve transform of (row - mean), and their gains. The record is finite whatever the rows are. The same
 * rows give the same bits. TERSE_E_MEMORY. */
enum terse_status transform_fit_rows(transform_multiply_rows *multiply, const void *profile, const float *metric, uint32_t head_dim,
                                     const float *rows, size_t n, const float *pre_rope_mean, void *record,
                                     struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
