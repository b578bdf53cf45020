/* Calls cuBLASLt. Owns the memory that weights lie in as halves. Products of floats are rounded to TF32, of 11 bits as halves. */
#include "backend/cuda/gemm.h"

#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE ((size_t)32 << 20) /* that cuBLASLt may use: what it asks for on Hopper */
#define HALVES ((size_t)256 << 20)   /* bytes of weights converted to halves at a time */
#define PLANS 128
#define ALIGNMENT 16 /* bytes, of all operands: panels begin at any row */

/* A shape is all that the choice of an algorithm depends on, compared byte by byte: products of matrices row by row, as struct
 * float_product has them. */
struct shape {
    size_t a_stride, b_stride, out_stride, a_apart, b_apart, out_apart;
    uint32_t m, n, k, batch;
    int32_t type, a_transposed, b_transposed, unused;
};

/* A plan is the algorithm that the library chose for products of such a shape; it is looked up once. */
struct plan {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm;
};

struct gemm {
    cublasLtHandle_t handle;
    void *workspace, *halves;
    struct plan plan[PLANS];
    size_t n_plans, oldest;
};

static enum terse_status check(cublasStatus_t result, const char *doing, struct terse_error *error) {
    if (result == CUBLAS_STATUS_SUCCESS) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED, "cuBLASLt failed at %s: %s", doing, cublasLtGetStatusString(result));
}

size_t gemm_bytes(void) { return WORKSPACE + HALVES; }

enum terse_status gemm_new(struct gemm **gemm, struct terse_error *error) {
    struct gemm *g = *gemm = calloc(1, sizeof *g);
    if (!g) return status_no_memory(error, sizeof *g, "matrix products");
    enum terse_status status = check(cublasLtCreate(&g->handle), "starting", error);
    if (!status && !(g->workspace = device_alloc(NULL, WORKSPACE, "matrix products", error))) status = TERSE_E_MEMORY;
    if (!status && !(g->halves = device_alloc(NULL, HALVES, "weights of a prompt", error))) status = TERSE_E_MEMORY;
    if (!status) return TERSE_OK;
    gemm_free(g);
    *gemm = NULL;
    return status;
}

void gemm_free(struct gemm *g) {
    if (!g) return;
    device_free(NULL, g->workspace, WORKSPACE);
    device_free(NULL, g->halves, HALVES);
    if (g->handle) cublasLtDestroy(g->handle);
    free(g);
}

/* Describe the operands to the library, which takes matrices column by column: out^T[n x m] = b^T a^T. */
struct descriptors {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, out;
};

static void descriptors_free(struct descriptors *d) {
    if (d->product) cublasLtMatmulDescDestroy(d->product);
    if (d->a) cublasLtMatrixLayoutDestroy(d->a);
    if (d->b) cublasLtMatrixLayoutDestroy(d->b);
    if (d->out) cublasLtMatrixLayoutDestroy(d->out);
}

/* Describes a matrix of so many rows, of which each has so many columns, given row by row. */
static cublasStatus_t layout_new(cublasLtMatrixLayout_t *layout, int32_t type, uint32_t rows, uint32_t columns, size_t stride,
                                 uint32_t batch, size_t apart) {
    const int32_t count = (int32_t)batch;
    const int64_t offset = (int64_t)apart;
    cublasStatus_t s = cublasLtMatrixLayoutCreate(layout, (cudaDataType)type, columns, rows, (int64_t)stride);
    if (s || batch == 1) return s;
    s = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (s) return s;
    return cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
}

static cublasStatus_t descriptors_new(struct descriptors *d, const struct shape *p) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    *d = (struct descriptors){0};
    cublasStatus_t s = cublasLtMatmulDescCreate(
        &d->product, p->type == CUDA_R_16F ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F);
    if (!s && p->b_transposed)
        s = cublasLtMatmulDescSetAttribute(d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!s && p->a_transposed)
        s = cublasLtMatmulDescSetAttribute(d->product, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed);
    if (!s)
        s = p->b_transposed ? layout_new(&d->b, p->type, p->n, p->k, p->b_stride, p->batch, p->b_apart)
                            : layout_new(&d->b, p->type, p->k, p->n, p->b_stride, p->batch, p->b_apart);
    if (!s)
        s = p->a_transposed ? layout_new(&d->a, p->type, p->k, p->m, p->a_stride, p->batch, p->a_apart)
                            : layout_new(&d->a, p->type, p->m, p->k, p->a_stride, p->batch, p->a_apart);
    return s ? s : layout_new(&d->out, CUDA_R_32F, p->m, p->n, p->out_stride, p->batch, p->out_apart);
}

static cublasStatus_t find_algorithm(struct gemm *g, const struct descriptors *d, const struct shape *shape,
                                     const cublasLtMatmulAlgo_t **algorithm) {
    for (size_t i = 0; i < g->n_plans; i++)
        if (memcmp(&g->plan[i].shape, shape, sizeof *shape) == 0) {
            *algorithm = &g->plan[i].algorithm;
            return CUBLAS_STATUS_SUCCESS;
        }
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    const size_t workspace = WORKSPACE;
    int found = 0;
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&preference);
    if (s) return s;
    s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0] && !s; i++)
        s = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &(uint32_t){ALIGNMENT}, sizeof(uint32_t));
    if (!s) s = cublasLtMatmulAlgoGetHeuristic(g->handle, d->product, d->b, d->a, d->out, d->out, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!s && !found) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s) return s;
    struct plan *plan = &g->plan[g->n_plans < PLANS ? g->n_plans++ : g->oldest++ % PLANS];
    *plan = (struct plan){*shape, result.algo};
    *algorithm = &plan->algorithm;
    return CUBLAS_STATUS_SUCCESS;
}

/* Computes out = factor a b, plus `kept` times out. */
static enum terse_status multiply(struct gemm *g, const struct shape *shape, float factor, const void *a, const void *b, float kept,
                                  float *out, cudaStream_t stream, struct terse_error *error) {
    const cublasLtMatmulAlgo_t *algorithm = NULL;
    struct descriptors d;
    cublasStatus_t s = descriptors_new(&d, shape);
    if (!s) s = find_algorithm(g, &d, shape, &algorithm);
    if (!s)
        s = cublasLtMatmul(g->handle, d.product, &factor, b, d.b, a, d.a, &kept, out, d.out, out, d.out, algorithm, g->workspace,
                           WORKSPACE, stream);
    descriptors_free(&d);
    return check(s, "a product", error);
}

/* Returns how many rows of weights are halves at a time. */
static uint32_t rows_at_once(uint32_t padded) { return (uint32_t)(HALVES / 2 / padded) / 64 * 64; }

enum terse_status gemm_multiply(struct gemm *g, const struct device_matrix *w, const struct device_vectors *x, uint32_t n,
                                float *out, bool add, float *scratch, cudaStream_t stream, struct terse_error *error) {
    const uint32_t columns = (w->columns + 31) / 32 * 32, most = rows_at_once(columns);
    float *product = add ? scratch : out;
    for (uint32_t first = 0; first < w->rows; first += most) {
        const uint32_t count = w->rows - first < most ? w->rows - first : most;
        const struct shape shape = {.m = n,
                                    .n = count,
                                    .k = columns,
                                    .batch = 1,
                                    .type = CUDA_R_16F,
                                    .b_transposed = true,
                                    .a_stride = columns,
                                    .b_stride = columns,
                                    .out_stride = w->rows};
        enum terse_status status = device_check(weights_halves(w, first, count, g->halves, stream), "reading weights", error);
        if (!status) status = multiply(g, &shape, 1, x->halves, g->halves, 0, product + first, stream, error);
        if (status) return status;
    }
    return device_check(rows_finish(product, n, w->rows, w->rows, x->sizes, w->bias, out, w->rows, add, stream), "a product",
                        error);
}

enum terse_status gemm_multiply_back(struct gemm *g, const struct device_matrix *w, const struct device_vectors *dy, uint32_t n,
                                     float *dx, bool add, float *scratch, cudaStream_t stream, struct terse_error *error) {
    const uint32_t columns = (w->columns + 31) / 32 * 32, most = rows_at_once(columns);
    float *product = add ? scratch : dx;
    for (uint32_t first = 0; first < w->rows; first += most) {
        const uint32_t count = w->rows - first < most ? w->rows - first : most;
        const struct shape shape = {.m = n,
                                    .n = w->columns,
                                    .k = count,
                                    .batch = 1,
                                    .type = CUDA_R_16F,
                                    .a_stride = (w->rows + 31) / 32 * 32,
                                    .b_stride = columns,
                                    .out_stride = w->columns};
        enum terse_status status = device_check(weights_halves(w, first, count, g->halves, stream), "reading weights", error);
        if (!status)
            status = multiply(g, &shape, 1, (const uint16_t *)dy->halves + first, g->halves, first > 0, product, stream, error);
        if (status) return status;
    }
    return device_check(rows_finish(product, n, w->columns, w->columns, dy->sizes, NULL, dx, w->columns, add, stream), "a product",
                        error);
}

enum terse_status gemm_floats(struct gemm *g, const struct float_product *p, cudaStream_t stream, struct terse_error *error) {
    const struct shape shape = {.m = p->m,
                                .n = p->n,
                                .k = p->k,
                                .batch = p->batch,
                                .type = CUDA_R_32F,
                                .a_transposed = p->a_transposed,
                                .b_transposed = p->b_transposed,
                                .a_stride = p->a_stride,
                                .b_stride = p->b_stride,
                                .out_stride = p->out_stride,
                                .a_apart = p->a_apart,
                                .b_apart = p->b_apart,
                                .out_apart = p->out_apart};
    return multiply(g, &shape, p->factor, p->a, p->b, p->add, p->out, stream, error);
}
