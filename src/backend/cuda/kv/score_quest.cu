/* Scores all tokens of a prompt by bounds (Quest, Tang et al. 2024, section 3.2): the sum over channels of the larger of q least and q
 * most, of the keys of 16 tokens, which all have it as their score: a half in the order of integers. So that it fits, the query is
 * scaled to a sum of magnitudes of 1. A warp reads pages by itself, four channels to a lane at a time. It asks for all bounds of a page before it
 * uses the first, and knows the addresses of 32 pages beforehand: memory keeps busy with what the warps of a multiprocessor have asked for. */
#include "backend/cuda/kv/score_quest.h"

#include "backend/cuda/kv/score_common.cuh"

#define WARPS 8
#define RESIDENT 4 /* CTAs of a multiprocessor */
#define PARTS (PAGE_TOKENS / QUEST_PAGE_TOKENS)

ATTEND_INLINE float4 four_halves(uint2 x) { return make_float4(low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y)); }

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

/* Sums the parts over all lanes; returns that of the lane's two tokens. Lanes go on with half the parts after each of the first steps, in which
 * they are added in pairs as if all went on. */
ATTEND_INLINE float sum_of_own_part(const float (&of_part)[PARTS]) {
    static_assert(PARTS == 4, "a part for each eight lanes");
    const bool upper = lane_id() & 16, odd = lane_id() & 8;
    float half[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const float other = __shfl_xor_sync(ALL_LANES, upper ? of_part[p] : of_part[p + 2], 16);
        half[p] = (upper ? of_part[p + 2] : of_part[p]) + other;
    }
    const float other = __shfl_xor_sync(ALL_LANES, odd ? half[0] : half[1], 8);
    float sum = (odd ? half[1] : half[0]) + other;
    for (int o = 4; o; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    return sum;
}

/* HALVES: of 128 channels. */
template <int HALVES>
static __global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    score_quest_kernel(const __grid_constant__ struct select_tokens select) {
    const struct attend_decode &a = select.attend;
    const uint32_t hd = a.heads.head_dim, warp = threadIdx.x / 32, lane = lane_id();
    struct share s;
    wait_for_kernels();
    let_next_kernel_begin();
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    if (!s.sequence->own) return;
    const size_t share = scored_share(a, s);
    const float *const own = a.q + share * hd;
    double sum = 0;
    for (uint32_t c = lane; c < hd; c += 32) sum += fabs((double)own[c]);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    float4 q[HALVES];
#pragma unroll
    for (int i = 0; i < HALVES; i++) q[i] = scaled_query(own, hd, 128 * i + 4 * lane, sum);
    const struct place_view *const place = scored_place(a, s);
    const uint32_t step = gridDim.z * WARPS;
    const struct listed_pages listed = listed_from(s, blockIdx.z * WARPS + warp, step);
    const uint32_t pages = s.n_pages > listed.first ? (s.n_pages - listed.first - 1) / step + 1 : 0;
    uint16_t *const scores = select.to.scores + share * select.to.pages * PAGE_TOKENS;
    unsigned long long bounds_of_lane = 0, live_of_lane = 0;
    for (uint32_t page = 0; page < pages; page++) {
        if (page % 32 == 0) {
            const uint32_t of_lane = min(page + lane, pages - 1);
            const struct page_set_view set = listed.set(of_lane);
            bounds_of_lane = (unsigned long long)index_address(&set, place, select.index_bytes),
            live_of_lane = listed.live(of_lane);
        }
        const uint64_t live = __shfl_sync(ALL_LANES, live_of_lane, page % 32);
        const device_half *const bounds = reinterpret_cast<const device_half *>(__shfl_sync(ALL_LANES, bounds_of_lane, page % 32));
        uint2 x[HALVES][2 * PARTS]; /* the least of part p, then the most */
#pragma unroll
        for (int i = 0; i < HALVES; i++)
#pragma unroll
            for (int k = 0; k < 2 * PARTS; k++)
                x[i][k] = __ldcs(reinterpret_cast<const uint2 *>(bounds + k * hd + min(128 * i + 4 * lane, hd - 4)));
        float of_part[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            of_part[p] = 0;
#pragma unroll
            for (int i = 0; i < HALVES; i++) {
                const float4 least = four_halves(x[i][2 * p]), most = four_halves(x[i][2 * p + 1]);
                const float sum = larger(q[i].x, least.x, most.x) + larger(q[i].y, least.y, most.y) +
                                  larger(q[i].z, least.z, most.z) + larger(q[i].w, least.w, most.w);
                of_part[p] += 128 * i + 4 * lane < hd ? sum : 0;
            }
        }
        const float bound = sum_of_own_part(of_part);
        const uint32_t score = ordered_half(bound) + 1, first = live >> 2 * lane & 1 ? score : 1,
                       second = live >> (2 * lane + 1) & 1 ? score : 1;
        reinterpret_cast<uint32_t *>(scores + (size_t)(listed.first + page * step) * PAGE_TOKENS)[lane] = first | second << 16;
    }
}

cudaError_t score_quest(const struct select_tokens *select, cudaStream_t stream) {
    const auto kernel = select->attend.heads.head_dim > 128 ? score_quest_kernel<2> : score_quest_kernel<1>;
    return launch_early(kernel, score_grid(select, WARPS, RESIDENT), dim3(WARPS * 32), 0, stream, *select);
}
