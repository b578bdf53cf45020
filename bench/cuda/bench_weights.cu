/* Products of weights as they are stored with 1 to 16 vectors: bytes of weights per second from the GPU's memory, as graphs replayed over more
 * matrices than its cache holds, medians.
 *
 *     bench_weights_cuda [TYPE...]     types as GGUF names them; all when none is given
 */
#include "backend/cuda/weights.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#define CHECK(call) \
    do { \
        cudaError_t result = (call); \
        if (result != cudaSuccess) return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)), 1; \
    } while (0)

#define MEMORY ((size_t)768 << 20) /* of matrices, many times the cache */
#define REPLAYS 9

struct shape {
    uint32_t rows, columns;
};
static const struct shape shapes[] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 4096}};
static const uint32_t counts[] = {1, 2, 4, 8, 16};
static const struct {
    const char *name;
    enum tensor_type type;
} types[] = {{"F32", TENSOR_F32},   {"F16", TENSOR_F16},   {"BF16", TENSOR_BF16}, {"Q8_0", TENSOR_Q8_0},
             {"Q6_K", TENSOR_Q6_K}, {"Q5_K", TENSOR_Q5_K}, {"Q5_1", TENSOR_Q5_1}, {"Q5_0", TENSOR_Q5_0},
             {"Q4_K", TENSOR_Q4_K}, {"Q4_1", TENSOR_Q4_1}, {"Q4_0", TENSOR_Q4_0}};

__global__ void fill(uint32_t *words, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        words[i] = ((uint32_t)i * 2654435761u & 0x0fff0fffu) | 0x20002000u; /* no half of it is large */
}

/* Seconds of a graph, the median. */
static int time_graph(cudaGraphExec_t graph, cudaStream_t stream, double *seconds) {
    std::vector<float> all;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < REPLAYS; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(graph, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    *seconds = 1e-3 * all[all.size() / 2];
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return 0;
}

static int time_products(enum tensor_type type, struct shape shape, uint32_t n, uint8_t *memory, const struct device_vectors *x,
                         float *out, cudaStream_t stream, double *rate) {
    size_t bytes = weights_bytes(type, shape.rows, shape.columns), matrices = MEMORY / bytes;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    double seconds;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < matrices; i++) {
        struct device_matrix w = {type, shape.rows, shape.columns, memory + i * bytes, bytes, NULL, 0};
        struct device_product product = {&w, out};
        CHECK(weights_each(&product, 1, x, n, false, stream));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    if (time_graph(executable, stream, &seconds)) return 1;
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    *rate = (double)(matrices * bytes) / seconds;
    return 0;
}

static bool wanted(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name)) return true;
    return argc == 1;
}

int main(int argc, char **argv) {
    struct device_vectors x = {};
    uint8_t *memory;
    float *out;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&memory, MEMORY));
    CHECK(cudaMalloc(&out, (size_t)EACH_ROWS * 32768 * sizeof *out));
    CHECK(cudaMalloc(&x.high, (size_t)EACH_ROWS * 14336 * 2));
    CHECK(cudaMalloc(&x.low, (size_t)EACH_ROWS * 14336 * 2));
    CHECK(cudaMalloc((void **)&x.sums, (size_t)EACH_ROWS * 14336 / 32 * GROUP_SUMS * sizeof(float)));
    CHECK(cudaMalloc((void **)&x.plain, (size_t)EACH_ROWS * 14336 * sizeof(float)));
    CHECK(cudaMalloc((void **)&x.sizes, EACH_ROWS * sizeof(float)));
    fill<<<1024, 256, 0, stream>>>((uint32_t *)memory, MEMORY / 4);
    fill<<<64, 256, 0, stream>>>((uint32_t *)x.high, (size_t)EACH_ROWS * 14336 / 2);
    fill<<<64, 256, 0, stream>>>((uint32_t *)x.low, (size_t)EACH_ROWS * 14336 / 2);
    CHECK(cudaMemsetAsync(x.sums, 0, (size_t)EACH_ROWS * 14336 / 32 * GROUP_SUMS * sizeof(float), stream));
    CHECK(cudaMemsetAsync(x.plain, 0, (size_t)EACH_ROWS * 14336 * sizeof(float), stream));
    CHECK(cudaMemsetAsync(x.sizes, 0, EACH_ROWS * sizeof(float), stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("GB/s of weights        vectors");
    for (uint32_t n : counts) printf("%8u", n);
    printf("\n");
    for (const auto &t : types)
        for (const struct shape &shape : shapes) {
            if (!wanted(argc, argv, t.name)) continue;
            printf("%-6s %6u x %-6u         ", t.name, shape.rows, shape.columns);
            for (uint32_t n : counts) {
                double rate;
                if (time_products(t.type, shape, n, memory, &x, out, stream, &rate)) return 1;
                printf("%8.0f", rate / 1e9);
            }
            printf("\n");
        }
    return 0;
}
