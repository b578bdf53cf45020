/* This template implements vector_ops.multiply on the lanes of an instruction set, whose header (lanes/NAME.h) is included before;
 * MULTIPLY_VECS registers of columns are summed together for four rows. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/vector/init.h"

#define MULTIPLY_ROWS 4

/* Multiplies rows [rows] of a, all of k, and `vecs` registers of columns. It is inlined with constant rows and vecs. */
INLINE void multiply_tile(const float *a, size_t lda, size_t rows, size_t k, const float *b, size_t ldb, size_t vecs, float *out,
                          size_t ldo) {
    vec sums[MULTIPLY_ROWS][MULTIPLY_VECS];
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vecs; v++) sums[r][v] = vec_zero();
    for (size_t i = 0; i < k; i++) {
        vec columns[MULTIPLY_VECS];
        for (size_t v = 0; v < vecs; v++) columns[v] = vec_load(b + i * ldb + v * LANES);
        for (size_t r = 0; r < rows; r++) {
            vec x = vec_set(a[r * lda + i]);
            for (size_t v = 0; v < vecs; v++) sums[r][v] = vec_fma(x, columns[v], sums[r][v]);
        }
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vecs; v++) vec_store(out + r * ldo + v * LANES, sums[r][v]);
}

INLINE void multiply_rows(const float *a, size_t lda, size_t rows, size_t k, const float *b, size_t ldb, size_t n, float *out,
                          size_t ldo) {
    size_t c = 0;
    for (; c + MULTIPLY_VECS * LANES <= n; c += MULTIPLY_VECS * LANES)
        multiply_tile(a, lda, rows, k, b + c, ldb, MULTIPLY_VECS, out + c, ldo);
    /* The columns that are left take as few sweeps over x as possible: one register of columns alone waits for its own sums. */
    const size_t left = (n - c) / LANES;
    if (MULTIPLY_VECS > 3 && left == 3) multiply_tile(a, lda, rows, k, b + c, ldb, 3, out + c, ldo);
    if (MULTIPLY_VECS > 2 && left == 2) multiply_tile(a, lda, rows, k, b + c, ldb, 2, out + c, ldo);
    if (left == 1) multiply_tile(a, lda, rows, k, b + c, ldb, 1, out + c, ldo);
}

static void PASTE(multiply, ISA)(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb, float *out,
                                 size_t ldo) {
    size_t r = 0;
    for (; r + MULTIPLY_ROWS <= m; r += MULTIPLY_ROWS)
        multiply_rows(a + r * lda, lda, MULTIPLY_ROWS, k, b, ldb, n, out + r * ldo, ldo);
    for (; r < m; r++) multiply_rows(a + r * lda, lda, 1, k, b, ldb, n, out + r * ldo, ldo);
}
