/* The calls of cuBLASLt that the backend makes, on the host: products of halves and floats in plain loops. */
#include "emulated_capture.h"

#include <cublasLt.h>

#include "cuda_emulation.h" /* which the toolkit's headers precede */

#include <vector>

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t stride;
    int32_t batch;
    int64_t apart;
};
struct product {
    bool transposed[2];
};

/* Rounds to TF32: 11 bits, as products of floats do with their operands. */
static float rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (std::isfinite(x)) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float read(const void *from, const layout &l, size_t at) {
    return l.type == CUDA_R_16F ? __half2float(((const __half *)from)[at]) : rounded(((const float *)from)[at]);
}

extern "C" {

const char *cublasLtGetStatusString(cublasStatus_t) { return "an emulated error"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t) new int;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete (int *)handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t, cudaDataType_t) {
    *desc = (cublasLtMatmulDesc_t) new product();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete (product *)desc;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t) {
    bool transposed = *(const cublasOperation_t *)value == CUBLAS_OP_T;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) ((product *)desc)->transposed[0] = transposed;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) ((product *)desc)->transposed[1] = transposed;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *to, cudaDataType type, uint64_t rows, uint64_t columns, int64_t stride) {
    *to = (cublasLtMatrixLayout_t) new layout{type, rows, columns, stride, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t) {
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) ((layout *)l)->batch = *(const int32_t *)value;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) ((layout *)l)->apart = *(const int64_t *)value;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete (layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = (cublasLtMatmulPreference_t) new int;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete (int *)preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[], int *n) {
    results[0] = cublasLtMatmulHeuristicResult_t();
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t,
                              void *d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t stream) {
    const product p = *(product *)desc;
    const layout la = *(layout *)a_layout, lb = *(layout *)b_layout, ld = *(layout *)d_layout;
    const float scale = *(const float *)alpha, keep = *(const float *)beta;
    auto one = [=](size_t item) {
        const size_t at_a = item * la.apart, at_b = item * lb.apart, at_d = item * ld.apart;
        size_t n = p.transposed[0] ? la.rows : la.columns;
        const size_t width = ld.columns;
        std::vector<float> row(n), columns(n * width), sums(width);
        for (size_t j = 0; j < width; j++)
            for (size_t k = 0; k < n; k++)
                columns[k * width + j] = read(b, lb, at_b + (p.transposed[1] ? k * lb.stride + j : j * lb.stride + k));
        for (size_t i = 0; i < ld.rows; i++) {
            for (size_t k = 0; k < n; k++) row[k] = read(a, la, at_a + (p.transposed[0] ? i * la.stride + k : k * la.stride + i));
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (size_t k = 0; k < n; k++)
                for (size_t j = 0; j < width; j++) sums[j] += row[k] * columns[k * width + j];
            for (size_t j = 0; j < width; j++) {
                float *to = (float *)d + at_d + j * ld.stride + i;
                *to = scale * sums[j] + (keep != 0 ? keep * ((const float *)c)[at_d + j * ld.stride + i] : 0);
            }
        }
    };
    auto work = [=]() {
        for (int32_t item = 0; item < ld.batch; item++) one(item);
    };
    if (!emulated_captures(stream, work)) work();
    return CUBLAS_STATUS_SUCCESS;
}
}
