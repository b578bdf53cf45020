/* Measures the parts of a product with weights as they are stored. Prints bytes of weights per second of its copies alone, of products each of which
 * begins when the one before has ended, and of products as they are launched; then when a block of threads is done with each stage, in microseconds
 * from its kernel's first block: requesting its first tiles, waiting for the kernels before, the vectors, all. Then microseconds of the kernels that
 * make vectors. All are graphs replayed over more matrices than the GPU's cache holds, and medians.
 *
 *     bench_weights_parts_cuda
 */
#define weights_each weights_each_of_parts /* the kernels themselves, and those below, which differ in one thing each */
#include "../../src/backend/cuda/weights_each.cu"
#undef weights_each

#include "backend/cuda/rows.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#define CHECK(call) \
    do { \
        cudaError_t result = (call); \
        if (result != cudaSuccess) return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)), 1; \
    } while (0)

#define MEMORY ((size_t)768 << 20)
#define WIDEST 14336
#define REPLAYS 9
#define STAMPS 5
#define MOST_BLOCKS 1024

/* ---- Kernels */

/* Does the copies alone: a word of each stage is read, so that all must have arrived. */
template <class TILE> __global__ void __launch_bounds__(32 * WARPS, 1) copy_tiles(const __grid_constant__ struct matvec_args a) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x % 32;
    tile_stream<TILE> tiles(a, memory, threadIdx.x / 32);
    for (uint32_t i = 0; i < a.depth; i++) tiles.fetch(lane);
    let_next_kernel_begin();
    wait_for_kernels();
    uint32_t seen = 0, stage = tiles.ring;
    const uint32_t warp = threadIdx.x / 32;
    for (uint32_t i = warp / tiles.warps, unit; (unit = blockIdx.x + i * gridDim.x) < a.units; i += a.streams)
        for (uint32_t slot = warp & (tiles.warps - 1); slot < a.slots; slot += tiles.warps)
            for (uint32_t k = slot; k < tiles.across; k += a.slots) {
                tiles.wait();
                seen ^= load_shared(stage + 4 * lane);
                __syncwarp();
                stage = tiles.next(stage);
                tiles.fetch(lane);
            }
    if (seen == 0x12345678) a.products[0].out[0] = 1;
}

__device__ static inline uint64_t nanoseconds() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* Does what matvec_tiles does, with the time at its steps, [block][STAMPS]. */
template <class TILE>
__global__ void __launch_bounds__(32 * WARPS, 1) stamped_tiles(const __grid_constant__ struct matvec_args a, uint64_t *stamps) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x % 32;
    const matvec_room room = room_of<TILE>(a);
    uint64_t own[STAMPS] = {nanoseconds()};
    tile_stream<TILE> tiles(a, memory, threadIdx.x / 32);
    for (uint32_t i = 0; i < a.depth; i++) tiles.fetch(lane);
    own[1] = nanoseconds();
    let_next_kernel_begin();
    wait_for_kernels();
    own[2] = nanoseconds();
    stage_vectors<TILE>(a, memory, room);
    stage_sums<TILE>(a, memory + room.sums, 0, a.n);
    __syncthreads();
    own[3] = nanoseconds();
    const uint32_t groups = divide_up(a.columns, TILE::WIDTH) * TILE::GROUPS;
    matvec_rounds<TILE, 1>(a, memory, room, tiles, shared_vectors<1>(shared_address(memory + room.vectors), a.n, groups, lane));
    own[4] = nanoseconds();
    for (int i = 0; i < STAMPS && threadIdx.x == 0; i++) stamps[blockIdx.x * STAMPS + i] = own[i];
}

/* ---- Measuring */

struct room {
    uint8_t *matrices;
    struct device_vectors x;
    float *rows[2], *gain;
    uint64_t *stamps;
    cudaStream_t stream;
};

/* Measures the median of the seconds of what `launch` puts into a stream. */
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

/* Returns a product as weights_each would launch it. */
template <class TILE>
static struct matvec_args product_at(const struct room *room, uint8_t *data, uint32_t rows, uint32_t columns, uint32_t n) {
    struct matvec_args a = {};
    const size_t form_quads = (size_t)divide_up(columns, WIDTH_STEP) * WIDTH_STEP * EACH_ROWS / 8;
    for (int form = 0; form < 3; form++)
        a.forms[form] = TILE::FORM == THIRDS ? (const uint4 *)room->x.thirds + form * form_quads
                                             : (const uint4 *)(form ? room->x.low : room->x.high);
    a.sums = room->x.sums, a.sizes = room->x.sizes;
    a.columns = columns, a.n = n, a.apart = EACH_ROWS, a.units = divide_up(rows, TILE_ROWS);
    a.products[0] = {data, NULL, room->rows[0], rows, a.units};
    choose_way<TILE>(&a, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    return a;
}

enum way { COPIES, LATE, EARLY };

template <class TILE> static cudaError_t launch_way(const struct matvec_args &a, enum way way, cudaStream_t stream) {
    const uint32_t bytes = room_of<TILE>(a).bytes, most = device_attribute(cudaDevAttrMultiProcessorCount);
    if (way == EARLY) return launch_tiles<TILE>(a, stream);
    void (*kernel)(const struct matvec_args) = way == COPIES ? copy_tiles<TILE>
                                               : a.n > PART  ? a.shared ? matvec_tiles<TILE, 2, true> : matvec_tiles<TILE, 2, false>
                                                : a.shared ? matvec_tiles<TILE, 1, true>
                                                             : matvec_tiles<TILE, 1, false>;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const uint32_t blocks = a.units < most ? a.units : most;
    kernel<<<blocks, 32 * WARPS, bytes, stream>>>(a);
    return result == cudaSuccess ? cudaGetLastError() : result;
}

/* Prints medians over blocks of when they were done with each step, microseconds from the first block's beginning, of a product
 * alone. */
template <class TILE> static int print_stamps(const struct room *room, const struct matvec_args &a) {
    const uint32_t bytes = room_of<TILE>(a).bytes, most = device_attribute(cudaDevAttrMultiProcessorCount),
                   blocks = a.units < most ? a.units : most;
    std::vector<uint64_t> stamps(blocks * STAMPS);
    CHECK(cudaFuncSetAttribute(stamped_tiles<TILE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    for (int i = 0; i < 3; i++) stamped_tiles<TILE><<<blocks, 32 * WARPS, bytes, room->stream>>>(a, room->stamps);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(stamps.data(), room->stamps, stamps.size() * sizeof stamps[0], cudaMemcpyDeviceToHost, room->stream));
    CHECK(cudaStreamSynchronize(room->stream));
    uint64_t first = stamps[0];
    for (uint32_t b = 0; b < blocks; b++) first = std::min(first, stamps[b * STAMPS]);
    for (int i = 1; i < STAMPS; i++) {
        std::vector<uint64_t> at;
        for (uint32_t b = 0; b < blocks; b++) at.push_back(stamps[b * STAMPS + i] - first);
        std::sort(at.begin(), at.end());
        printf("%7.1f", 1e-3 * (double)at[blocks / 2]);
        if (i == STAMPS - 1) printf("%7.1f", 1e-3 * (double)at[blocks - 1]);
    }
    return 0;
}

template <class TILE>
static int print_parts(const struct room *room, const char *name, uint32_t rows, uint32_t columns, uint32_t n) {
    const size_t bytes = (size_t)divide_up(rows, TILE_ROWS) * divide_up(columns, TILE::WIDTH) * TILE::BYTES,
                 matrices = MEMORY / bytes;
    const struct matvec_args first = product_at<TILE>(room, room->matrices, rows, columns, n);
    printf("%-5s %5u x %-6u%3u %s%u", name, rows, columns, n, first.shared ? "near " : "far  ", first.depth);
    for (int way = COPIES; way <= EARLY; way++) {
        double seconds;
        auto launch = [&]() {
            cudaError_t result = cudaSuccess;
            for (size_t i = 0; i < matrices && result == cudaSuccess; i++)
                result = launch_way<TILE>(product_at<TILE>(room, room->matrices + i * bytes, rows, columns, n), (enum way)way,
                                          room->stream);
            return result;
        };
        if (time_graph(room, launch, &seconds)) return 1;
        printf("%8.0f", (double)(matrices * bytes) / seconds / 1e9);
    }
    if (n <= PART && first.shared && print_stamps<TILE>(room, first)) return 1;
    printf("\n");
    return 0;
}

static int print_rows(const struct room *room) {
    struct row_form norm = {ROW_NORM, {}, ACTIVATION_SWIGLU}, activation = {ROW_ACTIVATION, {}, ACTIVATION_SWIGLU};
    norm.norm.kind = NORM_RMS, norm.norm.epsilon = 1e-5f, norm.norm.gain = room->gain;
    struct device_vectors x = room->x;
    x.thirds = NULL;
    for (int low = 0; low < 2; low++)
        for (int kind = 0; kind < 2; kind++) {
            const int count = 100;
            double seconds;
            if (!low) x.low = NULL;
            if (low) x.low = room->x.low;
            auto launch = [&]() {
                cudaError_t result = cudaSuccess;
                for (int i = 0; i < count && result == cudaSuccess; i++)
                    result = rows_prepare(kind ? activation : norm, room->rows[0], room->rows[1], 1, kind ? WIDEST : 4096, &x,
                                          room->stream);
                return result;
            };
            if (time_graph(room, launch, &seconds)) return 1;
            printf("%s, %s: %.2f us\n", kind ? "SwiGLU of 14336" : "RMSNorm of 4096", low ? "two halves" : "one half",
                   1e6 * seconds / count);
        }
    return 0;
}

__global__ void fill(uint32_t *words, size_t n, uint32_t keep, uint32_t set) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        words[i] = ((uint32_t)i * 2654435761u & keep) | set;
}

static int make_room(struct room *room) {
    const size_t columns = (size_t)EACH_ROWS * WIDEST, sums = columns / 32 * GROUP_SUMS * sizeof(float);
    struct device_vectors *x = &room->x;
    CHECK(cudaStreamCreate(&room->stream));
    CHECK(cudaMalloc(&room->matrices, MEMORY));
    CHECK(cudaMalloc(&room->stamps, MOST_BLOCKS * STAMPS * sizeof *room->stamps));
    CHECK(cudaMalloc(&room->gain, 4096 * sizeof(float)));
    for (float *&rows : room->rows) CHECK(cudaMalloc(&rows, (size_t)EACH_ROWS * 28672 * sizeof *rows));
    CHECK(cudaMalloc(&x->high, columns * 2));
    CHECK(cudaMalloc(&x->low, columns * 2));
    CHECK(cudaMalloc(&x->thirds, columns * 3 * 2));
    CHECK(cudaMalloc((void **)&x->sums, sums));
    CHECK(cudaMalloc((void **)&x->sizes, EACH_ROWS * sizeof(float)));
    const struct {
        void *at;
        size_t bytes;
    } all[] = {{room->matrices, MEMORY},
               {room->gain, 4096 * 4},
               {x->high, columns * 2},
               {x->low, columns * 2},
               {x->thirds, columns * 6},
               {x->sums, sums},
               {x->sizes, EACH_ROWS * 4},
               {room->rows[0], (size_t)EACH_ROWS * 28672 * 4},
               {room->rows[1], (size_t)EACH_ROWS * 28672 * 4}};
    for (const auto &memory : all) /* no number of it is large, as halves or as floats */
        fill<<<256, 256, 0, room->stream>>>((uint32_t *)memory.at, memory.bytes / 4, 0x0fff0fffu, 0x20002000u);
    CHECK(cudaStreamSynchronize(room->stream));
    return 0;
}

int main() {
    static const uint32_t shapes[][2] = {{1024, 4096}, {4096, 4096}, {4096, 14336}, {28672, 4096}}, counts[] = {1, 8, 16};
    struct room room = {};
    if (make_room(&room)) return 1;
    printf("                    n  ring  copies    late   early  | asked  waited vectors  all  last\n");
    for (const auto &shape : shapes)
        for (uint32_t n : counts) {
            if (print_parts<tile_q4_k>(&room, "Q4_K", shape[0], shape[1], n)) return 1;
            if (print_parts<tile_q6_k>(&room, "Q6_K", shape[0], shape[1], n)) return 1;
            if (print_parts<tile_q8_0>(&room, "Q8_0", shape[0], shape[1], n)) return 1;
            if (print_parts<tile_f16>(&room, "F16", shape[0], shape[1], n)) return 1;
        }
    return print_rows(&room);
}
