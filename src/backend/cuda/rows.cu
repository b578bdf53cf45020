/* Computes on rows of activations: a block of threads takes a row where it is long, a warp where it is a head. */
#include "backend/cuda/rows.h"

#include "backend/cuda/activation.cuh"
#include "backend/cuda/block_sums.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#include <cuda_fp16.h>
#include <float.h>
#include <math.h>

#define THREADS 1024
#define SQUARE_LEAST 1e-30f /* of what a logarithm is taken of */
#define HALF_LARGEST 15     /* rows are scaled to below two to this; a half is at most 2^16 - 2^5 */
#define CODE_UNIT 16777216.f

__host__ __device__ static inline uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

/* ---- Into a product */

/* A row_work says at compile time what is done to rows, with an activation that counts where they are ROW_ACTIVATION, and QUADS says that
 * their width is a multiple of 4. A step does little with each kernel's instructions and fetches them anew in each
 * layer, so that a kernel for all forms, of 90 KB, took longer to be fetched than to be executed. */
template <row_kind KIND, activation ACTIVATION, bool QUADS> struct row_work {
    static constexpr auto kind = KIND;
    static constexpr auto activation = ACTIVATION;
    static constexpr bool quads = QUADS;
};

struct row_source {
    struct row_form form;
    const float *x, *factor; /* the row's; x NULL: it is one of zeros */
    uint32_t width;
    float mean, inverse; /* of ROW_NORM */
};

/* A quad is four numbers, which a thread takes at a time: loads of many threads are under way together. */
struct quad {
    float of[4];
};

/* Loads numbers 4q .. 4q + 3 of a row, 0 beyond its end. */
template <bool QUADS> __device__ static inline quad load_quad(const float *row, uint32_t q, uint32_t width) {
    quad r = {};
    if constexpr (QUADS) {
        if (4 * q < width) *(float4 *)r.of = ((const float4 *)row)[q];
    } else {
        for (uint32_t i = 0; i < 4; i++)
            if (4 * q + i < width) r.of[i] = row[4 * q + i];
    }
    return r;
}

/* Returns a row's q-th four numbers in the given form. */
template <class WORK> __device__ static inline quad row_values(const struct row_source &s, uint32_t q) {
    const struct norm &norm = s.form.norm;
    quad x = load_quad<WORK::quads>(s.x, q, s.width);
    if constexpr (WORK::kind == ROW_NORM) {
        const quad gain = load_quad<WORK::quads>(norm.gain, q, s.width);
        for (int i = 0; i < 4; i++) x.of[i] = (x.of[i] - s.mean) * s.inverse * gain.of[i];
        if (!norm.bias) return x;
        const quad bias = load_quad<WORK::quads>(norm.bias, q, s.width);
        for (int i = 0; i < 4; i++) x.of[i] += bias.of[i];
    } else if constexpr (WORK::kind == ROW_ACTIVATION) {
        quad factor = {};
        if (s.factor) factor = load_quad<WORK::quads>(s.factor, q, s.width);
        for (int i = 0; i < 4; i++) x.of[i] = activation_of(WORK::activation, x.of[i], factor.of[i]);
    }
    return x;
}

/* Reports a row if it has a number that is not finite. Its sum of squares is not finite, but the numbers may be finite all the
 * same. */
__device__ static __noinline__ void seek_not_finite(const struct row_source *s) {
    bool finite = true;
    for (uint32_t i = threadIdx.x; i < s->width; i += blockDim.x) finite = finite && fabsf(s->x[i]) <= FLT_MAX;
    if (!finite) atomicMin(s->form.not_finite, s->form.place);
}

/* Computes mean and 1/sqrt(variance + epsilon) of a row; the mean of RMSNorm is 0. */
template <class WORK> __device__ static inline void norm_numbers(struct row_source *s) {
    const uint32_t quads = divide_up(s->width, 4);
    float sum = 0, squares = 0;
    s->mean = 0;
    if (s->form.norm.kind == NORM_LAYER) {
#pragma unroll 1
        for (uint32_t q = threadIdx.x; q < quads; q += blockDim.x) {
            const quad x = load_quad<WORK::quads>(s->x, q, s->width);
            sum += x.of[0] + x.of[1] + (x.of[2] + x.of[3]);
        }
        s->mean = block_sum(sum) / (float)s->width;
    }
#pragma unroll 1
    for (uint32_t q = threadIdx.x; q < quads; q += blockDim.x) {
        const quad x = load_quad<WORK::quads>(s->x, q, s->width);
        for (uint32_t i = 0; i < 4; i++)
            if (WORK::quads || 4 * q + i < s->width) squares += (x.of[i] - s->mean) * (x.of[i] - s->mean);
    }
    squares = block_sum(squares);
    if (s->form.not_finite && !(squares <= FLT_MAX)) seek_not_finite(s);
    s->inverse = 1 / sqrtf(squares / (float)s->width + s->form.norm.epsilon);
}

/* Returns the power of two by which numbers below `most` are divided to bring them into range; 1 for a row of zeros or one that is
 * not finite, which a product shows. */
__device__ static inline float size_of(float most) {
    if (!(most > 1e-30f) || most > 3e38f) return 1;
    return exp2f((float)(ilogbf(most) + 1 - HALF_LARGEST));
}

/* Stores a row's q-th four numbers, of 16 bits, in the order of a group: weight_tiles.cuh. A group has room for `apart` rows. */
__device__ static inline void put_in_group(void *to, uint32_t apart, uint32_t row, uint32_t q, const uint32_t bits[4]) {
    size_t at = ((size_t)(q / 8) * apart + row) * 32 + q % 4 * 8 + q % 8 / 4 * 4;
    *(uint2 *)((uint16_t *)to + at) = make_uint2(bits[0] | bits[2] << 16, bits[1] | bits[3] << 16);
}

__device__ static inline uint32_t half_bits(float x) { return __half_as_ushort(__float2half(x)); }
__device__ static inline float half_number(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }

/* Writes halves, with the group's sums: each eight of the warp's threads have a group. */
__device__ static inline void emit_halves(const struct device_vectors &to, uint32_t apart, uint32_t row, uint32_t q,
                                          const quad &x) {
    uint32_t high[4], low[4];
    float of_high = 0, sum = 0;
    for (int i = 0; i < 4; i++) {
        high[i] = half_bits(x.of[i]);
        low[i] = to.low ? half_bits(x.of[i] - half_number(high[i])) : 0;
        of_high += half_number(high[i]);
        sum += half_number(high[i]) + half_number(low[i]);
    }
    put_in_group(to.high, apart, row, q, high);
    if (to.low) put_in_group(to.low, apart, row, q, low);
    for (int apart = 1; apart < 8; apart *= 2) of_high += __shfl_xor_sync(~0u, of_high, apart);
    for (int apart = 1; apart < 4; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    float all = sum + __shfl_xor_sync(~0u, sum, 4), *sums = to.sums + (size_t)(q / 8) * GROUP_SUMS * apart + row;
    if (q % 4 == 0) sums[q % 8 / 4 * apart] = sum / CODE_UNIT;
    if (q % 8 == 0) sums[2 * apart] = all / CODE_UNIT;
    if (q % 8 == 0) sums[3 * apart] = of_high / CODE_UNIT;
}

/* Writes the thirds of numbers: three times eight bits of their significands. */
__device__ static __noinline__ void emit_thirds(const struct device_vectors &to, uint32_t apart, uint32_t row, uint32_t q,
                                                uint32_t padded, quad x) {
    for (int third = 0; third < 3; third++) {
        uint32_t bits[4];
        for (int i = 0; i < 4; i++) {
            bits[i] = __float_as_uint(x.of[i]) >> 16;
            x.of[i] -= __uint_as_float(bits[i] << 16);
        }
        put_in_group((uint16_t *)to.thirds + (size_t)third * padded * apart, apart, row, q, bits);
    }
}

/* Writes a row in the forms of `to`, as its row `row`, of `apart` that a group has room for: a block's work. */
template <class WORK>
__device__ static inline void prepare_row(struct row_source &s, const struct device_vectors &to, uint32_t apart, size_t row) {
    const uint32_t width = s.width, there = s.x ? width : 0;
    if (WORK::kind == ROW_NORM && there) norm_numbers<WORK>(&s);
    float most = 0, inverse = 1; /* of the row's size, a power of two */
    if (to.sizes && there) {
#pragma unroll(WORK::kind == ROW_ACTIVATION ? 4 : 1) /* of wide rows a thread has several quads */
        for (uint32_t q = threadIdx.x; q < divide_up(there, 4); q += blockDim.x) {
            const quad value = row_values<WORK>(s, q);
            for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(value.of[i]));
        }
        const float size = size_of(block_most(most));
        inverse = 1 / size;
        if (threadIdx.x == 0) to.sizes[row] = size;
    }
    uint32_t halves_width = divide_up(width, 32) * 32,
             padded = to.high || to.thirds ? divide_up(width, WIDTH_STEP) * WIDTH_STEP : halves_width;
#pragma unroll 1
    for (uint32_t q = threadIdx.x; q < padded / 4; q += blockDim.x) { /* in whole warps where they exchange sums */
        quad value = {};
        if (4 * q < there) value = row_values<WORK>(s, q);
        if (to.thirds) emit_thirds(to, apart, row, q, padded, value);
        for (int i = 0; i < 4; i++) value.of[i] *= inverse;
        if (to.high) emit_halves(to, apart, row, q, value);
        if (!to.halves || !there || 4 * q >= halves_width) continue;
        *(uint2 *)((uint16_t *)to.halves + row * halves_width + 4 * q) = make_uint2(
            half_bits(value.of[0]) | half_bits(value.of[1]) << 16, half_bits(value.of[2]) | half_bits(value.of[3]) << 16);
    }
}

template <class WORK>
__global__ void __launch_bounds__(THREADS)
    prepare_rows(struct row_form form, const float *x, const float *factor, uint32_t n, uint32_t width, struct device_vectors to) {
    let_next_kernel_begin();
    wait_for_kernels();
    size_t row = blockIdx.x;
    struct row_source s = {form, row < n ? x + row * width : NULL, factor ? factor + row * width : NULL, width, 0, 0};
    prepare_row<WORK>(s, to, ROWS_APART(n), row);
}

/* Prepares the row of a slot. */
template <class WORK>
__global__ void __launch_bounds__(THREADS)
    prepare_slots(struct row_form form, const float *x, const float *factor, const int32_t *rows, bool by_slot, uint32_t width,
                  struct device_vectors to) {
    let_next_kernel_begin();
    wait_for_kernels();
    const size_t item = blockIdx.x / EACH_ROWS, padded = (size_t)divide_up(width, WIDTH_STEP) * WIDTH_STEP * EACH_ROWS;
    const int32_t row = rows[blockIdx.x];
    if (row < 0) return;
    const size_t at = (by_slot ? (size_t)blockIdx.x : (size_t)row) * width;
    struct row_source s = {form, x + at, factor ? factor + at : NULL, width, 0, 0};
    if (to.high) to.high = (uint16_t *)to.high + item * padded;
    if (to.low) to.low = (uint16_t *)to.low + item * padded;
    if (to.thirds) to.thirds = (uint16_t *)to.thirds + item * 3 * padded;
    if (to.high) to.sums += item * (padded / 32 * GROUP_SUMS);
    if (to.sizes) to.sizes += item * EACH_ROWS;
    prepare_row<WORK>(s, to, EACH_ROWS, blockIdx.x % EACH_ROWS);
}

/* Returns the threads of a block that takes a row. */
static uint32_t threads_for(uint32_t width) {
    const uint32_t threads = divide_up(width, 128) * 32;
    return threads > THREADS ? THREADS : threads;
}

/* Calls launch(work) with the row_work of rows of such a form. */
template <bool QUADS, class LAUNCH> static cudaError_t launch_form(const struct row_form &form, LAUNCH launch) {
    if (form.kind == ROW_PLAIN) return launch(row_work<ROW_PLAIN, ACTIVATION_SWIGLU, QUADS>{});
    if (form.kind == ROW_NORM) return launch(row_work<ROW_NORM, ACTIVATION_SWIGLU, QUADS>{});
    switch (form.activation) {
    case ACTIVATION_SWIGLU: return launch(row_work<ROW_ACTIVATION, ACTIVATION_SWIGLU, QUADS>{});
    case ACTIVATION_GEGLU: return launch(row_work<ROW_ACTIVATION, ACTIVATION_GEGLU, QUADS>{});
    case ACTIVATION_SWIGLU_CLAMPED: return launch(row_work<ROW_ACTIVATION, ACTIVATION_SWIGLU_CLAMPED, QUADS>{});
    case ACTIVATION_GELU: return launch(row_work<ROW_ACTIVATION, ACTIVATION_GELU, QUADS>{});
    default: return launch(row_work<ROW_ACTIVATION, ACTIVATION_GELU_TANH, QUADS>{});
    }
}
template <class LAUNCH> static cudaError_t launch_rows(const struct row_form &form, uint32_t width, LAUNCH launch) {
    return width % 4 ? launch_form<false>(form, launch) : launch_form<true>(form, launch);
}

extern "C" cudaError_t rows_prepare(struct row_form form, const float *x, const float *factor, uint32_t n, uint32_t width,
                                    const struct device_vectors *to, cudaStream_t stream) {
    const uint32_t rows = (to->high || to->thirds) && n > EACH_ROWS ? divide_up(n, EACH_FILLED) * EACH_FILLED : n;
    if (!n) return cudaSuccess;
    return launch_rows(form, width, [&](auto work) {
        return launch_early(prepare_rows<decltype(work)>, dim3(rows), dim3(threads_for(width)), 0, stream, form, x, factor, n,
                            width, *to);
    });
}

extern "C" cudaError_t rows_prepare_slots(struct row_form form, const float *x, const float *factor, const int32_t *rows,
                                          uint32_t n_slots, bool by_slot, uint32_t width, const struct device_vectors *to,
                                          cudaStream_t stream) {
    return launch_rows(form, width, [&](auto work) {
        return launch_early(prepare_slots<decltype(work)>, dim3(n_slots), dim3(threads_for(width)), 0, stream, form, x, factor,
                            rows, by_slot, width, *to);
    });
}

/* ---- By themselves */

template <class WORK>
__global__ void __launch_bounds__(THREADS) add_norm_rows(struct norm norm, const float *x, uint32_t width, float *out) {
    let_next_kernel_begin();
    wait_for_kernels();
    const size_t row = blockIdx.x;
    struct row_source s = {{}, x + row * width, NULL, width, 0, 0};
    s.form.kind = ROW_NORM, s.form.norm = norm;
    norm_numbers<WORK>(&s);
    for (uint32_t q = threadIdx.x; q < divide_up(width, 4); q += blockDim.x) {
        const quad value = row_values<WORK>(s, q);
        for (uint32_t i = 0; i < 4 && 4 * q + i < width; i++) out[row * width + 4 * q + i] += value.of[i];
    }
}

extern "C" cudaError_t rows_add_norm(struct norm norm, const float *x, uint32_t n, uint32_t width, float *out,
                                     cudaStream_t stream) {
    if (!n) return cudaSuccess;
    const auto kernel = width % 4 ? add_norm_rows<row_work<ROW_NORM, ACTIVATION_SWIGLU, false>>
                                  : add_norm_rows<row_work<ROW_NORM, ACTIVATION_SWIGLU, true>>;
    return launch_early(kernel, dim3(n), dim3(threads_for(width)), 0, stream, norm, x, width, out);
}

/* Normalizes heads, a warp each, since they are short. */
__global__ void norm_heads(struct norm norm, float *x, uint32_t n, uint32_t width, float most) {
    uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    x += (size_t)row * width;
    const float *gain = norm.heads ? norm.gain + (size_t)(row % norm.heads) * width : norm.gain;
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
        float y = (fminf(fmaxf(x[i], -bound), bound) - mean) * inverse * gain[i];
        x[i] = norm.bias ? y + norm.bias[i] : y;
    }
}

extern "C" cudaError_t rows_norm(struct norm norm, float *x, uint32_t n, uint32_t width, float most, cudaStream_t stream) {
    if (n) norm_heads<<<divide_up(n, 4), 128, 0, stream>>>(norm, x, n, width, most);
    return cudaGetLastError();
}

/* Sums the logarithms, a warp a row. Integers are summed, so that the order does not matter. */
__global__ void sum_log_squares(const float *x, uint32_t n, uint32_t width, float units, unsigned long long *sum) {
    uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float squares = 0;
    for (uint32_t i = lane; i < width; i += 32) squares += x[(size_t)row * width + i] * x[(size_t)row * width + i];
    squares = warp_sum(squares) / (float)width;
    if (lane == 0) atomicAdd(sum, (unsigned long long)llrintf(log2f(fmaxf(squares, SQUARE_LEAST)) * units));
}

extern "C" cudaError_t rows_sum_log_squares(const float *x, uint32_t n, uint32_t width, float unit, int64_t *sum,
                                            cudaStream_t stream) {
    if (n) sum_log_squares<<<divide_up(n, 4), 128, 0, stream>>>(x, n, width, 1 / unit, (unsigned long long *)sum);
    return cudaGetLastError();
}

#define MOST_BLOCKS 4096 /* of kernels whose blocks take any numbers */

static unsigned blocks_for(size_t count) {
    size_t wanted = (count + 1023) / 1024;
    return wanted > MOST_BLOCKS ? MOST_BLOCKS : (unsigned)wanted;
}

struct clamped {
    float most;
    __device__ float operator()(float x) const { return x > most ? most : x < -most ? -most : x; }
};
struct scaled {
    float factor;
    __device__ float operator()(float x) const { return x * factor; }
};
struct capped {
    float cap;
    __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};

template <class CHANGE> __global__ void change_numbers(float *x, CHANGE change, size_t count) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        x[i] = change(x[i]);
}

template <class CHANGE> static cudaError_t change_all(float *x, CHANGE change, size_t count, cudaStream_t stream) {
    if (count) change_numbers<CHANGE><<<blocks_for(count), 256, 0, stream>>>(x, change, count);
    return cudaGetLastError();
}

extern "C" cudaError_t rows_clamp(float *x, float most, size_t count, cudaStream_t stream) {
    return change_all(x, clamped{most}, count, stream);
}

extern "C" cudaError_t rows_scale(float *x, float factor, size_t count, cudaStream_t stream) {
    return change_all(x, scaled{factor}, count, stream);
}

extern "C" cudaError_t rows_cap(float *x, float cap, size_t count, cudaStream_t stream) {
    return change_all(x, capped{cap}, count, stream);
}

__global__ void seek_numbers(const float *x, size_t count, uint32_t *not_finite, uint32_t place) {
    float zeros = 0; /* NaN once a number is not finite */
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        zeros += x[i] * 0;
    if (zeros != 0) atomicMin(not_finite, place);
}

extern "C" cudaError_t rows_seek_not_finite(const float *x, size_t count, uint32_t *not_finite, uint32_t place,
                                            cudaStream_t stream) {
    if (count) seek_numbers<<<blocks_for(count), 256, 0, stream>>>(x, count, not_finite, place);
    return cudaGetLastError();
}

__global__ void lower_to_noted(const uint32_t *noted, size_t stride, uint32_t n, uint32_t *not_finite) {
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) atomicMin(not_finite, noted[i * stride]);
}

extern "C" cudaError_t rows_lower_not_finite(const uint32_t *noted, size_t stride, uint32_t n, uint32_t *not_finite,
                                             cudaStream_t stream) {
    lower_to_noted<<<1, 32, 0, stream>>>(noted, stride, n, not_finite);
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
