/* The calls of CUDA's runtime that the backend makes, on the host: all work is done when it is queued. */
#include "emulated_capture.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#define DEVICE_BYTES ((size_t)8 << 30)
#define HUGE_PAGE ((size_t)2 << 20)

typedef std::vector<std::function<void()>> work_list;

/* Ranks may be threads (tests/support/thread_ranks.h), each of which captures by itself. */
static thread_local cudaError_t last_error;
static thread_local bool capturing;
static thread_local cudaStream_t capturing_stream;
static thread_local work_list *captured;
static std::mutex allocating;
static std::map<void *, size_t> allocations;
static size_t allocated;

void emulated_fail(cudaError_t error) { last_error = error; }

static cudaError_t result_of(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

bool emulated_captures(cudaStream_t stream, std::function<void()> work) {
    if (!capturing || stream != capturing_stream) return false;
    captured->push_back(work);
    return true;
}

extern "C" {

/* ---- Memory. What was not written yet is no number. */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    const std::lock_guard<std::mutex> lock(allocating);
    *memory = NULL;
    if (bytes > DEVICE_BYTES - allocated) return result_of(cudaErrorMemoryAllocation);
    const size_t alignment = bytes < HUGE_PAGE ? 256 : HUGE_PAGE;
    if (posix_memalign(memory, alignment, bytes ? bytes : 1)) return result_of(cudaErrorMemoryAllocation);
    if (bytes >= HUGE_PAGE) madvise(*memory, bytes, MADV_HUGEPAGE); /* faults of small pages would take longer than most kernels */
    memset(*memory, 0xff, bytes);
    allocations[*memory] = bytes;
    allocated += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    if (!memory) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(allocating);
    if (!allocations.count(memory)) return result_of(cudaErrorInvalidValue);
    allocated -= allocations[memory];
    allocations.erase(memory);
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeAsync(void *memory, cudaStream_t) { return cudaFree(memory); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
    *pool = NULL;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return cudaSuccess; }
cudaError_t cudaMallocHost(void **memory, size_t bytes) { return posix_memalign(memory, 256, bytes ? bytes : 1) ? result_of(cudaErrorMemoryAllocation) : cudaSuccess; }
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) { return cudaMallocHost(memory, bytes); }
cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    *total = DEVICE_BYTES;
    *left = DEVICE_BYTES - allocated;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    if (bytes) memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (!emulated_captures(stream, [=]() { cudaMemcpy(to, from, bytes, kind); })) cudaMemcpy(to, from, bytes, kind);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
    if (bytes > to_pitch || bytes > from_pitch) return result_of(cudaErrorInvalidPitchValue);
    for (size_t i = 0; i < rows; i++) cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, bytes, kind, stream);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    if (bytes) memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    if (!emulated_captures(stream, [=]() { cudaMemset(to, value, bytes); })) cudaMemset(to, value, bytes);
    return cudaSuccess;
}

/* ---- Streams, events, graphs */

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    *stream = (cudaStream_t)malloc(1);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    *event = (cudaEvent_t)malloc(1);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (capturing) return result_of(cudaErrorStreamCaptureUnsupported);
    capturing = true;
    capturing_stream = stream;
    captured = new work_list();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
    *graph = (cudaGraph_t)captured;
    capturing = false;
    captured = NULL;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    *exec = (cudaGraphExec_t) new work_list(*(work_list *)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    for (const std::function<void()> &work : *(work_list *)exec) work();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (work_list *)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete (work_list *)exec;
    return cudaSuccess;
}

/* ---- The device: one of compute capability 8.0 with four multiprocessors, or as many as the environment says */

static int multiprocessors(void) {
    const char *asked = getenv("EMULATED_MULTIPROCESSORS");
    return asked ? atoi(asked) : 4;
}

cudaError_t cudaGetDeviceCount(int *n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int) {
    *properties = {};
    strcpy(properties->name, "an emulated GPU");
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors(); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrL2CacheSize: *value = 40 << 20; break;
    default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "an emulated error"; }
const char *cudaGetErrorName(cudaError_t) { return "cudaError"; }
}
