/* Has the kernel of attend_transform.cuh: the rings of pages, the work of warps on them, and the merging of their states.
 *
 * Of a query row and KV head, CTA 0 reads the rows of halves and each of the others a part of the pages; a warp reads pages by
 * itself, through a ring of its own. The last CTA to arrive merges what all of them wrote. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH

#include "backend/cuda/kv/attend_transform.cuh"
#include "backend/cuda/kv/attend_transform.h"

/* Functions that a CTA calls once, before or after it reads pages, are not inlined into the kernel: its registers are all for
 * reading. */
#define ATTEND_APART __device__ __noinline__

/* ---- The ring */

/* Returns the bytes of a slot: nibbles, then gains in a unit of their own. Behind a slot of keys lies the record of their run. */
__host__ __device__ constexpr uint32_t page_slot_bytes(uint32_t nibbles) { return (nibbles + 1) * PAGE_TRANSFORM_NIBBLE; }

/* Copies, by a warp, `count` units of 16 bytes, of which a lane copies every 32nd. */
ATTEND_INLINE void copy_units(uint32_t to, const uint8_t *from, uint32_t count) {
    uint32_t c = 0;
#pragma unroll 1
    for (; c + 128 <= count; c += 128, to += 128 * 16, from += 128 * 16)
#pragma unroll
        for (uint32_t i = 0; i < 128; i += 32) copy_async<16>(to + 16 * i, from + 16 * i);
#pragma unroll
    for (uint32_t i = 0; i < 128; i += 32)
        if (c + i + lane_id() < count) copy_async<16>(to + 16 * i, from + 16 * i);
}

/* A ring has one or two of a warp's pages in shared memory: a slot of keys and one of values each. As soon as a slot has been read,
 * it is filled with the page after the other's. The first pages are asked for before the records of their runs are there, which
 * another kernel writes. */
template <int HD, int NQ> struct transform_ring {
    struct listed_pages listed;
    const struct place_view *place;
    const uint32_t *records;                       /* of runs, from that of the list's first page on */
    uint32_t first_run;                            /* position */
    uint32_t n;                                    /* pages */
    uint32_t key_units, value_units, record_units; /* of 16 bytes */
    uint32_t base, key_bytes, bytes;               /* of a slot of keys, and of both */
    uint32_t depth;                                /* 1 or 2 */
    const uint8_t *keys_of_lane, *values_of_lane;  /* page 32 i + lane's */
    uint32_t run_of_lane;                          /* offset of its run's record, in words */

    ATTEND_INLINE void set_room(uint32_t memory, uint32_t room, uint32_t key_nibbles, uint32_t value_nibbles, uint32_t key_planes) {
        key_units = key_nibbles * (PAGE_TRANSFORM_NIBBLE / 16), value_units = value_nibbles * (PAGE_TRANSFORM_NIBBLE / 16);
        record_units = run_record_words(NQ, key_planes) / 4;
        key_bytes = page_slot_bytes(key_nibbles) + 16 * record_units;
        bytes = key_bytes + page_slot_bytes(value_nibbles);
        base = memory, depth = room >= 2 * bytes ? 2 : 1;
    }

    ATTEND_INLINE uint32_t slot(uint32_t page) const { return base + (page & (depth - 1)) * bytes; }

    /* The following return the place of the lane's 16 bytes of four nibbles in a slot, by nibble_place of transforms.c. */
    static ATTEND_INLINE uint32_t key_place() { return lane_id() / 8 * 128 + 16 * (lane_id() % 8 ^ 2 * (lane_id() / 8)); }
    static ATTEND_INLINE uint32_t value_place() { return lane_id() / 8 * 128 + 16 * (lane_id() % 8 ^ lane_id() / 8 % 2 * 4); }

    static ATTEND_INLINE const uint8_t *of(const uint8_t *of_lane, uint32_t page) {
        return reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, (unsigned long long)of_lane, page % 32)) + 16 * lane_id();
    }

    /* The following two return where the lane reads the record of a page's run, and where it goes in a slot. */
    ATTEND_INLINE const uint32_t *record_of(uint32_t page) const {
        return records + __shfl_sync(ALL_LANES, run_of_lane, page % 32) + 4 * lane_id();
    }
    ATTEND_INLINE uint32_t record_place(uint32_t page) const {
        return slot(page) + 16 * (key_units + lane_id()) + PAGE_TRANSFORM_NIBBLE;
    }

    ATTEND_INLINE void copy_keys(uint32_t page) {
        if (page % 32 == 0) {
            const struct page_set_view set = listed.set(min(page + lane_id(), n - 1));
            keys_of_lane = page_address(&set, place, 0), values_of_lane = page_address(&set, place, 1);
            run_of_lane = (run_of(set.first) - first_run) / ROPE_RUN_TOKENS * run_record_words(NQ, HD / 2);
        }
        const uint8_t *const from = of(keys_of_lane, page);
        const uint32_t to = slot(page);
        if (lane_id() < 4) copy_async<16>(to + 16 * (key_units + lane_id()), from);
        copy_units(to + key_place(), from + PAGE_TOKENS, key_units);
    }

    ATTEND_INLINE void ask_for_keys(uint32_t page) {
        if (page < n) {
            copy_keys(page);
            copy_units(record_place(page), reinterpret_cast<const uint8_t *>(record_of(page)), record_units);
        }
        commit_copies();
    }

    ATTEND_INLINE void ask_for_values(uint32_t page) {
        if (page < n) {
            const uint8_t *const from = of(values_of_lane, page);
            const uint32_t to = slot(page) + key_bytes;
            if (lane_id() < 4) copy_async<16>(to + 16 * (value_units + lane_id()), from);
            copy_units(to + value_place(), from + PAGE_TOKENS, value_units);
        }
        commit_copies();
    }

    /* Asks for the first pages without the records of their runs. */
    ATTEND_INLINE void start() {
        for (uint32_t page = 0; page < depth; page++) {
            if (page < n) copy_keys(page);
            commit_copies();
            ask_for_values(page);
        }
    }

    /* Loads the records that `start` left out. It does not copy them asynchronously: such copies would be waited for behind all of
     * the first pages. */
    ATTEND_INLINE void fetch_first_records() const {
        for (uint32_t first = 0; first < record_units; first += 128) {
            uint4 record[2][4];
#pragma unroll
            for (uint32_t page = 0; page < 2; page++) {
                if (page >= min(depth, n)) continue;
                const uint32_t *const from = record_of(page) + 4 * first;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    if (first + 32 * i + lane_id() < record_units)
                        record[page][i] = __ldcg(reinterpret_cast<const uint4 *>(from + 128 * i));
            }
#pragma unroll
            for (uint32_t page = 0; page < 2; page++) {
                if (page >= min(depth, n)) continue;
                const uint32_t to = record_place(page) + 16 * first;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    if (first + 32 * i + lane_id() < record_units) store_shared_quad(to + 512 * i, record[page][i]);
            }
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

    /* Waits until the oldest copies that were asked for are there. */
    ATTEND_INLINE void wait() const {
        if (depth == 2)
            wait_copies<3>();
        else
            wait_copies<1>();
        __syncwarp();
    }
};

/* ---- Shared memory */

template <int HD, int NQ, int WARPS> struct transform_shared {
    static constexpr int threads = WARPS * 32;
    static constexpr int reader_bytes = HD / 2 * 24; /* of a side */
    /* The numbers that positions are scored by lie behind the readers of both sides; rings follow. */
    static __host__ __device__ constexpr int rings(uint32_t pairs) {
        return (2 * reader_bytes + (int)position_bytes(NQ, WARPS, pairs) + 127) / 128 * 128;
    }
    /* While pages are read, sums by plane of each warp, float4 [WARPS][4 NQ][plane_stride], and their states, float4 [WARPS][4 NQ],
     * take this memory. */
    static constexpr int plane_stride = HD / 2 + 2;
    static constexpr int sums = WARPS * 4 * NQ * plane_stride * 16, states = WARPS * 4 * NQ * 16;
    /* Merging needs factors of parts, sums of threads, components [HD][4 NQ], sums of sections of channels [sections][4 NQ][HD]. */
    static constexpr int sections = threads / (HD / 8) < 16 ? threads / (HD / 8) : 16;
    static constexpr int merging = threads * 16 + HD * 4 * NQ * 4 + sections * 4 * NQ * HD * 4 + 4 * NQ * 16;
    /* The CTA that reads rows has queries for the window and for exact rows here; then each warp's rows, or their states. */
    static constexpr int row_queries = 2 * ((int)sizeof(query_fragments<HD, 1>) + 127) / 128 * 128;
    static constexpr int rows = row_queries + WARPS * 2 * half_rows<HD>::bytes;
    static constexpr int row_states = row_queries + (int)partials_bytes<HD>(WARPS, 4 * NQ);
    static constexpr int largest(int a, int b) { return a > b ? a : b; }
    static constexpr int after = largest(sums + states, merging); /* but for factors of parts */
    /* Returns the least bytes of shared memory. `page` is the bytes of a ring of one page. */
    static int least(int page, uint32_t pairs, int factors) {
        return largest(largest(rings(pairs) + WARPS * page, after + factors), largest(rows, row_states));
    }
};

/* ---- Parts, which CTAs leave in memory */

/* A transform_parts says where the parts of a row and KV head lie. Part 0 is that of the rows of halves, by channel: float4 [G][HD
 * / 4]. The others are by plane: float4 [G][planes]. */
template <int HD> struct transform_parts {
    float4 *sums;
    float2 *states; /* [part][G]: maximum, sum of weights */
    uint32_t group;
    ATTEND_INLINE float4 *of(uint32_t part) const { return sums + (size_t)part * group * (plane_sum_floats(HD) / 4); }
};

template <int HD> ATTEND_INLINE transform_parts<HD> transform_parts_of(const struct attend_decode &a, const struct share &s) {
    const size_t each = a.splits + 1, all = (size_t)a.n_rows * a.heads.kv_heads * each,
                 first = ((size_t)s.row * a.heads.kv_heads + s.head) * each;
    return {reinterpret_cast<float4 *>(a.parts + first * s.group * plane_sum_floats(HD)),
            reinterpret_cast<float2 *>(a.parts + all * s.group * plane_sum_floats(HD)) + first * s.group, s.group};
}

ATTEND_INLINE void add_scaled(float4 &to, float factor, const float4 &x) {
    to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}

/* Stores a warp's sums by plane and its states in shared memory. */
template <int HD, int NQ, int WARPS>
ATTEND_INLINE void store_planes(uint32_t planes, transform_running<NQ> &r, const transform_sums<HD, NQ> &acc, uint8_t *memory) {
    using layout = transform_shared<HD, NQ, WARPS>;
    const unsigned warp = threadIdx.x / 32, g = lane_id() / 4, t = lane_id() % 4;
    float4 *const sums = reinterpret_cast<float4 *>(memory), *const states = reinterpret_cast<float4 *>(memory + layout::sums);
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const unsigned row = warp * 4 * NQ + 4 * n + t;
        for (int o = 4; o < 32; o *= 2) {
            r.sum[n] += __shfl_xor_sync(ALL_LANES, r.sum[n], o);
            r.gained[n] += __shfl_xor_sync(ALL_LANES, r.gained[n], o);
        }
        if (g == 0) states[row] = make_float4(r.max[n], r.sum[n], 0, 0);
        const float zero = LEVEL_ZERO * r.gained[n];
#pragma unroll
        for (int p = 0; p < HD / 16; p++)
            if (8 * p < planes)
                sums[row * layout::plane_stride + 8 * p + g] =
                    make_float4(acc[p][n][0] - zero, acc[p][n][1] - zero, acc[p][n][2] - zero, acc[p][n][3] - zero);
    }
}

/* Makes a part of the warps' sums. All threads call this after a __syncthreads. */
template <int HD, int NQ, int WARPS>
ATTEND_INLINE void leave_planes(uint32_t planes, const uint8_t *memory, const transform_parts<HD> &parts, uint32_t part) {
    using layout = transform_shared<HD, NQ, WARPS>;
    const float4 *const sums = reinterpret_cast<const float4 *>(memory), *const states = reinterpret_cast<const float4 *>(
                                                                             memory + layout::sums);
    for (unsigned i = threadIdx.x; i < parts.group * (planes + 1); i += WARPS * 32) { /* one more: the state */
        const unsigned query = i / (planes + 1), plane = i % (planes + 1);
        float m = -INFINITY, weights = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) m = fmaxf(m, states[w * 4 * NQ + query].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const unsigned row = w * 4 * NQ + query;
            const float factor = m == -INFINITY ? 0 : exp2_fast(states[row].x - m);
            weights += factor * states[row].y;
            if (plane < planes) add_scaled(sum, factor, sums[row * layout::plane_stride + plane]);
        }
        if (plane < planes)
            __stcg(parts.of(part) + query * planes + plane, sum);
        else
            __stcg(parts.states + part * parts.group + query, make_float2(m, weights));
    }
}

/* Reads the rows of halves and makes part 0. All threads of the CTA that reads rows call this. */
template <int HD, int NQ, int WARPS>
ATTEND_APART void leave_rows(const struct attend_decode &a, const struct share &s, uint8_t *memory,
                             const transform_parts<HD> &parts) {
    using layout = transform_shared<HD, NQ, WARPS>;
    auto *const queries = reinterpret_cast<query_fragments<HD, 1> *>(memory); /* for the window, for exact rows */
    const uint32_t warp = threadIdx.x / 32;
    prepare_queries<HD, 1, WARPS>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, queries[0]);
    prepare_queries<HD, 1, WARPS>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, queries[1]);
    __syncthreads();
    running<1> r;
    float acc[HD / 16][1][4] = {};
    clear_running(r);
    attend_rows<HD>(a, s, warp, WARPS, queries[1], queries[0], slopes_of<1>(a, s),
                    shared_address(memory) + layout::row_queries + warp * 2 * half_rows<HD>::bytes, r, acc);
    finish_running(r);
    __syncthreads(); /* the rows are no longer read */
    const partials<HD> states = partials_at<HD>(memory + layout::row_queries, WARPS, s.group);
    store_running(states, warp, s.group, r);
    store_sums<HD>(states, warp, s.group, acc);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < s.group * (HD / 4); i += WARPS * 32) {
        const unsigned query = i / (HD / 4);
        float4 sums = make_float4(0, 0, 0, 0);
        float2 state = make_float2(-INFINITY, 0);
        for (unsigned w = 0; w < WARPS; w++)
            merge_state(sums, state, reinterpret_cast<const float4 *>(states.sums)[w * s.group * (HD / 4) + i],
                        states.max_sum[w * s.group + query]);
        __stcg(parts.of(0) + i, sums);
        if (i % (HD / 4) == 0) __stcg(parts.states + query, state);
    }
}

/* Returns whether this CTA is the last of `n` to come here; what the others wrote before may then be read. All threads call
 * this. */
ATTEND_INLINE bool is_last(const struct attend_decode &a, const struct share &s, uint32_t n) {
    __threadfence();
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
        uint32_t *arrived = a.arrived + s.row * a.heads.kv_heads + s.head;
        last = atomicAdd(arrived, 1) == n - 1;
        if (last) *arrived = 0;
    }
    last = __syncthreads_or(last);
    __threadfence();
    return last;
}

/* Merges parts 0 to `n` and writes out[G][HD]. All threads take part. */
template <int HD, int NQ, int WARPS> struct transform_merge {
    using layout = transform_shared<HD, NQ, WARPS>;
    static constexpr unsigned threads = WARPS * 32;
    transform_parts<HD> parts;
    uint32_t n;
    float4 *sums;   /* [threads] */
    float *z;       /* by component [HD][4 NQ] */
    float *by_part; /* [sections][4 NQ][HD] */
    float4 *totals; /* of a query: the rows' factor, weights of pages, 1 / all weights */
    float *factors; /* [parts][G] */

    ATTEND_INLINE transform_merge(uint8_t *memory, const transform_parts<HD> &of, uint32_t count) : parts(of), n(count) {
        sums = reinterpret_cast<float4 *>(memory);
        z = reinterpret_cast<float *>(sums + threads);
        by_part = z + HD * 4 * NQ;
        totals = reinterpret_cast<float4 *>(by_part + layout::sections * 4 * NQ * HD);
        factors = reinterpret_cast<float *>(totals + 4 * NQ);
    }

    /* Computes the factors of parts, a warp for each query. */
    ATTEND_INLINE void weigh_parts() const {
#pragma unroll 1
        for (unsigned query = threadIdx.x / 32; query < parts.group; query += WARPS) {
            float m = -INFINITY, weights = 0, of_rows = 0; /* of the lane's parts, part 0 apart */
#pragma unroll 2
            for (unsigned part = lane_id(); part < n; part += 32) {
                const float2 state = __ldcg(parts.states + part * parts.group + query);
                const float most = fmaxf(m, state.x), own = most == -INFINITY ? 0 : exp2_fast(state.x - most) * state.y;
                weights = (most == -INFINITY ? 0 : weights * exp2_fast(m - most)) + (part ? own : 0);
                if (!part) of_rows = state.y;
                factors[part * parts.group + query] = state.x, m = most;
            }
            const float of_lane = m;
            for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
            weights *= m == -INFINITY ? 0 : exp2_fast(of_lane - m);
            for (int o = 16; o; o /= 2) weights += __shfl_xor_sync(ALL_LANES, weights, o);
            float rows_factor = 0;
            for (unsigned part = lane_id(); part < n; part += 32) {
                float &factor = factors[part * parts.group + query];
                factor = m == -INFINITY ? 0 : exp2_fast(factor - m);
                if (!part) rows_factor = factor;
            }
            const float all = weights + of_rows * rows_factor; /* of lane 0 alone */
            if (lane_id() == 0) totals[query] = make_float4(rows_factor, weights, all > 0 ? 1 / all : 0, 0);
        }
    }

    /* A summed_quad says where a quad's planes lie in a query's sums, and by what they and the components are multiplied. */
    struct summed_quad {
        unsigned plane[2];
        float scale[2];
        float4 step;
    };
    ATTEND_INLINE summed_quad quad_of(const struct transform_view &view, unsigned quad) const {
        const struct transform_quad of = view.quad[quad];
        summed_quad to;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const bool there = p < of.planes;
            to.plane[p] = of.plane[there ? p : 0];
            to.scale[p] = there ? view.layout.plane[to.plane[p]].scale : 0;
        }
        to.step = *reinterpret_cast<const float4 *>(view.step + 4 * quad);
        return to;
    }

    /* Sums a quad over every ranks-th part from `first` on. Several loads are under way at once. */
    ATTEND_INLINE float4 sum_parts(unsigned query, unsigned planes, const summed_quad &quad, unsigned first, unsigned ranks) const {
        constexpr unsigned at_once = 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (unsigned begin = first; begin < n; begin += at_once * ranks) {
            float4 x[at_once][2];
#pragma unroll
            for (unsigned k = 0; k < at_once; k++) {
                const float4 *const from = parts.of(min(begin + k * ranks, n - 1)) + query * planes;
                x[k][0] = __ldcg(from + quad.plane[0]), x[k][1] = __ldcg(from + quad.plane[1]);
            }
#pragma unroll
            for (unsigned k = 0; k < at_once; k++) {
                const unsigned part = begin + k * ranks;
                const float factor = part < n ? factors[part * parts.group + query] : 0;
                add_scaled(sum, factor * quad.scale[0], x[k][0]), add_scaled(sum, factor * quad.scale[1], x[k][1]);
            }
        }
        return sum;
    }

    /* Sums by component: a thread has a quad of a query, of every ranks-th part. `own` is the thread's first quad. */
    ATTEND_INLINE void add_planes(const struct transform_view &view, summed_quad own) const {
        const unsigned planes = view.layout.planes, quads = view.layout.quads, items = parts.group * quads,
                       width = min(items, threads);
        const unsigned ranks = width ? threads / width : 0, rank = width ? threadIdx.x / width : 0;
#pragma unroll 1
        for (unsigned base = 0; base < items; base += width) {
            const unsigned i = base + threadIdx.x % width, query = i / quads, quad = i % quads;
            const bool mine = rank < ranks && i < items;
            if (mine && base) own = quad_of(view, quad);
            float4 sum = make_float4(0, 0, 0, 0);
            if (mine) sum = sum_parts(query, planes, own, 1 + rank, ranks);
            __syncthreads();
            sums[threadIdx.x] = sum;
            __syncthreads();
            if (!mine || rank) continue;
            for (unsigned r = 1; r < ranks; r++) add_scaled(sum, 1, sums[threadIdx.x + r * width]);
            float *const to = z + 4 * quad * (4 * NQ) + query;
            to[0] = sum.x * own.step.x, to[4 * NQ] = sum.y * own.step.y;
            to[2 * 4 * NQ] = sum.z * own.step.z, to[3 * 4 * NQ] = sum.w * own.step.w;
        }
    }

    /* Sums by channel: a thread has eight channels, of a section of the components. */
    ATTEND_INLINE void to_channels(const struct transform_view &view) const {
        constexpr unsigned at_once = 8;
        const unsigned components = 4 * view.layout.quads, octet = threadIdx.x % (HD / 8), section = threadIdx.x / (HD / 8);
        if (section >= layout::sections) return;
        float x[4 * NQ][8] = {};
        const unsigned first = components * section / layout::sections, end = components * (section + 1) / layout::sections;
        const uint4 *const basis = reinterpret_cast<const uint4 *>(view.basis) + octet;
#pragma unroll 1
        for (unsigned begin = first; begin < end; begin += at_once) {
            uint4 integers[at_once];
#pragma unroll
            for (unsigned k = 0; k < at_once; k++) integers[k] = basis[min(begin + k, end - 1) * (HD / 8)];
#pragma unroll
            for (unsigned k = 0; k < at_once; k++) {
                if (begin + k >= end) continue;
                const uint32_t pairs[4] = {integers[k].x, integers[k].y, integers[k].z, integers[k].w};
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float b = (float)(int16_t)(pairs[i / 2] >> i % 2 * 16);
#pragma unroll
                    for (int q = 0; q < 4 * NQ; q++) x[q][i] = fmaf(z[(begin + k) * 4 * NQ + q], b, x[q][i]);
                }
            }
        }
#pragma unroll
        for (int q = 0; q < 4 * NQ; q++) {
            float4 *const to = reinterpret_cast<float4 *>(by_part + (section * 4 * NQ + q) * HD + 8 * octet);
            to[0] = make_float4(x[q][0], x[q][1], x[q][2], x[q][3]), to[1] = make_float4(x[q][4], x[q][5], x[q][6], x[q][7]);
        }
    }

    /* A thread writes every threads-th output; `mean` has its share of the mean for them. */
    static constexpr unsigned outputs = (4 * NQ * HD + threads - 1) / threads;
    ATTEND_INLINE void write(const float (&mean)[outputs], const float (&rows)[outputs], float *out) const {
#pragma unroll
        for (unsigned k = 0; k < outputs; k++) {
            const unsigned i = threadIdx.x + k * threads, query = i / HD, channel = i % HD;
            if (i >= parts.group * HD) continue;
            const float4 total = totals[query];
            float sum = mean[k] * total.y + total.x * rows[k];
#pragma unroll 4
            for (int section = 0; section < layout::sections; section++) sum += by_part[(section * 4 * NQ + query) * HD + channel];
            out[i] = sum * total.z;
        }
    }
};

/* Merges all parts in the CTA of a row and KV head that comes here last. Loads what it needs besides before it knows whether it is
 * the last. All threads call this. */
template <int HD, int NQ, int WARPS>
ATTEND_APART void merge_last(const struct attend_decode &a, const struct share &s, const transform_parts<HD> &parts,
                             uint8_t *memory) {
    using merge_of = transform_merge<HD, NQ, WARPS>;
    const merge_of merge(memory, parts, s.parts + 1);
    const transform_side<HD> values = side_of<HD>(a, s, 1);
    const unsigned quads = values.view->layout.quads;
    float mean[merge_of::outputs], rows[merge_of::outputs];
    typename merge_of::summed_quad own = {};
    if (quads) own = merge.quad_of(*values.view, threadIdx.x % min(parts.group * quads, merge_of::threads) % quads);
#pragma unroll
    for (unsigned k = 0; k < merge_of::outputs; k++) mean[k] = values.mean[(threadIdx.x + k * merge_of::threads) % HD];
    if (!is_last(a, s, merge.n)) return;
#pragma unroll
    for (unsigned k = 0; k < merge_of::outputs; k++) {
        const unsigned i = threadIdx.x + k * merge_of::threads;
        rows[k] = i < parts.group * HD ? __ldcg(reinterpret_cast<const float *>(parts.of(0)) + i) : 0;
    }
    merge.weigh_parts();
    __syncthreads();
    merge.add_planes(*values.view, own);
    __syncthreads();
    merge.to_channels(*values.view);
    __syncthreads();
    let_next_kernel_begin(); /* not before: weights that it asks for would delay all that is loaded here */
    merge.write(mean, rows, a.out + queries_at<HD>(a, s));
}

/* ---- The kernel */

/* Finishes the logits of a page's tokens: adds ALiBi, and sets those of tokens that are not read to -INFINITY. */
template <int NQ>
ATTEND_INLINE void finish_page_logits(float (&x)[NQ][8], const float *slopes, uint32_t group, int32_t from, uint64_t live) {
    const uint32_t first = lane_token();
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

/* Copies a side's readers, and the tables that belong to them, to shared memory. */
template <int HD, int THREADS> ATTEND_INLINE plane_readers load_readers(const struct transform_view *view, uint8_t *memory) {
    const uint32_t to = shared_address(memory), planes = uniform(view->layout.planes),
                   padded = (planes + TRANSFORM_READERS_STEP - 1) / TRANSFORM_READERS_STEP * TRANSFORM_READERS_STEP;
    for (unsigned i = threadIdx.x; i < padded * 24 / 16; i += THREADS) copy_async<16>(to + 16 * i, view->readers + 4 * i);
    return {to, to + padded * 16, planes, uniform(view->wraps), uniform(view->layout.nibbles) * (uint32_t)PAGE_TRANSFORM_NIBBLE, 0,
            0};
}

/* Serves query heads first_query .. of each group, at most 4 NQ. `ring_bytes` is the size of a warp's ring. The kernel is launched
 * early, behind transform_runs_kernel alone, which lets it begin when all kernels before have ended: it may read at once what those
 * wrote, and after waiting for it what transform_runs_kernel wrote. */
template <int HD, int NQ, int WARPS, int RESIDENT>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    attend_transform_kernel(const __grid_constant__ struct attend_decode a, uint32_t first_query, uint32_t ring_bytes,
                            struct complement complement) {
    using layout = transform_shared<HD, NQ, WARPS>;
    extern __shared__ __align__(128) uint8_t shared[];
    const unsigned warp = uniform(threadIdx.x / 32), lane = lane_id();
    struct share s;
    if (!share_of(a, blockIdx.x ? blockIdx.x - 1 : 0, blockIdx.y, blockIdx.z, s)) return;
    take_heads(s, first_query, 4 * NQ);
    const transform_parts<HD> parts = transform_parts_of<HD>(a, s);
    const transform_side<HD> keys = side_of<HD>(a, s, 0), values = side_of<HD>(a, s, 1);

    if (blockIdx.x == 0) {
        leave_rows<HD, NQ, WARPS>(a, s, shared, parts);
        wait_for_kernels();
    } else {
        plane_readers of_keys = load_readers<HD, layout::threads>(keys.view, shared);
        plane_readers of_values = load_readers<HD, layout::threads>(values.view, shared + layout::reader_bytes);
        of_keys.gain_least = keys.gain_least, of_keys.gain_step = keys.gain_step;
        of_values.gain_least = values.gain_least, of_values.gain_step = values.gain_step;
        uint8_t *const positions = shared + 2 * layout::reader_bytes;
        const uint32_t position_rows = shared_address(positions) + position_query_bytes(NQ, a.pre_rope.pairs);
        copy_position_rows<layout::threads>(a.pre_rope, position_rows);
        commit_copies();
        uint32_t first, end;
        share_pages(s, first, end);
        first = uniform(first);
        const uint32_t n = uniform(end - first), begin = first + n * warp / WARPS, pages = first + n * (warp + 1) / WARPS - begin;
        const struct listed_pages listed = listed_from(s, begin, 1);
        transform_ring<HD, NQ> ring;
        ring.listed = listed, ring.n = pages;
        ring.place =
            (s.sequence->fitted.places ? s.sequence->fitted.places : a.places) + (size_t)a.layer * a.heads.kv_heads + s.head;
        ring.first_run = uniform(s.list->n_pages ? run_of(first_listed(s)) : 0);
        ring.records = run_record<HD, NQ>(a, s, 0);
        ring.set_room(shared_address(shared) + layout::rings(a.pre_rope.pairs) + warp * ring_bytes, ring_bytes,
                      uniform(keys.view->layout.nibbles), uniform(values.view->layout.nibbles), of_keys.planes);
        ring.start();
        stage_positions<HD, NQ, WARPS>(a, s, keys.view->pre_rope_mean, positions);
        float2 *const angles =
            reinterpret_cast<float2 *>(positions + position_query_bytes(NQ, a.pre_rope.pairs) +
                                       position_row_bytes(a.pre_rope.pairs) + warp * position_angle_bytes(a.pre_rope.pairs));
        ring.wait_for_others();
        __syncthreads(); /* readers and positions are there */
        wait_for_kernels();
        ring.fetch_first_records();

        transform_sums<HD, NQ> acc = {};
        transform_running<NQ> r;
#pragma unroll
        for (int i = 0; i < NQ; i++) r.max[i] = -INFINITY, r.sum[i] = r.gained[i] = 0;
        struct page_of_lane of_lane;
        const float *const slopes = a.heads.slopes ? a.heads.slopes + s.first_head : nullptr;
#pragma unroll 1
        for (uint32_t page = 0; page < pages; page++) {
            if (page % 32 == 0) of_lane.load(listed, min(page + lane, pages - 1));
            float x[NQ][8];
            page_weights<NQ> weights;
            const uint32_t slot = ring.slot(page);
            lane_angles own_angles;
            page_angles(a, of_lane.first_of(page)).load(own_angles);
            ring.wait();
            score_page<HD, NQ>(slot, slot + of_keys.gains + PAGE_TRANSFORM_NIBBLE, of_keys, complement, x);
            page_angles(a, of_lane.first_of(page)).place(own_angles, angles);
            __syncwarp();
            ring.ask_for_keys(page + ring.depth);
            add_positions(a.pre_rope, shared_address(positions), position_rows, shared_address(angles), x);
            const uint32_t from = of_lane.first_of(page); /* not before: registers are short while keys are scored */
            const uint64_t live = of_lane.read_of(page, from, s.position);
            finish_page_logits(x, slopes, s.group, (int32_t)(from - s.position), live);
            ring.wait();
            weigh_page<HD, NQ>(slot + ring.key_bytes, of_values, x, r, acc, weights);
            accumulate_page<HD, NQ>(slot + ring.key_bytes, of_values, weights, complement, acc);
            __syncwarp();
            ring.ask_for_values(page + ring.depth);
        }
        wait_copies<0>();
        __syncthreads(); /* the rings are no longer read */
        store_planes<HD, NQ, WARPS>(of_values.planes, r, acc, shared);
        __syncthreads();
        leave_planes<HD, NQ, WARPS>(of_values.planes, shared, parts, blockIdx.x);
    }
    merge_last<HD, NQ, WARPS>(a, s, parts, shared);
}

template <int HD, int NQ, int WARPS, int RESIDENT>
cudaError_t launch_transform_warps(const struct attend_decode *a, uint32_t first_query, int room, cudaStream_t stream) {
    using layout = transform_shared<HD, NQ, WARPS>;
    const auto kernel = attend_transform_kernel<HD, NQ, WARPS, RESIDENT>;
    const int rings = layout::rings(a->pre_rope.pairs), ring = (room - rings) / WARPS / 128 * 128, bytes = rings + WARPS * ring;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result == cudaSuccess) result = launch_runs<HD, NQ>(a, first_query, stream);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(a->splits + 1, a->heads.kv_heads, a->n_rows), dim3(WARPS * 32), bytes, stream, *a, first_query,
                        (uint32_t)ring, complement{ALL_LANES});
}

/* Launches two CTAs to a multiprocessor if they fit, else one, of as many warps as fit. */
template <int HD, int NQ> cudaError_t launch_transform(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    constexpr int reserved = 1024; /* of each CTA */
    constexpr int bound = HD * NQ <= 128 ? 2 : 1;
    const uint32_t nibbles[2] = {(a->page_bytes[0] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE,
                                 (a->page_bytes[1] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE};
    const uint32_t planes = nibbles[0] * 4 < HD / 2 ? nibbles[0] * 4 : HD / 2; /* at most: a nibble has four bits */
    const int page = (int)(page_slot_bytes(nibbles[0]) + run_record_words(NQ, planes) * 4 + page_slot_bytes(nibbles[1]));
    const int room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
              half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - reserved;
    const int padded = (page + 127) / 128 * 128, factors = (int)((a->splits + 1) * 4 * NQ * sizeof(float));
    if constexpr (bound == 2)
        if (transform_shared<HD, NQ, 8>::least(padded, a->pre_rope.pairs, factors) <= half)
            return launch_transform_warps<HD, NQ, 8, 2>(a, first_query, half, stream);
    if (transform_shared<HD, NQ, 8>::least(padded, a->pre_rope.pairs, factors) <= room)
        return launch_transform_warps<HD, NQ, 8, 1>(a, first_query, room, stream);
    /* Pages of 8 bits to a component fit the 99 KiB of compute capability 8.6 with 8 warps of 64 channels, 4 of 128, 2 of 256. */
    if constexpr (HD > 64)
        if (transform_shared<HD, NQ, 4>::least(padded, a->pre_rope.pairs, factors) <= room)
            return launch_transform_warps<HD, NQ, 4, 1>(a, first_query, room, stream);
    if constexpr (HD > 128)
        if (transform_shared<HD, NQ, 2>::least(padded, a->pre_rope.pairs, factors) <= room)
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
