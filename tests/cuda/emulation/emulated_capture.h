/* The emulated runtime's state: the work that a capturing stream records, and the last error. */
#ifndef TESTS_CUDA_EMULATION_CAPTURE_H
#define TESTS_CUDA_EMULATION_CAPTURE_H

#include <cuda_runtime_api.h>

#include <functional>

/* Returns whether the stream is capturing; `work` is then kept for the graph, and not done now. */
bool emulated_captures(cudaStream_t stream, std::function<void()> work);
/* Sets the error that cudaGetLastError returns next. */
void emulated_fail(cudaError_t error);

#endif
