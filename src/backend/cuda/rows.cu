/* Rows of activations: a block of threads a row where it is long, a warp where it is a head. */
#include "backend/cuda/rows.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#include <cuda_fp16.h>
#include <math.h>

#define THREADS 512
#define HALF_LARGEST 15 /* rows are scaled to below two to this; a half is at most 2^16 - 2^5 */
#define CODE_UNIT 16777216.f

__host__ __device__ static inline uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

/* ---- Sums and largest of a block of threads, the same to all of them and the same each time */

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
    return warp_most(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0);
}

/* ---- Into a product */

__device__ static inline float gelu_tanh(float x) { return x / (1 + expf(-2 * 0.79788456f * x * (1 + 0.044715f * x * x))); }

struct row_source {
    struct row_form form;
    const float *x, *factor; /* the row's */
    float mean, inverse;     /* of ROW_NORM */
};

__device__ static inline float row_value(const struct row_source &s, uint32_t i) {
    float x = s.x[i];
    if (s.form.kind == ROW_PLAIN) return x;
    if (s.form.kind == ROW_NORM) {
        float y = (x - s.mean) * s.inverse * s.form.norm.gain[i];
        return s.form.norm.bias ? y + s.form.norm.bias[i] : y;
    }
    if (s.form.activation == ACTIVATION_SWIGLU) return x / (1 + expf(-x)) * s.factor[i];
    return s.form.activation == ACTIVATION_GELU ? 0.5f * x * erfcf(-x * 0.70710678f) : gelu_tanh(x);
}

/* Mean and 1/sqrt(variance + epsilon) of a row; the mean of RMSNorm is 0. */
__device__ static inline void norm_numbers(const struct norm &norm, const float *x, uint32_t width, float *mean, float *inverse) {
    float sum = 0, squares = 0;
    *mean = 0;
    if (norm.kind == NORM_LAYER) {
        for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum += x[i];
        *mean = block_sum(sum) / (float)width;
    }
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) squares += (x[i] - *mean) * (x[i] - *mean);
    *inverse = 1 / sqrtf(block_sum(squares) / (float)width + norm.epsilon);
}

/* The power of two that brings numbers below `most` into range, and its inverse; 1 for a row of zeros or one that is not finite, which a
 * product shows. */
__device__ static inline float size_of(float most) {
    if (!(most > 1e-30f) || most > 3e38f) return 1;
    return exp2f((float)(ilogbf(most) + 1 - HALF_LARGEST));
}

/* Where number i of a group lies in it: weight_tiles.cuh. */
__device__ static inline uint32_t place_of(uint32_t i) {
    uint32_t j = i % 4;
    return i % 16 / 4 * 8 + i / 16 * 4 + (j == 1 ? 2 : j == 2 ? 1 : j);
}

/* A number of a group, as the group's warp has it. */
__device__ static inline void emit_group(const struct device_vectors &to, uint32_t row, uint32_t group, float x) {
    uint32_t lane = threadIdx.x % 32;
    size_t at = ((size_t)group * EACH_ROWS + row) * 32 + place_of(lane);
    __half high = __float2half(x);
    float rest = x - __half2float(high), of_high = warp_sum(__half2float(high)), sum = __half2float(high);
    ((__half *)to.high)[at] = high;
    if (to.low) {
        __half low = __float2half(rest);
        ((__half *)to.low)[at] = low;
        sum += __half2float(low);
    }
    for (int apart = 8; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    float all = sum + __shfl_xor_sync(~0u, sum, 16), *sums = to.sums + (size_t)group * GROUP_SUMS * EACH_ROWS + row;
    if (lane % 16 == 0) sums[lane / 16 * EACH_ROWS] = sum / CODE_UNIT;
    if (lane == 0) sums[2 * EACH_ROWS] = all / CODE_UNIT;
    if (lane == 0) sums[3 * EACH_ROWS] = of_high / CODE_UNIT;
}

/* The three times eight bits of a number's significand. */
__device__ static inline void emit_thirds(const struct device_vectors &to, uint32_t row, uint32_t i, uint32_t padded, float x) {
    uint16_t *at = (uint16_t *)to.thirds + ((size_t)(i / 32) * EACH_ROWS + row) * 32 + place_of(i % 32);
    for (int third = 0; third < 3; third++, at += (size_t)padded * EACH_ROWS) {
        uint32_t bits = __float_as_uint(x) & 0xffff0000;
        *at = (uint16_t)(bits >> 16);
        x -= __uint_as_float(bits);
    }
}

__global__ void __launch_bounds__(THREADS)
    prepare_rows(struct row_form form, const float *x, const float *factor, uint32_t width, struct device_vectors to) {
    let_next_kernel_begin();
    wait_for_kernels();
    size_t row = blockIdx.x;
    struct row_source s = {form, x + row * width, factor ? factor + row * width : NULL, 0, 0};
    if (form.kind == ROW_NORM) norm_numbers(form.norm, s.x, width, &s.mean, &s.inverse);
    float most = 0, size = 1;
    if (to.sizes) {
        for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, fabsf(row_value(s, i)));
        size = size_of(block_most(most));
        if (threadIdx.x == 0) to.sizes[row] = size;
    }
    uint32_t halves_width = divide_up(width, 32) * 32,
             padded = to.high || to.thirds ? divide_up(width, WIDTH_STEP) * WIDTH_STEP : halves_width;
    for (uint32_t i = threadIdx.x; i < padded; i += blockDim.x) { /* a warp's numbers are a group */
        float value = i < width ? row_value(s, i) : 0;
        if (to.high) emit_group(to, row, i / 32, value / size);
        if (to.thirds) emit_thirds(to, row, i, padded, value);
        if (to.halves && i < halves_width) ((__half *)to.halves)[row * halves_width + i] = __float2half(value / size);
    }
}

extern "C" cudaError_t rows_prepare(struct row_form form, const float *x, const float *factor, uint32_t n, uint32_t width,
                                    const struct device_vectors *to, cudaStream_t stream) {
    return n ? launch_early(prepare_rows, dim3(n), dim3(THREADS), 0, stream, form, x, factor, width, *to) : cudaSuccess;
}

/* ---- By themselves */

/* A warp a row: heads are short. */
__global__ void norm_heads(struct norm norm, float *x, uint32_t n, uint32_t width, float most) {
    uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    x += (size_t)row * width;
    float mean = 0, squares = 0, bound = most > 0 ? most : INFINITY;
    if (norm.kind == NORM_LAYER) {
        for (uint32_t i = lane; i < width; i += 32) mean += fminf(fmaxf(x[i], -bound), bound);
        mean = warp_sum(mean) / (float)width;
    }
    for (uint32_t i = lane; i < width; i += 32) {
        float d = fminf(fmaxf(x[i], -bound), bound) - mean;
        squares += d * d;
    }
    float inverse = 1 / sqrtf(warp_sum(squares) / (float)width + norm.epsilon);
    for (uint32_t i = lane; i < width; i += 32) {
        float y = (fminf(fmaxf(x[i], -bound), bound) - mean) * inverse * norm.gain[i];
        x[i] = norm.bias ? y + norm.bias[i] : y;
    }
}

extern "C" cudaError_t rows_norm(struct norm norm, float *x, uint32_t n, uint32_t width, float most, cudaStream_t stream) {
    if (n) norm_heads<<<divide_up(n, 4), 128, 0, stream>>>(norm, x, n, width, most);
    return cudaGetLastError();
}

__global__ void clamp_numbers(float *x, float most, size_t count) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

#define CLAMP_BLOCKS 4096

extern "C" cudaError_t rows_clamp(float *x, float most, size_t count, cudaStream_t stream) {
    size_t wanted = (count + 1023) / 1024;
    unsigned blocks = wanted > CLAMP_BLOCKS ? CLAMP_BLOCKS : (unsigned)wanted;
    if (count) clamp_numbers<<<blocks, 256, 0, stream>>>(x, most, count);
    return cudaGetLastError();
}

__global__ void finish_rows(const float *y, uint32_t width, uint32_t stride, const float *sizes, const float *bias, float *out,
                            uint32_t out_stride, bool add) {
    size_t row = blockIdx.x;
    float size = sizes[row];
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) {
        float value = y[row * stride + i] * size, *to = out + row * out_stride + i;
        if (bias) value += bias[i];
        *to = add ? *to + value : value;
    }
}

extern "C" cudaError_t rows_finish(const float *y, uint32_t n, uint32_t width, uint32_t stride, const float *sizes,
                                   const float *bias, float *out, uint32_t out_stride, bool add, cudaStream_t stream) {
    if (n) finish_rows<<<dim3(n, divide_up(width, 2048)), 256, 0, stream>>>(y, width, stride, sizes, bias, out, out_stride, add);
    return cudaGetLastError();
}

__global__ void pick_rows(const float *from, const uint32_t *ids, uint32_t width, float *out) {
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        out[(size_t)blockIdx.x * width + i] = from[(size_t)ids[blockIdx.x] * width + i];
}

extern "C" cudaError_t rows_pick(const float *from, const uint32_t *ids, uint32_t n, uint32_t width, float *out,
                                 cudaStream_t stream) {
    if (n) pick_rows<<<n, 256, 0, stream>>>(from, ids, width, out);
    return cudaGetLastError();
}
