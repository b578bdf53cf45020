/* Chooses which exact rows stay, by selection, and moves rows in place: a thread moves its channels of all rows, some at a time, in
 * order. A row comes from behind its new place, so that none is lost. */
#include "backend/cuda/kv/victims.h"

#include "backend/cuda/kv/rotary.cuh"
#include "backend/cuda/select_largest.cuh"

#define CHOOSERS 256
#define AT_ONCE 16 /* rows that a thread loads before it stores them */
#define WARP 32
#define WARPS 4

/* ---- The choice */

/* These are the logits of a layer's KV head. Candidates are the exact rows, then the tokens that leave. */
struct candidates {
    float *logits;      /* [budget] */
    const float *fresh; /* of the first head of the group */
};

static __device__ struct candidates candidates_of(const struct victims &v, uint32_t layer, uint32_t head) {
    const size_t at = (size_t)layer * v.heads.kv_heads + head, group = v.heads.query_heads / v.heads.kv_heads;
    return {v.logits + at * v.budget, v.fresh + at * group * v.fresh_capacity};
}

/* Returns a new token's logit: the mean over the group. */
static __device__ float fresh_logit(const struct victims &v, const struct candidates &c, uint32_t token) {
    const uint32_t group = v.heads.query_heads / v.heads.kv_heads;
    float sum = 0;
    for (uint32_t g = 0; g < group; g++) sum += c.fresh[(size_t)g * v.fresh_capacity + (token - v.fresh_origin) % v.fresh_capacity];
    return sum / (float)group;
}

static __device__ float candidate_logit(const struct victims &v, const struct candidates &c, uint32_t i) {
    if (i < v.exact) return c.logits[i];
    const uint32_t token = v.leave.from + i - v.exact;
    return token >= v.first_new ? fresh_logit(v, c, token) : c.logits[v.exact + token % (v.budget - v.exact)];
}

/* Returns bits that fall as logits rise. */
static __device__ uint32_t falling_bits(float logit) {
    const uint32_t bits = __float_as_uint(logit);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

/* Writes which candidates stay, in order, and behind them the first row that is another. */
static __device__ void choose(const struct victims &v, const struct candidates &c, uint32_t layer, uint32_t *moves) {
    const uint32_t n = v.exact + v.leave.count;
    if (v.first_layer + layer < v.shallow) {
        const uint32_t sinks = min(v.sinks, v.exact);
        for (uint32_t i = threadIdx.x; i < v.exact; i += CHOOSERS) moves[i] = i < sinks ? i : i + v.leave.count;
        return;
    }
    if (threadIdx.x == 0) moves[0] = 0;
    if (v.exact == 1) return;
    /* Selection takes the first of equal ones, so candidates stand in reverse. */
    select_largest<CHOOSERS>([&](uint32_t i) { return falling_bits(candidate_logit(v, c, n - 1 - i)); }, n - 1, v.exact - 1,
                             [&](uint32_t place, uint32_t i) { moves[v.exact - 1 - place] = n - 1 - i; });
}

static __global__ void __launch_bounds__(CHOOSERS) choose_kernel(const __grid_constant__ struct victims v) {
    extern __shared__ __align__(16) float kept[]; /* [exact] */
    __shared__ uint32_t changed;
    const uint32_t head = blockIdx.x, layer = blockIdx.y;
    const struct candidates c = candidates_of(v, layer, head);
    uint32_t *moves = v.moves + ((size_t)layer * v.heads.kv_heads + head) * (v.exact + 1);
    if (threadIdx.x == 0) changed = v.exact;
    for (uint32_t i = v.filled + threadIdx.x; i < v.fills; i += CHOOSERS) c.logits[i] = fresh_logit(v, c, i);
    __syncthreads();
    if (v.leave.count) {
        choose(v, c, layer, moves);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < v.exact; i += CHOOSERS) {
            kept[i] = candidate_logit(v, c, moves[i]);
            if (moves[i] != i) atomicMin(&changed, i);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < v.exact; i += CHOOSERS) c.logits[i] = kept[i];
    }
    if (threadIdx.x == 0) moves[v.exact] = changed;
    for (uint32_t t = v.note + threadIdx.x; t < v.note_end; t += CHOOSERS)
        c.logits[v.exact + t % (v.budget - v.exact)] = fresh_logit(v, c, t);
}

/* ---- Moving */

/* Returns where the row of a token that leaves begins. */
static __device__ const device_half *leaving_row(const struct victims &v, uint32_t layer, uint32_t head, int side, uint32_t token) {
    const struct leaving_tokens &l = v.leave;
    return l.source[side] + layer * l.layer_stride + head * l.head_stride +
           (size_t)((token - l.origin) % l.capacity) * l.token_stride;
}

/* Moves a channel of all values. */
static __device__ void move_values(const struct victims &v, uint32_t layer, uint32_t head, const uint32_t *moves,
                                   uint32_t channel) {
    const uint32_t hd = v.heads.head_dim;
    device_half *rows = v.rows + (((size_t)layer * v.heads.kv_heads + head) * 2 + 1) * v.exact * hd + channel;
    for (uint32_t first = moves[v.exact]; first < v.exact; first += AT_ONCE) {
        device_half x[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (first + i >= v.exact) continue;
            const uint32_t from = moves[first + i];
            x[i] =
                from < v.exact ? rows[(size_t)from * hd] : leaving_row(v, layer, head, 1, v.leave.from + from - v.exact)[channel];
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (first + i < v.exact) rows[(size_t)(first + i) * hd] = x[i];
    }
}

/* Moves two channels of all keys, a pair where `pair` is below n_rot / 2, and rotates them by their new positions. */
static __device__ void move_keys(const struct victims &v, uint32_t layer, uint32_t head, const uint32_t *moves, uint32_t pair) {
    const uint32_t hd = v.heads.head_dim;
    const bool rotates = pair < v.rotary.n_rot / 2;
    const uint2 at = rotates ? pair_at(v.rotary, pair) : make_uint2(2 * pair, 2 * pair + 1);
    const size_t of_layer = (size_t)layer * v.heads.kv_heads + head;
    device_half *rows = v.rows + of_layer * 2 * v.exact * hd, *plain = v.unrotated + of_layer * v.exact * hd;
    for (uint32_t first = moves[v.exact]; first < v.exact; first += AT_ONCE) {
        device_half x[AT_ONCE], y[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (first + i >= v.exact) continue;
            const uint32_t from = moves[first + i];
            if (from < v.exact) {
                x[i] = plain[(size_t)from * hd + at.x], y[i] = plain[(size_t)from * hd + at.y];
                continue;
            }
            const uint32_t token = v.leave.from + from - v.exact;
            const device_half *row = leaving_row(v, layer, head, 0, token);
            float2 key = make_float2(__half2float(row[at.x]), __half2float(row[at.y]));
            if (rotates) {
                const float2 angle = angle_at(v.rotary, token, pair);
                key = rotate(key, make_float2(angle.x, -angle.y));
                key.x /= v.rotary.magnitude, key.y /= v.rotary.magnitude;
            }
            x[i] = __float2half_rn(key.x), y[i] = __float2half_rn(key.y);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (first + i >= v.exact) continue;
            const size_t to = (size_t)(first + i) * hd;
            float2 key = make_float2(__half2float(x[i]), __half2float(y[i]));
            if (rotates) {
                key = rotate(key, angle_at(v.rotary, first + i, pair));
                key.x *= v.rotary.magnitude, key.y *= v.rotary.magnitude;
            }
            plain[to + at.x] = x[i], plain[to + at.y] = y[i];
            rows[to + at.x] = __float2half_rn(key.x), rows[to + at.y] = __float2half_rn(key.y);
        }
    }
}

/* Threads below hd move values, hd / 2 others keys. */
static __global__ void move_kernel(const __grid_constant__ struct victims v) {
    const uint32_t head = blockIdx.x, layer = blockIdx.y, hd = v.heads.head_dim;
    const uint32_t *moves = v.moves + ((size_t)layer * v.heads.kv_heads + head) * (v.exact + 1);
    if (threadIdx.x < hd)
        move_values(v, layer, head, moves, threadIdx.x);
    else
        move_keys(v, layer, head, moves, threadIdx.x - hd);
}

cudaError_t replace_victims(const struct victims *victims, cudaStream_t stream) {
    const dim3 grid(victims->heads.kv_heads, victims->n_layers);
    const uint32_t hd = victims->heads.head_dim;
    choose_kernel<<<grid, CHOOSERS, victims->exact * sizeof(float), stream>>>(*victims);
    if (victims->leave.count) move_kernel<<<grid, hd + hd / 2, 0, stream>>>(*victims);
    return cudaGetLastError();
}

/* ---- The logits of a prompt */

static __global__ void first_logits_kernel(const __grid_constant__ struct first_logits l) {
    const uint32_t token = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.y, hd = l.heads.head_dim;
    if (head >= l.heads.query_heads) return;
    const uint32_t group = l.heads.query_heads / l.heads.kv_heads;
    const float *q = l.q + ((size_t)token * l.heads.query_heads + head) * hd;
    const device_half *key = l.unrotated + (size_t)(head / group) * l.exact * hd;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < l.rotary.n_rot / 2; i += WARP) {
        const uint2 at = pair_at(l.rotary, i);
        const float2 x = rotate(make_float2(__half2float(key[at.x]), __half2float(key[at.y])), angle_at(l.rotary, l.moved, i));
        sum += (q[at.x] * x.x + q[at.y] * x.y) * l.rotary.magnitude;
    }
    for (uint32_t c = l.rotary.n_rot + threadIdx.x; c < hd; c += WARP) sum += q[c] * __half2float(key[c]);
    for (int lanes = WARP / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x == 0) l.logits[(size_t)head * l.capacity + l.at + token] = sum * l.heads.scale;
}

cudaError_t find_first_logits(const struct first_logits *logits, cudaStream_t stream) {
    if (!logits->n) return cudaSuccess;
    first_logits_kernel<<<dim3(logits->n, (logits->heads.query_heads + WARPS - 1) / WARPS), dim3(WARP, WARPS), 0, stream>>>(
        *logits);
    return cudaGetLastError();
}
