/* Wraps the runtime's calls and turns their errors into terse's. */
#include "backend/cuda/device.h"

#include <stdbool.h>

#include "dist/collective.h"

#define LEAST_MAJOR 8 /* compute capability 8.0: asynchronous copies to shared memory, matrix products of bytes and of bf16 */

enum terse_status device_check(cudaError_t result, const char *doing, struct terse_error *error) {
    if (result == cudaSuccess) return TERSE_OK;
    enum terse_status status = result == cudaErrorMemoryAllocation ? TERSE_E_MEMORY : TERSE_E_UNSUPPORTED;
    return status_fail(error, status, "the GPU failed at %s: %s", doing, cudaGetErrorString(result));
}

int device_number(void) {
    static _Atomic int number = -1;
    static _Thread_local bool set;
    int n = 0, own = number;
    if (own < 0) {
        if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) return 0;
        number = own = (int)(collective_local_rank() % (uint32_t)n);
    }
    if (!set) set = cudaSetDevice(own) == cudaSuccess;
    return own;
}

const char *device_name(void) {
    static struct cudaDeviceProp properties;
    return cudaGetDeviceProperties(&properties, device_number()) == cudaSuccess ? properties.name : "an unknown GPU";
}

void *device_alloc(struct kv_budget *budget, size_t bytes, const char *what, struct terse_error *error) {
    void *memory = NULL;
    if (budget && budget_take(budget, bytes, what, error)) return NULL;
    device_number();
    if (cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess) return memory;
    cudaGetLastError(); /* otherwise the next call's check would find it */
    if (budget) budget_give(budget, bytes);
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    status_fail(error, TERSE_E_MEMORY, "no room on the GPU for %s: %.1f MiB wanted, %.1f of %.1f MiB free", what,
                (double)bytes / 1048576, (double)left / 1048576, (double)total / 1048576);
    return NULL;
}

void device_free(struct kv_budget *budget, void *memory, size_t bytes) {
    if (!memory) return;
    device_number();
    cudaFree(memory);
    if (budget) budget_give(budget, bytes);
}

enum terse_status device_available(struct terse_error *error) {
    int n = 0, driver = 0, major = 0, minor = 0;
    cudaError_t result = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver);
    if (!driver) return status_fail(error, TERSE_E_UNSUPPORTED, "no NVIDIA driver: install one, or use --device cpu");
    if (result == cudaErrorInsufficientDriver)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "the NVIDIA driver is for CUDA %d.%d, and terse was built with %d.%d: install a newer driver, or use "
                           "--device cpu",
                           driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (result != cudaSuccess || n == 0)
        return status_fail(error, TERSE_E_UNSUPPORTED, "no GPU that CUDA can use (%s): use --device cpu",
                           cudaGetErrorString(result));
    const int device = device_number();
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major < LEAST_MAJOR)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "the GPU has compute capability %d.%d, and terse needs %d.0 or later: use --device cpu", major, minor,
                           LEAST_MAJOR);
    return device_check(cudaSetDevice(device), "choosing the GPU", error);
}

/* Makes the stream on the first call. If that fails, a later failure of its use tells why. */
static cudaStream_t stream_once(cudaStream_t *stream, bool background) {
    int least = 0, greatest = 0;
    device_number();
    if (*stream) return *stream;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, background ? least : greatest);
    return *stream;
}

cudaStream_t device_stream(void) {
    static cudaStream_t stream;
    return stream_once(&stream, false);
}

cudaStream_t device_background(void) {
    static cudaStream_t stream;
    return stream_once(&stream, true);
}

cudaError_t device_send(void *to, const void *from, size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device_stream());
}

cudaError_t device_fetch(void *to, const void *from, size_t bytes) {
    cudaError_t result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device_stream());
    return result == cudaSuccess ? cudaStreamSynchronize(device_stream()) : result;
}

int device_multiprocessors(void) {
    int n = 1;
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device_number());
    return n;
}
