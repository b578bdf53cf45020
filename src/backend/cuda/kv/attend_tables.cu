/* Implements decoding over pages of codec pq by tables, for one query head a KV head. With more, the centroids' look-ups of attend_centroids.cuh serve
 * four query heads at once, and tables of several queries take as many look-ups and more.
 *
 * A CTA has a multiprocessor to itself and reads a part's pages in chunks. Of a chunk it makes the table of the query, and its warps
 * score their pages: logits stay in shared memory. When all know the largest logit and the sum of weights, each warp turns its own logits into
 * integers, which sum up to nearly 2^32: so no logit rises above the maximum later, no sum overflows, and an integer is rounded by at most 2^-32 of
 * all weights. The sums by code take the table's place, or with 64 channels lie beside it, so that the table is made once; what they and the
 * centroids give is a partial state.
 *
 * Copies go on through all of this: a warp's ring holds pieces of pages, of keys and then of values, of one chunk and then of the next. */
#include "backend/cuda/kv/attend_tables.h"

#include "backend/cuda/kv/attend_tables.cuh"

constexpr uint32_t CHUNK_PAGES = 128, PIECE_SLOTS = 5;
constexpr uint32_t FRONT_WARPS = 3, ROW_WARPS = 3;  /* whose rings lie before the table; that read rows of halves at once */
constexpr uint32_t CHUNK_STATES = 1 + TABLES_WARPS; /* that of what was merged before, and the warps' */
constexpr uint32_t WARP_PAGES = (CHUNK_PAGES + TABLES_WARPS - 1) / TABLES_WARPS; /* of a chunk, at most */
/* So many pages have the bytes of the centroids that a part reads at most; so many are taken to be read while a CTA begins. */
constexpr uint32_t TABLE_PAGES = 16, BEGINNING_PAGES = 8;
constexpr float WEIGHTS_MOST = 4294967296.0f * (1 - 1.0f / 256); /* the integers' sum, as far as floats know it */
static_assert(WARP_PAGES <= 32, "a lane has what is to be known of a page");

/* Of shared memory the first part lies before the table, which has products of the query, then sums of weights or both, and the second one
 * behind it. */
template <int HD> struct memory_before {
    uint8_t rings[FRONT_WARPS][PIECE_SLOTS][PIECE_PAGE];
    union {
        uint8_t logits[CHUNK_PAGES * PAGE_TOKENS * 4];
        struct {
            uint8_t scratch[ROW_WARPS][2 * half_rows<HD>::bytes];
            query_fragments<HD, 1> exact;
        } rows;
    };
    static_assert(sizeof rows <= sizeof logits, "rows are read before logits are written");
    static_assert(sizeof logits >= TABLES_WARPS * 32 * 24, "merging takes no more");
};
template <int HD> struct memory_behind {
    uint8_t rings[TABLES_WARPS - FRONT_WARPS][PIECE_SLOTS][PIECE_PAGE];
    uint8_t states[(partials_bytes<HD>(CHUNK_STATES, 1) + 15) / 16 * 16];
    query_fragments<HD, 1> window;
    float2 max_sum[TABLES_WARPS]; /* of a chunk */
};
constexpr uint32_t SHARED_BYTES = 227 << 10; /* that a CTA can have on compute capability 9.0 */

/* ---- What a warp reads */

/* The pages of a part are cut into equal chunks, of at most CHUNK_PAGES. */
ATTEND_INLINE uint32_t chunks_of(const struct share &s) {
    uint32_t first, end;
    share_pages(s, first, end);
    return (end - first + CHUNK_PAGES - 1) / CHUNK_PAGES;
}

/* A warp's pages of a chunk: entries of the list from `first` on, of which there are `before` in the chunk. */
struct warp_pages {
    uint32_t first, n, before;
};

ATTEND_INLINE warp_pages pages_of_chunk(const struct share &s, uint32_t chunk, uint32_t chunks) {
    uint32_t first, end;
    share_pages(s, first, end);
    const uint32_t all = end - first, warp = threadIdx.x / 32, from = all * chunk / chunks, n = all * (chunk + 1) / chunks - from;
    const uint32_t before = n * warp / TABLES_WARPS;
    return {first + from + before, n * (warp + 1) / TABLES_WARPS - before, before};
}

/* A piece_ring holds pieces of pages of a warp, the oldest first. A piece is asked for as soon as the one that was in its slot has been read. */
template <int HD> struct piece_ring {
    static constexpr uint32_t page_pieces = table_layout<HD>::pieces;
    const struct place_view *place;
    uint32_t base, oldest;
    uint32_t part, end, chunk, chunks; /* of what is asked for: the part, that before which it ends, the chunk of the part */
    uint32_t asked, pieces;            /* of the chunk: keys of all pages, then values */
    const uint8_t *of_lane[2];         /* page `lane` of the chunk, by side */

    ATTEND_INLINE void start(struct share s, uint32_t parts) {
        part = s.part, end = s.part + parts, chunk = 0, chunks = chunks_of(s), asked = pieces = 0, oldest = 0;
        find_chunk(s);
        for (uint32_t i = 0; i < PIECE_SLOTS; i++) ask(s, base + i * PIECE_PAGE);
    }

    /* Goes on to the first chunk from here on in which the warp has pages, if there is any. */
    ATTEND_INLINE void find_chunk(struct share s) {
        asked = pieces = 0;
        while (part < end) {
            s.part = part;
            if (chunk == 0) chunks = chunks_of(s);
            if (chunk >= chunks) {
                part++, chunk = 0;
                continue;
            }
            const warp_pages pages = pages_of_chunk(s, chunk++, chunks);
            if (!pages.n) continue;
            const struct page_set_view set = listed_from(s, pages.first, 1).set(min(lane_id(), pages.n - 1));
            of_lane[0] = page_address(&set, place, 0), of_lane[1] = page_address(&set, place, 1),
            pieces = 2 * page_pieces * pages.n;
            return;
        }
    }

    ATTEND_INLINE void ask(const struct share &s, uint32_t slot) {
        if (asked == pieces) find_chunk(s);
        if (asked < pieces) {
            const bool values = asked >= pieces / 2;
            const uint32_t of_side = values ? asked - pieces / 2 : asked;
            const auto page = __shfl_sync(ALL_LANES, (unsigned long long)(values ? of_lane[1] : of_lane[0]), of_side / page_pieces);
            copy_codes<PIECE_PAGE>(slot, reinterpret_cast<const uint8_t *>(page) + of_side % page_pieces * PIECE_PAGE);
            asked++;
        }
        commit_copies();
    }

    /* Calls read(slot) when the oldest piece is there, and asks for what takes its place. */
    template <class Read> ATTEND_INLINE void next(const struct share &s, Read read) {
        const uint32_t slot = base + oldest * PIECE_PAGE;
        wait_copies<PIECE_SLOTS - 1>();
        __syncwarp();
        read(slot);
        __syncwarp();
        ask(s, slot);
        oldest = oldest + 1 < PIECE_SLOTS ? oldest + 1 : 0;
    }
};

/* ---- A chunk */

/* A logit_form says how products become logits, in units of log2(e). */
struct logit_form {
    float factor, cap, slope; /* cap and slope 0: none */

    /* `from` is the position of the token of x.x less the query's; live's bits 0 and 1 say whether the tokens are read. */
    ATTEND_INLINE float2 finish(float2 x, int32_t from, uint32_t live) const {
        x = make_float2(x.x * factor, x.y * factor);
        if (cap > 0) x = make_float2(soft_cap(x.x, cap), soft_cap(x.y, cap));
        x = make_float2(x.x + slope * (float)from, x.y + slope * (float)(from + 1));
        return make_float2(live & 1 ? x.x : -INFINITY, live & 2 ? x.y : -INFINITY);
    }
};

ATTEND_INLINE float reference_of(float max) { return max == -INFINITY ? 0 : max; }

/* Writes the logits of a warp's pages to its own rows of shared memory; returns their maximum and sum of weights. */
template <int HD>
ATTEND_INLINE float2 score_pages(const struct share &s, piece_ring<HD> &ring, const warp_pages &pages,
                                 const struct page_of_lane &of_lane, const logit_form &form, uint32_t table, uint8_t *logits) {
    const uint32_t lane = lane_id();
    float2 *const own = reinterpret_cast<float2 *>(logits) + (size_t)pages.before * PAGE_TOKENS / 2 + lane;
    float max = -INFINITY, weights = 0;
#pragma unroll 1
    for (uint32_t page = 0; page < pages.n; page++) {
        float sum[8] = {};
#pragma unroll
        for (uint32_t piece = 0; piece < ring.page_pieces; piece++)
            ring.next(s, [&](uint32_t slot) { add_scores(slot, table + PIECE_ROW * piece, sum); });
        const uint32_t from = of_lane.first_of(page);
        const uint64_t live = of_lane.read_of(page, from, s.position);
        const float2 x = form.finish(join_scores(sum), (int32_t)(from + 2 * lane - s.position), (uint32_t)(live >> (2 * lane)));
        own[page * (PAGE_TOKENS / 2)] = x;
        max = fmaxf(max, fmaxf(x.x, x.y));
    }
    for (int o = 16; o; o /= 2) max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, o));
    const float reference = reference_of(max);
    for (uint32_t page = 0; page < pages.n; page++) {
        const float2 x = own[page * (PAGE_TOKENS / 2)];
        weights += exp2_fast(x.x - reference) + exp2_fast(x.y - reference);
    }
    for (int o = 16; o; o /= 2) weights += __shfl_xor_sync(ALL_LANES, weights, o);
    return make_float2(max, weights);
}

/* A chunk_scale has a chunk's maximum, and how weights that are relative to it become integers and back. */
struct chunk_scale {
    float max, level, unit; /* integer = 2^(logit - level); times unit it is the weight */
};

ATTEND_INLINE chunk_scale scale_of(const float2 (&max_sum)[TABLES_WARPS]) {
    float max = -INFINITY, weights = 0;
#pragma unroll
    for (int i = 0; i < TABLES_WARPS; i++) max = fmaxf(max, max_sum[i].x);
    const float reference = reference_of(max);
#pragma unroll
    for (int i = 0; i < TABLES_WARPS; i++) weights += max_sum[i].y * exp2_fast(max_sum[i].x - reference);
    /* Where nothing is read there are no weights; where a logit is not a number the unit is none either, and so is what comes of it. */
    const float one = weights > 0 ? WEIGHTS_MOST / weights : 1;
    return {max, reference - log2f(one), weights * (1 / WEIGHTS_MOST)};
}

/* Turns the logits of a warp's pages into integers, where they lie. */
ATTEND_INLINE void weigh_pages(const warp_pages &pages, float level, uint8_t *logits) {
    float2 *const own = reinterpret_cast<float2 *>(logits) + (size_t)pages.before * PAGE_TOKENS / 2 + lane_id();
    for (uint32_t page = 0; page < pages.n; page++) {
        const float2 x = own[page * (PAGE_TOKENS / 2)];
        own[page * (PAGE_TOKENS / 2)] = make_float2(__uint_as_float(__float2uint_rn(exp2_fast(x.x - level))),
                                                    __uint_as_float(__float2uint_rn(exp2_fast(x.y - level))));
    }
    __syncwarp();
}

template <int HD>
ATTEND_INLINE void sum_pages(const struct share &s, piece_ring<HD> &ring, const warp_pages &pages, uint32_t weights,
                             uint32_t sums) {
    const uint32_t own = weights + 4 * (pages.before * PAGE_TOKENS + 8 * (lane_id() / 4));
#pragma unroll 1
    for (uint32_t page = 0; page < pages.n; page++) {
        const uint4 low = load_shared_quad(own + page * PAGE_TOKENS * 4),
                    high = load_shared_quad(own + page * PAGE_TOKENS * 4 + 16);
        const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (uint32_t piece = 0; piece < ring.page_pieces; piece++)
            ring.next(s, [&](uint32_t slot) { add_weights(slot, w, sums + PIECE_ROW * piece); });
    }
}

ATTEND_INLINE const uint8_t *centroids_of(const struct attend_decode &a, const struct share &s, int side) {
    const auto *const views = static_cast<const struct centroid_view *>(a.learned[side]);
    return reinterpret_cast<const uint8_t *>(views[s.of_layer].centroids);
}

template <int HD> ATTEND_INLINE void make_table_of(const query_fragments<HD, 1> &query, const uint8_t *centroids, uint32_t table) {
    const uint32_t piece = threadIdx.x / 32 % table_layout<HD>::pieces, t = lane_id() % 4;
    uint32_t operands[2][1][4];
#pragma unroll
    for (uint32_t block = 0; block < 2; block++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 pairs = query.b[4 * piece + 2 * block + t / 2][0][i];
            operands[block][0][i] = product_operand(i, t % 2 ? pairs.y : pairs.x);
        }
    make_table<HD>(centroids, operands, table);
}

/* Makes the sums of weights zeros, by all warps of a CTA. */
template <int HD> ATTEND_INLINE void clear_sums(uint32_t sums) {
    constexpr uint32_t row = table_layout<HD>::row_bytes, at_once = 16 * TABLES_WARPS * 32;
    static_assert(at_once % row == 0, "all threads write whole rows");
    for (uint32_t at = 16 * threadIdx.x / row * TABLE_ROW + 16 * threadIdx.x % row; at < TABLE; at += at_once / row * TABLE_ROW)
        store_shared_quad(sums + at, make_uint4(0, 0, 0, 0));
}

/* ---- The kernel */

/* Makes the first partial state that of nothing, by the warp that merges. */
template <int HD> ATTEND_INLINE void clear_first(const partials<HD> &states) {
    if (lane_id() < HD / 4) reinterpret_cast<float4 *>(states.sums)[lane_id()] = make_float4(0, 0, 0, 0);
    if (lane_id() == 0) states.max_sum[0] = make_float2(-INFINITY, 0);
    __syncwarp();
}

/* Merges, by one warp, n partial states into the first one. */
template <int HD> ATTEND_INLINE void merge_into_first(const partials<HD> &states, unsigned n) {
    float2 state;
    const float4 sums = merged_states<HD>(states, n, 1, lane_id() % (HD / 4), state);
    __syncwarp();
    if (lane_id() < HD / 4) reinterpret_cast<float4 *>(states.sums)[lane_id()] = sums;
    if (lane_id() == 0) states.max_sum[0] = state;
    __syncwarp();
}

/* Reads the part's rows of halves and leaves the states of the first warps, whose number it returns. */
template <int HD>
ATTEND_INLINE uint32_t attend_part_rows(const struct attend_decode &a, const struct share &s, memory_before<HD> &before,
                                        const query_fragments<HD, 1> &window, const column_slopes<1> &slopes,
                                        const partials<HD> &states) {
    const uint32_t warp = threadIdx.x / 32, units = row_ranges_of(a, s).units();
    if (units <= s.part) return 0;
    const uint32_t warps = min((units - s.part + s.parts - 1) / s.parts, (uint32_t)TABLES_WARPS);
    prepare_queries<HD, 1, TABLES_WARPS>(a.q_exact + queries_at<HD>(a, s), 1, a.heads.scale, before.rows.exact);
#pragma unroll 1
    for (uint32_t turn = 0; turn < warps; turn += ROW_WARPS) {
        __syncthreads(); /* queries are there, rows of the turn before are no longer read */
        if (warp - turn >= ROW_WARPS || warp >= warps) continue;
        running<1> of_rows;
        float acc[HD / 16][1][4] = {};
        clear_running(of_rows);
        attend_rows<HD>(a, s, warp * s.parts + s.part, TABLES_WARPS * s.parts, before.rows.exact, window, slopes,
                        shared_address(before.rows.scratch[warp - turn]), of_rows, acc);
        finish_running(of_rows);
        store_running(states, 1 + warp, 1, of_rows), store_sums(states, 1 + warp, 1, acc);
    }
    return warps;
}

/* Leaves, as a warp's state behind the first, what the sums of its codes give. */
template <int HD>
ATTEND_INLINE void leave_sums(uint32_t sums_by_code, const own_centroids<HD> &centroids, const chunk_scale &scale,
                              const partials<HD> &states) {
    const uint32_t lane = lane_id(), state = 1 + threadIdx.x / 32;
    float sums[8];
    const float weights = multiply_sums(sums_by_code, centroids, sums);
    if (lane < centroids.lanes) {
        float4 *const to = reinterpret_cast<float4 *>(states.sums + state * HD + 8 * lane);
        to[0] = make_float4(sums[0] * scale.unit, sums[1] * scale.unit, sums[2] * scale.unit, sums[3] * scale.unit);
        to[1] = make_float4(sums[4] * scale.unit, sums[5] * scale.unit, sums[6] * scale.unit, sums[7] * scale.unit);
    }
    if (lane == 0) states.max_sum[state] = make_float2(scale.max, weights * scale.unit);
}

/* A CTA reads `parts` parts of a row and KV head, as far as the row has them, and leaves each of them as if it had read no other. */
template <int HD>
__global__ void __launch_bounds__(TABLES_WARPS * 32, 1)
    attend_tables_kernel(const __grid_constant__ struct attend_decode a, uint32_t parts) {
    using layout = table_layout<HD>;
    static_assert(SHARED_BEFORE + sizeof(memory_before<HD>) <= TABLE, "the table begins at its size");
    static_assert(2 * TABLE + sizeof(memory_behind<HD>) <= SHARED_BYTES, "wherever up to SHARED_BEFORE the memory begins");
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = threadIdx.x / 32, lane = lane_id();
    const uint32_t table = uniform(table_behind(shared_address(shared) + sizeof(memory_before<HD>)));
    auto &before = *reinterpret_cast<memory_before<HD> *>(shared);
    auto &behind = *reinterpret_cast<memory_behind<HD> *>(shared + (table + TABLE - shared_address(shared)));
    struct share s;
    if (!share_of(a, blockIdx.x * parts, blockIdx.y, blockIdx.z, s)) return;
    parts = min(parts, s.parts - s.part);
    const uint8_t *const centroids[2] = {centroids_of(a, s, 0), centroids_of(a, s, 1)};
    constexpr uint32_t side = TABLES_CODES * layout::row_bytes;
    for (uint32_t at = 128 * threadIdx.x; at < 2 * side; at += 128 * TABLES_WARPS * 32) /* while the list is asked for */
        prefetch_line(at < side ? centroids[0] + at : centroids[1] + at - side);
    piece_ring<HD> ring;
    ring.place = a.places + s.of_layer;
    ring.base = shared_address(warp < FRONT_WARPS ? before.rings[warp] : behind.rings[warp - FRONT_WARPS]);
    ring.start(s, parts);
    prepare_queries<HD, 1, TABLES_WARPS>(a.q + queries_at<HD>(a, s), 1, a.heads.scale, behind.window);
    const column_slopes<1> slopes = slopes_of<1>(a, s);
    __syncthreads();
    const logit_form form = {behind.window.factor[0], slopes.cap, slopes.any ? LOG2_E * a.heads.slopes[s.first_head] : 0};
    const partials<HD> states = partials_at<HD>(behind.states, CHUNK_STATES, 1);
    if (layout::side_by_side) make_table_of(behind.window, centroids[0], table);
#pragma unroll 1
    for (uint32_t left = parts;;) {
        if (warp == 0) clear_first(states);
        uint32_t fresh = attend_part_rows(a, s, before, behind.window, slopes, states); /* states behind the first */
        const uint32_t chunks = chunks_of(s);
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            const warp_pages pages = pages_of_chunk(s, chunk, chunks);
            struct page_of_lane of_lane = {0, 0};
            if (pages.n) of_lane.load(listed_from(s, pages.first, 1), min(lane, pages.n - 1), a.rows[s.row].first);
            if (layout::side_by_side)
                clear_sums<HD>(table + layout::sums);
            else
                make_table_of(behind.window, centroids[0], table);
            __syncthreads(); /* the table is there, rows are no longer read, nor logits */
            if (warp == 0 && fresh) merge_into_first(states, 1 + fresh);
            const float2 own = score_pages(s, ring, pages, of_lane, form, table, before.logits);
            if (lane == 0) behind.max_sum[warp] = own;
            __syncthreads(); /* the warps' maxima are there, the table is no longer read */
            const chunk_scale scale = scale_of(behind.max_sum);
            if (!layout::side_by_side) clear_sums<HD>(table + layout::sums);
            weigh_pages(pages, scale.level, before.logits);
            if (!layout::side_by_side) __syncthreads(); /* sums are zeros */
            sum_pages(s, ring, pages, shared_address(before.logits), table + layout::sums);
            const own_centroids<HD> of_warp = load_centroids<HD>(centroids[1]);
            __syncthreads(); /* sums are complete */
            leave_sums(table + layout::sums, of_warp, scale, states);
            fresh = TABLES_WARPS;
            __syncthreads(); /* states are there, sums are no longer read */
        }
        if (!chunks) __syncthreads();
        leave_part<HD, TABLES_WARPS * 32>(a, s, states, 1 + fresh);
        if (!--left) break;
        __syncthreads(); /* states are no longer read */
        s.part++;
    }
    arrive<HD, TABLES_WARPS * 32>(a, s, parts, before.logits);
}

/* ---- Launches */

bool attend_tables_serves(const struct attend_decode *a) {
    for (int side = 0; side < 2; side++)
        if (a->codec[side] != CODEC_PQ || a->centroid[side].width != 2 || a->centroid[side].bits != 8) return false;
    if (a->heads.head_dim != 128 && a->heads.head_dim != 64) return false;
    return a->heads.query_heads == a->heads.kv_heads &&
           device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= (int)SHARED_BYTES &&
           device_attribute(cudaDevAttrReservedSharedMemoryPerBlock) <= (int)SHARED_BEFORE;
}

template <int HD> static cudaError_t launch_tables_of(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t pages = a->runs * (ROPE_RUN_TOKENS / PAGE_TOKENS) / a->splits;
    const uint32_t parts = parts_of_ctas(a, 1, pages + TABLE_PAGES, BEGINNING_PAGES);
    const auto kernel = attend_tables_kernel<HD>;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES);
    if (result != cudaSuccess) return result;
    const dim3 grid((a->splits + parts - 1) / parts, a->heads.kv_heads, a->n_rows);
    kernel<<<grid, TABLES_WARPS * 32, SHARED_BYTES, stream>>>(*a, parts);
    return cudaGetLastError();
}

cudaError_t attend_tables(const struct attend_decode *a, cudaStream_t stream) {
    return a->heads.head_dim == 64 ? launch_tables_of<64>(a, stream) : launch_tables_of<128>(a, stream);
}
