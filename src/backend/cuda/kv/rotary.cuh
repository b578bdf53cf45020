/* Has RoPE's angles and rotations of pairs, which the kernels share that move rows. */
#ifndef TERSE_BACKEND_CUDA_KV_ROTARY_CUH
#define TERSE_BACKEND_CUDA_KV_ROTARY_CUH

#include "backend/cuda/kv/view.h"

/* Returns x times angle as complex numbers: x rotated by it. The sums are fused where this says so, so that all kernels have the same bits. */
static __device__ float2 rotate(float2 x, float2 angle) {
    return make_float2(fmaf(x.x, angle.x, -(x.y * angle.y)), fmaf(x.y, angle.x, x.x * angle.y));
}

/* Returns cosine and sine of pair i at a position: of the sum of two angles. */
static __device__ float2 angle_at(const struct rotary_view &r, uint32_t position, uint32_t i) {
    uint32_t pairs = r.n_rot / 2;
    float2 run = ((const float2 *)r.runs)[(position / ROPE_RUN_TOKENS) * pairs + i];
    float2 slot = ((const float2 *)r.slots)[(position % ROPE_RUN_TOKENS) * pairs + i];
    return rotate(run, slot);
}

/* Returns the channels of pair i. */
static __device__ uint2 pair_at(const struct rotary_view &r, uint32_t i) {
    return r.pairing == ROPE_ADJACENT ? make_uint2(2 * i, 2 * i + 1) : make_uint2(i, i + r.n_rot / 2);
}

#endif
