/* Scores all tokens of a prompt by the first planes of their keys, which have the largest components (index_components): the product
 * of the mean query and of what these planes tell of a key. A score is 32768 + 256 times the logit, from 0 to 65534.
 *
 * Keys are read as attention reads them (attend_transform.cuh), of which query 0 alone is there. A warp reads pages by itself; of
 * each it copies the gains and the nibbles of the planes. The record of a run, which transform_runs_kernel has written for all
 * planes, is cut off behind those that are read. */
#ifndef TERSE_BACKEND_CUDA_KV_SCORE_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_SCORE_TRANSFORM_CUH

#include "backend/cuda/kv/attend_transform_kernel.cuh"
#include "backend/cuda/kv/score_common.cuh"
#include "backend/cuda/kv/score_transform.h"

#define SCORE_INLINE __device__ __forceinline__

constexpr int SCORE_WARPS = 8, SCORE_DEPTH = 4 /* pages that a warp has asked for */, SCORE_RESIDENT = 2;
constexpr float SCORE_UNIT = 256, SCORE_ZERO = 32768, SCORE_MOST = 65534;

/* Returns the most nibbles of a page that are copied: planes of TRANSFORM_RANK_BITS, which may have a nibble for 3 bits, of which the last may
 * bring a quad's bits more, and three more planes of their group. */
__host__ __device__ constexpr uint32_t score_nibbles_most(uint32_t hd, uint32_t all) {
    return TRANSFORM_RANK_BITS(hd) / 12 + 6 < all ? TRANSFORM_RANK_BITS(hd) / 12 + 6 : all;
}

/* Shared memory has readers of keys, positions, then for each warp the record of a run and its pages. */
struct score_memory {
    uint32_t positions, records, pages, bytes; /* where they begin */
    uint32_t record_bytes, slot_bytes;

    __host__ __device__ score_memory(uint32_t hd, uint32_t pairs, uint32_t nibbles) {
        positions = hd / 2 * 8;
        records = positions + (position_bytes(1, SCORE_WARPS, pairs) + 15) / 16 * 16;
        record_bytes = run_record_words(1, hd / 2) * 4;
        slot_bytes = (nibbles + 1) * PAGE_TRANSFORM_NIBBLE;
        pages = (records + SCORE_WARPS * record_bytes + 127) / 128 * 128;
        bytes = pages + SCORE_WARPS * SCORE_DEPTH * slot_bytes;
    }
};

/* Returns the sum of the four signed bytes of a word. */
SCORE_INLINE int32_t sum_bytes(uint32_t word) { return __dp4a((int)word, 0x01010101, 0); }

/* Copies, by a warp, the record of a run as far as the planes of `entries` go, and sets its zero to that of these planes. */
SCORE_INLINE void load_record(const uint32_t *from, uint32_t entries, uint32_t planes, uint32_t to) {
    constexpr uint32_t header = 3; /* units of 16 bytes: four queries' numbers */
    const uint32_t units = header + (planes + 3) / 4 * 4 * 2;
    int32_t sum = 0;
    __syncwarp();
    for (uint32_t i = lane_id(); i < units; i += 32) {
        uint4 x = __ldcg(reinterpret_cast<const uint4 *>(from) + i);
        if (i >= header && (i - header) / 2 >= planes) x = make_uint4(0, 0, 0, 0);
        /* The first unit of a plane begins with the upper and lower bytes of query 0. */
        if (i >= header && (i - header) % 2 == 0)
            sum += (sum_bytes(x.x) * 256 + sum_bytes(x.y)) * (int32_t)largest_code(entries, (i - header) / 2);
        store_shared_quad(to + 16 * i, x);
    }
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    __syncwarp();
    if (lane_id() == 0) store_shared_quad(to + 32, make_uint4((uint32_t)sum, 0, 0, 0));
    __syncwarp();
}

/* Sets the entry of a plane behind those that are read, in their last 8, to zeros. */
SCORE_INLINE void leave_out_plane(const plane_readers &keys, uint32_t plane) {
    if (plane >= keys.planes) store_shared_pair(keys.entries + 8 * plane, make_uint2(0, 0));
}

/* A score_ring has a warp's next pages in shared memory. */
template <int HD> struct score_ring {
    struct listed_pages listed;
    const struct place_view *place;
    uint32_t n, nibbles, base, slot_bytes;
    const uint8_t *keys_of_lane; /* page 32 i + lane's */

    SCORE_INLINE uint32_t slot(uint32_t page) const { return base + page % SCORE_DEPTH * slot_bytes; }
    SCORE_INLINE void ask(uint32_t page) {
        if (page < n) {
            if (page % 32 == 0) {
                const struct page_set_view set = listed.set(min(page + lane_id(), n - 1));
                keys_of_lane = page_address(&set, place, 0);
            }
            const uint8_t *const from = transform_ring<HD, 1>::of(keys_of_lane, page);
            const uint32_t units = nibbles * (PAGE_TRANSFORM_NIBBLE / 16), to = slot(page);
            if (lane_id() < 4) copy_async<16>(to + 16 * (units + lane_id()), from);
            copy_units(to + transform_ring<HD, 1>::key_place(), from + PAGE_TOKENS, units);
        }
        commit_copies();
    }
};

SCORE_INLINE uint32_t score_of(float logit, bool there) {
    const float score = fmaf(logit, SCORE_UNIT / LOG2_E, SCORE_ZERO + 0.5f);
    return there ? 1 + (uint32_t)fminf(fmaxf(score, 0), SCORE_MOST) : 1; /* NaN is 0 */
}

/* Writes the scores of a page: lanes of query 0 have eight tokens each. */
SCORE_INLINE void write_scores(const float (&x)[1][8], uint64_t live, uint16_t *scores, uint16_t *best) {
    const uint32_t first = lane_token();
    uint32_t own[8], most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        own[i] = score_of(x[0][i], live >> (first + token_of(i)) & 1);
        most = max(most, own[i]);
    }
    for (int o = 4; o < 32; o *= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, o));
    if (lane_id() % 4) return;
#pragma unroll
    for (int i = 0; i < 8; i += 4)
        *reinterpret_cast<uint2 *>(scores + first + token_of(i)) =
            make_uint2(own[i] | own[i + 1] << 16, own[i + 2] | own[i + 3] << 16);
    if (lane_id() == 0) *best = (uint16_t)most;
}

/* CTAs (head, row, part) score a part of the row's pages each. It is launched early, behind transform_runs_kernel alone, as
 * attend_transform_kernel is. */
template <int HD>
__global__ void __launch_bounds__(SCORE_WARPS * 32, SCORE_RESIDENT)
    score_transform_kernel(const __grid_constant__ struct select_tokens select, uint32_t nibbles) {
    extern __shared__ __align__(128) uint8_t shared[];
    const struct attend_decode &a = select.attend;
    const score_memory memory(HD, a.pre_rope.pairs, nibbles);
    const unsigned warp = uniform(threadIdx.x / 32), lane = lane_id();
    struct share s;
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    if (!s.sequence->own || !s.n_pages) {
        wait_for_kernels();
        return;
    }
    const transform_side<HD> side = side_of<HD>(a, s, 0);
    plane_readers keys = load_readers<HD, SCORE_WARPS * 32>(side.view, shared);
    keys.gain_zero = side.gain_zero, keys.gain_step = side.gain_step;
    keys.planes = uniform(side.view->score_planes);
    const uint32_t page_nibbles = uniform(side.view->score_nibbles);
    keys.gains = page_nibbles * PAGE_TRANSFORM_NIBBLE;
    uint8_t *const positions = shared + memory.positions;
    const uint32_t position_rows = shared_address(positions) + position_query_bytes(1, a.pre_rope.pairs);
    copy_position_rows<SCORE_WARPS * 32>(a.pre_rope, position_rows);
    commit_copies();

    const uint32_t rank = blockIdx.z * SCORE_WARPS + warp, ranks = gridDim.z * SCORE_WARPS;
    const uint32_t begin = uniform((uint32_t)((uint64_t)s.n_pages * rank / ranks)),
                   end = uniform((uint32_t)((uint64_t)s.n_pages * (rank + 1) / ranks)), pages = end - begin;
    const uint32_t first_run = uniform(run_of(first_listed(s)));
    const struct listed_pages listed = listed_from(s, begin, 1);
    score_ring<HD> ring;
    ring.listed = listed, ring.n = pages, ring.nibbles = page_nibbles, ring.slot_bytes = memory.slot_bytes;
    ring.place = scored_place(a, s);
    ring.base = shared_address(shared) + memory.pages + warp * SCORE_DEPTH * memory.slot_bytes;
    for (uint32_t page = 0; page < SCORE_DEPTH; page++) ring.ask(page);
    float2 *const angles =
        reinterpret_cast<float2 *>(positions + position_query_bytes(1, a.pre_rope.pairs) + position_row_bytes(a.pre_rope.pairs) +
                                   warp * position_angle_bytes(a.pre_rope.pairs));
    const uint32_t record = shared_address(shared) + memory.records + warp * memory.record_bytes;
    wait_copies<SCORE_DEPTH>();
    wait_for_kernels();
    if (a.pre_rope.pairs)
        fetch_positions<SCORE_WARPS * 32>(position_record<HD, 1>(a, s), 0, position_query_bytes(1, a.pre_rope.pairs) / 16,
                                          shared_address(positions));
    __syncthreads(); /* readers and positions are there */
    if (threadIdx.x < TRANSFORM_READERS_STEP && keys.planes % TRANSFORM_READERS_STEP)
        leave_out_plane(keys, keys.planes / TRANSFORM_READERS_STEP * TRANSFORM_READERS_STEP + threadIdx.x);
    __syncthreads();

    const size_t at = scored_share(a, s) * select.to.pages + begin;
    uint16_t *const scores = select.to.scores + at * PAGE_TOKENS, *const best = select.to.best + at;
    uint32_t last_run = ~0u;
    struct page_of_lane of_lane;
#pragma unroll 1
    for (uint32_t page = 0; page < pages; page++) {
        if (page % 32 == 0) of_lane.load(listed, min(page + lane, pages - 1), 0);
        const uint32_t first = of_lane.first_of(page), run = (run_of(first) - first_run) / ROPE_RUN_TOKENS;
        if (run != last_run) load_record(run_record<HD, 1>(a, s, run), keys.entries, keys.planes, record);
        last_run = run;
        float x[1][8];
        lane_angles own_angles;
        page_angles(a, first).load(own_angles);
        page_angles(a, first).place(own_angles, angles);
        wait_copies<SCORE_DEPTH - 1>();
        __syncwarp();
        score_page<HD, 1>(ring.slot(page), record, keys, x);
        __syncwarp();
        ring.ask(page + SCORE_DEPTH);
        add_positions(a.pre_rope, shared_address(positions), position_rows, shared_address(angles), x);
        __syncwarp(); /* angles are no longer read */
        write_scores(x, of_lane.read_of(page, first, s.position), scores + (size_t)page * PAGE_TOKENS, best + page);
    }
    wait_copies<0>();
}

template <int HD> cudaError_t launch_scores(const struct select_tokens *select, cudaStream_t stream) {
    const struct attend_decode *a = &select->attend;
    const uint32_t nibbles = score_nibbles_most(HD, (a->page_bytes[0] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE);
    const auto kernel = score_transform_kernel<HD>;
    const score_memory memory(HD, a->pre_rope.pairs, nibbles);
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)memory.bytes);
    if (result != cudaSuccess) return result;
    result = launch_runs<HD, 1>(a, 0, false, stream);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, score_grid(select, SCORE_WARPS, SCORE_RESIDENT), dim3(SCORE_WARPS * 32), memory.bytes, stream,
                        *select, nibbles);
}

#endif
