/* Compiles loops over double-precision matrices for the vectors that the processor has. */
#ifndef TERSE_BASE_WIDER_VECTORS_H
#define TERSE_BASE_WIDER_VECTORS_H

#include <stdlib.h> /* defines __GLIBC__ */

/* A function that is FOR_WIDER_VECTORS is compiled for AVX2 as well, with all that it calls inside it, and the program chooses when it is loaded.
 * Products and sums are not fused (CMakeLists.txt), so that both give the same bits. It has to be static, since what is compiled twice would be
 * exported. A sanitizer cannot be called so early. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOR_WIDER_VECTORS __attribute__((target_clones("avx2", "default")))
#define WITHIN static inline __attribute__((always_inline))
#else
#define FOR_WIDER_VECTORS
#define WITHIN static inline
#endif

WITHIN void add_multiple(double *restrict y, double factor, const double *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

#endif
