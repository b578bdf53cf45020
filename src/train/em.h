/* Fits tables of complex numbers for keys that commute with RoPE (CommVQ, Li et al. 2025, section 4.2 and A.2): greedy residual
 * rounds, each a mixture whose centres are all z[a] + i z[b] of one table z, fitted by expectation maximization with an annealed
 * temperature.
 *
 *     E   weight(p; a, b) = exp(-|x_p - z[a] - i z[b]|^2 / T), made to sum to 1 over a and b. The squared distance, where the paper
 *         has the distance, is what makes the M step the minimum of what the E step weighs, and T a variance that the data sets.
 *     M   minimize sum w_p weight |x_p - z[a] - i z[b]|^2 over z: with N[a][b] the sums of weights and m their means of x, the
 *         Hermitian system (diag(row + column sums of N) + i (N - N^T)) z = sum over b of N[k][b] m[k][b] - i N[b][k] m[b][k],
 *         the same for all pairs; in double precision with a ridge that holds on to the last z.
 *
 * The result depends on the points, the options and the kind of processor, not on the number of threads: the calling thread's
 * OpenMP team is used, one thread inside a parallel region. A fit of fewer rounds gives the first of the same tables. */
#ifndef TERSE_TRAIN_EM_H
#define TERSE_TRAIN_EM_H

#include "backend/learning.h"

struct em_shape {
    size_t pairs;   /* g, complex numbers of a row: 1 to COMMVQ_MOST_PAIRS of format/commvq.h */
    size_t entries; /* of a table: 2 to COMMVQ_ENTRIES */
    size_t rounds;  /* 1 to COMMVQ_MOST_ROUNDS */
};

struct em_points {
    const float *rows; /* [n][2 pairs], real parts and then imaginary parts; finite, at most 1e15 in size */
    size_t n;
    size_t stride;        /* floats from one row to the next, at least 2 pairs */
    const float *weights; /* [n] finite, >= 0, not all 0; NULL: all alike */
};

struct em_options {
    uint32_t iterations;            /* of each round, at least 1 */
    uint64_t seed;                  /* of the starts */
    const struct learning_ops *ops; /* by which E steps are done where it has them; NULL: the CPU's */
    struct terse_progress progress;
};
struct em_options em_options_defaults(void);

struct em_result {
    double error;             /* sum of w |x - codewords of all rounds|^2 / sum of w |x|^2; 0 where the points are */
    double effective_samples; /* (sum w)^2 / sum w^2 */
    uint32_t repaired;        /* times that an entry that served no point was put to use */
};

/* Writes tables[rounds][entries][2 pairs], all finite: of each round the one with the least error of the nearest codewords, among those that
 * were measured on all points (most iterations look at samples). Writes the `error` after each round to errors[rounds], unless NULL. `result`
 * may be NULL. TERSE_E_ARGUMENT for shapes and points beyond what is said above. After a failure the tables mean nothing. */
enum terse_status em_fit(const struct em_points *points, struct em_shape shape, const struct em_options *options, float *tables,
                         double *errors, struct em_result *result, struct terse_error *error);

/* Does one M step; it is declared for tests. counts[entries][entries] >= 0; sums[entries][2 pairs] are the sums over points of the
 * right side of the k-th equation. z holds the last table, which `ridge` > 0 weighs, and gets the new one. TERSE_E_MEMORY or
 * TERSE_OK. */
enum terse_status em_solve(struct em_shape shape, const double *counts, const double *sums, double ridge, double *z,
                           struct terse_error *error);

#endif
