/* Implements decoding over pages of CommVQ: keys by attend_commvq_keys.cuh; weights times gains summed by bit of the values' codes,
 * and these sums multiplied by the learned rows once for each split-K part,
 *
 *     softmax (s C) = (softmax s) C                                                  (Li et al. 2025, section 4.1)
 *
 * Bits enter the tensor cores as those of subnormal halves, where they lie: bit p of a byte is 2^(p - 24), and its token's weight is
 * multiplied by 2^(6 - p). Codes are rows of that product, tokens its inner index, queries its columns; a CTA serves eight queries at
 * most.
 *
 * TABLES says whether the keys' tables lie in shared memory; else they are read from global memory, through its caches. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_CUH

#include "backend/cuda/kv/attend_commvq.h"
#include "backend/cuda/kv/attend_commvq_keys.cuh"
#include "backend/cuda/launch.cuh"

constexpr int commvq_warps = 8; /* of a CTA */
constexpr int commvq_threads = commvq_warps * 32;
constexpr int commvq_queries = 8; /* that a CTA serves */

/* ---- Values: sums by code */

/* Tile j has, in row g, code 4 (8 (j / 2) + g) + 2 (j % 2), and in row g + 8 the one after it. */
ATTEND_INLINE uint32_t code_of_row(int tile, uint32_t g, uint32_t upper) {
    return 4 * (8 * (tile / 2) + g) + 2 * (tile % 2) + upper;
}

/* Returns a gain times 2^(6 - bit), less than 2^13. */
ATTEND_INLINE float shifted_gain(uint32_t code, int bit) {
    return code ? exp2_fast(((float)code - GAIN_MIDDLE) * (1.0f / GAIN_STEPS) + (float)(6 - bit)) : 0;
}
constexpr float BIT_UNIT = 0x1p18f; /* undoes 2^(p - 24) and 2^(6 - p) */

/* Adds a page's weights by code. */
template <int CODES> ATTEND_INLINE void add_codes(uint32_t slot, const uint32_t (&w)[4][1][2], float (&acc)[CODES / 16][1][4]) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    const uint32_t octets = slot + PAGE_TOKENS + 2 * t * CODES + 4 * g;
#pragma unroll
    for (int m = 0; m < CODES / 32; m++) {
        const uint32_t low = load_shared(octets + 32 * m), high = load_shared(octets + CODES + 32 * m);
        uint32_t bits[4]; /* of a code: the first octet's in the lower byte, the second's in the third */
        bits[0] = permute(low, high, 0x0400), bits[1] = permute(low, high, 0x0501);
        bits[2] = permute(low, high, 0x0602), bits[3] = permute(low, high, 0x0703);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t even = 0x00010001u << (2 * i), odd = even << 1;
#pragma unroll
            for (int j = 0; j < 2; j++)
                mma(acc[2 * m + j][0], bits[2 * j] & even, bits[2 * j + 1] & even, bits[2 * j] & odd, bits[2 * j + 1] & odd,
                    w[i][0][0], w[i][0][1]);
        }
    }
}

/* ---- Values: sums by channel */

/* A code_sums holds the states of a CTA's warps, and their sums of EACH codes at a time; behind these the merged sums by code, and those
 * over all codes that each warp has merged. */
template <int CODES, int EACH> struct code_sums {
    static_assert(EACH % 32 == 0 && CODES % EACH == 0, "pairs of tiles are stored together");
    float of[commvq_warps][EACH][commvq_queries];
    float merged[CODES][commvq_queries];
    float2 max_sum[commvq_warps][commvq_queries];
    float all[commvq_warps][commvq_queries];
};

template <int CODES, int EACH> ATTEND_INLINE void store_states(code_sums<CODES, EACH> &to, const running<1> &r) {
    if (lane_id() < 4)
#pragma unroll
        for (int c = 0; c < 2; c++) to.max_sum[threadIdx.x / 32][2 * lane_id() + c] = make_float2(r.max[0][c], r.sum[0][c]);
}

/* Stores the warp's sums of codes `first` .. first + EACH - 1. */
template <int CODES, int EACH>
ATTEND_INLINE void store_codes(code_sums<CODES, EACH> &to, int first, const float (&acc)[CODES / 16][1][4]) {
    const unsigned warp = threadIdx.x / 32, g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < EACH / 16; i++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++)
            *reinterpret_cast<float2 *>(&to.of[warp][code_of_row(i, g, upper)][2 * t]) =
                make_float2(acc[first / 16 + i][0][2 * upper], acc[first / 16 + i][0][2 * upper + 1]);
}

/* Merges the warps' sums, by all threads before a __syncthreads; returns the state of query threadIdx.x % 8. */
template <int CODES, int EACH>
ATTEND_INLINE float2 merge_codes(code_sums<CODES, EACH> &sums, const running<1> &r, const float (&acc)[CODES / 16][1][4]) {
    const unsigned query = threadIdx.x % commvq_queries;
    float factor[commvq_warps];
    float2 state = make_float2(-INFINITY, 0);
    store_states(sums, r);
    store_codes(sums, 0, acc);
    __syncthreads();
#pragma unroll
    for (int w = 0; w < commvq_warps; w++) state.x = fmaxf(state.x, sums.max_sum[w][query].x);
#pragma unroll
    for (int w = 0; w < commvq_warps; w++) {
        const float2 own = sums.max_sum[w][query];
        factor[w] = own.x == -INFINITY ? 0 : exp2_fast(own.x - state.x);
        state.y += factor[w] * own.y;
    }
    float all = 0;
#pragma unroll
    for (int first = 0; first < CODES; first += EACH) {
        if (first) {
            __syncthreads(); /* the codes before are merged */
            store_codes(sums, first, acc);
            __syncthreads();
        }
        for (unsigned i = threadIdx.x / commvq_queries; i < EACH; i += commvq_threads / commvq_queries) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < commvq_warps; w++) sum += factor[w] * sums.of[w][i][query];
            sums.merged[first + i][query] = sum;
            all += sum;
        }
    }
    for (int o = commvq_queries; o < 32; o *= 2) all += __shfl_xor_sync(ALL_LANES, all, o);
    if (lane_id() < commvq_queries) sums.all[threadIdx.x / 32][query] = all;
    return state;
}

/* So many groups of threads go through a part of the codes each; a thread has four channels, for all queries. */
template <int HD> constexpr int code_groups = commvq_threads / (HD / 4);
template <int HD> using group_sums = float[code_groups<HD>][commvq_queries][HD];

/* Writes the sums of weights times levels. */
template <int HD, int CODES, int EACH>
ATTEND_INLINE void multiply_rows(const struct additive_view &view, const code_sums<CODES, EACH> &sums, group_sums<HD> &to) {
    constexpr int each = CODES / code_groups<HD>;
    const unsigned word = threadIdx.x % (HD / 4), group = threadIdx.x / (HD / 4), first = group * each;
    const uint32_t *const rows = reinterpret_cast<const uint32_t *>(view.levels) + (size_t)first * (HD / 4) + word;
    float of[commvq_queries][4] = {};
#pragma unroll 8
    for (int i = 0; i < each; i++) {
        const uint32_t levels = __ldg(rows + i * (HD / 4));
        const float4 low = *reinterpret_cast<const float4 *>(&sums.merged[first + i][0]),
                     high = *reinterpret_cast<const float4 *>(&sums.merged[first + i][4]);
        const float x[commvq_queries] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float level = (float)(levels >> 8 * c & 0xff);
#pragma unroll
            for (int q = 0; q < commvq_queries; q++) of[q][c] = fmaf(x[q], level, of[q][c]);
        }
    }
    __syncthreads(); /* sums by code are no longer read */
#pragma unroll
    for (int q = 0; q < commvq_queries; q++)
        *reinterpret_cast<float4 *>(&to[group][q][4 * word]) = make_float4(of[q][0], of[q][1], of[q][2], of[q][3]);
}

/* So many threads have numbers of a channel, of as many queries' share each. */
template <int HD> constexpr int channel_threads = commvq_threads / HD;

/* Computes this thread's numbers of the pages' sums by channel, of its queries threadIdx.x / HD, threadIdx.x / HD + channel_threads,
 * ...: to[i] of the i-th. `r` and `acc` are those of the warp's pages. `memory` is free afterwards. */
template <int HD, int CODES, int EACH>
ATTEND_INLINE void finish_codes(const struct additive_view &view, const running<1> &r, const float (&acc)[CODES / 16][1][4],
                                uint8_t *memory, float (&to)[commvq_queries * HD / commvq_threads], float2 &state) {
    auto &sums = *reinterpret_cast<code_sums<CODES, EACH> *>(memory);
    auto &groups = *reinterpret_cast<group_sums<HD> *>(memory);
    auto &weights = *reinterpret_cast<float(*)[commvq_queries]>(memory + sizeof groups);
    const unsigned c = threadIdx.x % HD, part = threadIdx.x / HD;
    const float unit = BIT_UNIT * view.gain_scale, low = view.low[c] * unit, step = view.step[c] * unit, mean = view.mean[c];
    state = merge_codes(sums, r, acc);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < commvq_queries / channel_threads<HD>; i++) {
        to[i] = 0;
#pragma unroll
        for (int w = 0; w < commvq_warps; w++) to[i] += low * sums.all[w][part + i * channel_threads<HD>];
    }
    multiply_rows<HD>(view, sums, groups);
    if (threadIdx.x < commvq_queries) weights[threadIdx.x] = state.y;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < commvq_queries / channel_threads<HD>; i++) {
        const unsigned query = part + i * channel_threads<HD>;
        float levels = 0;
#pragma unroll
        for (int p = 0; p < code_groups<HD>; p++) levels += groups[p][query][c];
        to[i] += weights[query] * mean + step * levels;
    }
    __syncthreads();
}

/* ---- The kernel */

/* A CTA's shared memory holds queries, then tables, if they lie there, angles and rings (commvq_places). Later it holds, behind the queries, sums by
 * code, then rows of halves, then partial states, of which the last is that of pages.
 *
 * A CTA that reads several parts keeps queries, tables and angles. What it takes then, the queries of rows of halves included, is in the
 * place of rings, where it stores sums of some codes at a time, and some warps read rows at a time. */
template <int HD, int CODES, bool SEVERAL> struct commvq_memory {
    struct for_pages {
        own_queries<HD> own;
        page_angles<HD> angles[commvq_warps];
    };
    struct for_rows {
        query_fragments<HD, 1> window, exact;
    }; /* in order of channels */
    struct queries_memory {
        union {
            for_pages pages;
            for_rows rows; /* when all pages are read, unless SEVERAL */
        };
        query_powers powers;
    };
    static constexpr int queries = ((int)sizeof(queries_memory) + 255) / 256 * 256;
    static constexpr int codes_each = SEVERAL && CODES > 64 ? 64 : CODES;
    static constexpr int sums = (int)sizeof(code_sums<CODES, codes_each>),
                         finishing = (int)(sizeof(group_sums<HD>) + commvq_queries * sizeof(float));
    static constexpr int codes = sums > finishing ? sums : finishing;
    static constexpr int states = ((int)partials_bytes<HD>(commvq_warps + 1, commvq_queries) + 15) / 16 * 16;
    static constexpr int most = codes > states ? codes : states;
    static constexpr int row_bytes = 2 * half_rows<HD>::bytes; /* of a warp */
    static constexpr int row_queries = SEVERAL ? ((int)sizeof(for_rows) + 127) / 128 * 128 : 0;
    static constexpr int fitting = (most - row_queries) / row_bytes;
    static constexpr int rows_at_once = SEVERAL && fitting < commvq_warps ? fitting : commvq_warps;
    static constexpr int rows = row_queries + rows_at_once * row_bytes;
    static constexpr int after = most > rows ? most : rows; /* pages; in the end for merging */
    static_assert(after >= commvq_threads * 24, "merging takes no more");
};

struct commvq_launch {
    uint32_t first_query;
    uint32_t slots, slot_bytes; /* of rings */
    uint32_t parts;             /* that a CTA reads of a row and KV head, as far as the row has them */
};

/* Stores a thread's numbers of the pages' sums as those of state `to`. */
template <int HD>
ATTEND_INLINE void store_pages(const partials<HD> &states, uint32_t to, uint32_t group,
                               const float (&sums)[commvq_queries * HD / commvq_threads], float2 state) {
    const unsigned c = threadIdx.x % HD, part = threadIdx.x / HD;
#pragma unroll
    for (int i = 0; i < commvq_queries / channel_threads<HD>; i++) {
        const unsigned query = part + i * channel_threads<HD>;
        if (query < group) states.sums[(to * group + query) * HD + c] = sums[i];
    }
    if (threadIdx.x < group) states.max_sum[to * group + threadIdx.x] = state;
}

template <int HD, int CODES, bool TABLES> using commvq_places_of = commvq_places<HD, commvq_rounds_of<HD, CODES / HD>, TABLES>;

/* A CTA reads one part, unless SEVERAL: then it copies the tables and makes the pages' queries once for all of its parts, and leaves each
 * of them as if it had read no other. */
template <int HD, int CODES, bool TABLES, bool SEVERAL>
__global__ void __launch_bounds__(commvq_threads, 1)
    attend_commvq_kernel(const __grid_constant__ struct attend_decode a, struct commvq_launch launch) {
    using memory = commvq_memory<HD, CODES, SEVERAL>;
    using places = commvq_places_of<HD, CODES, TABLES>;
    extern __shared__ __align__(256) uint8_t shared[];
    auto &queries = *reinterpret_cast<typename memory::queries_memory *>(shared);
    uint8_t *const rest = shared + memory::queries, *const free = rest + (SEVERAL ? places::bytes : 0); /* when pages are read */
    auto &of_rows = *reinterpret_cast<typename memory::for_rows *>(SEVERAL ? free : shared);
    const unsigned warp = threadIdx.x / 32, lane = lane_id();
    const size_t place = (size_t)a.layer * a.heads.kv_heads + blockIdx.y;
    const struct commvq_view &keys = static_cast<const struct commvq_view *>(a.learned[0])[place];
    const struct additive_view &values = static_cast<const struct additive_view *>(a.learned[1])[place];
    const table_rows rows = {shared_address(rest), keys.rows};
    if (TABLES) copy_tables<places>(keys.rows, keys.rounds, rows.shared);
    commit_copies();
    prepare_angles<HD, commvq_threads, places>(a, rest);
    wait_for_kernels();
    struct share s;
    if (!share_of(a, SEVERAL ? blockIdx.x * launch.parts : blockIdx.x, blockIdx.y, blockIdx.z, s)) {
        wait_copies<0>();
        return;
    }
    take_heads(s, launch.first_query, commvq_queries);
    const uint32_t parts = SEVERAL ? min(launch.parts, s.parts - s.part) : 1, row_units = SEVERAL ? row_ranges_of(a, s).units() : 0;

    page_ring<1, 0> ring;
    ring.slots = launch.slots, ring.slot_bytes = launch.slot_bytes;
    ring.place = a.places + place;
    ring.bytes[0] = a.page_bytes[0], ring.bytes[1] = a.page_bytes[1];
    ring.base = rows.shared + places::bytes + warp * ring.slots * ring.slot_bytes;
    ring.own = 16 * lane;
    const auto start_part = [&] {
        uint32_t begin, end;
        warp_pages_of(s, warp, commvq_warps, begin, end);
        ring.start(s, begin, end);
    };
    start_part();
    prepare_powers<HD>(a, s, keys, queries.powers);
    __syncthreads();
    prepare_own<HD>(a, s, keys, queries.powers, queries.pages.own);
    if (TABLES) wait_copies<0>();
    __syncthreads();

    const column_slopes<1> slopes = slopes_of<1>(a, s);
    const own_bytes bytes = own_bytes_of();
    struct page_of_lane of_lane;
    const auto prepare_rows = [&] {
        prepare_queries<HD, 1, commvq_warps>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, of_rows.window);
        prepare_queries<HD, 1, commvq_warps>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, of_rows.exact);
    };
#pragma unroll 1
    for (uint32_t left = parts;;) {
        if (SEVERAL && left > 1) ring.prefetch_next_part(s, warp, commvq_warps);
        running<1> running;
        float codes[CODES / 16][1][4] = {};
        clear_running(running);
#pragma unroll 1
        for (uint32_t page = 0; page < ring.n; page++) {
            if (page % 32 == 0) of_lane.load(ring.listed.get(), min(page + lane, ring.n - 1), a.rows[s.row].first);
            const uint32_t from = of_lane.first_of(page);
            const uint64_t live = of_lane.read_of(page, from, s.position);
            const float factor[1][2] = {{1, 1}};
            float x[4][1][4] = {}, rise[1][2];
            uint32_t w[4][1][2];
            {
                query_step of_page[commvq_shape<HD>::steps];
                rotate_to_page<HD>(a, queries.pages.own, from, queries.pages.angles[warp], of_page);
                ring.wait(1);
                score_page<HD, commvq_rounds_of<HD, CODES / HD>, TABLES>(rows, bytes, ring.slot(0), queries.powers, of_page, x);
            }
            __syncwarp();
            ring.release(page, 0);
            finish_logits<TOKENS_BY_OCTET>(x, factor, slopes, (int32_t)(from - s.position), live);
            if (weigh(x, running, rise, w)) scale_sums(codes, rise);
            ring.wait(1);
            weigh_gains(ring.slot(0), w, [](uint32_t code, int bit) { return shifted_gain(code, bit); });
            add_codes<CODES>(ring.slot(0), w, codes);
            __syncwarp();
            ring.release(page, 1);
        }
        if (!SEVERAL || left == 1)
            let_next_kernel_begin(); /* not before: there is no room for it, but where it would delay what is loaded here */
        wait_copies<0>();
        finish_running(running);
        __syncthreads(); /* rings are no longer read, nor queries of pages, angles and tables, if there is no other part */
        if (!SEVERAL) prepare_rows();
        float of_pages[commvq_queries * HD / commvq_threads];
        float2 state_of_pages;
        finish_codes<HD, CODES, memory::codes_each>(values, running, codes, free, of_pages, state_of_pages);

        float acc[HD / 16][1][4] = {};
        clear_running(running);
        const bool any_rows = !SEVERAL || s.part < row_units; /* for some warp */
        if (SEVERAL && any_rows) {
            prepare_rows();
            __syncthreads();
        }
#pragma unroll 1
        for (uint32_t turn = 0; turn < commvq_warps && any_rows; turn += memory::rows_at_once) {
            if (memory::rows_at_once == commvq_warps || warp - turn < memory::rows_at_once)
                attend_rows<HD>(a, s, warp * s.parts + s.part, commvq_warps * s.parts, of_rows.exact, of_rows.window, slopes,
                                shared_address(free) + memory::row_queries + (warp - turn) * memory::row_bytes, running, acc);
            __syncthreads(); /* rows are no longer read */
        }
        finish_running(running);
        const uint32_t before = any_rows ? commvq_warps : 0; /* states of rows, before that of pages */
        const partials<HD> states = partials_at<HD>(free, before + 1, s.group);
        if (any_rows) store_running(states, warp, s.group, running), store_sums(states, warp, s.group, acc);
        store_pages<HD>(states, before, s.group, of_pages, state_of_pages);
        __syncthreads();
        leave_part<HD, commvq_threads>(a, s, states, before + 1);
        if (!SEVERAL || !--left) break;
        __syncthreads(); /* states are no longer read */
        s.part++, start_part();
    }
    arrive<HD, commvq_threads>(a, s, parts, free);
}

/* ---- Launches */

/* Returns how many parts a CTA with tables reads: one where a part has many pages. Then tables are little beside them, and a kernel that goes
 * on to other parts reads each page more slowly, since its registers are short. */
inline uint32_t parts_of_commvq_ctas(const struct attend_decode *a) {
    constexpr uint64_t pages_most = 64, run_pages = ROPE_RUN_TOKENS / PAGE_TOKENS;
    return a->runs * run_pages > pages_most * a->splits ? 1 : parts_of_ctas(a, 1);
}

template <int HD, int CODES, bool TABLES>
cudaError_t launch_tables(const struct attend_decode *a, struct commvq_launch launch, uint32_t room, cudaStream_t stream) {
    using memory = commvq_memory<HD, CODES, false>;
    using several = commvq_memory<HD, CODES, TABLES>;
    constexpr uint32_t before = commvq_places_of<HD, CODES, TABLES>::bytes;
    launch.slot_bytes = ring_slot_bytes(a),
    launch.slots = ring_slots(launch.slot_bytes, commvq_warps, room - memory::queries - before);
    const uint32_t rings = launch.slots * commvq_warps * launch.slot_bytes;
    uint32_t bytes = several::queries + before + (rings > several::after ? rings : several::after);
    launch.parts = TABLES && bytes <= room ? parts_of_commvq_ctas(a) : 1;
    if (launch.parts == 1) bytes = memory::queries + (before + rings > memory::after ? before + rings : memory::after);
    const auto kernel = TABLES && launch.parts > 1 ? attend_commvq_kernel<HD, CODES, TABLES, TABLES>
                                                   : attend_commvq_kernel<HD, CODES, TABLES, false>;
    if (!launch.slots || bytes > room) return cudaErrorInvalidConfiguration;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    const uint32_t ctas = (a->splits + launch.parts - 1) / launch.parts;
    return launch_early(kernel, dim3(ctas, a->heads.kv_heads, a->n_rows), dim3(commvq_threads), bytes, stream, *a, launch);
}

/* Launches with tables in shared memory where there is room for them beside rings of a page, a launch for each eight queries. */
template <int HD, int CODES> cudaError_t launch_codes(const struct attend_decode *a, cudaStream_t stream) {
    using memory = commvq_memory<HD, CODES, false>;
    if (a->centroid[0].bits != COMMVQ_BITS * commvq_rounds_of<HD, CODES / HD>) return cudaErrorInvalidConfiguration;
    const uint32_t room = (uint32_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                   group = a->heads.query_heads / a->heads.kv_heads;
    struct commvq_launch launch = {0, 0, 0, 1};
    constexpr bool may_fit = HD < 256; /* else no kernel with tables is compiled */
    constexpr uint32_t before = memory::queries + commvq_places_of<HD, CODES, may_fit>::bytes;
    const bool fits = before < room && ring_slots(ring_slot_bytes(a), commvq_warps, room - before);
    const auto launch_one = may_fit && fits ? launch_tables<HD, CODES, may_fit> : launch_tables<HD, CODES, false>;
    cudaError_t result = cudaSuccess;
    for (; launch.first_query < group && result == cudaSuccess; launch.first_query += commvq_queries)
        result = launch_one(a, launch, room, stream);
    return result;
}

template <int HD> cudaError_t launch_commvq(const struct attend_decode *a, cudaStream_t stream) {
    return a->centroid[1].bits == HD ? launch_codes<HD, HD>(a, stream) : launch_codes<HD, 2 * HD>(a, stream);
}

#endif
