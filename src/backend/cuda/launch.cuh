/* Launches kernels that may begin before the one before them has ended, from compute capability 9.0 on, so that they load meanwhile
 * what does not depend on it. Such a kernel waits (wait_for_kernels, ptx.cuh) before it reads or writes anything that another
 * kernel writes or reads. It waits even if it does neither, because a kernel that waits for it assumes that all kernels before it
 * have ended. */
#ifndef TERSE_BACKEND_CUDA_LAUNCH_CUH
#define TERSE_BACKEND_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

static inline int device_attribute(cudaDeviceAttr attribute) {
    int value = 0, device = 0;
    if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&value, attribute, device);
    return value;
}

/* Launches a kernel that may begin early, unless it `waits` until the one before it has ended. */
template <class... PARAMETERS, class... ARGUMENTS>
static cudaError_t launch_kernel(bool waits, void (*kernel)(PARAMETERS...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream, ARGUMENTS... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    const unsigned attributes = !waits && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
    const cudaLaunchConfig_t config = {grid, block, shared_bytes, stream, &early, attributes};
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... PARAMETERS, class... ARGUMENTS>
static cudaError_t launch_early(void (*kernel)(PARAMETERS...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                                ARGUMENTS... arguments) {
    return launch_kernel(false, kernel, grid, block, shared_bytes, stream, arguments...);
}

#endif
