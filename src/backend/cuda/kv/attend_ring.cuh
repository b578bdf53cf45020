/* Has a warp's ring of pages, and the gains of normalized rows, for kernels whose pages have one size for each side. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH

#include "backend/cuda/kv/attend_common.cuh"
#include "format/normalization.h"

/* Returns the gain of a code in units of gain_scale; 0 where the code is 0. */
ATTEND_INLINE float relative_gain(uint32_t code) { return code ? exp2_fast(((float)code - GAIN_MIDDLE) / GAIN_STEPS) : 0; }

/* A warp's ring holds `depth` of its pages, a power of two, in shared memory: keys, then values. As soon as one side of a page has
 * been read, that side of the page `depth` later is asked for. */
struct page_ring {
    struct listed_pages listed;
    const struct place_view *place;
    uint32_t n;        /* pages */
    uint32_t bytes[2]; /* of a page, by side, multiples of 64 */
    uint32_t base, depth;
    const uint8_t *of_lane[2]; /* page 32 i + lane's */

    ATTEND_INLINE uint32_t slot(uint32_t page, int side) const {
        return base + (page & (depth - 1)) * (bytes[0] + bytes[1]) + (side ? bytes[0] : 0);
    }

    ATTEND_INLINE void ask(uint32_t page, int side) {
        if (page < n) {
            if (page % 32 == 0) { /* keys and values of a page are asked for at different times */
                const struct page_set_view set = listed.set(min(page + lane_id(), n - 1));
                of_lane[side] = page_address(&set, place, side);
            }
            const uint8_t *from = reinterpret_cast<const uint8_t *>(
                __shfl_sync(ALL_LANES, (unsigned long long)(side ? of_lane[1] : of_lane[0]), page % 32));
            const uint32_t to = slot(page, side), size = side ? bytes[1] : bytes[0];
            for (uint32_t at = 16 * lane_id(); at < size; at += 512) copy_async<16>(to + at, from + at);
        }
        commit_copies();
    }

    ATTEND_INLINE void start() {
        for (uint32_t page = 0; page < depth; page++) ask(page, 0), ask(page, 1);
    }

    /* Waits until the oldest side that was asked for is there. */
    ATTEND_INLINE void wait() const {
        if (depth == 4)
            wait_copies<7>();
        else if (depth == 2)
            wait_copies<3>();
        else
            wait_copies<1>();
        __syncwarp();
    }
};

#endif
