/* Chooses the kernel and the number of parts, and merges parts. */
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/attend_prefill_tile.cuh"
#include "backend/cuda/kv/attend_sizes.h"

#define WAVES_MOST 4     /* tiles that are read in parts fill the device so often at most, all parts together */
#define PART_KEYS 512    /* a part has at least so many rows of keys */
#define PART_COST 256    /* what a part costs besides its rows, in rows */
#define MERGE_THREADS 64 /* each merges 4 channels of a row */

static uint32_t multiprocessors(void) {
    int device = 0, n = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 1;
    return (uint32_t)n;
}

/* Merges the parts of a row; state p is weighted by exp2 of its largest logit less the largest of all. */
static __global__ void merge_kernel(const struct prefill_launch a, uint32_t hd) {
    uint32_t at = blockIdx.x * (MERGE_THREADS * 4 / hd) + threadIdx.x / (hd / 4), channel = threadIdx.x % (hd / 4) * 4;
    if (threadIdx.x / (hd / 4) >= MERGE_THREADS * 4 / hd || at >= a.rows * a.kv_heads) return;
    uint32_t head = at / a.rows, row = at % a.rows;
    const float2 *scales = a.part_scales + (size_t)at * a.splits;
    const float *sums = a.part_sums + (size_t)at * a.splits * hd + channel;
    float largest = -INFINITY, sum = 0, x[4] = {};
    for (uint32_t p = 0; p < a.splits; p++) largest = fmaxf(largest, scales[p].x);
    for (uint32_t p = 0; p < a.splits; p++) {
        float factor = scales[p].x == -INFINITY ? 0 : exp2_fast(scales[p].x - largest);
        float4 y = *(const float4 *)(sums + (size_t)p * hd);
        sum += scales[p].y * factor;
        x[0] += y.x * factor;
        x[1] += y.y * factor;
        x[2] += y.z * factor;
        x[3] += y.w * factor;
    }
    float factor = row_factor(a, head, row, largest, sum);
    if (channel == 0) leave_log_sum(a, head, row, largest, factor);
    *(float4 *)(a.out + query_offset(a, head, row, hd) + channel) =
        make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

/* Returns the number of parts with which the device is done soonest: whole waves of blocks, each as long as a part. */
static uint32_t splits_for(uint32_t blocks, uint32_t keys) {
    uint32_t slots = multiprocessors(), best = 1;
    uint64_t least = (uint64_t)ceil_div(blocks, slots) * keys;
    for (uint32_t s = 2; blocks * s <= WAVES_MOST * slots && keys / s >= PART_KEYS; s++) {
        uint64_t cost = (uint64_t)ceil_div(blocks * s, slots) * (keys / s + PART_COST);
        if (cost < least) least = cost, best = s;
    }
    return best;
}

size_t attend_prefill_part_floats(const struct head_view *heads) {
    uint32_t mma = prefill_mma_rows(heads->head_dim), wgmma = prefill_wgmma_rows(heads->head_dim);
    return (size_t)multiprocessors() * WAVES_MOST * (mma > wgmma ? mma : wgmma) * (heads->head_dim + 2);
}

bool attend_prefill_supports(const struct head_view *heads) {
    return attend_head_dim(heads->head_dim) && heads->kv_heads && heads->query_heads && heads->query_heads % heads->kv_heads == 0;
}

static cudaError_t attend_by(const struct attend_prefill *attend, bool wgmma, cudaStream_t stream) {
    const struct head_view *heads = &attend->heads;
    uint32_t hd = heads->head_dim, group = heads->query_heads / heads->kv_heads;
    if (!attend_prefill_supports(heads) || attend->begin > attend->first_query ||
        attend->first_query + attend->n > UINT32_MAX / 2 || attend->n * group > UINT32_MAX / 2)
        return cudaErrorInvalidValue;
    if (!attend->n) return cudaSuccess;
    uint32_t rows = (uint32_t)attend->n * group, tiles = ceil_div(rows, wgmma ? prefill_wgmma_rows(hd) : prefill_mma_rows(hd));
    uint32_t end = attend->ends ? (uint32_t)attend->end : UINT32_MAX, reach = (uint32_t)(attend->first_query + attend->n / 2),
             keys = (reach < end ? reach : end) - (uint32_t)attend->begin; /* of a query, on average */
    if (heads->window && keys > heads->window) keys = heads->window;
    uint32_t splits = attend->parts ? splits_for(tiles * heads->kv_heads, keys) : 1;
    size_t states = (size_t)rows * heads->kv_heads * splits;
    struct prefill_launch launch = {.q = attend->q,
                                    .out = attend->out,
                                    .k = attend->k,
                                    .v = attend->v,
                                    .slopes = heads->slopes,
                                    .sinks = heads->sinks ? heads->sinks + (size_t)attend->layer * heads->query_heads : NULL,
                                    .part_sums = splits > 1 ? attend->parts : NULL,
                                    .part_scales = splits > 1 ? (float2 *)(attend->parts + states * hd) : NULL,
                                    .log_sums = attend->log_sums,
                                    .log_stride = attend->log_stride,
                                    .rows = rows,
                                    .group = group,
                                    .kv_heads = heads->kv_heads,
                                    .first_query = (uint32_t)attend->first_query,
                                    .begin = (uint32_t)attend->begin,
                                    .end = end,
                                    .tiles = tiles,
                                    .splits = splits,
                                    .window = heads->window ? heads->window : NO_WINDOW,
                                    .scale = heads->scale * LOG2_E,
                                    .cap = heads->cap * LOG2_E};
    cudaError_t result = wgmma ? prefill_wgmma(launch, hd, stream) : prefill_mma(launch, attend->places, hd, stream);
    if (result != cudaSuccess || splits == 1) return result;
    merge_kernel<<<ceil_div(rows * heads->kv_heads, MERGE_THREADS * 4 / hd), MERGE_THREADS, 0, stream>>>(launch, hd);
    return cudaGetLastError();
}

cudaError_t attend_prefill_launch(const struct attend_prefill *attend, cudaStream_t stream) {
    const bool placed = attend->heads.slopes && attend->places.spans;
    return attend_by(attend, !placed && prefill_wgmma_serves(), stream);
}

cudaError_t attend_prefill_mma(const struct attend_prefill *attend, cudaStream_t stream) {
    return attend_by(attend, false, stream);
}
