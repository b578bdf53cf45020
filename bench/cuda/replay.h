/* Times a captured graph. */
#ifndef TERSE_BENCH_CUDA_REPLAY_H
#define TERSE_BENCH_CUDA_REPLAY_H

#include <cuda_runtime.h>
#include <stdlib.h>

#define REPLAYS 11

static inline int replay_order(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Replays a graph, which it destroys: *microseconds is the median of REPLAYS, after two that are not counted. */
static inline cudaError_t replay_graph(cudaGraph_t graph, cudaStream_t stream, double *microseconds) {
    cudaGraphExec_t replayed = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    float took[REPLAYS] = {0};
    cudaError_t result = cudaEventCreate(&begin);
    if (result == cudaSuccess) result = cudaEventCreate(&end);
    if (result == cudaSuccess) result = cudaGraphInstantiate(&replayed, graph, 0);
    for (int i = -2; i < REPLAYS && result == cudaSuccess; i++) {
        result = cudaEventRecord(begin, stream);
        if (result == cudaSuccess) result = cudaGraphLaunch(replayed, stream);
        if (result == cudaSuccess) result = cudaEventRecord(end, stream);
        if (result == cudaSuccess) result = cudaEventSynchronize(end);
        if (result == cudaSuccess && i >= 0) result = cudaEventElapsedTime(&took[i], begin, end);
    }
    if (replayed) cudaGraphExecDestroy(replayed);
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    cudaGraphDestroy(graph);
    qsort(took, REPLAYS, sizeof *took, replay_order);
    *microseconds = (double)took[REPLAYS / 2] * 1000;
    return result;
}

#endif
