/* Implements the merging of ranks' attention: a thread has 4 channels of a query head. */
#include "backend/cuda/kv/attend_ranks.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#define THREADS 256

static __global__ void merge_ranks_kernel(const struct merge_ranks m, size_t block) {
    const uint32_t quads = m.head_dim / 4, i = blockIdx.x * THREADS + threadIdx.x, row = i / quads; /* of [n][Hq] */
    let_next_kernel_begin();
    wait_for_kernels();
    if (row >= m.n * m.query_heads) return;
    const uint32_t token = row / m.query_heads, head = row % m.query_heads, group = m.query_heads / m.kv_heads;
    const float *const log_sums = m.blocks + (size_t)m.n * m.query_heads * m.head_dim +
                                  (m.by_head ? (head / group * m.n + token) * group + head % group : row);
    float largest = -INFINITY, weights = 0;
    for (uint32_t rank = 0; rank < m.ranks; rank++) {
        const float log_sum = log_sums[rank * block];
        if (log_sum < INFINITY) largest = fmaxf(largest, log_sum);
    }
    float4 sum = make_float4(0, 0, 0, 0);
    for (uint32_t rank = 0; rank < m.ranks; rank++) {
        const float log_sum = log_sums[rank * block], weight = log_sum < INFINITY ? exp2_fast(log_sum - largest) : 0;
        const float4 own = reinterpret_cast<const float4 *>(m.blocks + rank * block)[i];
        sum = make_float4(sum.x + weight * own.x, sum.y + weight * own.y, sum.z + weight * own.z, sum.w + weight * own.w);
        weights += weight;
    }
    const float one = weights > 0 ? 1 / weights : 0;
    reinterpret_cast<float4 *>(m.out)[i] = make_float4(sum.x * one, sum.y * one, sum.z * one, sum.w * one);
}

cudaError_t merge_ranks_launch(const struct merge_ranks *merge, cudaStream_t stream) {
    const uint32_t threads = merge->n * merge->query_heads * (merge->head_dim / 4);
    if (!threads) return cudaSuccess;
    /* It waits: what NCCL queues before it need not be a kernel alone. */
    return launch_kernel(true, merge_ranks_kernel, dim3((threads + THREADS - 1) / THREADS), dim3(THREADS), 0, stream, *merge,
                         rank_block_floats(merge->n, merge->query_heads, merge->head_dim));
}
