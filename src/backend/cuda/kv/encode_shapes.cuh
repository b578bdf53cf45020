/* Has what writing and reading pages of codecs with learned shapes share, in a block of 256 threads: codes in planes, and normalized
 * rows with their gains (format/normalization.h). */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_SHAPES_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_SHAPES_CUH

#include "backend/cuda/kv/transform_page.cuh"
#include "format/normalization.h"

constexpr uint32_t WARPS = TRANSFORM_THREADS / 32;

/* ---- Codes in planes (format/page_layout.h) */

/* Returns a code of a sub-vector in planes (format/page_layout.h); `bytes` are its first plane's. */
static __device__ inline uint32_t code_at(const uint8_t *bytes, uint32_t bits, uint32_t t) {
    uint32_t code = 0, shift = 0;
    for (uint32_t p = 8; p; p /= 2) {
        if (!(bits & p)) continue;
        code |= (bytes[t * p / 8] >> (t * p % 8) & ((1u << p) - 1)) << shift;
        bytes += 8 * p, shift += p;
    }
    return code;
}

/* Writes, by a warp, 64 codes. */
static __device__ inline void write_codes(const uint16_t *codes, uint32_t bits, uint8_t *bytes) {
    uint32_t shift = 0;
#pragma unroll
    for (uint32_t p = 8; p; p /= 2) {
        if (!(bits & p)) continue;
        for (uint32_t b = threadIdx.x % 32; b < 8 * p; b += 32) {
            uint32_t byte = 0;
            for (uint32_t i = 0; i < 8 / p; i++) byte |= (codes[b * 8 / p + i] >> shift & ((1u << p) - 1)) << (i * p);
            bytes[b] = (uint8_t)byte;
        }
        bytes += 8 * p, shift += p;
    }
}

/* Writes, by a warp, the codes of its lanes' tokens lane and lane + 32; where there is no token they are 0. */
static __device__ inline void write_part(uint32_t bits, const uint32_t (&code)[2], uint32_t tokens, uint16_t *codes,
                                         uint8_t *bytes) {
    const uint32_t lane = threadIdx.x % 32;
    codes[lane] = (uint16_t)(lane < tokens ? code[0] : 0);
    codes[lane + 32] = (uint16_t)(lane + 32 < tokens ? code[1] : 0);
    __syncwarp();
    write_codes(codes, bits, bytes);
}

/* ---- Normalized rows */

typedef float token_sums[TOKEN_PARTS][2][PAGE_TOKENS];

/* Returns the sum of term(c, t) over the channels of token t = threadIdx.x % 64, to all of the token's threads; `which` names one of
 * two places in memory. */
template <int HD, class Term> static __device__ float sum_over_channels(token_sums &sums, uint32_t which, Term term) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, quarter = threadIdx.x / PAGE_TOKENS;
    float sum = 0;
    for (uint32_t c = quarter; c < HD; c += TOKEN_PARTS) sum = sum + term(c, t);
    sums[quarter][which][t] = sum;
    __syncthreads();
    return (sums[0][which][t] + sums[1][which][t]) + (sums[2][which][t] + sums[3][which][t]);
}

/* Returns the sum of a token's squares, and what brings its size to 1. */
struct row_size {
    float square, inverse;
};

template <int HD> static __device__ struct row_size size_of_row(token_sums &sums, const float (*numbers)[NUMBERS_STRIDE]) {
    const float square = sum_over_channels<HD>(sums, 0, [&](uint32_t c, uint32_t t) { return numbers[c][t] * numbers[c][t]; });
    const float rms = sqrtf(square / (float)HD);
    return {square, rms > 0 ? 1 / rms : 0};
}

template <int HD> static __device__ void scale_row(float scale, float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    for (uint32_t c = threadIdx.x / PAGE_TOKENS; c < HD; c += TOKEN_PARTS) numbers[c][t] = numbers[c][t] * scale;
    __syncthreads();
}

/* ---- Gains */

/* Returns the code of the gain that keeps a key's norm, or that is best in least squares: `other` is the sum of squares of the centred
 * key, or of products of the centred value and its shape, `shape` that of the shape's squares. */
static __device__ inline uint8_t fit_gain(int side, float other, float shape, float gain_scale) {
    const float ratio = other / shape, gain = shape > 0 ? side == CODEC_KEYS ? sqrtf(ratio) : ratio : 0;
    if (!(gain > 0) || !(gain_scale > 0)) return 0;
    const float place = roundf(GAIN_MIDDLE + GAIN_STEPS * log2f(gain / gain_scale));
    return (uint8_t)(place < 1 ? 1 : place > 255 ? 255 : place);
}

static __device__ inline float gain_at(float gain_scale, uint32_t code) {
    return code ? gain_scale * exp2f((float)((int)code - GAIN_MIDDLE) / GAIN_STEPS) : 0;
}

/* ---- Launches */

/* Calls the launch for the heads' head_dim, of those that CommVQ's kernels are compiled for. */
#define COMMVQ_HEAD_DIMS(heads, launch) \
    switch ((heads).head_dim) { \
    case 64: return launch(64); \
    case 128: return launch(128); \
    case 256: return launch(256); \
    default: return cudaErrorNotSupported; \
    }

template <int HD, class Kernel>
static cudaError_t launch_shapes(Kernel *kernel, size_t bytes, const struct encode *encode, struct encode_sides sides,
                                 cudaStream_t stream) {
    const cudaError_t result = allow_shared(kernel, bytes);
    if (result != cudaSuccess) return result;
    kernel<<<encode_grid(encode, sides), TRANSFORM_THREADS, bytes, stream>>>(*encode, sides);
    return cudaGetLastError();
}

#endif
