/* What a stream that captures keeps, and the last error. */
#ifndef TESTS_CUDA_EMULATION_CAPTURE_H
#define TESTS_CUDA_EMULATION_CAPTURE_H

#include <cuda_runtime_api.h>

#include <functional>

/* Whether the stream captures; then `work` is kept for the graph. */
bool emulated_captures(cudaStream_t stream, std::function<void()> work);
/* What cudaGetLastError says next. */
void emulated_fail(cudaError_t error);

#endif
