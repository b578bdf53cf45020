/* Deals the pages of parts to a CTA's warps in stretches, for kernels whose CTAs may read several parts.
 *
 * A part has STRETCHES stretches of pages that follow one another. A CTA that reads one part gives each warp one stretch. A CTA that reads several
 * parts shares all their stretches among its warps: a warp goes from one to the next without waiting for others, and leaves the state of each
 * in memory. Whoever reads it, a stretch's state is the same, and those of a part are merged in one way: so a part's state is the same, bit
 * for bit. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_STRETCHES_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_STRETCHES_CUH

#include "backend/cuda/kv/attend_common.cuh"

/* A warp's stretches [first, end), of those of all parts that the CTA reads. */
struct stretch_range {
    uint32_t first, end;
};

template <int STRETCHES> ATTEND_INLINE stretch_range stretches_of(uint32_t warp, uint32_t warps, uint32_t parts) {
    return {parts * STRETCHES * warp / warps, parts * STRETCHES * (warp + 1) / warps};
}

/* Finds a stretch's pages [begin, end) of the list. */
template <int STRETCHES> ATTEND_INLINE void stretch_pages(struct share s, uint32_t stretch, uint32_t &begin, uint32_t &end) {
    s.part += stretch / STRETCHES;
    warp_pages_of(s, stretch % STRETCHES, STRETCHES, begin, end);
}

/* Returns where the states of stretches of the CTA's first part lie in memory, behind those of parts; those of its other parts follow. */
template <int HD, int STRETCHES> ATTEND_INLINE partials<HD> stretch_states(const struct attend_decode &a, const struct share &s) {
    static_assert(STRETCHES <= ATTEND_STRETCHES, "a part has memory for so many");
    const size_t parts = (size_t)a.n_rows * a.heads.kv_heads * a.splits, each = (size_t)s.group * STRETCHES,
                 first = ((size_t)s.row * a.heads.kv_heads + s.head) * a.splits + s.part;
    float *const sums = a.parts + parts * s.group * (HD + ATTEND_STATE_FLOATS);
    return {sums + first * each * HD, reinterpret_cast<float2 *>(sums + parts * each * HD) + first * each};
}

/* Merges, by all threads of a CTA after a __syncthreads, the states of `count` parts from s.part on and leaves them. `stretches` are the states
 * of all their stretches; finish(sums, sum of weights, quad) makes sums of values, of channels 4 quad .. 4 quad + 3, of what they have summed up.
 * `rows` are WARPS states of the rows of halves of each part that is below `row_units`. */
template <int HD, int STRETCHES, int WARPS, class Finish>
ATTEND_INLINE void leave_parts(const struct attend_decode &a, struct share s, uint32_t count, const partials<HD> &stretches,
                               const partials<HD> &rows, uint32_t row_units, Finish finish) {
    const unsigned groups = s.group * (HD / 4), first = s.part;
    for (unsigned item = threadIdx.x; item < count * groups; item += WARPS * 32) {
        const unsigned part = count == 1 ? 0 : item / groups, i = item - part * groups;
        float2 state, state_of_rows;
        float4 sums = merged_states<HD>(states_from(stretches, part * STRETCHES, s.group), STRETCHES, s.group, i, state);
        finish(sums, state.y, i % (HD / 4));
        s.part = first + part;
        if (s.part < row_units) {
            const float4 of_rows = merged_states<HD>(states_from(rows, part * WARPS, s.group), WARPS, s.group, i, state_of_rows);
            merge_state(sums, state, of_rows, state_of_rows);
        }
        leave_state<HD>(a, s, i, sums, state);
    }
}

#endif
