/* Deals the pages of parts to a CTA's warps in stretches, for kernels whose CTAs may read several parts.
 *
 * A part has WARPS stretches of pages that follow one another. A CTA that reads one part gives each of its WARPS warps one. A CTA that reads
 * several parts, of one row or of several, shares all their stretches among its warps: a warp goes from one to the next without waiting for
 * others, and leaves the state of each in memory. A stretch's state does not depend on the warp that reads it, and those of a part are merged
 * in one order: so a part's state is the same in either case, bit for bit. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_STRETCHES_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_STRETCHES_CUH

#include "backend/cuda/kv/attend_common.cuh"

/* Returns how many parts the launch's rows before `row` have. */
ATTEND_INLINE uint32_t parts_before(const struct attend_decode &a, uint32_t row) {
    return a.rows[row].first_part - a.rows[0].first_part;
}

/* Finds the row that has part `part` of those of all rows, by all lanes of a warp. */
ATTEND_INLINE uint32_t row_of_part(const struct attend_decode &a, uint32_t part) {
    uint32_t behind = 0;
    for (uint32_t first = 0; first < a.n_rows; first += 32) {
        const uint32_t row = first + lane_id();
        behind += __popc(__ballot_sync(ALL_LANES, row < a.n_rows && parts_before(a, row) <= part));
    }
    return behind - 1;
}

/* A cta_parts says which parts of one KV head, of those of all rows, a CTA reads: [first, end). */
struct cta_parts {
    uint32_t first, end;

    ATTEND_INLINE uint32_t count() const { return end - first; }
    /* Finds what `row` and the KV head have of these parts, from part `from` on: s.part is its first one; returns how many there are. */
    ATTEND_INLINE uint32_t of_row(const struct attend_decode &a, uint32_t from, uint32_t head, uint32_t row,
                                  struct share &s) const {
        const uint32_t part = from - parts_before(a, row);
        share_of(a, part, head, row, s);
        return min(end - from, s.parts - part);
    }
};

/* Deals the parts of all rows to so many CTAs of a KV head, of which `cta` is one. */
ATTEND_INLINE cta_parts parts_of_cta(const struct attend_decode &a, uint32_t cta, uint32_t ctas) {
    const uint64_t all = parts_before(a, a.n_rows - 1) + a.rows[a.n_rows - 1].splits;
    return {(uint32_t)(all * cta / ctas), (uint32_t)(all * (cta + 1) / ctas)};
}

/* Finds the pages [begin, end) of the list of a stretch, numbered from the first one of the CTA's first part. */
template <int WARPS> ATTEND_INLINE void stretch_pages(struct share s, uint32_t stretch, uint32_t &begin, uint32_t &end) {
    s.part += stretch / WARPS;
    warp_pages_of(s, stretch % WARPS, WARPS, begin, end);
}

/* Returns where the states of the stretches of the CTA's first part lie in memory, behind those of parts; those of its other parts follow. */
template <int HD, int WARPS> ATTEND_INLINE partials<HD> stretch_states(const struct attend_decode &a, const struct share &s) {
    static_assert(WARPS <= ATTEND_STRETCHES, "a part has memory for so many");
    const size_t parts = (size_t)a.n_rows * a.heads.kv_heads * a.splits, each = (size_t)s.group * WARPS,
                 first = ((size_t)s.row * a.heads.kv_heads + s.head) * a.splits + s.part;
    float *const sums = a.parts + parts * s.group * (HD + ATTEND_STATE_FLOATS);
    return {sums + first * each * HD, reinterpret_cast<float2 *>(sums + parts * each * HD) + first * each};
}

/* Merges, by all threads of a CTA after a __syncthreads, the states of `count` parts from s.part on and leaves them. `stretches` are the states
 * of all their stretches; finish(sums, sum of weights, quad) makes sums of values, of channels 4 quad .. 4 quad + 3, of what they have summed up.
 * `rows` are WARPS states of the rows of halves of each part that is below `row_units`. */
template <int HD, int WARPS, class Finish>
ATTEND_INLINE void leave_parts(const struct attend_decode &a, struct share s, uint32_t count, const partials<HD> &stretches,
                               const partials<HD> &rows, uint32_t row_units, Finish finish) {
    const unsigned groups = s.group * (HD / 4), first = s.part;
    for (unsigned item = threadIdx.x; item < count * groups; item += WARPS * 32) {
        const unsigned part = count == 1 ? 0 : item / groups, i = item - part * groups;
        float2 state, state_of_rows;
        float4 sums = merged_states<HD>(states_from(stretches, part * WARPS, s.group), WARPS, s.group, i, state);
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
