/* Has the kernel of attend_transform.cuh: the rings of pages, and the work of warps on them.
 *
 * Of a query row and KV head, each CTA reads one or several parts of the pages; a warp reads pages by itself, through a ring of its own.
 * attend_transform_merge.cuh merges what they wrote. One CTA more reads the rows of halves where all find room at once; else the merging CTA
 * reads them, while the others end. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH

#include "backend/cuda/kv/attend_transform.cuh"
#include "backend/cuda/kv/attend_transform.h"
#include "backend/cuda/kv/attend_transform_merge.cuh"
#include "backend/cuda/kv/attend_transform_rows.cuh"

/* ---- The pages of a warp */

/* A CTA's parts follow one another, and a warp reads its pages of the first, then those of the next: so its pages have numbers 0, 1, ...
 * through all of them. Lane k has of part k the number behind its last page, and by how much the entries of its pages in the list are
 * larger than their numbers. */
struct warp_pages {
    uint32_t parts; /* at most CTA_PARTS_MOST */
    uint32_t end, more;

    ATTEND_INLINE warp_pages(struct share s, uint32_t parts, uint32_t warp, uint32_t warps) : parts(parts) {
        uint32_t first, behind;
        s.part += min(lane_id(), parts - 1);
        share_pages(s, first, behind);
        const uint32_t n = behind - first, begin = n * warp / warps, own = n * (warp + 1) / warps - begin;
        end = own;
        for (uint32_t o = 1; o < parts; o *= 2) {
            const uint32_t before = __shfl_up_sync(ALL_LANES, end, o);
            if (lane_id() >= o) end += before;
        }
        more = first + begin - (end - own);
    }
    ATTEND_INLINE uint32_t end_of(uint32_t part) const { return uniform(__shfl_sync(ALL_LANES, end, part)); }
    /* Returns the entry of the list that is page i. All lanes call this, each for a page of its own. */
    ATTEND_INLINE uint32_t entry(uint32_t i) const {
        uint32_t part = 0;
#pragma unroll 1
        for (uint32_t k = 0; k + 1 < parts; k++) part += __shfl_sync(ALL_LANES, end, k) <= i;
        return i + __shfl_sync(ALL_LANES, more, part);
    }
};

/* ---- The ring */

/* Returns the bytes of a slot: nibbles, then gains in a unit of their own. */
__host__ __device__ constexpr uint32_t page_slot_bytes(uint32_t nibbles) { return (nibbles + 1) * PAGE_TRANSFORM_NIBBLE; }

/* Copies, by a warp, `count` units of 16 bytes, of which a lane copies every 32nd. */
ATTEND_INLINE void copy_units(uint32_t to, const uint8_t *from, uint32_t count) {
    int32_t left = (int32_t)count;
#pragma unroll 1
    for (; left >= 128; left -= 128, to += 128 * 16, from += 128 * 16)
#pragma unroll
        for (int32_t i = 0; i < 128; i += 32) copy_once(to + 16 * i, from + 16 * i);
    left -= (int32_t)lane_id();
#pragma unroll
    for (int32_t i = 0; i < 128; i += 32)
        if (left > i) copy_once(to + 16 * i, from + 16 * i);
}

/* A ring has one or two of a warp's pages in shared memory: a slot of keys and one of values each. As soon as a slot has been read,
 * it is filled with the page after the other's. Behind all slots lie as many records of runs. Pages of one run follow one another, and
 * read the record that was loaded with the first of them. The first pages are asked for before the records of their runs are there,
 * which another kernel writes.
 *
 * When a part ends, its sums take the last bytes of the slot that was read last: those of its values, if they suffice, so that the next
 * keys are copied meanwhile; else those of its keys too, and in a ring of one page, where a slot may not suffice, the record's. */
template <int HD, int NQ> struct transform_ring {
    struct listed_pages listed;
    struct warp_pages pages;
    const struct place_view *place;
    const uint32_t *records;                       /* of runs, from that of the list's first page on */
    uint32_t first_run, run_tokens;                /* the first one's position, and how many positions apart they are */
    uint32_t n;                                    /* pages */
    uint32_t key_units, value_units, record_units; /* of 16 bytes */
    uint32_t base, key_bytes, bytes;               /* of a slot of keys, and of both */
    uint32_t sums;                                 /* where in a slot they begin */
    uint32_t depth;                                /* 1 or 2 */
    uint32_t loaded;                               /* run_of_lane of the page that was asked for last */
    uint32_t places;                               /* which record the pages read that were asked for: bit i of the last but i */
    const uint8_t *keys_of_lane, *values_of_lane;  /* page 32 i + lane's */
    uint32_t run_of_lane;                          /* offset of its run's record, in words */

    ATTEND_INLINE void set_room(uint32_t memory, uint32_t room, uint32_t key_nibbles, uint32_t value_nibbles, uint32_t key_planes,
                                uint32_t sum_bytes) {
        key_units = key_nibbles * (PAGE_TRANSFORM_NIBBLE / 16), value_units = value_nibbles * (PAGE_TRANSFORM_NIBBLE / 16);
        record_units = run_record_words(NQ, key_planes) / 4;
        key_bytes = page_slot_bytes(key_nibbles), bytes = key_bytes + page_slot_bytes(value_nibbles);
        base = memory, depth = room >= 2 * (max(bytes, sum_bytes) + 16 * record_units) ? 2 : 1;
        if (depth == 2) bytes = max(bytes, sum_bytes);
        sums = max(bytes, sum_bytes) - sum_bytes;
        loaded = ~0u, places = run_of_lane = 0;
    }

    ATTEND_INLINE uint32_t slot(uint32_t page) const { return base + (page & (depth - 1)) * bytes; }

    /* Returns where sums lie of a part that ends with a page. */
    ATTEND_INLINE uint32_t sums_slot(uint32_t page) const { return slot(page) + sums; }
    ATTEND_INLINE bool sums_beside_keys() const { return sums >= key_bytes; }

    /* The following return the place of the lane's 16 bytes of four nibbles in a slot, by nibble_place of transforms.c. */
    static ATTEND_INLINE uint32_t key_place() { return lane_id() / 8 * 128 + 16 * (lane_id() % 8 ^ 2 * (lane_id() / 8)); }
    static ATTEND_INLINE uint32_t value_place() { return lane_id() / 8 * 128 + 16 * (lane_id() % 8 ^ lane_id() / 8 % 2 * 4); }

    static ATTEND_INLINE const uint8_t *of(const uint8_t *of_lane, uint32_t page) {
        return reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, (unsigned long long)of_lane, page % 32)) + 16 * lane_id();
    }

    /* Returns the record that the page reads which was asked for before the last `later` ones. */
    ATTEND_INLINE uint32_t record(uint32_t later) const { return base + depth * bytes + (places >> later & 1) * 16 * record_units; }

    /* Chooses the record of a page that is asked for; returns whether its run has to be loaded there. */
    ATTEND_INLINE bool choose_record(uint32_t page) {
        const uint32_t run = uniform(__shfl_sync(ALL_LANES, run_of_lane, page % 32));
        const bool other = page < n && run != loaded;
        places = places << 1 | ((places ^ (other ? depth - 1 : 0)) & 1);
        if (other) loaded = run;
        return other;
    }

    ATTEND_INLINE void copy_keys(uint32_t page) {
        if (page % 32 == 0) {
            const struct page_set_view set = listed.set(pages.entry(min(page + lane_id(), n - 1)));
            keys_of_lane = page_address(&set, place, 0), values_of_lane = page_address(&set, place, 1);
            run_of_lane = (run_of(set.first) - first_run) / run_tokens * run_record_words(NQ, HD / 2);
        }
        const uint8_t *const from = of(keys_of_lane, page);
        const uint32_t to = slot(page);
        if (lane_id() < 4) copy_once(to + 16 * (key_units + lane_id()), from);
        copy_units(to + key_place(), from + PAGE_TOKENS, key_units);
    }

    ATTEND_INLINE void ask_for_keys(uint32_t page) {
        if (page < n) copy_keys(page);
        if (choose_record(page))
            copy_units(record(0) + 16 * lane_id(), reinterpret_cast<const uint8_t *>(records + loaded) + 16 * lane_id(),
                       record_units);
        commit_copies();
    }

    ATTEND_INLINE void ask_for_values(uint32_t page) {
        if (page < n) {
            const uint8_t *const from = of(values_of_lane, page);
            const uint32_t to = slot(page) + key_bytes;
            if (lane_id() < 4) copy_once(to + 16 * (value_units + lane_id()), from);
            copy_units(to + value_place(), from + PAGE_TOKENS, value_units);
        }
        commit_copies();
    }

    /* Asks for what takes the place of sums that have been read, of a part that ended before `page`. */
    ATTEND_INLINE void ask_after_sums(uint32_t page) {
        if (!sums) loaded = ~0u; /* the record may be lost, too */
        if (!sums_beside_keys()) ask_for_keys(page - 1 + depth);
        ask_for_values(page - 1 + depth);
    }

    /* Asks for the first pages without the records of their runs. */
    ATTEND_INLINE void start() {
        for (uint32_t page = 0; page < depth; page++) {
            if (page < n) copy_keys(page);
            choose_record(page);
            commit_copies();
            ask_for_values(page);
        }
    }

    /* Loads the records that `start` left out. It does not copy them asynchronously: such copies would be waited for behind all of
     * the first pages. */
    ATTEND_INLINE void fetch_first_records() const {
        const bool two = depth == 2 && (places ^ places >> 1) & 1; /* runs */
        const uint32_t pages = two ? 2 : n ? 1 : 0, lane = 4 * lane_id();
        const uint32_t *const from[2] = {records + __shfl_sync(ALL_LANES, run_of_lane, 0) + lane,
                                         records + __shfl_sync(ALL_LANES, run_of_lane, 1) + lane};
        const uint32_t to[2] = {record(depth - 1) + 4 * lane, record(0) + 4 * lane};
        for (uint32_t first = 0; first < record_units; first += 128) {
            uint4 units[2][4];
#pragma unroll
            for (uint32_t page = 0; page < 2; page++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    if (page < pages && first + 32 * i + lane_id() < record_units)
                        units[page][i] = __ldcg(reinterpret_cast<const uint4 *>(from[page] + 4 * first + 128 * i));
#pragma unroll
            for (uint32_t page = 0; page < 2; page++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    if (page < pages && first + 32 * i + lane_id() < record_units)
                        store_shared_quad(to[page] + 16 * first + 512 * i, units[page][i]);
        }
        __syncwarp();
    }

    /* Waits until all copies but those of `start` are there. */
    ATTEND_INLINE void wait_for_others() const {
        if (depth == 2)
            wait_copies<4>();
        else
            wait_copies<2>();
    }

    /* Waits until the oldest copies that were asked for are there. `all`: those of as many pages as the ring has room for were asked
     * for, else the last page's values or keys were not. */
    ATTEND_INLINE void wait(bool all = true) const {
        if (depth == 2 && all)
            wait_copies<3>();
        else if (depth == 2)
            wait_copies<2>();
        else if (all)
            wait_copies<1>();
        else
            wait_copies<0>();
        __syncwarp();
    }
};

/* ---- Shared memory */

/* A summed_quad says which planes make up a quad's components, and by what their sums and the components are multiplied. */
struct summed_quad {
    unsigned plane[2];
    float scale[2]; /* of codes where they lie in their nibble */
    float zero;     /* what weights times gains of 1 in all add to a component by the planes' largest codes */
    float4 step;
};
ATTEND_INLINE summed_quad quad_of(const struct transform_view &view, unsigned quad) {
    const struct transform_quad of = view.quad[quad];
    summed_quad to;
    to.zero = 0;
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const bool there = p < of.planes;
        to.plane[p] = of.plane[there ? p : 0];
        const struct transform_plane plane = view.layout.plane[to.plane[p]];
        to.scale[p] = there ? scale_in_place(plane) : 0;
        to.zero = fmaf(to.scale[p], (float)(((1 << plane.bits) - 1) << plane.shift), to.zero);
    }
    to.step = *reinterpret_cast<const float4 *>(view.step + 4 * quad);
    return to;
}

/* A warp's sums by plane lie as float4 [4 tiles of queries][planes_stride], the last two of which are a query's state and nothing. */
__host__ __device__ constexpr uint32_t planes_stride(uint32_t planes) { return (planes + 7) / 8 * 8 + 2; }
__host__ __device__ constexpr uint32_t planes_bytes(uint32_t tiles, uint32_t planes) {
    return tiles * 4 * planes_stride(planes) * 16;
}

template <int HD, int NQ, int WARPS> struct transform_shared {
    static constexpr int threads = WARPS * 32;
    static constexpr int reader_bytes = HD / 2 * 8; /* of a side */
    /* The numbers that positions are scored by lie behind the readers of both sides, then the quads of values, and where each warp's sums
     * begin; rings follow. */
    static __host__ __device__ constexpr int quads_at(uint32_t pairs) {
        return 2 * reader_bytes + (int)position_bytes(NQ, WARPS, pairs);
    }
    static __host__ __device__ constexpr int sums_at(uint32_t pairs) {
        return quads_at(pairs) + HD / 4 * (int)sizeof(struct summed_quad);
    }
    static __host__ __device__ constexpr int rings(uint32_t pairs) {
        return (sums_at(pairs) + WARPS * (int)sizeof(uint32_t) + 15) / 16 * 16;
    }
    static constexpr int largest(int a, int b) { return a > b ? a : b; }
    /* Returns the least bytes of shared memory. `page` is the bytes of a ring of one page. */
    static int least(int page, uint32_t pairs) { return largest(rings(pairs) + WARPS * page, row_memory<HD, NQ, WARPS>::bytes()); }
};

/* ---- Parts */

/* Stores a warp's sums by plane and its states in shared memory, if `writes`. */
template <int HD, int NQ>
ATTEND_INLINE void store_planes(bool writes, uint32_t planes, transform_running<NQ> &r, const transform_sums<HD, NQ> &acc,
                                float4 *sums) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4, stride = planes_stride(planes);
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        float4 *const row = sums + (4 * n + t) * stride;
        for (int o = 4; o < 32; o *= 2) {
            r.sum[n] += __shfl_xor_sync(ALL_LANES, r.sum[n], o);
            r.gained[n] += __shfl_xor_sync(ALL_LANES, r.gained[n], o);
            r.no_mean[n] += __shfl_xor_sync(ALL_LANES, r.no_mean[n], o);
        }
        if (writes && g == 0) row[stride - 2] = make_float4(r.max[n], r.sum[n], r.sum[n] - r.no_mean[n], r.gained[n]);
#pragma unroll
        for (int p = 0; p < HD / 16; p++)
            if (writes && 8 * p < planes) row[8 * p + g] = make_float4(acc[p][n][0], acc[p][n][1], acc[p][n][2], acc[p][n][3]);
    }
}

/* Makes a part of the warps' sums by plane, for which it waits, and writes it if `writes`. All threads call this. `sums_at` says where in
 * `memory` each warp's sums begin; 0: it has read no page. A quad of a query has one thread, or two or four neighboring ones, where a CTA has as many, each of which
 * adds up the sums of some warps. */
template <int HD, int NQ, int WARPS>
ATTEND_APART void leave_components(bool writes, const summed_quad *of_values, uint32_t planes, const uint8_t *memory,
                                   const uint32_t *sums_at, const transform_parts<HD> &parts, uint32_t part) {
    constexpr unsigned quads = HD / 4, most = WARPS * 32 / (4 * NQ * quads), sharing = most < 2 ? 1 : most < 4 ? 2 : 4;
    static_assert(sharing == 1 || WARPS % sharing == 0, "threads share the warps evenly");
    const unsigned items = parts.group * quads * sharing, stride = planes_stride(planes);
    __syncthreads();
#pragma unroll 1
    for (unsigned base = 0; base < items; base += WARPS * 32) {
        const unsigned i = min(base + threadIdx.x, items - 1), first = i % sharing, quad = i / sharing % quads,
                       query = i / sharing / quads;
        const summed_quad own = of_values[quad];
        const float4 *const rows = reinterpret_cast<const float4 *>(memory) + query * stride;
        float m = -INFINITY, weights = 0, of_mean = 0, gained = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            if (sums_at[w]) m = fmaxf(m, rows[sums_at[w] / 16 + stride - 2].x);
#pragma unroll
        for (int k = 0; k < WARPS; k += sharing) {
            const uint32_t at = sums_at[k + first];
            if (!at) continue;
            const float4 *const row = rows + at / 16, state = row[stride - 2];
            const float factor = m == -INFINITY ? 0 : exp2_fast(state.x - m);
            weights += factor * state.y, of_mean += factor * state.z, gained += factor * state.w;
#pragma unroll
            for (int p = 0; p < 2; p++) /* a quad that has no bits has no planes */
                if (own.scale[p] != 0) add_scaled(sum, 2 * factor * own.scale[p], row[own.plane[p]]);
        }
#pragma unroll
        for (unsigned o = 1; o < sharing; o *= 2) {
            weights += __shfl_xor_sync(ALL_LANES, weights, o), of_mean += __shfl_xor_sync(ALL_LANES, of_mean, o);
            gained += __shfl_xor_sync(ALL_LANES, gained, o);
            sum.x += __shfl_xor_sync(ALL_LANES, sum.x, o), sum.y += __shfl_xor_sync(ALL_LANES, sum.y, o);
            sum.z += __shfl_xor_sync(ALL_LANES, sum.z, o), sum.w += __shfl_xor_sync(ALL_LANES, sum.w, o);
        }
        if (!writes || first || base + threadIdx.x >= items) continue;
        const float zero = gained * own.zero;
        __stcg(parts.of(part, query) + quad, make_float4((sum.x - zero) * own.step.x, (sum.y - zero) * own.step.y,
                                                         (sum.z - zero) * own.step.z, (sum.w - zero) * own.step.w));
        if (quad == 0) __stcg(parts.states + part * parts.group + query, make_float4(m, weights, of_mean, 0));
    }
}

/* ---- The kernel */

/* Finishes the logits of a page's tokens: caps them, adds ALiBi, and sets those of tokens that are not read to -INFINITY. */
template <int NQ>
ATTEND_INLINE void finish_page_logits(float (&x)[NQ][8], float cap, const float *slopes, uint32_t group, int32_t from,
                                      uint64_t live) {
    const uint32_t first = lane_token();
    if (cap > 0) {
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) x[n][i] = soft_cap(x[n][i], LOG2_E * cap);
    }
    if (slopes) {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t query = 4 * n + lane_id() % 4;
            const float slope = query < group ? LOG2_E * slopes[query] : 0;
#pragma unroll
            for (int i = 0; i < 8; i++) x[n][i] += slope * (float)(from + (int32_t)(first + token_of(i)));
        }
    }
    if (live != READ_ALL) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t token = first + token_of(i);
#pragma unroll
            for (int n = 0; n < NQ; n++)
                if (!(live >> token & 1)) x[n][i] = -INFINITY;
        }
    }
}

/* Copies a side's readers to shared memory. */
template <int HD, int THREADS> ATTEND_INLINE plane_readers load_readers(const struct transform_view *view, uint8_t *memory) {
    const uint32_t to = shared_address(memory), planes = uniform(view->layout.planes),
                   padded = (planes + TRANSFORM_READERS_STEP - 1) / TRANSFORM_READERS_STEP * TRANSFORM_READERS_STEP;
    for (unsigned i = threadIdx.x; i < padded * 8 / 16; i += THREADS) copy_async<16>(to + 16 * i, view->readers + 4 * i);
    return {to, planes, uniform(view->layout.nibbles) * (uint32_t)PAGE_TRANSFORM_NIBBLE, 0, 0, 0};
}

/* Serves query heads first_query .. of each group, at most 4 NQ. `ring_bytes` is the size of a warp's ring; a CTA reads so many parts
 * of a row and KV head that follow one another, as far as the row has them: one, unless SEVERAL, since that takes fewer registers.
 * The launch's last CTAs read the rows of halves where it has so many. `beside_runs` says that all CTAs have room beside those of
 * transform_runs_kernel, `alone` that each has a multiprocessor to itself, `reads_next` that the next kernel reads what the kernels before
 * this one write. The kernel is launched early, behind transform_runs_kernel alone, which lets it begin at once: what it reads before it
 * waits is what the step's kernels do not write, the pages and their lists among it. */
template <int HD, int NQ, int WARPS, int RESIDENT, bool SEVERAL>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    attend_transform_kernel(const __grid_constant__ struct attend_decode a, uint32_t first_query, uint32_t ring_bytes,
                            uint32_t parts_of_cta, bool beside_runs, bool alone, bool reads_next) {
    using layout = transform_shared<HD, NQ, WARPS>;
    extern __shared__ __align__(128) uint8_t shared[];
    const unsigned warp = uniform(threadIdx.x / 32), lane = lane_id();
    struct share s;
    const uint32_t first_part = blockIdx.z * parts_of_cta;
    const bool of_rows = first_part >= a.splits;
    share_of(a, of_rows ? 0 : first_part, blockIdx.x, blockIdx.y, s);
    const uint32_t parts_before = take_rate(a, s);
    if (!of_rows && s.part >= s.parts) return;
    take_heads(s, first_query, 4 * NQ);
    const transform_parts<HD> parts = transform_parts_of<HD>(a, s);
    const transform_side<HD> keys = side_of<HD>(a, s, 0), values = side_of<HD>(a, s, 1);

    if (of_rows) {
        let_next_kernel_begin();
        /* The first time for what it leaves in the caches, as merge_transform_kernel does, rows but for the step's own among it: where it
         * begins before what it waits for has ended. */
#pragma unroll 1
        for (int pass = kernels_begin_early() && beside_runs ? 0 : 1; pass < 2; pass++) {
            if (pass) wait_for_kernels();
            leave_rows<HD, NQ, WARPS>(a, s, pass, shared, parts);
            __syncthreads();
        }
    } else {
        plane_readers of_keys = load_readers<HD, layout::threads>(keys.view, shared);
        plane_readers of_values = load_readers<HD, layout::threads>(values.view, shared + layout::reader_bytes);
        of_keys.gain_zero = keys.gain_zero, of_keys.gain_step = keys.gain_step;
        of_values.gain_zero = values.gain_zero, of_values.gain_step = values.gain_step, of_values.gain = values.gain;
        uint8_t *const positions = shared + 2 * layout::reader_bytes;
        const uint32_t position_rows = shared_address(positions) + position_query_bytes(NQ, a.pre_rope.pairs);
        copy_position_rows<layout::threads>(a.pre_rope, position_rows);
        commit_copies();
        const struct warp_pages pages(s, SEVERAL ? uniform(min(parts_of_cta, s.parts - s.part)) : 1, warp, WARPS);
        const struct listed_pages listed = listed_from(s, 0, 1);
        transform_ring<HD, NQ> ring = {listed, pages};
        ring.n = pages.end_of(pages.parts - 1);
        ring.place = (s.sequence->rates[a.rate].places ? s.sequence->rates[a.rate].places : a.places) +
                     (size_t)a.layer * a.heads.kv_heads + s.head;
        ring.first_run = uniform(s.n_pages ? run_of(first_listed(s)) : 0), ring.run_tokens = a.run_step * ROPE_RUN_TOKENS;
        ring.records = run_record<HD, NQ>(a, s, 0);
        ring.set_room(shared_address(shared) + layout::rings(a.pre_rope.pairs) + warp * ring_bytes, ring_bytes,
                      uniform(keys.view->layout.nibbles), uniform(values.view->layout.nibbles), of_keys.planes,
                      planes_bytes(NQ, of_values.planes));
        ring.start();
        summed_quad *const quads = reinterpret_cast<summed_quad *>(shared + layout::quads_at(a.pre_rope.pairs));
        for (unsigned i = threadIdx.x; i < HD / 4; i += layout::threads) quads[i] = quad_of(*values.view, i);
        float2 *const angles =
            reinterpret_cast<float2 *>(positions + position_query_bytes(NQ, a.pre_rope.pairs) +
                                       position_row_bytes(a.pre_rope.pairs) + warp * position_angle_bytes(a.pre_rope.pairs));
        ring.wait_for_others();
        if (!reads_next) let_next_kernel_begin();
        /* The first time for what it leaves in the caches: a warp goes through its first page with whatever lies in the place of its run's
         * record, leaves the page where it is, and asks for no other. A CTA with less than all registers would spill for that. */
        const bool twice = RESIDENT == 1 && !SEVERAL && alone && kernels_begin_early();
#pragma unroll 1
        for (int pass = twice ? 0 : 1; pass < 2; pass++) {
            if (pass) {
                wait_for_kernels();
                if (reads_next) let_next_kernel_begin(); /* what the kernels before this one wrote is there */
                /* A thread asks for its first unit of positions before records are fetched, so that both take one trip to the L2. */
                const uint32_t *const of_positions = position_record<HD, NQ>(a, s);
                const uint32_t units = a.pre_rope.pairs ? position_query_bytes(NQ, a.pre_rope.pairs) / 16 : 0;
                uint4 own_unit = make_uint4(0, 0, 0, 0);
                if (threadIdx.x < units) own_unit = __ldcg(reinterpret_cast<const uint4 *>(of_positions) + threadIdx.x);
                ring.fetch_first_records();
                if (threadIdx.x < units) store_shared_quad(shared_address(positions) + 16 * threadIdx.x, own_unit);
                if constexpr (position_query_bytes(NQ, HD / 2) / 16 > layout::threads)
                    fetch_positions<layout::threads>(of_positions, layout::threads, units, shared_address(positions));
            }
            __syncthreads(); /* readers and positions are there */

            struct page_of_lane of_lane;
            const float *const slopes = a.heads.slopes ? a.heads.slopes + s.first_head : nullptr;
            uint32_t *const sums_at = reinterpret_cast<uint32_t *>(shared + layout::sums_at(a.pre_rope.pairs));
            uint32_t page = 0;
#pragma unroll 1
            for (uint32_t part = 0; part < pages.parts; part++) {
                transform_sums<HD, NQ> acc = {};
                transform_running<NQ> r;
#pragma unroll
                for (int i = 0; i < NQ; i++) r.max[i] = -INFINITY, r.sum[i] = r.gained[i] = r.no_mean[i] = 0;
                const uint32_t begin = page, end = pass ? pages.end_of(part) : min(pages.end_of(part), 1u);
#pragma unroll 1
                for (; page < end; page++) {
                    if (page % 32 == 0) of_lane.load(listed, pages.entry(min(page + lane, ring.n - 1)), a.rows[s.row].first);
                    float x[NQ][8];
                    page_weights<NQ> weights;
                    const uint32_t slot = ring.slot(page);
                    const bool last = SEVERAL && page + 1 == end; /* of a part behind which others may come */
                    lane_angles own_angles;
                    page_angles(a, of_lane.first_of(page)).load(own_angles);
                    ring.wait();
                    score_page<HD, NQ>(slot, ring.record(ring.depth - 1), of_keys, x);
                    page_angles(a, of_lane.first_of(page)).place(own_angles, angles);
                    __syncwarp();
                    if (pass && (!last || ring.sums_beside_keys())) ring.ask_for_keys(page + ring.depth);
                    add_positions(a.pre_rope, shared_address(positions), position_rows, shared_address(angles), x);
                    const uint32_t from = of_lane.first_of(page); /* not before: registers are short while keys are scored */
                    const uint64_t live = of_lane.read_of(page, from, s.position);
                    finish_page_logits(x, a.heads.cap, slopes, s.group, (int32_t)(from - s.position), live);
                    ring.wait(pass && (!last || ring.sums_beside_keys()));
                    weigh_page<HD, NQ>(slot + ring.key_bytes, of_values, x, r, acc, weights);
                    accumulate_page<HD, NQ>(slot + ring.key_bytes, of_values, weights, acc);
                    __syncwarp();
                    if (pass && !last) ring.ask_for_values(page + ring.depth);
                }
                const uint32_t sums = ring.sums_slot(page - 1) - shared_address(shared);
                if (page > begin) store_planes<HD, NQ>(pass, of_values.planes, r, acc, reinterpret_cast<float4 *>(shared + sums));
                if (lane == 0) sums_at[warp] = page > begin ? sums : 0;
                leave_components<HD, NQ, WARPS>(pass, quads, of_values.planes, shared, sums_at, parts,
                                                1 + parts_before + s.part + part);
                if (!SEVERAL || part + 1 == pages.parts) break;
                __syncthreads();
                if (page > begin) ring.ask_after_sums(page);
            }
        }
    }
}

/* Returns whether each CTA, those before and behind this kernel's among them, has a multiprocessor to itself. */
template <int HD, int NQ> bool ctas_are_alone(const struct attend_decode &a) {
    const uint32_t merging = 1, reading = a.splits + 1;
    return a.n_rows * a.heads.kv_heads * (runs_shares<HD, NQ>(a).x + reading + merging) <=
           (uint32_t)device_attribute(cudaDevAttrMultiProcessorCount);
}

template <int HD, int NQ, int WARPS, int RESIDENT>
cudaError_t launch_transform_warps(const struct attend_decode *a, uint32_t first_query, int room, cudaStream_t stream) {
    using layout = transform_shared<HD, NQ, WARPS>;
    const uint32_t parts = parts_of_ctas(a, RESIDENT), ctas = (a->splits + parts - 1) / parts;
    const auto kernel = parts > 1 ? attend_transform_kernel<HD, NQ, WARPS, RESIDENT, true>
                                  : attend_transform_kernel<HD, NQ, WARPS, RESIDENT, false>;
    const int rings = layout::rings(a->pre_rope.pairs), ring = (room - rings) / WARPS / 16 * 16, bytes = rings + WARPS * ring;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    uint32_t left = a->rates ? a->rates : 1;
    struct attend_decode own = *a;
    const uint32_t shares = a->n_rows * a->heads.kv_heads,
                   places = (uint32_t)(RESIDENT * device_attribute(cudaDevAttrMultiProcessorCount));
    const bool at_once = shares * (a->splits + 1) <= places,
               beside_runs = shares * (runs_shares<HD, NQ>(*a).x + a->splits + 1) <= places;
    /* Rows that wait for pages' CTAs to end are read by merging CTAs, which do that too, and have as much time. */
    const bool rows_when_merging = !at_once && WARPS == MERGE_WARPS;
    for (bool rows = !rows_when_merging; left && result == cudaSuccess; left &= left - 1, rows = false) { /* rows are read once */
        own.rate = (uint32_t)__builtin_ctz(left);
        result = launch_runs<HD, NQ>(&own, first_query, !a->lists_written, stream);
        if (result == cudaSuccess)
            result = launch_early(kernel, dim3(a->heads.kv_heads, a->n_rows, ctas + rows), dim3(WARPS * 32), bytes, stream, own,
                                  first_query, (uint32_t)ring, parts, beside_runs, ctas_are_alone<HD, NQ>(*a), rows_when_merging);
    }
    if (result != cudaSuccess) return result;
    return rows_when_merging ? launch_merge<HD, NQ, true>(a, first_query, stream)
                             : launch_merge<HD, NQ, false>(a, first_query, stream);
}

/* Launches two CTAs to a multiprocessor if they fit, else one, of as many warps as fit. Few CTAs, which are alone on theirs, may have all
 * registers. */
template <int HD, int NQ> cudaError_t launch_transform(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    constexpr int reserved = 1024; /* of each CTA */
    constexpr int bound = HD * NQ <= 128 ? 2 : 1;
    const uint32_t nibbles[2] = {(a->page_bytes[0] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE,
                                 (a->page_bytes[1] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE};
    const uint32_t planes[2] = {nibbles[0] * 4 < HD / 2 ? nibbles[0] * 4 : HD / 2, /* at most: a nibble has four bits */
                                nibbles[1] * 4 < HD / 2 ? nibbles[1] * 4 : HD / 2};
    const uint32_t slots = page_slot_bytes(nibbles[0]) + page_slot_bytes(nibbles[1]), sums = planes_bytes(NQ, planes[1]);
    const uint32_t read = slots + run_record_words(NQ, planes[0]) * 4;
    const int page = (int)(read > sums ? read : sums);
    const int room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
              half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - reserved;
    if constexpr (bound == 2)
        if (transform_shared<HD, NQ, 8>::least(page, a->pre_rope.pairs) <= half)
            return ctas_are_alone<HD, NQ>(*a) ? launch_transform_warps<HD, NQ, 8, 1>(a, first_query, half, stream)
                                              : launch_transform_warps<HD, NQ, 8, 2>(a, first_query, half, stream);
    if (transform_shared<HD, NQ, 8>::least(page, a->pre_rope.pairs) <= room)
        return launch_transform_warps<HD, NQ, 8, 1>(a, first_query, room, stream);
    /* Pages of 8 bits to a component fit the 99 KiB of compute capability 8.6 with 8 warps of 64 channels, 4 of 128, 2 of 256. */
    if constexpr (HD > 64)
        if (transform_shared<HD, NQ, 4>::least(page, a->pre_rope.pairs) <= room)
            return launch_transform_warps<HD, NQ, 4, 1>(a, first_query, room, stream);
    if constexpr (HD > 128)
        if (transform_shared<HD, NQ, 2>::least(page, a->pre_rope.pairs) <= room)
            return launch_transform_warps<HD, NQ, 2, 1>(a, first_query, room, stream);
    return cudaErrorInvalidConfiguration;
}

/* Launches the kernel for all query heads; more than 8 of a group take several launches. */
template <int HD> cudaError_t launch_transform_groups(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t group = a->heads.query_heads / a->heads.kv_heads;
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0; first < group && result == cudaSuccess; first += 8)
        result = group - first > 4 ? launch_transform<HD, 2>(a, first, stream) : launch_transform<HD, 1>(a, first, stream);
    return result;
}

#endif
