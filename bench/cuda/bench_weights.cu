/* Measures products of weights as they are stored with 1 to 64 vectors: bytes of weights per second from the GPU's memory, as
 * graphs replayed over more matrices than its cache holds, medians. Then it measures the products of layers of an 8B model one
 * after another, each behind the kernels that prepare its input, as in a decoding step but without attention.
 *
 *     bench_weights_cuda [TYPE...]     types as GGUF names them, or `layers`; all when none is given */
#include "backend/cuda/rows.h"
#include "backend/cuda/weights.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(call) \
    do { \
        cudaError_t result = (call); \
        if (result != cudaSuccess) return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)), 1; \
    } while (0)

#define MEMORY ((size_t)1 << 30) /* of matrices, many times the cache */
#define WIDEST 14336
#define REPLAYS 9

struct shape {
    uint32_t rows, columns;
};
static const struct shape shapes[] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 4096}};
static const uint32_t counts[] = {1, 2, 4, 8, 16, 32, 64};
static const struct {
    const char *name;
    enum tensor_type type;
} types[] = {{"F32", TENSOR_F32},   {"F16", TENSOR_F16},   {"BF16", TENSOR_BF16}, {"Q8_0", TENSOR_Q8_0},
             {"Q6_K", TENSOR_Q6_K}, {"Q5_K", TENSOR_Q5_K}, {"Q5_1", TENSOR_Q5_1}, {"Q5_0", TENSOR_Q5_0},
             {"Q4_K", TENSOR_Q4_K}, {"Q4_1", TENSOR_Q4_1}, {"Q4_0", TENSOR_Q4_0}};

/* A room is the device memory that all products share. */
struct room {
    uint8_t *matrices;
    struct device_vectors x;
    float *rows[4]; /* [EACH_MOST][28672] each: hidden states and the like */
    float *gain;
    cudaStream_t stream;
};

__global__ void fill(uint32_t *words, size_t n, uint32_t keep, uint32_t set) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        words[i] = ((uint32_t)i * 2654435761u & keep) | set;
}
#define SMALL_HALVES 0x0fff0fffu, 0x20002000u
#define SMALL_FLOATS 0x007fffffu, 0x3c000000u

/* Measures the median of the seconds of what `launch` puts into a stream, as a graph; 0 means a failure. */
static int time_graph(const struct room *room, const std::function<cudaError_t()> &launch, double *seconds) {
    std::vector<float> all;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    CHECK(cudaStreamBeginCapture(room->stream, cudaStreamCaptureModeThreadLocal));
    CHECK(launch());
    CHECK(cudaStreamEndCapture(room->stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < REPLAYS; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, room->stream));
        CHECK(cudaGraphLaunch(executable, room->stream));
        CHECK(cudaEventRecord(end, room->stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    *seconds = 1e-3 * all[all.size() / 2];
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    return 0;
}

static int time_products(const struct room *room, enum tensor_type type, struct shape shape, uint32_t n, double *rate) {
    size_t bytes = weights_bytes(type, shape.rows, shape.columns), matrices = MEMORY / bytes;
    double seconds;
    auto launch = [&]() {
        cudaError_t result = cudaSuccess;
        for (size_t i = 0; i < matrices && result == cudaSuccess; i++) {
            struct device_matrix w = {type, shape.rows, shape.columns, 1, room->matrices + i * bytes, bytes, NULL, 0};
            struct device_product product = {&w, room->rows[0]};
            result = weights_each(&product, 1, &room->x, n, false, room->stream);
        }
        return result;
    };
    if (time_graph(room, launch, &seconds)) return 1;
    *rate = (double)(matrices * bytes) / seconds;
    return 0;
}

/* ---- Layers of an 8B model */

#define WIDTH 4096
#define KV_WIDTH 1024
#define LAYERS 8

struct block {
    struct device_matrix q, k, v, o, gate, up, down;
};

static struct device_matrix matrix_at(uint8_t **at, enum tensor_type type, uint32_t rows, uint32_t columns) {
    size_t bytes = weights_bytes(type, rows, columns);
    struct device_matrix w = {type, rows, columns, 1, *at, bytes, NULL, 0};
    *at += bytes;
    return w;
}

static cudaError_t multiply(const struct room *room, std::initializer_list<struct device_product> products, struct row_form form,
                            const float *x, const float *factor, uint32_t n, bool add) {
    struct device_vectors forms = room->x;
    bool low = false;
    for (const struct device_product &p : products) low |= weights_form(p.w->type) == TWO_HALVES;
    if (!low) forms.low = NULL;
    forms.thirds = NULL;
    cudaError_t result = rows_prepare(form, x, factor, n, products.begin()->w->columns, &forms, room->stream);
    return result == cudaSuccess ? weights_each(products.begin(), products.size(), &forms, n, add, room->stream) : result;
}

static cudaError_t launch_layer(const struct room *room, const struct block *l, uint32_t n) {
    float *hidden = room->rows[0], *heads = room->rows[1], *inner = room->rows[2], *factor = room->rows[3];
    struct row_form norm = {ROW_NORM, {}, ACTIVATION_SWIGLU}, plain = {ROW_PLAIN, {}, ACTIVATION_SWIGLU},
                    activation = {ROW_ACTIVATION, {}, ACTIVATION_SWIGLU};
    norm.norm.kind = NORM_RMS, norm.norm.epsilon = 1e-5f, norm.norm.gain = room->gain;
    cudaError_t result = multiply(room, {{&l->q, heads}, {&l->k, inner}, {&l->v, factor}}, norm, hidden, NULL, n, false);
    if (result == cudaSuccess) result = multiply(room, {{&l->o, hidden}}, plain, heads, NULL, n, true);
    if (result == cudaSuccess) result = multiply(room, {{&l->gate, inner}, {&l->up, factor}}, norm, hidden, NULL, n, false);
    return result == cudaSuccess ? multiply(room, {{&l->down, hidden}}, activation, inner, factor, n, true) : result;
}

static int time_layers(const struct room *room, enum tensor_type type, enum tensor_type of_some, uint32_t n, double *rate,
                       double *each) {
    struct block layers[LAYERS];
    uint8_t *at = room->matrices;
    for (struct block &l : layers) {
        l.q = matrix_at(&at, type, WIDTH, WIDTH);
        l.k = matrix_at(&at, type, KV_WIDTH, WIDTH);
        l.v = matrix_at(&at, of_some, KV_WIDTH, WIDTH);
        l.o = matrix_at(&at, type, WIDTH, WIDTH);
        l.gate = matrix_at(&at, type, WIDEST, WIDTH);
        l.up = matrix_at(&at, type, WIDEST, WIDTH);
        l.down = matrix_at(&at, of_some, WIDTH, WIDEST);
    }
    if ((size_t)(at - room->matrices) > MEMORY) return fprintf(stderr, "%d layers do not fit\n", LAYERS), 1;
    auto launch = [&]() {
        cudaError_t result = cudaSuccess;
        for (int i = 0; i < LAYERS && result == cudaSuccess; i++) result = launch_layer(room, &layers[i], n);
        return result;
    };
    double seconds;
    if (time_graph(room, launch, &seconds)) return 1;
    *rate = (double)(at - room->matrices) / seconds;
    *each = seconds / LAYERS;
    return 0;
}

static int print_layers(const struct room *room) {
    static const struct {
        const char *name;
        enum tensor_type type, of_some;
    } mixes[] = {{"Q4_K", TENSOR_Q4_K, TENSOR_Q4_K}, {"Q4_K, v and down Q6_K", TENSOR_Q4_K, TENSOR_Q6_K}};
    printf("\nlayers of 8B            vectors       GB/s  us a layer\n");
    for (const auto &mix : mixes)
        for (uint32_t n : counts) {
            double rate, each;
            if (time_layers(room, mix.type, mix.of_some, n, &rate, &each)) return 1;
            printf("%-24s%7u%11.0f%12.1f\n", mix.name, n, rate / 1e9, each * 1e6);
        }
    return 0;
}

/* ---- All of it */

static bool wanted(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name)) return true;
    return argc == 1;
}

static int make_room(struct room *room) {
    const size_t columns = (size_t)EACH_MOST * WIDEST, sums = columns / 32 * GROUP_SUMS * sizeof(float);
    struct device_vectors *x = &room->x;
    CHECK(cudaStreamCreate(&room->stream));
    CHECK(cudaMalloc(&room->matrices, MEMORY));
    for (float *&rows : room->rows) {
        CHECK(cudaMalloc(&rows, (size_t)EACH_MOST * 28672 * sizeof *rows));
        fill<<<64, 256, 0, room->stream>>>((uint32_t *)rows, (size_t)EACH_MOST * 28672, SMALL_FLOATS);
    }
    CHECK(cudaMalloc(&room->gain, WIDTH * sizeof *room->gain));
    CHECK(cudaMalloc(&x->high, columns * 2));
    CHECK(cudaMalloc(&x->low, columns * 2));
    CHECK(cudaMalloc(&x->thirds, columns * 3 * 2));
    CHECK(cudaMalloc((void **)&x->sums, sums));
    CHECK(cudaMalloc((void **)&x->sizes, EACH_MOST * sizeof(float)));
    fill<<<1024, 256, 0, room->stream>>>((uint32_t *)room->matrices, MEMORY / 4, SMALL_HALVES);
    fill<<<64, 256, 0, room->stream>>>((uint32_t *)room->gain, WIDTH, SMALL_FLOATS);
    fill<<<64, 256, 0, room->stream>>>((uint32_t *)x->high, columns / 2, SMALL_HALVES);
    fill<<<64, 256, 0, room->stream>>>((uint32_t *)x->low, columns / 2, SMALL_HALVES);
    fill<<<64, 256, 0, room->stream>>>((uint32_t *)x->thirds, columns * 3 / 2, SMALL_HALVES);
    CHECK(cudaMemsetAsync(x->sums, 0, sums, room->stream));
    CHECK(cudaMemsetAsync(x->sizes, 0, EACH_MOST * sizeof(float), room->stream));
    CHECK(cudaStreamSynchronize(room->stream));
    return 0;
}

static bool is_known(const char *argument) {
    for (const auto &t : types)
        if (!strcmp(argument, t.name)) return true;
    return !strcmp(argument, "layers");
}

int main(int argc, char **argv) {
    struct room room = {};
    for (int i = 1; i < argc; i++)
        if (!is_known(argv[i]))
            return fprintf(stderr, "bench_weights_cuda: does not time '%s': name types as GGUF does, or layers\n", argv[i]), 1;
    if (make_room(&room)) return 1;
    printf("GB/s of weights        vectors");
    for (uint32_t n : counts) printf("%8u", n);
    printf("\n");
    for (const auto &t : types)
        for (const struct shape &shape : shapes) {
            if (!wanted(argc, argv, t.name)) continue;
            printf("%-6s %6u x %-6u         ", t.name, shape.rows, shape.columns);
            for (uint32_t n : counts) {
                double rate;
                if (time_products(&room, t.type, shape, n, &rate)) return 1;
                printf("%8.0f", rate / 1e9);
            }
            printf("\n");
        }
    return wanted(argc, argv, "layers") ? print_layers(&room) : 0;
}
