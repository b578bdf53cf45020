/* Has what benchmarks in CUDA C++ share: arrays that are sent to the device, and messages of what failed. */
#ifndef TERSE_BENCH_CUDA_ARRAYS_CUH
#define TERSE_BENCH_CUDA_ARRAYS_CUH

#include <cuda_runtime.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

static inline void check(cudaError_t result, const char *doing) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, doing, cudaGetErrorString(result));
    exit(1);
}

template <class T> static T *sent(const std::vector<T> &from) {
    void *to;
    check(cudaMalloc(&to, from.size() * sizeof(T)), "memory");
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
    return (T *)to;
}

template <class T> static std::vector<T> fetched(const T *from, size_t n) {
    std::vector<T> to(n);
    check(cudaMemcpy(to.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost), "copying");
    return to;
}

static inline uint32_t random_bits() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

#endif
