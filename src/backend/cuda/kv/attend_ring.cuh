/* Has a warp's ring of pages, and the gains of normalized rows, for kernels whose pages have one size for each side. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH

#include "backend/cuda/kv/attend_common.cuh"
#include "format/normalization.h"

/* Returns the gain of a code in units of gain_scale; 0 where the code is 0. */
ATTEND_INLINE float relative_gain(uint32_t code) { return code ? exp2_fast(((float)code - GAIN_MIDDLE) / GAIN_STEPS) : 0; }

/* A warp's ring holds the keys or the values of a page in each of its slots, in shared memory: keys of the first, its values, keys of the
 * second and so on, each of which is asked for as soon as the one that was there before has been read. */
struct page_ring {
    struct listed_pages listed;
    const struct place_view *place;
    uint32_t n;        /* pages */
    uint32_t bytes[2]; /* of a page, by side, multiples of 64 */
    uint32_t base, slots, slot_bytes;
    const uint8_t *of_lane[2]; /* page 32 i + lane's */

    ATTEND_INLINE uint32_t slot(uint32_t page, int side) const { return base + ((2 * page + side) & (slots - 1)) * slot_bytes; }

    /* Asks for what takes the place of a side that has been read. */
    ATTEND_INLINE void ask_behind(uint32_t page, int side) { ask((2 * page + side + slots) / 2, (side + slots) % 2); }

    ATTEND_INLINE void start() {
        for (uint32_t i = 0; i < slots; i++) ask(i / 2, i % 2);
    }

    /* Waits until the oldest side that was asked for is there. */
    ATTEND_INLINE void wait() const {
        if (slots == 8)
            wait_copies<7>();
        else if (slots == 4)
            wait_copies<3>();
        else if (slots == 2)
            wait_copies<1>();
        else
            wait_copies<0>();
        __syncwarp();
    }

    ATTEND_INLINE void ask(uint32_t page, uint32_t side) {
        if (page < n) {
            if (page % 32 == 0) { /* keys and values of a page are asked for at different times */
                const struct page_set_view set = listed.set(min(page + lane_id(), n - 1));
                (side ? of_lane[1] : of_lane[0]) = page_address(&set, place, (int)side);
            }
            const uint8_t *from = reinterpret_cast<const uint8_t *>(
                __shfl_sync(ALL_LANES, (unsigned long long)(side ? of_lane[1] : of_lane[0]), page % 32));
            const uint32_t to = slot(page, (int)side), size = side ? bytes[1] : bytes[0];
            for (uint32_t at = 16 * lane_id(); at < size; at += 512) copy_async<16>(to + at, from + at);
        }
        commit_copies();
    }
};

/* Returns the bytes of a slot. */
inline uint32_t ring_slot_bytes(const struct attend_decode *a) {
    return a->page_bytes[0] > a->page_bytes[1] ? a->page_bytes[0] : a->page_bytes[1];
}

/* Returns how many slots, a power of two and at most 8, each of so many warps has in `room` bytes; 0: there is no room. */
inline uint32_t ring_slots(const struct attend_decode *a, uint32_t warps, uint32_t room) {
    uint32_t slots = 8;
    while (slots && slots * warps * ring_slot_bytes(a) > room) slots /= 2;
    return slots;
}

#endif
