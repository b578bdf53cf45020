/* Routes rows to experts, and adds up what these make. */
#include "backend/cuda/expert_kernels.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#include <float.h>
#include <math.h>

#define WARP 32
#define SORT_THREADS MODEL_EXPERTS_MAX

/* Chooses the experts of a row: a warp's work. Numbers that are not finite count as the least, so that experts are chosen all the
 * same; the step's end reports them. */
__global__ void choose_experts(struct expert_routes r, struct routing routing) {
    __shared__ float left[MODEL_EXPERTS_MAX]; /* -INFINITY: chosen */
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    const float *const logits = r.logits + (size_t)row * r.experts;
    float largest = 0, sum = 0;
    let_next_kernel_begin();
    wait_for_kernels();
    for (uint32_t e = lane; e < r.experts; e += WARP) left[e] = fabsf(logits[e]) <= FLT_MAX ? logits[e] : -FLT_MAX;
    __syncwarp();
    for (uint32_t i = 0; i < r.used; i++) {
        float best = -INFINITY;
        uint32_t expert = UINT32_MAX;
        for (uint32_t e = lane; e < r.experts; e += WARP)
            if (left[e] > best) best = left[e], expert = e;
        for (int apart = WARP / 2; apart; apart /= 2) { /* of equal ones the one with the lower number */
            const float other = __shfl_xor_sync(~0u, best, apart);
            const uint32_t number = __shfl_xor_sync(~0u, expert, apart);
            if (other > best || (other == best && number < expert)) best = other, expert = number;
        }
        if (i == 0) largest = best;
        const float share = expf(best - largest);
        sum += share;
        __syncwarp();
        if (lane == 0) {
            left[expert] = -INFINITY;
            r.chosen[(size_t)row * r.used + i] = expert;
            r.share[(size_t)row * r.used + i] = share;
        }
        __syncwarp();
    }
    float others = 0;
    for (uint32_t e = lane; e < r.experts && routing.of_all; e += WARP) others += expf(left[e] - largest); /* of chosen ones 0 */
    for (int apart = WARP / 2; apart; apart /= 2) others += __shfl_xor_sync(~0u, others, apart);
    sum += others;
    for (uint32_t i = lane; i < r.used; i += WARP) r.share[(size_t)row * r.used + i] *= routing.scale / sum;
}

/* Puts pairs in slots, by expert and in their order: one block, a thread for each expert. */
__global__ void __launch_bounds__(SORT_THREADS) sort_pairs(struct expert_routes r, uint32_t pairs, uint32_t n_items) {
    __shared__ uint16_t chosen[EXPERT_PAIRS];
    __shared__ uint32_t first[SORT_THREADS]; /* item of each expert */
    const uint32_t expert = threadIdx.x;
    uint32_t count = 0;
    let_next_kernel_begin();
    wait_for_kernels();
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) chosen[i] = (uint16_t)r.chosen[i];
    for (uint32_t i = threadIdx.x; i < n_items; i += blockDim.x) r.items[i] = (struct expert_item){0, 0};
    for (uint32_t i = threadIdx.x; i < n_items * EACH_ROWS; i += blockDim.x) r.row[i] = -1;
    __syncthreads();
    if (expert < r.experts)
        for (uint32_t i = 0; i < pairs; i++) count += chosen[i] == expert;
    first[expert] = (count + EACH_ROWS - 1) / EACH_ROWS;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t items = 0;
        for (uint32_t e = 0; e < r.experts; e++) {
            const uint32_t own = first[e];
            first[e] = items;
            items += own;
        }
    }
    __syncthreads();
    if (!count) return;
    for (uint32_t at = 0; at < count; at += EACH_ROWS)
        r.items[first[expert] + at / EACH_ROWS] = (struct expert_item){expert, count - at < EACH_ROWS ? count - at : EACH_ROWS};
    for (uint32_t i = 0, slot = first[expert] * EACH_ROWS; i < pairs; i++) {
        if (chosen[i] != expert) continue;
        r.slot[i] = slot;
        r.row[slot++] = (int32_t)(i / r.used);
    }
}

extern "C" cudaError_t route_rows(const struct expert_routes *routes, const struct routing *routing, uint32_t rows,
                                  cudaStream_t stream) {
    const uint32_t pairs = rows * routes->used;
    if (pairs > EXPERT_PAIRS || routes->experts > SORT_THREADS) return cudaErrorInvalidValue;
    cudaError_t result = launch_early(choose_experts, dim3(rows), dim3(WARP), 0, stream, *routes, *routing);
    if (result != cudaSuccess) return result;
    return launch_early(sort_pairs, dim3(1), dim3((routes->experts + WARP - 1) / WARP * WARP), 0, stream, *routes, pairs,
                        expert_items_most(pairs, routes->experts));
}

/* ---- Sums */

__global__ void add_experts(struct expert_routes r, const float *made, uint32_t width, float *out) {
    const size_t row = blockIdx.x;
    let_next_kernel_begin();
    wait_for_kernels();
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0;
        for (uint32_t k = 0; k < r.used; k++) sum += r.share[row * r.used + k] * made[(size_t)r.slot[row * r.used + k] * width + i];
        out[row * width + i] += sum;
    }
}

extern "C" cudaError_t experts_add(const struct expert_routes *routes, const float *made, uint32_t rows, uint32_t width, float *out,
                                   cudaStream_t stream) {
    return rows ? launch_early(add_experts, dim3(rows), dim3(256), 0, stream, *routes, made, width, out) : cudaSuccess;
}

__global__ void add_shared_expert(const float *made, const float *gate, uint32_t width, float *out) {
    const size_t row = blockIdx.x;
    let_next_kernel_begin();
    wait_for_kernels();
    const float share = gate ? 1 / (1 + expf(-gate[row])) : 1;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) out[row * width + i] += share * made[row * width + i];
}

extern "C" cudaError_t experts_add_shared(const float *made, const float *gate, uint32_t rows, uint32_t width, float *out,
                                          cudaStream_t stream) {
    return rows ? launch_early(add_shared_expert, dim3(rows), dim3(256), 0, stream, made, gate, width, out) : cudaSuccess;
}
