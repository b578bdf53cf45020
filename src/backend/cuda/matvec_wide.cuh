/* Multiplies weights as they are stored by 17 to 64 vectors, on tensor cores. A block decodes each of its tiles once for 32 vectors, those
 * of its row of the grid. With 64 the sums leave too few registers: large matrices then took longer than two by two.
 *
 * It shares with matvec.cuh the units of 16 rows, the slots to which a row's tiles fall, the order of all sums and the rings of
 * tiles, so that a vector has the same result, bit for bit. Vectors are too many for shared memory and are read from global memory,
 * through the multiprocessor's first cache: the more units a block takes at once, the fewer times they come from the second one.
 *
 * A block takes as many units at once as it has in all, up to a warp for each. Where there are more warps than units, those of a
 * unit have slots by turns, and add them to the unit's total in shared memory one after another, each when the warp before it has:
 * so no block of threads waits as a whole. */
#ifndef TERSE_BACKEND_CUDA_MATVEC_WIDE_CUH
#define TERSE_BACKEND_CUDA_MATVEC_WIDE_CUH

#include "backend/cuda/matvec.cuh"

#define WIDE_PARTS (EACH_FILLED / PART)
#define WIDE_DEPTH 2 /* stages of a ring: what is left of shared memory is the first cache's */

/* A wide_room has the offsets, in bytes, at which the parts of shared memory begin behind the rings. */
struct wide_room {
    uint32_t sums, totals, bytes; /* totals: [stream][part][lane] of a row_sums */
};

template <class TILE> __host__ __device__ static inline wide_room wide_room_of(const struct matvec_args &a) {
    wide_room room;
    room.sums = WARPS * a.depth * stage_of<TILE>::BYTES;
    room.totals = room.sums + divide_up(a.columns, TILE::WIDTH) * EACH_FILLED * sum_bytes(TILE::OFFSETS);
    room.bytes = room.totals + a.streams * WIDE_PARTS * 32 * (uint32_t)sizeof(float4);
    return room;
}

/* Chooses as many streams as one of so many blocks has units, unless fewer fit. Returns false if there is no room for rings. */
template <class TILE> static bool choose_wide(struct matvec_args *a, uint32_t shared_bytes, uint32_t blocks) {
    const uint32_t units = divide_up(a->units, blocks);
    a->slots = stages_across<TILE>(*a) > SLOTS / 2 ? SLOTS : SLOTS / 2;
    a->shared = false;
    uint32_t most = WARPS / a->slots;
    while (most < units && most < WARPS) most *= 2;
    for (a->depth = WIDE_DEPTH; a->depth; a->depth--)
        for (a->streams = most; a->streams >= WARPS / a->slots; a->streams /= 2)
            if (wide_room_of<TILE>(*a).bytes <= shared_bytes) return true;
    return false;
}

/* Writes a unit's results for vectors from `first` on, by a warp. */
__device__ static inline void write_totals(const struct matvec_args &a, const float4 *totals, uint32_t unit, uint32_t first,
                                           float scale, int lane) {
#pragma unroll 1
    for (uint32_t i = lane; i < EACH_FILLED * TILE_ROWS; i += 32) {
        const uint32_t row = i % TILE_ROWS, vector = i / TILE_ROWS,
                       at = (vector / PART * 32 + row % 8 * 4 + vector % PART / 2) * 4 + row / 8 * 2 + vector % 2;
        const matvec_result r = result_of(a, unit, row, first + vector, scale);
        if (r.out) *r.out = r.before + fmaf(((const float *)totals)[at], r.factor, r.bias);
    }
}

/* Adds a slot's sums to the lane's part of the totals; those of slot 0 to zeros. */
__device__ static inline void add_slot(float4 *totals, const row_sums<WIDE_PARTS> &sums, bool first) {
    for (int part = 0; part < WIDE_PARTS; part++) {
        const float *own = sums.of[part];
        float4 y = first ? make_float4(0, 0, 0, 0) : totals[part * 32];
        totals[part * 32] = make_float4(y.x + own[0], y.y + own[1], y.z + own[2], y.w + own[3]);
    }
}

/* Vectors are those of the block's row of the grid. */
template <class TILE> __global__ void __launch_bounds__(32 * WARPS, 1) matvec_wide(const __grid_constant__ struct matvec_args a) {
    extern __shared__ __align__(16) uint8_t memory[];
    constexpr uint32_t SUM_BYTES = sum_bytes(TILE::OFFSETS);
    const int lane = threadIdx.x % 32;
    const uint32_t first = blockIdx.y * EACH_FILLED, warp = threadIdx.x / 32;
    const wide_room room = wide_room_of<TILE>(a);
    tile_stream<TILE> tiles(a, memory, warp);
    for (uint32_t i = 0; i < a.depth; i++) tiles.fetch(lane);
    let_next_kernel_begin();
    wait_for_kernels();
    stage_sums<TILE>(a, memory + room.sums, first, EACH_FILLED);
    __syncthreads();

    const uint32_t stream = warp / tiles.warps, turn = warp & (tiles.warps - 1),
                   next = stream * tiles.warps + ((turn + 1) & (tiles.warps - 1)), stride = a.streams * gridDim.x;
    const filled_vectors x(a.forms, first, a.apart, lane);
    float4 *totals = (float4 *)(memory + room.totals) + stream * WIDE_PARTS * 32;
    uint32_t sums_at[WIDE_PARTS], stage = tiles.ring;
    for (int part = 0; part < WIDE_PARTS; part++)
        sums_at[part] = shared_address(memory + room.sums) + (PART * part + lane / 4) * SUM_BYTES + lane % 4 * TILE::OFFSETS;
    for (uint32_t unit = blockIdx.x + stream * gridDim.x, begin = unit; unit < a.units; unit += stride)
        for (uint32_t slot = turn; slot < a.slots; slot += tiles.warps) {
            tile_sums<TILE, WIDE_PARTS> sums;
            sums.clear();
            stage = add_slot_tiles(a, tiles, stage, slot, x, sums_at, EACH_FILLED * SUM_BYTES, lane, sums);
            sums.finish();
            const bool last = slot + 1 == a.slots;
            if (tiles.warps > 1 && (slot || unit != begin)) wait_at_barrier(warp, 64);
            add_slot(totals + lane, sums.codes, slot == 0);
            if (last) {
                __syncwarp();
                write_totals(a, totals, unit, first, TILE::CODES ? CODE_UNIT : 1, lane);
                __syncwarp();
            }
            if (tiles.warps > 1 && !(last && unit + stride >= a.units)) arrive_at_barrier(next, 64);
        }
}

#endif
