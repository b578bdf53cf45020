/* Keeps the points of a round of tables on the device, and does its E steps there, on a stream of its own as a search does. */
#include "backend/cuda/learning.h"

#include "backend/cuda/device.h"
#include "backend/cuda/learning_kernels.h"
#include "base/memory.h"

struct mixture {
    cudaStream_t stream;
    struct learning_mixture device; /* all in one piece of memory, whose beginning is `counts` */
    uint32_t *ids;
    float *panel, *half;
};

void learning_mixture_close(struct mixture *m) {
    if (!m) return;
    if (m->device.counts) cudaFreeAsync(m->device.counts, m->stream);
    if (m->stream) cudaStreamSynchronize(m->stream);
    if (m->stream) cudaStreamDestroy(m->stream);
    memory_free(m);
}

/* Takes the next `bytes` bytes of the memory; *at counts them. */
static void *take(char *memory, size_t *at, size_t bytes) {
    void *taken = memory ? memory + *at : NULL;
    *at += memory_round_up(bytes, 256);
    return taken;
}

/* Places the arrays in the memory, and returns how many bytes they take; NULL: counts them alone. */
static size_t place(struct mixture *m, size_t n, size_t channels, char *memory) {
    const size_t entries = LEARNING_ENTRIES;
    size_t at = 0;
    m->device.counts = take(memory, &at, entries * entries * sizeof(double));
    m->device.sums = take(memory, &at, entries * channels * sizeof(double));
    m->device.rows = take(memory, &at, n * channels * sizeof(float));
    m->device.weights = take(memory, &at, n * sizeof(float));
    m->device.ids = m->ids = take(memory, &at, n * sizeof(uint32_t));
    m->device.panel = m->panel = take(memory, &at, 2 * entries * channels * sizeof(float));
    m->device.half = m->half = take(memory, &at, entries * entries * sizeof(float));
    m->device.codes = take(memory, &at, n * sizeof(uint16_t));
    m->device.errors = take(memory, &at, n * sizeof(float));
    m->device.partial = take(memory, &at, LEARNING_BLOCKS * LEARNING_PARTIAL(channels) * sizeof(float));
    return at;
}

static cudaError_t send(const struct mixture *m, const void *to, const void *from, size_t bytes) {
    return cudaMemcpyAsync((void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice, m->stream);
}

static cudaError_t receive(const struct mixture *m, void *to, const void *from, size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, m->stream);
}

struct mixture *learning_mixture_open(const float *rows, const float *weights, size_t n, size_t pairs, size_t entries) {
    const size_t channels = 2 * pairs;
    void *memory = NULL;
    if (entries != LEARNING_ENTRIES || channels > LEARNING_MOST_CHANNELS || channels % 8 || n > INT32_MAX) return NULL;
    struct mixture *m = memory_zeros(1, sizeof *m);
    if (!m) return NULL;
    m->device.channels = (uint32_t)channels;
    learning_choose_device();
    cudaError_t result = cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking);
    if (result == cudaSuccess) result = cudaMallocAsync(&memory, place(m, n, channels, NULL), m->stream);
    if (result == cudaSuccess) place(m, n, channels, memory);
    if (result == cudaSuccess) result = send(m, m->device.rows, rows, n * channels * sizeof *rows);
    if (result == cudaSuccess) result = send(m, m->device.weights, weights, n * sizeof *weights);
    if (result == cudaSuccess) return m;
    cudaGetLastError(); /* otherwise the next call's check would find it */
    learning_mixture_close(m);
    return NULL;
}

#define CHUNK_LEAST 32 /* points of a block */

enum terse_status learning_mixture_expect(struct mixture *m, const struct expectation *e, struct terse_error *error) {
    struct learning_mixture own = m->device;
    const size_t entries = LEARNING_ENTRIES, channels = own.channels, chunk = (e->n + LEARNING_BLOCKS - 1) / LEARNING_BLOCKS;
    own.n = (uint32_t)e->n;
    own.chunk = (uint32_t)(chunk < CHUNK_LEAST ? CHUNK_LEAST : chunk);
    own.faint = (float)(e->faint * e->temperature / 2);
    own.scale = e->temperature > 0 ? (float)(-2 / e->temperature) : 0;
    cudaError_t result = send(m, m->ids, e->ids, e->n * sizeof *e->ids);
    if (result == cudaSuccess) result = send(m, m->panel, e->panel, 2 * entries * channels * sizeof *e->panel);
    if (result == cudaSuccess) result = send(m, m->half, e->half, entries * entries * sizeof *e->half);
    if (result == cudaSuccess) result = learning_weigh(&own, m->stream);
    if (result == cudaSuccess) result = receive(m, e->codes, own.codes, e->n * sizeof *e->codes);
    if (result == cudaSuccess) result = receive(m, e->errors, own.errors, e->n * sizeof *e->errors);
    if (result == cudaSuccess) result = receive(m, e->counts, own.counts, entries * entries * sizeof *e->counts);
    if (result == cudaSuccess) result = receive(m, e->sums, own.sums, entries * channels * sizeof *e->sums);
    if (result == cudaSuccess) result = cudaStreamSynchronize(m->stream);
    return device_check(result, "weighing codewords", error);
}
