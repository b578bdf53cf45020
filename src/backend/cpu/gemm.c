/* Computes matrix products by oneDNN's single-precision GEMM, behind a call that cannot fail.
 *
 * It does not use oneDNN's products of bf16: measured on an Intel processor with AVX-512 BF16 and no AMX, VDPBF16PS does half the
 * arithmetic per second of fp32's FMA, of whose limit the products here reach nine tenths. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <dnnl.h>
#include <signal.h>
#include <string.h>

/* Computes the product when the library refuses (it allocates packing buffers, so memory may lack), and when the library leaves C alone though C
 * should be cleared (k = 0). It is slow, but right, and needs no memory. */
static void gemm_plain(bool b_transposed, size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb,
                       bool accumulate, float *c, size_t ldc) {
    const struct vector_ops *kernel = vector_ops();
    for (size_t i = 0; i < m; i++) {
        if (!accumulate) memset(c + i * ldc, 0, n * sizeof *c);
        if (b_transposed) {
            for (size_t j = 0; j < n; j++) c[i * ldc + j] += kernel->dot(a + i * lda, b + j * ldb, k);
        } else {
            for (size_t l = 0; l < k; l++) kernel->axpy(a[i * lda + l], b + l * ldb, c + i * ldc, n);
        }
    }
}

/* Multiplies by oneDNN. The product of two plain (not transposed) matrices in oneDNN 2.6.3 goes astray, or hangs, when a signal
 * handler runs on its thread (seen on Zen 5 with AVX-512 and AVX2 alike), so signals wait until it has returned. */
static dnnl_status_t product(char a_transposed, char b_transposed, size_t m, size_t n, size_t k, const float *a, size_t lda,
                             const float *b, size_t ldb, bool accumulate, float *c, size_t ldc) {
    sigset_t all, before;
    if (k == 0) return dnnl_unimplemented;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    dnnl_status_t status = dnnl_sgemm(a_transposed, b_transposed, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a,
                                      (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, accumulate ? 1.0f : 0.0f, c, (dnnl_dim_t)ldc);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void gemm(bool b_transposed, size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, bool accumulate,
          float *c, size_t ldc) {
    dnnl_status_t status = product('N', b_transposed ? 'T' : 'N', m, n, k, a, lda, b, ldb, accumulate, c, ldc);
    if (status != dnnl_success) gemm_plain(b_transposed, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

static void gemm_outer_plain(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, bool accumulate,
                             float *c, size_t ldc) {
    for (size_t i = 0; i < m; i++) {
        if (!accumulate) memset(c + i * ldc, 0, n * sizeof *c);
        for (size_t l = 0; l < k; l++) vector_ops()->axpy(a[l * lda + i], b + l * ldb, c + i * ldc, n);
    }
}

void gemm_outer(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, bool accumulate, float *c,
                size_t ldc) {
    dnnl_status_t status = product('T', 'N', m, n, k, a, lda, b, ldb, accumulate, c, ldc);
    if (status != dnnl_success) gemm_outer_plain(m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

/* This is more address space than the first products were seen to take: 24 MiB for the library's code, and 128 that the C library reserves for the
 * heap of a thread. With 64 in its place some products in between were refused now and then. */
#define PREPARE_BYTES ((size_t)160 << 20)

static void small_products(void) {
    float a[4] = {1, 2, 3, 4}, c[4];
    gemm(true, 2, 2, 2, a, 2, a, 2, false, c, 2);
    gemm(false, 2, 2, 2, a, 2, a, 2, true, c, 2);
    gemm_outer(2, 2, 2, a, 2, a, 2, false, c, 2);
}

/* The library makes its code with the first products and crashes where memory is refused then, so one thread does it while no other
 * takes of the room that was found. */
enum terse_status gemm_prepare(struct terse_error *error) {
    void *room = memory_array(PREPARE_BYTES, 1);
    if (!room) return status_no_memory(error, PREPARE_BYTES, "the matrix library");
    memory_free(room);
    small_products();
#pragma omp parallel
    small_products();
    return TERSE_OK;
}
