/* Computes on the rows of a window and their gradients: a thread takes a number, a warp a row of a norm, a block a row of logits. */
#include "backend/cuda/learning_kernels.h"

#include "backend/cuda/activation.cuh"
#include "backend/cuda/block_sums.cuh"

#define THREADS 256
#define MOST_BLOCKS 8192

static unsigned blocks_for(size_t count) {
    const size_t wanted = (count + THREADS - 1) / THREADS;
    return wanted > MOST_BLOCKS ? MOST_BLOCKS : (unsigned)wanted;
}

/* Calls change(i) for all i < count. */
template <class CHANGE> __global__ void change_each(CHANGE change, size_t count) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) change(i);
}

template <class CHANGE> static cudaError_t change_all(CHANGE change, size_t count, cudaStream_t stream) {
    if (count) change_each<CHANGE><<<blocks_for(count), THREADS, 0, stream>>>(change, count);
    return cudaGetLastError();
}

/* ---- Numbers */

struct adding {
    float *x;
    const float *y;
    __device__ void operator()(size_t i) const { x[i] += y[i]; }
};
struct activating {
    enum activation activation;
    float *x;
    const float *up;
    __device__ void operator()(size_t i) const { x[i] = activation_of(activation, x[i], up ? up[i] : 0); }
};
struct clamping_back {
    const float *x;
    float most, *d;
    __device__ void operator()(size_t i) const {
        if (!(fabsf(x[i]) < most)) d[i] = 0;
    }
};
/* The slope of cap tanh(x / cap) is 1 - tanh(x / cap)^2, from the outputs. */
struct capping_back {
    const float *capped;
    float cap, *d;
    __device__ void operator()(size_t i) const { d[i] *= 1 - capped[i] / cap * (capped[i] / cap); }
};

extern "C" cudaError_t learning_add(float *x, const float *y, size_t count, cudaStream_t stream) {
    return change_all(adding{x, y}, count, stream);
}

extern "C" cudaError_t learning_activate(enum activation activation, float *x, const float *up, size_t count, cudaStream_t stream) {
    return change_all(activating{activation, x, up}, count, stream);
}

extern "C" cudaError_t learning_clamp_backward(const float *x, float most, float *d, size_t count, cudaStream_t stream) {
    return change_all(clamping_back{x, most, d}, count, stream);
}

extern "C" cudaError_t learning_cap_backward(const float *capped, float cap, float *d, size_t count, cudaStream_t stream) {
    return change_all(capping_back{capped, cap, d}, count, stream);
}

/* ---- Activation functions */

/* Returns the slope of GELU, s(x) + x s'(x), where GELU(x) = x s(x): s is the normal distribution, or near it a sigmoid. */
__device__ static inline float gelu_slope(bool exact, float x) {
    if (exact) return 0.5f * erfcf(-x * 0.70710678f) + x * 0.39894228f * expf(-0.5f * x * x);
    const float s = 1 / (1 + expf(-2 * 0.79788456f * x * (1 + 0.044715f * x * x)));
    return s + x * 2 * s * (1 - s) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

struct activating_back {
    enum activation activation;
    float *x, *up;
    const float *d;
    __device__ void operator()(size_t i) const {
        const float g = x[i], own = d[i];
        if (activation == ACTIVATION_SWIGLU) {
            const float s = 1 / (1 + expf(-g));
            x[i] = own * up[i] * s * (1 + g * (1 - s));
            up[i] = own * g * s;
        } else if (activation == ACTIVATION_SWIGLU_CLAMPED) {
            const float gate = fminf(g, SWIGLU_CLAMP), u = fmaxf(fminf(up[i], SWIGLU_CLAMP), -SWIGLU_CLAMP) + 1,
                        s = 1 / (1 + expf(-SWIGLU_GAIN * gate));
            x[i] = g < SWIGLU_CLAMP ? own * u * s * (1 + SWIGLU_GAIN * gate * (1 - s)) : 0;
            up[i] = fabsf(up[i]) < SWIGLU_CLAMP ? own * gate * s : 0;
        } else if (activation == ACTIVATION_GEGLU) {
            x[i] = own * up[i] * gelu_slope(false, g);
            up[i] = own * gelu_tanh(g);
        } else {
            x[i] = own * gelu_slope(activation == ACTIVATION_GELU, g);
        }
    }
};

extern "C" cudaError_t learning_activation_backward(enum activation activation, float *x, float *up, const float *d, size_t count,
                                                    cudaStream_t stream) {
    return change_all(activating_back{activation, x, up, d}, count, stream);
}

/* ---- Rotation */

struct turning {
    struct rope rope;
    const float *cosine, *sine;
    float sign, *rows;
    uint32_t heads;
    __device__ void operator()(size_t i) const { /* the i-th pair of all rows */
        const uint32_t pairs = rope.n_rot / 2, pair = (uint32_t)(i % pairs);
        const size_t row = i / pairs, at = row / heads * pairs + pair;
        const bool adjacent = rope.pairing == ROPE_ADJACENT;
        float *to = rows + row * rope.head_dim + (adjacent ? 2 * pair : pair), *other = to + (adjacent ? 1 : pairs);
        const float a = *to * rope.magnitude, b = *other * rope.magnitude, c = cosine[at], s = sign * sine[at];
        *to = a * c - b * s;
        *other = a * s + b * c;
    }
};

extern "C" cudaError_t learning_turn(struct rope rope, const float *cosine, const float *sine, bool inverse, float *rows,
                                     uint32_t n, uint32_t heads, cudaStream_t stream) {
    return change_all(turning{rope, cosine, sine, inverse ? -1.0f : 1.0f, rows, heads}, (size_t)n * heads * (rope.n_rot / 2),
                      stream);
}

/* ---- Norms: train/backward_ops.c has the equations */

__global__ void norm_backward(struct norm norm, const float *x, float *d, uint32_t n, uint32_t width) {
    const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const float *gain = norm.heads ? norm.gain + (size_t)(row % norm.heads) * width : norm.gain;
    const float size = (float)width;
    float mean = 0, squares = 0, along = 0, mean_d = 0;
    x += (size_t)row * width;
    d += (size_t)row * width;
    if (norm.kind == NORM_LAYER) {
        for (uint32_t i = lane; i < width; i += 32) {
            mean += x[i];
            mean_d += gain[i] * d[i];
        }
        mean = warp_sum(mean) / size;
        mean_d = warp_sum(mean_d) / size;
    }
    for (uint32_t i = lane; i < width; i += 32) {
        const float c = x[i] - mean;
        squares += c * c;
        along += c * gain[i] * d[i];
    }
    const float square = 1 / (warp_sum(squares) / size + norm.epsilon), r = sqrtf(square), part = square * warp_sum(along) / size;
    for (uint32_t i = lane; i < width; i += 32) d[i] = r * (gain[i] * d[i] - mean_d - (x[i] - mean) * part);
}

extern "C" cudaError_t learning_norm_backward(struct norm norm, const float *x, float *d, uint32_t n, uint32_t width,
                                              cudaStream_t stream) {
    if (n) norm_backward<<<(n + 3) / 4, 128, 0, stream>>>(norm, x, d, n, width);
    return cudaGetLastError();
}

/* ---- The loss */

/* Returns the first number at which the running sum of weights[n] passes the part `u` of their sum: a block's work. A thread sums
 * some neighbours, one thread finds whose sum it is, and goes through them. */
__device__ static inline uint32_t draw(const float *weights, uint32_t n, double u) {
    __shared__ double sums[THREADS];
    __shared__ uint32_t found;
    const uint32_t each = (n + THREADS - 1) / THREADS, first = threadIdx.x * each;
    double sum = 0;
    for (uint32_t i = first; i < first + each && i < n; i++) sum += (double)weights[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0;
        uint32_t part = 0;
        for (uint32_t i = 0; i < THREADS; i++) all += sums[i];
        double left = u * all;
        while (part + 1 < THREADS && left >= sums[part]) left -= sums[part++];
        while (part > 0 && !(sums[part] > 0)) part--; /* rounding has led past the last weight */
        found = part * each;
        for (uint32_t i = part * each; i < (part + 1) * each && i < n; i++) {
            if (weights[i] > 0) found = i;
            left -= (double)weights[i];
            if (left < 0) break;
        }
    }
    __syncthreads();
    return found;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy(float *logits, const int32_t *targets, const double *draws, uint32_t vocabulary, float scale, double *loss) {
    __shared__ float logit;
    float *row = logits + (size_t)blockIdx.x * vocabulary, most = -INFINITY, sum = 0;
    const int32_t given = targets[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) most = fmaxf(most, row[i]);
    most = block_most(most);
    if (threadIdx.x == 0 && given >= 0) logit = row[given];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) sum += row[i] = expf(row[i] - most);
    sum = block_sum(sum);
    const uint32_t target = given >= 0 ? (uint32_t)given : draw(row, vocabulary, draws[blockIdx.x]);
    if (threadIdx.x == 0 && given < 0) logit = most + logf(row[target]);
    __syncthreads();
    if (threadIdx.x == 0) loss[blockIdx.x] = (double)most - (double)logit + log((double)sum);
    for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) row[i] = row[i] * (scale / sum) - (i == target ? scale : 0);
}

extern "C" cudaError_t learning_cross_entropy(float *logits, const int32_t *targets, const double *draws, uint32_t n,
                                              uint32_t vocabulary, float scale, double *loss, cudaStream_t stream) {
    if (n) cross_entropy<<<n, THREADS, 0, stream>>>(logits, targets, draws, vocabulary, scale, loss);
    return cudaGetLastError();
}
