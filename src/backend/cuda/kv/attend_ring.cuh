/* Has a warp's ring of pages, and the gains of normalized rows, for kernels whose pages have one size for each side. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_RING_CUH

#include "backend/cuda/kv/attend_common.cuh"
#include "format/normalization.h"

/* Returns the gain of a code in units of gain_scale; 0 where the code is 0. */
ATTEND_INLINE float relative_gain(uint32_t code) { return code ? exp2_fast(((float)code - GAIN_MIDDLE) * (1.0f / GAIN_STEPS)) : 0; }

/* A kept_list is a warp's list of pages, in registers or at an address in shared memory that the warp has for it, KEPT_LIST_BYTES. */
constexpr int KEPT_LIST_BYTES = 48;
static_assert(sizeof(struct listed_pages) <= KEPT_LIST_BYTES, "units of 16 bytes hold a list");

template <bool SHARED> struct kept_list {
    struct listed_pages list;

    ATTEND_INLINE void keep(const struct listed_pages &own) { list = own; }
    ATTEND_INLINE struct listed_pages get() const { return list; }
};
template <> struct kept_list<true> {
    uint32_t at;

    ATTEND_INLINE void keep(const struct listed_pages &own) const {
        uint4 units[KEPT_LIST_BYTES / 16] = {};
        memcpy(units, &own, sizeof own);
        __syncwarp();
        if (lane_id() == 0)
            for (uint32_t i = 0; i < KEPT_LIST_BYTES / 16; i++) store_shared_quad(at + 16 * i, units[i]);
        __syncwarp();
    }
    ATTEND_INLINE struct listed_pages get() const {
        uint4 units[KEPT_LIST_BYTES / 16];
        for (uint32_t i = 0; i < KEPT_LIST_BYTES / 16; i++) units[i] = load_shared_quad(at + 16 * i);
        struct listed_pages own;
        memcpy(&own, units, sizeof own);
        return own;
    }
};

/* A warp's ring holds a piece of a page in each of its slots, in shared memory: the keys of the first page, its values, the keys of the
 * second and so on, each side in PIECES pieces (1 or 2). Piece `index` of a page is of its keys below PIECES, else of its values. A
 * piece is asked for as soon as the one that was in its slot has been read. MOST is the size of the largest piece; 0: it is not
 * known. LIST_SHARED: the warp's list of pages, which is looked at once in 32 pages, is kept in shared memory and not in registers. */
template <int PIECES, int MOST, bool LIST_SHARED = false> struct page_ring {
    struct kept_list<LIST_SHARED> listed;
    const struct place_view *place;
    uint32_t n;        /* pages */
    uint32_t bytes[2]; /* of a page, by side, multiples of 64 */
    uint32_t first[2]; /* of them the first piece's, where there are two */
    uint32_t base, slots, slot_bytes;
    uint32_t own;              /* where the lane's 16 bytes of each 512 lie in a slot */
    uint32_t oldest;           /* slot of the oldest piece that was asked for and not released */
    const uint8_t *of_lane[2]; /* page 32 i + lane's */

    /* Returns where piece i after the oldest lies. */
    ATTEND_INLINE uint32_t slot(uint32_t i) const {
        const uint32_t at = oldest + i;
        return base + (at < slots ? at : at - slots) * slot_bytes;
    }

    /* Begins with pages [begin, end) of the list, and asks for the first of them. */
    ATTEND_INLINE void start(const struct share &s, uint32_t begin, uint32_t end) {
        listed.keep(listed_from(s, begin, 1)), n = end - begin;
        oldest = 0;
        for (uint32_t i = 0; i < slots; i++) ask(base + i * slot_bytes, i / (2 * PIECES), i % (2 * PIECES));
    }

    /* Asks the L2 for the first page that a warp reads of the next part. The ring will begin anew with it when what this part is left
     * with has been merged: the warp waits for the copies then, and not for memory. */
    ATTEND_INLINE void prefetch_next_part(struct share s, uint32_t warp, uint32_t warps) const {
        uint32_t begin, end;
        s.part++, warp_pages_of(s, warp, warps, begin, end);
        if (begin == end) return;
        const struct page_set_view set = listed_from(s, begin, 1).set(0);
#pragma unroll
        for (int side = 0; side < 2; side++)
            for (uint32_t at = 128 * lane_id(); at < bytes[side]; at += 128 * 32)
                prefetch_line(page_address(&set, place, side) + at);
    }

    /* Waits until the `count` oldest pieces are there, at most as many as there are slots. */
    ATTEND_INLINE void wait(uint32_t count) const {
        switch (slots - count) {
        case 7: wait_copies<7>(); break;
        case 6: wait_copies<6>(); break;
        case 5: wait_copies<5>(); break;
        case 4: wait_copies<4>(); break;
        case 3: wait_copies<3>(); break;
        case 2: wait_copies<2>(); break;
        case 1: wait_copies<1>(); break;
        default: wait_copies<0>();
        }
        __syncwarp();
    }

    /* Asks for what takes the place of the oldest piece, which is `index` of a page and which all lanes have read. */
    ATTEND_INLINE void release(uint32_t page, uint32_t index) {
        const uint32_t next = index + slots;
        ask(slot(0), page + next / (2 * PIECES), next % (2 * PIECES));
        oldest = oldest + 1 < slots ? oldest + 1 : 0;
    }

    ATTEND_INLINE void ask(uint32_t to, uint32_t page, uint32_t index) {
        const bool values = index >= PIECES, second = index % PIECES;
        if (page < n) {
            if (page % 32 == 0 && !second) { /* keys and values of a page are asked for at different times */
                const struct page_set_view set = listed.get().set(min(page + lane_id(), n - 1));
                (values ? of_lane[1] : of_lane[0]) = page_address(&set, place, (int)values);
            }
            const uint8_t *from = reinterpret_cast<const uint8_t *>(
                __shfl_sync(ALL_LANES, (unsigned long long)(values ? of_lane[1] : of_lane[0]), page % 32));
            uint32_t size = values ? bytes[1] : bytes[0];
            if (PIECES == 2) {
                const uint32_t cut = values ? first[1] : first[0];
                from += second ? cut : 0, size = second ? size - cut : cut;
            }
            const uint32_t at = 16 * lane_id();
            from += at, to = by_lane(to + own);
            if constexpr (MOST > 0) {
#pragma unroll
                for (uint32_t i = 0; i < MOST; i += 512)
                    if (at + i < size) copy_once(to + i, from + i);
            } else {
                for (uint32_t i = 0; at + i < size; i += 512) copy_once(to + i, from + i);
            }
        }
        commit_copies();
    }
};

/* Returns the bytes of a slot for a side in one piece. */
inline uint32_t ring_slot_bytes(const struct attend_decode *a) {
    return a->page_bytes[0] > a->page_bytes[1] ? a->page_bytes[0] : a->page_bytes[1];
}

/* Returns how many slots, at most 8, each of so many warps has in `room` bytes; 0: there is no room. */
inline uint32_t ring_slots(uint32_t slot_bytes, uint32_t warps, uint32_t room) {
    const uint32_t slots = room / (warps * slot_bytes);
    return slots < 8 ? slots : 8;
}

#endif
