/* Keeps points on the device, and finds their nearest centroids. Each search has a stream of its own, so that the fits of several
 * threads overlap: while one's codes are copied and summed on the host, another's are searched. */
#include "backend/cuda/learning.h"

#include "backend/cuda/device.h"
#include "backend/cuda/learning_kernels.h"
#include "base/memory.h"

#include <string.h>

struct search {
    cudaStream_t stream;
    size_t n, d, k;
    size_t wide;               /* d rounded up to a power of two: the channels beyond d are 0 */
    float *points, *centroids; /* [n][wide], [k][wide], on the device */
    uint16_t *codes;           /* [n], on the device */
};

static size_t wide_of(size_t d) {
    size_t wide = 2;
    while (wide < d) wide *= 2;
    return wide;
}

/* Copies rows[n][d], `stride` floats apart, to the device, as [n][wide]; channels beyond d were cleared. */
static cudaError_t send_rows(const struct search *s, const float *rows, size_t n, size_t stride, float *to) {
    return cudaMemcpy2DAsync(to, s->wide * sizeof *to, rows, stride * sizeof *rows, s->d * sizeof *rows, n, cudaMemcpyHostToDevice,
                             s->stream);
}

void learning_search_close(struct search *s) {
    if (!s) return;
    if (s->points) cudaFreeAsync(s->points, s->stream);
    if (s->stream) cudaStreamSynchronize(s->stream);
    if (s->stream) cudaStreamDestroy(s->stream);
    memory_free(s);
}

void learning_choose_device(void) {
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    if (cudaDeviceGetDefaultMemPool(&pool, device_number()) == cudaSuccess)
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
}

struct search *learning_search_open(const float *rows, size_t n, size_t d, size_t stride, size_t k) {
    const size_t wide = wide_of(d), floats = (n + k) * wide, bytes = floats * sizeof(float) + n * sizeof(uint16_t);
    if (d > LEARNING_WIDEST || n > INT32_MAX || k > UINT16_MAX + 1) return NULL;
    struct search *s = memory_zeros(1, sizeof *s);
    if (!s) return NULL;
    *s = (struct search){.n = n, .d = d, .k = k, .wide = wide};
    learning_choose_device();
    cudaError_t result = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    if (result == cudaSuccess) result = cudaMallocAsync((void **)&s->points, bytes, s->stream);
    if (result == cudaSuccess) {
        s->centroids = s->points + n * wide;
        s->codes = (uint16_t *)(void *)(s->points + floats);
    }
    if (result == cudaSuccess && wide > d) result = cudaMemsetAsync(s->points, 0, floats * sizeof(float), s->stream);
    if (result == cudaSuccess) result = send_rows(s, rows, n, stride, s->points);
    if (result == cudaSuccess) return s;
    cudaGetLastError(); /* otherwise the next call's check would find it */
    learning_search_close(s);
    return NULL;
}

enum terse_status learning_search_find(struct search *s, const float *centroids, uint16_t *codes, struct terse_error *error) {
    cudaError_t result = send_rows(s, centroids, s->k, s->d, s->centroids);
    if (result == cudaSuccess)
        result = learning_nearest(s->points, (uint32_t)s->n, (uint32_t)s->wide, s->centroids, (uint32_t)s->k, s->codes, s->stream);
    if (result == cudaSuccess) result = cudaMemcpyAsync(codes, s->codes, s->n * sizeof *codes, cudaMemcpyDeviceToHost, s->stream);
    if (result == cudaSuccess) result = cudaStreamSynchronize(s->stream);
    return device_check(result, "comparing centroids", error);
}
