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
 * so that the z_c are uncorrelated and an error in z costs its square.
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
    const double *inverse;       /* [hd][hd], A^-1 */
    const double *covariance;    /* [hd][hd], of u */
    float gain_least, gain_most; /* transform_fit_gains of rms(A (row - mean)) */
    float importance;            /* as in struct transform_parameters */
};
/* Fits floats[transform_parameter_floats]. Sizes below a millionth of the largest are 0. Finite for finite moments, the basis regular, whatever
 * the covariance. TERSE_E_MEMORY. */
enum terse_status transform_fit(const struct transform_moments *moments, uint32_t head_dim, float *floats,
                                struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
