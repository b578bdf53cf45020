/* Computes matrix products through oneDNN (docs/dependencies.md says why this library). */
#ifndef TERSE_BACKEND_CPU_GEMM_H
#define TERSE_BACKEND_CPU_GEMM_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Computes C[m][n] = A[m][k] B[k][n] (+ C if `accumulate`), row-major, rows lda, ldb, ldc floats apart; with `b_transposed` B is
 * given as [n][k]. It uses the calling thread's OpenMP threads, or one inside a parallel region. */
void gemm(bool b_transposed, size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, bool accumulate,
          float *c, size_t ldc);

/* Computes C[m][n] = A^T B (+ C if `accumulate`), where A is given as [k][m]: the sum over k of outer products of rows. The rest is
 * as in gemm. */
void gemm_outer(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, bool accumulate, float *c,
                size_t ldc);

/* Makes the library do now, on every thread of the caller's thread pool, what it does at its first product: it compiles its
 * kernels, and when memory is short then, it ends the program instead of returning. It should be called while there is plenty;
 * TERSE_E_MEMORY when there is not. */
enum terse_status gemm_prepare(struct terse_error *error);

#endif
