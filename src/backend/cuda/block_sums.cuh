/* Sums and maxima over a warp or a block of threads, the same in all threads and in every run. Blocks are of whole warps. */
#ifndef TERSE_BACKEND_CUDA_BLOCK_SUMS_CUH
#define TERSE_BACKEND_CUDA_BLOCK_SUMS_CUH

#include <cuda_runtime.h>
#include <math.h>

__device__ static inline float warp_sum(float x) {
    for (int apart = 16; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

__device__ static inline float warp_most(float x) {
    for (int apart = 16; apart; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

__device__ static inline float block_sum(float x) {
    __shared__ float parts[32];
    x = warp_sum(x);
    __syncthreads(); /* parts of the sum before are read */
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0);
}

__device__ static inline float block_most(float x) {
    __shared__ float parts[32];
    x = warp_most(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_most(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : -INFINITY);
}

#endif
