/* Calls cuBLASLt. Owns the memory that weights lie in as halves. */
#include "backend/cuda/gemm.h"

#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"

#include <cublasLt.h>
#include <stdlib.h>

#define WORKSPACE ((size_t)32 << 20) /* that cuBLASLt may use: what it asks for on Hopper */
#define HALVES ((size_t)256 << 20)   /* bytes of weights converted to halves at a time */
#define PLANS 32
#define ALIGNMENT 16 /* bytes, of all operands: panels begin at any row */

/* A plan is the algorithm that the library chose for a product of these sizes; it is looked up once. */
struct plan {
    uint32_t rows, columns, n;
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

/* Describe the operands to the library, which takes matrices column by column: out^T[rows x n] = (w^T)^T x^T, with w^T[columns x
 * rows] and x^T[columns x n]. */
struct descriptors {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, out;
};

static void descriptors_free(struct descriptors *d) {
    if (d->product) cublasLtMatmulDescDestroy(d->product);
    if (d->w) cublasLtMatrixLayoutDestroy(d->w);
    if (d->x) cublasLtMatrixLayoutDestroy(d->x);
    if (d->out) cublasLtMatrixLayoutDestroy(d->out);
}

static cublasStatus_t descriptors_new(struct descriptors *d, uint32_t rows, uint32_t columns, uint32_t n, uint32_t out_stride) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    *d = (struct descriptors){0};
    cublasStatus_t s = cublasLtMatmulDescCreate(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!s) s = cublasLtMatrixLayoutCreate(&d->w, CUDA_R_16F, columns, rows, columns);
    if (!s) s = cublasLtMatrixLayoutCreate(&d->x, CUDA_R_16F, columns, n, columns);
    return s ? s : cublasLtMatrixLayoutCreate(&d->out, CUDA_R_32F, rows, n, out_stride);
}

static cublasStatus_t find_algorithm(struct gemm *g, const struct descriptors *d, uint32_t rows, uint32_t columns, uint32_t n,
                                     const cublasLtMatmulAlgo_t **algorithm) {
    for (size_t i = 0; i < g->n_plans; i++)
        if (g->plan[i].rows == rows && g->plan[i].columns == columns && g->plan[i].n == n) {
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
    if (!s) s = cublasLtMatmulAlgoGetHeuristic(g->handle, d->product, d->w, d->x, d->out, d->out, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!s && !found) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s) return s;
    struct plan *plan = &g->plan[g->n_plans < PLANS ? g->n_plans++ : g->oldest++ % PLANS];
    *plan = (struct plan){rows, columns, n, result.algo};
    *algorithm = &plan->algorithm;
    return CUBLAS_STATUS_SUCCESS;
}

/* Multiplies by a part of w's rows, as halves. */
static cublasStatus_t multiply_part(struct gemm *g, uint32_t rows, uint32_t columns, const void *x, uint32_t n, float *out,
                                    uint32_t out_stride, cudaStream_t stream) {
    const float one = 1, zero = 0;
    const cublasLtMatmulAlgo_t *algorithm = NULL;
    struct descriptors d;
    cublasStatus_t s = descriptors_new(&d, rows, columns, n, out_stride);
    if (!s) s = find_algorithm(g, &d, rows, columns, n, &algorithm);
    if (!s)
        s = cublasLtMatmul(g->handle, d.product, &one, g->halves, d.w, x, d.x, &zero, out, d.out, out, d.out, algorithm,
                           g->workspace, WORKSPACE, stream);
    descriptors_free(&d);
    return s;
}

enum terse_status gemm_multiply(struct gemm *g, const struct device_matrix *w, const struct device_vectors *x, uint32_t n,
                                float *out, bool add, float *scratch, cudaStream_t stream, struct terse_error *error) {
    uint32_t columns = (w->columns + 31) / 32 * 32;
    uint32_t most = (uint32_t)(HALVES / 2 / columns) / 64 * 64;
    float *product = add ? scratch : out;
    for (uint32_t first = 0; first < w->rows; first += most) {
        uint32_t count = w->rows - first < most ? w->rows - first : most;
        enum terse_status status = device_check(weights_halves(w, first, count, g->halves, stream), "reading weights", error);
        if (!status)
            status = check(multiply_part(g, count, columns, x->halves, n, product + first, w->rows, stream), "a product", error);
        if (status) return status;
    }
    return device_check(rows_finish(product, n, w->rows, w->rows, x->sizes, w->bias, out, w->rows, add, stream), "a product",
                        error);
}
