/* Reads the rows of halves that a row and KV head has beside its pages of the codec transform: the window's and exact ones.
 *
 * A CTA makes part 0 of them, by channel (attend_transform_merge.cuh). It is one of those that read pages, or the one that merges. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_ROWS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_ROWS_CUH

#include "backend/cuda/kv/attend_transform_parts.cuh"

/* Shared memory has queries for the window and for exact rows; then each warp's rows, or their states. */
template <int HD, int NQ, int WARPS> struct row_memory {
    static constexpr int queries = 2 * ((int)sizeof(query_fragments<HD, 1>) + 127) / 128 * 128;
    static constexpr int rows = queries + WARPS * 2 * half_rows<HD>::bytes;
    static constexpr int states = queries + (int)partials_bytes<HD>(WARPS, 4 * NQ);
    static constexpr int bytes() { return rows > states ? rows : states; }
};

/* Reads the rows of halves, makes part 0 and, if `writes`, writes it. All threads of a CTA of WARPS warps call this. */
template <int HD, int NQ, int WARPS>
ATTEND_APART void leave_rows(const struct attend_decode &a, const struct share &s, bool writes, uint8_t *memory,
                             const transform_parts<HD> &parts) {
    using layout = row_memory<HD, NQ, WARPS>;
    auto *const queries = reinterpret_cast<query_fragments<HD, 1> *>(memory); /* for the window, for exact rows */
    const uint32_t warp = threadIdx.x / 32;
    const bool apart = a.q_exact != a.q;
    prepare_queries<HD, 1, WARPS>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, queries[0]);
    if (apart) prepare_queries<HD, 1, WARPS>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, queries[1]);
    __syncthreads();
    running<1> r;
    float acc[HD / 16][1][4] = {};
    clear_running(r);
    attend_rows<HD>(a, s, warp, WARPS, queries[apart], queries[0], slopes_of<1>(a, s),
                    shared_address(memory) + layout::queries + warp * 2 * half_rows<HD>::bytes, r, acc);
    finish_running(r);
    __syncthreads(); /* the rows are no longer read */
    const partials<HD> states = partials_at<HD>(memory + layout::queries, WARPS, s.group);
    store_running(states, warp, s.group, r);
    store_sums<HD>(states, warp, s.group, acc);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < s.group * (HD / 4); i += WARPS * 32) {
        const unsigned query = i / (HD / 4);
        float4 sums = make_float4(0, 0, 0, 0);
        float most = -INFINITY, weights = 0;
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) most = fmaxf(most, states.max_sum[w * s.group + query].x);
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) { /* with the maximum known, no state waits for another */
            const float2 from = states.max_sum[w * s.group + query];
            const float factor = most == -INFINITY ? 0 : exp2_fast(from.x - most);
            add_scaled(sums, factor, reinterpret_cast<const float4 *>(states.sums)[w * s.group * (HD / 4) + i]);
            weights += factor * from.y;
        }
        if (writes) __stcg(parts.of(0, query) + i % (HD / 4), sums);
        if (writes && i % (HD / 4) == 0) __stcg(parts.states + query, make_float4(most, weights, 0, 0));
    }
}

#endif
