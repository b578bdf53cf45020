/* bench_prefill_cuda measures the time of a prompt's attention over one layer (measure.cuh). Prints lines
 * "NAME QUERIES FIRST_QUERY HEAD_DIM MICROSECONDS TFLOPS", which prefill_attention.py sets beside PyTorch's. A multiplication and an
 * addition are two operations; those behind the mask are not counted. */
#include "backend/cuda/kv/attend_prefill.h"
#include "measure.cuh"

#define HEADS 32
#define KV_HEADS 8

static void measure(uint32_t head_dim, size_t n, size_t first_query) {
    size_t rows = first_query + n;
    float *q, *out, *parts;
    __half *k, *v;
    struct attend_prefill attend = {};
    attend.heads.layers = 1;
    attend.heads.query_heads = HEADS;
    attend.heads.kv_heads = KV_HEADS;
    attend.heads.head_dim = head_dim;
    attend.heads.scale = 1 / sqrtf((float)head_dim);
    check(cudaMalloc(&q, n * HEADS * head_dim * sizeof *q), "queries");
    check(cudaMalloc(&out, n * HEADS * head_dim * sizeof *out), "results");
    check(cudaMalloc(&k, rows * KV_HEADS * head_dim * sizeof *k), "keys");
    check(cudaMalloc(&v, rows * KV_HEADS * head_dim * sizeof *v), "values");
    check(cudaMalloc(&parts, attend_prefill_part_floats(&attend.heads) * sizeof *parts), "partial states");
    fill_floats<<<1024, 256>>>(q, n * HEADS * head_dim, 1);
    fill_halves<<<1024, 256>>>(k, rows * KV_HEADS * head_dim, 2);
    fill_halves<<<1024, 256>>>(v, rows * KV_HEADS * head_dim, 3);
    attend.q = q;
    attend.n = n;
    attend.first_query = first_query;
    attend.k = k;
    attend.v = v;
    attend.out = out;
    attend.parts = parts;
    const double us = microseconds([&] { check(attend_prefill_launch(&attend, 0), "attention"); }),
                 pairs = (double)n * first_query + (double)n * (n + 1) / 2;
    printf("terse %zu %zu %u %.1f %.1f\n", n, first_query, head_dim, us, pairs * 4 * head_dim * HEADS / us * 1e-6);
    fflush(stdout);
    check(cudaFree(q), "freeing"), check(cudaFree(out), "freeing"), check(cudaFree(parts), "freeing");
    check(cudaFree(k), "freeing"), check(cudaFree(v), "freeing");
}

/* Runs bench_prefill_cuda [HEAD_DIM QUERIES FIRST_QUERY]: one shape, or all. */
int main(int argc, char **argv) {
    if (argc == 4) {
        measure((uint32_t)atoi(argv[1]), (size_t)atoll(argv[2]), (size_t)atoll(argv[3]));
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: bench_prefill_cuda [HEAD_DIM QUERIES FIRST_QUERY]\n");
        return 2;
    }
    static const uint32_t head_dims[] = {128, 64};
    static const size_t lengths[] = {4096, 16384, 65536};
    for (uint32_t hd : head_dims) {
        for (size_t n : lengths) measure(hd, n, 0);
        measure(hd, 100, 32768);
        measure(hd, 2048, 32768);
    }
    measure(96, 16384, 0);
    measure(256, 16384, 0);
    return 0;
}
