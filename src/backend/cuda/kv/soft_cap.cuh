/* Caps logits softly (Gemma 2). */
#ifndef TERSE_BACKEND_CUDA_KV_SOFT_CAP_CUH
#define TERSE_BACKEND_CUDA_KV_SOFT_CAP_CUH

#include "backend/cuda/ptx.cuh"

/* Returns cap tanh(x / cap), both in the same unit, within 2^-20 of cap. */
static __device__ __forceinline__ float soft_cap(float x, float cap) {
    return cap - __fdividef(2 * cap, exp2_fast(2 * 1.4426950408889634f / cap * x) + 1);
}

#endif
