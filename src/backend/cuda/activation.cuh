/* Computes activation functions of a feed-forward layer (model/model.h). */
#ifndef TERSE_BACKEND_CUDA_ACTIVATION_CUH
#define TERSE_BACKEND_CUDA_ACTIVATION_CUH

#include "model/model.h"

__device__ static inline float gelu_tanh(float x) {
    return __fdividef(x, 1 + expf(-2 * 0.79788456f * x * (1 + 0.044715f * x * x)));
}

__device__ static inline float activation_of(enum activation activation, float x, float factor) {
    if (activation == ACTIVATION_SWIGLU) return __fdividef(x, 1 + expf(-x)) * factor;
    if (activation == ACTIVATION_GEGLU) return gelu_tanh(x) * factor;
    if (activation == ACTIVATION_SWIGLU_CLAMPED) {
        x = x > SWIGLU_CLAMP ? SWIGLU_CLAMP : x; /* NaN stays NaN */
        factor = factor > SWIGLU_CLAMP ? SWIGLU_CLAMP : factor < -SWIGLU_CLAMP ? -SWIGLU_CLAMP : factor;
        return __fdividef(x, 1 + expf(-SWIGLU_GAIN * x)) * (factor + 1);
    }
    return activation == ACTIVATION_GELU ? 0.5f * x * erfcf(-x * 0.70710678f) : gelu_tanh(x);
}

#endif
