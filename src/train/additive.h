/* Fits codebooks of sums: rows C [codes][channels], of which each point is the sum of some, s C with s in {0, 1}^codes (additive
 * quantization, Babenko and Lempitsky 2014; for values, CommVQ, Li et al. 2025, section 4.1). It alternates between
 *
 *     codes   s of each point by the search of backend/cpu/codec/binary_code_search.h, which encoding uses too
 *     rows    minimize sum w |x - s C|^2 over C: (S^T W S) C = S^T W X, in double precision with a ridge that holds on to the last C
 *
 * The result depends on the points, the options and the kind of processor, not on the number of threads: the calling thread's
 * OpenMP team is used, one thread inside a parallel region. */
#ifndef TERSE_TRAIN_ADDITIVE_H
#define TERSE_TRAIN_ADDITIVE_H

#include "base/status.h"

struct additive_points {
    const float *
        rows; /* [n][channels], finite, at most 1e15 in size; about 1 in size, as backend/cpu/codec/binary_code_search.h asks for */
    size_t n;
    size_t stride;        /* floats from one row to the next, at least `channels` */
    const float *weights; /* [n] finite, >= 0, not all 0; NULL: all alike */
};

struct additive_options {
    uint32_t iterations; /* at least 1 */
    uint64_t seed;       /* of the start */
    struct terse_progress progress;
};
struct additive_options additive_options_defaults(void);

struct additive_result {
    double error;             /* sum of w |x - s C|^2 / sum of w |x|^2; 0 where the points are */
    double effective_samples; /* (sum w)^2 / sum w^2 */
};

/* Writes the best C[codes][channels] that was met, which is finite, and to errors[iterations + 1], unless NULL, the `error` before
 * each iteration and after the last. Where there are many points, the first iterations look at some of them, and their errors are
 * of those. `result` may be NULL. TERSE_E_ARGUMENT for points beyond what is said above, channels beyond 256 and codes beyond the
 * search's. After a failure C means nothing. */
enum terse_status additive_fit(const struct additive_points *points, size_t channels, size_t codes,
                               const struct additive_options *options, float *C, double *errors, struct additive_result *result,
                               struct terse_error *error);

/* Solves the least squares; it is declared for tests. normal[n][n] = S^T W S, whose lower half is read, and right[n][d] = S^T W X
 * are overwritten. C[n][d] holds the last rows and gets the new ones. */
void additive_solve(size_t n, size_t d, double *normal, double *right, double ridge, float *C);

#endif
