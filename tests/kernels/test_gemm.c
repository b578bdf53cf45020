/* Matrix products against double precision: all small shapes, strides, transposed B, accumulation, calls from inside a parallel
 * region, and what happens when the library refuses.
 *
 *     test_gemm --bench     GFLOP/s of the shapes that a forward pass and tiled attention ask for
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "backend/cpu/gemm.h"
#include "support/kernel_check.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- A library that can be told to refuse: this definition stands before the shared one. --------------------------------- */

static bool refuse;
static int refusals;

dnnl_status_t DNNL_API dnnl_sgemm(char transa, char transb, dnnl_dim_t M, dnnl_dim_t N, dnnl_dim_t K, float alpha, const float *A,
                                  dnnl_dim_t lda, const float *B, dnnl_dim_t ldb, float beta, float *C, dnnl_dim_t ldc) {
    static dnnl_status_t (*library)(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const float *, dnnl_dim_t, const float *,
                                    dnnl_dim_t, float, float *, dnnl_dim_t);
    if (refuse) {
        refusals++;
        return dnnl_out_of_memory;
    }
    if (!library) {
        assert_non_null(dnnl_version()); /* with nothing else of it in use the linker might leave the library out */
        void *symbol = dlsym(RTLD_NEXT, "dnnl_sgemm");
        memcpy(&library, &symbol, sizeof library);
    }
    return library(transa, transb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

/* ---- Products -------------------------------------------------------------------------------------------------------------- */

struct shape {
    bool b_transposed;
    size_t m, n, k;
    size_t gap; /* floats between the rows, never to be touched */
    bool accumulate;
};

static size_t floats_of(size_t rows, size_t columns, size_t stride) { return rows ? (rows - 1) * stride + columns : 0; }

static void check_product(struct random *random, const struct shape *s, enum fill fill) {
    size_t lda = s->k + s->gap, ldb = (s->b_transposed ? s->k : s->n) + s->gap, ldc = s->n + s->gap;
    size_t b_rows = s->b_transposed ? s->n : s->k, b_columns = s->b_transposed ? s->k : s->n, c_floats = floats_of(s->m, s->n, ldc);
    float *a = guard_floats(floats_of(s->m, s->k, lda), GUARD_END), *b = guard_floats(floats_of(b_rows, b_columns, ldb), GUARD_END);
    float *c = guard_floats(c_floats, GUARD_END), *before = guard_floats(c_floats, GUARD_END);
    fill_floats(random, fill, a, floats_of(s->m, s->k, lda));
    fill_floats(random, fill, b, floats_of(b_rows, b_columns, ldb));
    fill_floats(random, FILL_NORMAL, c, c_floats);
    if (!s->accumulate && c_floats) c[0] = NAN; /* what C held must not matter */
    if (c_floats) memcpy(before, c, c_floats * sizeof *c);
    gemm(s->b_transposed, s->m, s->n, s->k, a, lda ? lda : 1, b, ldb ? ldb : 1, s->accumulate, c, ldc ? ldc : 1);
    for (size_t i = 0; i < s->m; i++) {
        for (size_t j = 0; j < ldc && i * ldc + j < c_floats; j++) {
            float got = c[i * ldc + j], old = before[i * ldc + j];
            if (j >= s->n) {
                assert_true(memcmp(&got, &old, sizeof got) == 0);
                continue;
            }
            double want = s->accumulate ? old : 0, terms = fabs(want);
            for (size_t l = 0; l < s->k; l++) {
                double product = (double)a[i * lda + l] * (s->b_transposed ? b[j * ldb + l] : b[l * ldb + j]);
                want += product;
                terms += fabs(product);
            }
            check_close(got, want, terms, 0x1p-24 * (double)(s->k + 4), 1e-40, "%s%zux%zux%zu gap %zu%s, at %zu, %zu",
                        s->b_transposed ? "transposed " : "", s->m, s->n, s->k, s->gap, s->accumulate ? " accumulated" : "", i, j);
        }
    }
    guard_release();
}

/* gemm_outer equals gemm of A written the other way round, whose results are held to double precision above. */
static void check_outer(struct random *random, const struct shape *s) {
    size_t lda = s->m + s->gap, ldb = s->n + s->gap, ldc = s->n + s->gap, c_floats = floats_of(s->m, s->n, ldc);
    float *a = guard_floats(floats_of(s->k, s->m, lda), GUARD_END), *b = guard_floats(floats_of(s->k, s->n, ldb), GUARD_END);
    float *c = guard_floats(c_floats, GUARD_END), *want = guard_floats(c_floats, GUARD_END),
          *rotated = guard_floats(s->m * s->k, GUARD_END);
    fill_floats(random, FILL_NORMAL, a, floats_of(s->k, s->m, lda));
    fill_floats(random, FILL_NORMAL, b, floats_of(s->k, s->n, ldb));
    fill_floats(random, FILL_NORMAL, c, c_floats);
    if (!s->accumulate && c_floats) c[0] = NAN;
    if (c_floats) memcpy(want, c, c_floats * sizeof *c);
    for (size_t i = 0; i < s->m * s->k; i++) rotated[i] = a[i % s->k * lda + i / s->k];
    gemm(false, s->m, s->n, s->k, rotated, s->k ? s->k : 1, b, ldb ? ldb : 1, s->accumulate, want, ldc ? ldc : 1);
    gemm_outer(s->m, s->n, s->k, a, lda ? lda : 1, b, ldb ? ldb : 1, s->accumulate, c, ldc ? ldc : 1);
    for (size_t i = 0; i < c_floats; i++) {
        bool untouched = i % ldc >= s->n;
        check_close(c[i], want[i], untouched ? 0 : (double)(s->k + 1) * 16, untouched ? 0 : 1e-6, 0,
                    "outer %zux%zux%zu gap %zu%s, at %zu", s->m, s->n, s->k, s->gap, s->accumulate ? " accumulated" : "", i);
    }
    guard_release();
}

static void check_shapes(const size_t *sizes, size_t n_sizes) {
    struct random random = {6};
    for (size_t i = 0; i < n_sizes * n_sizes * n_sizes; i++) {
        for (int flags = 0; flags < 8; flags++) {
            struct shape shape = {(flags & 1) != 0,  sizes[i % n_sizes], sizes[i / n_sizes % n_sizes], sizes[i / n_sizes / n_sizes],
                                  flags & 4 ? 3 : 0, (flags & 2) != 0};
            check_product(&random, &shape, (enum fill)(i % 3 == 0 ? FILL_SPREAD : FILL_NORMAL));
            if (!shape.b_transposed) check_outer(&random, &shape);
        }
    }
}

static void test_all_small_shapes(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 2, 7, 16, 33, 65};
    check_shapes(sizes, sizeof sizes / sizeof *sizes);
}

static void test_shapes_of_attention_and_layers(void **state) {
    (void)state;
    struct random random = {7};
    const struct shape shapes[] = {{true, 64, 256, 128, 0, false}, {false, 64, 128, 256, 0, true}, {true, 17, 300, 1024, 5, false}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int fill = 0; fill < FILLS; fill++) check_product(&random, &shapes[s], (enum fill)fill);
    }
}

static void test_inside_a_parallel_region(void **state) {
    (void)state;
    enum { M = 32, N = 96, K = 48 };
    static float a[M * K], b[K * N], c[4][M * N], alone[M * N];
    struct random random = {8};
    fill_floats(&random, FILL_NORMAL, a, M * K);
    fill_floats(&random, FILL_NORMAL, b, K * N);
    gemm(false, M, N, K, a, K, b, N, false, alone, N);
#pragma omp parallel for num_threads(4) schedule(static, 1)
    for (int i = 0; i < 4; i++) {
        for (int repeat = 0; repeat < 20; repeat++) gemm(false, M, N, K, a, K, b, N, false, c[i], N);
    }
    for (int i = 0; i < 4; i++) {
        for (size_t j = 0; j < M * N; j++) check_close(c[i][j], alone[j], K, 1e-6, 0, "thread %d at %zu", i, j);
    }
}

static void test_a_refusal_of_the_library_changes_no_result(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 5, 33};
    refuse = true;
    check_shapes(sizes, sizeof sizes / sizeof *sizes);
    refuse = false;
    assert_true(refusals > 100);
}

/* ---- Speed --------------------------------------------------------------------------------------------------------------- */

/* GFLOP/s of one product after another, by `copies` threads each with products of its own. */
static double rate_of(const struct shape *s, int copies) {
    float *a = calloc(s->m * s->k, sizeof *a), *b = calloc(s->n * s->k, sizeof *b),
          *c = calloc(s->m * s->n * (size_t)copies, sizeof *c);
    double flops = 2.0 * (double)(s->m * s->n * s->k), best = 0;
    size_t repeats = 1 + (size_t)(2e10 / flops);
    for (int run = 0; run < 4 && a && b && c; run++) {
        double start = clock_seconds();
#pragma omp parallel for num_threads(copies) schedule(static, 1) if (copies > 1)
        for (int i = 0; i < copies; i++) {
            float *to = c + (size_t)i * s->m * s->n;
            for (size_t repeat = 0; repeat < repeats; repeat++) {
                gemm(s->b_transposed, s->m, s->n, s->k, a, s->k, b, s->b_transposed ? s->k : s->n, s->accumulate, to, s->n);
            }
        }
        double rate = flops * (double)repeats * copies / (clock_seconds() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    free(a);
    free(b);
    free(c);
    return best;
}

static int bench(void) {
    const struct shape layer = {true, 512, 8192, 2048, 0, false};
    const struct shape tiles[] = {
        {true, 64, 256, 128, 0, false}, {false, 64, 128, 256, 0, true}, {true, 64, 64, 64, 0, false}, {false, 64, 64, 64, 0, true}};
    printf("m %4zu n %4zu k %4zu by all threads: %.0f GFLOP/s\n", layer.m, layer.n, layer.k, rate_of(&layer, 1));
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        printf("m %4zu n %4zu k %4zu%s by each of 2 threads: %.0f GFLOP/s\n", tiles[i].m, tiles[i].n, tiles[i].k,
               tiles[i].b_transposed ? " transposed" : "", rate_of(&tiles[i], 2));
    }
    return 0;
}

int main(int argc, char **argv) {
    if (bench_wanted(argc, argv)) return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_small_shapes),
        cmocka_unit_test(test_shapes_of_attention_and_layers),
        cmocka_unit_test(test_inside_a_parallel_region),
        cmocka_unit_test(test_a_refusal_of_the_library_changes_no_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
