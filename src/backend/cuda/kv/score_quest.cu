/* Scores all tokens of a prompt by bounds (Quest, Tang et al. 2024, section 3.2): the sum over channels of the larger of q least and q
 * most, of the keys of 16 tokens, which all have it as their score: a half in the order of integers. So that it fits, the query is
 * scaled to a sum of magnitudes of 1. A warp reads pages by itself, four channels to a lane at a time. */
#include "backend/cuda/kv/score_quest.h"

#include "backend/cuda/kv/score_common.cuh"

#define WARPS 8
#define RESIDENT 4 /* CTAs of a multiprocessor */
#define PARTS (PAGE_TOKENS / QUEST_PAGE_TOKENS)

ATTEND_INLINE float4 four_halves(const void *from) {
    const uint2 x = __ldcs(static_cast<const uint2 *>(from));
    return make_float4(low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y));
}

ATTEND_INLINE uint32_t ordered_half(float x) {
    const uint32_t half = __half_as_ushort(__float2half_rn(x));
    return half & 0x8000 ? ~half & 0xffff : half | 0x8000;
}

/* Returns four channels of the query, scaled; zeros from hd on. */
ATTEND_INLINE float4 scaled_query(const float *q, uint32_t hd, uint32_t channel, double sum) {
    if (channel >= hd || !(sum > 0 && sum < INFINITY)) return make_float4(0, 0, 0, 0);
    const float4 x = *reinterpret_cast<const float4 *>(q + channel);
    return make_float4((float)(x.x / sum), (float)(x.y / sum), (float)(x.z / sum), (float)(x.w / sum));
}

ATTEND_INLINE float larger(float q, float least, float most) { return fmaxf(q * least, q * most); }

static __global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    score_quest_kernel(const __grid_constant__ struct select_tokens select) {
    const struct attend_decode &a = select.attend;
    const uint32_t hd = a.heads.head_dim, warp = threadIdx.x / 32, lane = lane_id();
    struct share s;
    wait_for_kernels();
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    if (!s.sequence->own) return;
    const size_t share = scored_share(a, s);
    const float *const own = a.q + share * hd;
    double sum = 0;
    for (uint32_t c = lane; c < hd; c += 32) sum += fabs((double)own[c]);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    const float4 q[2] = {scaled_query(own, hd, 4 * lane, sum), scaled_query(own, hd, 128 + 4 * lane, sum)};
    const struct place_view *const place = scored_place(a, s);
    const struct listed_pages listed = listed_from(s, 0, 1);
    uint16_t *const scores = select.to.scores + share * select.to.pages * PAGE_TOKENS;
    for (uint32_t page = blockIdx.z * WARPS + warp; page < s.n_pages; page += gridDim.z * WARPS) {
        const struct page_set_view set = listed.set(page);
        const uint64_t live = listed.live(page);
        const device_half *const bounds = reinterpret_cast<const device_half *>(index_address(&set, place, select.index_bytes));
        float of_part[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            of_part[p] = 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t channel = 128 * i + 4 * lane;
                if (channel >= hd) continue;
                const float4 least = four_halves(bounds + 2 * p * hd + channel),
                             most = four_halves(bounds + (2 * p + 1) * hd + channel);
                of_part[p] += larger(q[i].x, least.x, most.x) + larger(q[i].y, least.y, most.y) + larger(q[i].z, least.z, most.z) +
                              larger(q[i].w, least.w, most.w);
            }
            for (int o = 16; o; o /= 2) of_part[p] += __shfl_xor_sync(ALL_LANES, of_part[p], o);
        }
        float bound = of_part[0]; /* of the lane's two tokens */
#pragma unroll
        for (int p = 1; p < PARTS; p++) bound = lane / (32 / PARTS) == p ? of_part[p] : bound;
        const uint32_t score = ordered_half(bound) + 1, first = live >> 2 * lane & 1 ? score : 1,
                       second = live >> (2 * lane + 1) & 1 ? score : 1;
        reinterpret_cast<uint32_t *>(scores + (size_t)page * PAGE_TOKENS)[lane] = first | second << 16;
    }
}

cudaError_t score_quest(const struct select_tokens *select, cudaStream_t stream) {
    return launch_early(score_quest_kernel, score_grid(select, WARPS, RESIDENT), dim3(WARPS * 32), 0, stream, *select);
}
