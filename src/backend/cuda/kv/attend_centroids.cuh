/* Implements decoding over pages of codecs with centroids: pq, vq, gain-shape. attend_centroids_page.cuh has how a warp reads a page; here is
 * the kernel, whose CTAs deal pages to warps, and its launches. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_CUH

#include "backend/cuda/kv/attend_centroids.h"
#include "backend/cuda/kv/attend_centroids_page.cuh"
#include "backend/cuda/launch.cuh"

/* ---- The kernel */

/* A CTA's shared memory holds queries and the places of keys' codes, then tables, if they lie there, and rings. When all pages are read,
 * each warp has a place for rows of halves there instead, and then states: of rows and of stretches for each warp, in the place of rows. A CTA
 * that reads several parts has the rows' states of some parts at once, behind the rows. */
template <int HD, int WARPS, class LAYOUT, bool SEVERAL> struct centroid_memory {
    static constexpr int places = ((int)sizeof(centroid_queries<HD, WARPS>) + 15) / 16 * 16;
    static constexpr int queries = (places + LAYOUT::place_words * 128 + 127) / 128 * 128;
    static constexpr int row_bytes = 2 * half_rows<HD>::bytes; /* of a warp */
    static constexpr int rows = WARPS * row_bytes;
    static constexpr int parts_at_once = SEVERAL ? 4 : 1;
    static constexpr int states_at = SEVERAL ? rows : 0;
    static constexpr int states = ((int)partials_bytes<HD>((SEVERAL ? parts_at_once : 2) * WARPS, CENTROID_QUERIES) + 15) / 16 * 16;
    static constexpr int after = rows > states_at + states ? rows : states_at + states; /* pages; in the end for merging */
    static_assert(states >= WARPS * 32 * 24, "merging takes no more");
};

struct centroid_launch {
    uint32_t first_query;
    uint32_t slots, slot_bytes; /* of rings */
};

template <int HD, int UNIT, bool TABLES>
ATTEND_INLINE centroid_side open_side(const struct attend_decode &a, const struct share &s, int side, uint32_t table) {
    const struct centroid_view &view =
        static_cast<const struct centroid_view *>(a.learned[side])[(size_t)a.layer * a.heads.kv_heads + s.head];
    const uint8_t *const memory = reinterpret_cast<const uint8_t *>(view.centroids);
    if (TABLES)
        for (uint32_t i = threadIdx.x; i < 256 * HD / 8; i += blockDim.x)
            copy_async<16>(table + i / (HD / 8) * TABLE_ROW + i % (HD / 8) * 16, memory + 16 * i);
    return {view.shape, 31u - __clz(view.shape.width / UNIT), table, memory, view.normalized, view.gain_scale, view.mean};
}

/* A CTA reads one part, unless SEVERAL: then it copies the tables once for all of its parts, of as many rows as have them, whose stretches its
 * warps share. It leaves each of them as if it had read no other. */
template <int HD, int UNIT, int WARPS, bool TABLES, bool SEVERAL>
__global__ void __launch_bounds__(WARPS * 32, 1)
    attend_centroids_kernel(const __grid_constant__ struct attend_decode a, struct centroid_launch launch) {
    using layout = centroid_layout<HD, UNIT, TABLES>;
    using memory = centroid_memory<HD, WARPS, layout, SEVERAL>;
    using sums = sums_by_unit<HD, UNIT, TABLES>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto &queries = *reinterpret_cast<centroid_queries<HD, WARPS> *>(shared);
    uint8_t *const rest = shared + memory::queries;
    const unsigned warp = uniform(threadIdx.x / 32), lane = lane_id();
    struct share s;
    cta_parts own = {};
    if constexpr (SEVERAL) {
        own = parts_of_cta(a, blockIdx.x, gridDim.x);
        if (!own.count()) return;
        own.of_row(a, own.first, blockIdx.y, row_of_part(a, own.first), s);
        if (threadIdx.x == 0) queries.parts = own;
    } else if (!share_of(a, blockIdx.x, blockIdx.y, blockIdx.z, s)) {
        return;
    }
    take_heads(s, launch.first_query, CENTROID_QUERIES);

    const uint32_t tables = uniform(shared_address(rest));
    const centroid_side keys = open_side<HD, UNIT, TABLES>(a, s, 0, tables);
    const centroid_side values = open_side<HD, UNIT, TABLES>(a, s, 1, tables + TABLE_BYTES);
    commit_copies();
    page_ring<layout::pieces, layout::piece_bytes, SEVERAL> ring;
    if constexpr (SEVERAL) ring.listed.at = shared_address(queries.warp[warp].list);
    ring.slots = TABLES ? layout::slots : launch.slots, ring.slot_bytes = launch.slot_bytes;
    ring.place = a.places + (size_t)a.layer * a.heads.kv_heads + s.head;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const bool gains = side ? values.normalized : keys.normalized;
        ring.bytes[side] = a.page_bytes[side];
        ring.first[side] = gains ? (a.page_bytes[side] - 64) / 2 + 64 : a.page_bytes[side] / 2;
    }
    ring.base = tables + (TABLES ? 2 * TABLE_BYTES : 0) + warp * ring.slots * ring.slot_bytes;
    ring.own = TABLES ? place_in_slot(lane / 4, 16 * (lane % 4)) : 16 * lane;
    const auto start_ring = [&](const struct share &of, uint32_t first_stretch, uint32_t last_stretch) {
        uint32_t begin, end, last;
        stretch_pages<WARPS>(of, first_stretch, begin, end);
        if (SEVERAL) stretch_pages<WARPS>(of, last_stretch, last, end);
        ring.start(of, begin, end);
    };
    const auto prepare = [&]() {
        prepare_queries<HD, 1, WARPS>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, queries.window,
                                      SEVERAL ? nullptr : queries.warp[0].ups);
        prepare_queries<HD, 1, WARPS>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, queries.exact);
    };
    if constexpr (!SEVERAL) {
        start_ring(s, warp, warp);
        prepare();
    }
    prepare_places<layout>(keys, reinterpret_cast<uint32_t *>(shared + memory::places));
    const uint32_t places = shared_address(shared + memory::places);
    if (TABLES) wait_copies<0>();
    __syncthreads();

    float factor[1][2], means[2] = {};
    column_slopes<1> slopes;
    slopes.any = a.heads.slopes != nullptr, slopes.cap = LOG2_E * a.heads.cap;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const uint32_t query = (2 * lane + c) % CENTROID_QUERIES;
        if (!SEVERAL) factor[0][c] = queries.window.factor[query];
        slopes.of[0][c] = slopes.any && query < s.group ? LOG2_E * a.heads.slopes[s.first_head + query] : 0;
    }

    const bool in_runs = a.run_angles && a.heads.n_rot;
    auto &of_warp = queries.warp[warp];
    float *const ups = SEVERAL ? of_warp.ups : queries.warp[0].ups;
    /* Returns what the warp reads, as far as it is to be known for each stretch. Of several parts it does not stay in registers while pages
     * are read, which have need of all. */
    const auto share_read = [&]() {
        struct share now = s;
        if (SEVERAL) {
            const uint4 kept = load_shared_quad(shared_address(&of_warp.reads));
            now.row = uniform(kept.x), now.part = uniform(kept.y), now.parts = uniform(kept.z), now.n_pages = uniform(kept.w);
        }
        return now;
    };
    uint32_t run = UINT32_MAX, position = s.position;
    struct page_of_lane of_lane;
    uint32_t page = 0; /* of the warp's */
    const auto read_stretch = [&](uint32_t end, running<1> &state, float(&acc)[sums::groups][UNIT][4]) {
        query_operands<layout> kept[layout::kept_steps ? layout::kept_steps : 1] = {};
        clear_running(state);
        sums::for_each(acc, [&](float &sum, uint32_t) { sum = 0; });
#pragma unroll 1
        for (const uint32_t begin = page; page < end; page++) {
            if (page % 32 == 0) of_lane.load(ring.listed.get(), min(page + lane, ring.n - 1), a.rows[share_read().row].first);
            const uint32_t from = of_lane.first_of(page);
            const uint64_t live = of_lane.read_of(page, from, position);
            const uint32_t own_run = in_runs ? from / ROPE_RUN_TOKENS : 0;
            const bool other_run = own_run != run;
            run = own_run;
            if (other_run)
                rotate_queries<HD>(a, share_read(), in_runs ? a.run_angles + (size_t)run * a.heads.n_rot : nullptr, keys, ups,
                                   of_warp.rotated, means);
            if (other_run || (SEVERAL && page == begin)) {
#pragma unroll
                for (int step = 0; step < layout::kept_steps; step++) {
                    const uint32_t at[layout::step_units] = {layout::unit_of_step(step) * UNIT * 2};
                    load_operands<HD>(shared_address(of_warp.rotated), at, kept[step]);
                }
            }
            float x[4][1][4], rise[1][2];
            uint32_t w[4][1][2];
            {
                float d[8][layout::sets][4];
                const uint2 gains =
                    multiply_page<HD, UNIT, TABLES, layout>(keys, ring, page, shared_address(of_warp.rotated), places, kept, d);
                exchange_products<layout>(ring.slot(0), d, x);
                __syncwarp();
                ring.release(page, layout::pieces - 1);
                if (keys.normalized) apply_gains(keys, gains, means, x);
            }
            finish_logits<TOKENS_BY_OCTET>(x, factor, slopes, (int32_t)(from - position), live);
            if (weigh(x, state, rise, w)) {
                const float factor = of_row_query(rise[0]);
                sums::for_each(acc, [&](float &sum, uint32_t) { sum *= factor; });
            }
            ring.wait(layout::pieces);
            if (values.normalized) weigh_gains(ring.slot(0), w, [](uint32_t code, int) { return relative_gain(code); });
            sums::add_page(values, ring, w, acc);
            __syncwarp();
#pragma unroll
            for (int piece = 0; piece < layout::pieces; piece++) ring.release(page, layout::pieces + piece);
        }
        finish_running(state);
    };

    const uint32_t query = lane / 4 % 4; /* of a lane's sums */
    const auto store_stretch = [&](const partials<HD> &states, uint32_t stretch, const running<1> &state,
                                   float(&acc)[sums::groups][UNIT][4]) {
        store_running(states, stretch, s.group, state);
        float *const to = states.sums + (stretch * s.group + query) * HD;
        if (query < s.group) sums::for_each(acc, [&](float &sum, uint32_t channel) { to[channel] = sum; });
    };
    running<1> of_pages;
    float acc[sums::groups][UNIT][4] = {};
    partials<HD> stretches;
    if constexpr (SEVERAL) {
        const uint32_t parts = shared_address(&queries.parts);
        const auto parts_read = [&]() { return cta_parts{uniform(load_shared(parts)), uniform(load_shared(parts + 4))}; };
#pragma unroll 1
        for (uint32_t stretch = warp * own.count(); stretch < (warp + 1) * parts_read().count(); stretch++) {
            const bool first = stretch == warp * parts_read().count();
            struct share now = share_read();
            if (!first && stretch % WARPS == 0) now.part++;
            if (first || now.part == now.parts) {
                const cta_parts read = parts_read();
                const uint32_t part = read.first + stretch / WARPS, row = first ? row_of_part(a, part) : now.row + 1,
                               rank = stretch % WARPS, of_row = read.of_row(a, part, blockIdx.y, row, now) * WARPS - rank;
                take_heads(now, launch.first_query, CENTROID_QUERIES);
                start_ring(now, rank, rank + min(of_row, (warp + 1) * read.count() - stretch) - 1);
                scale_queries<HD>(a, now, ups, factor[0]);
                page = 0, run = UINT32_MAX, position = now.position;
            }
            __syncwarp(); /* all lanes know what it was */
            if (lane == 0) store_shared_quad(shared_address(&of_warp.reads), make_uint4(now.row, now.part, now.parts, now.n_pages));
            __syncwarp();
            uint32_t begin, end;
            stretch_pages<WARPS>(now, stretch % WARPS, begin, end);
            read_stretch(end - ring.listed.get().first, of_pages, acc);
            store_stretch(stretch_states<HD, WARPS>(a, share_read()), stretch % WARPS, of_pages, acc);
        }
    } else {
        read_stretch(ring.n, of_pages, acc);
    }
    wait_copies<0>();
    __syncthreads(); /* rings and tables are no longer read, the stretches' states are in memory */

    /* Reads the rows of halves of `parts` parts of a row, and leaves these. */
    const auto leave_row = [&](uint32_t parts) {
        const uint32_t row_units = SEVERAL ? row_ranges_of(a, s).units() : UINT32_MAX; /* a part alone does not wait to know them */
#pragma unroll 1
        for (uint32_t first = 0; first < parts; first += memory::parts_at_once) {
            const uint32_t count = min(parts - first, (uint32_t)memory::parts_at_once),
                           with_rows = s.part + first < row_units ? min(row_units - s.part - first, count) : 0;
            const partials<HD> states = partials_at<HD>(rest + memory::states_at, (SEVERAL ? count : 2) * WARPS, s.group);
#pragma unroll 1
            for (uint32_t i = warp; i < with_rows * WARPS; i += WARPS) { /* once, unless SEVERAL */
                const uint32_t part = i % with_rows, rank = i / with_rows;
                running<1> of_rows;
                float acc_of_rows[HD / 16][1][4] = {};
                clear_running(of_rows);
                attend_rows<HD>(a, s, rank * s.parts + s.part + first + part, WARPS * s.parts, queries.exact, queries.window,
                                slopes, shared_address(rest) + warp * memory::row_bytes, of_rows, acc_of_rows);
                finish_running(of_rows);
                if (!SEVERAL) __syncthreads(); /* rows are no longer read */
                store_running(states, part * WARPS + rank, s.group, of_rows);
                store_sums(states, part * WARPS + rank, s.group, acc_of_rows);
            }
            if constexpr (!SEVERAL) {
                stretches = states_from(states, WARPS, s.group);
                store_stretch(stretches, warp, of_pages, acc);
            }
            __syncthreads();
            struct share from = s;
            from.part += first;
            leave_parts<HD, WARPS>(a, from, count, states_from(stretches, first * WARPS, s.group), states, row_units,
                                   [&](float4 &sums, float weights, uint32_t quad) {
                                       if (!values.normalized) return;
                                       const float *const mean = values.mean + 4 * quad;
                                       const float scale = values.gain_scale;
                                       sums = make_float4(sums.x * scale + weights * mean[0], sums.y * scale + weights * mean[1],
                                                          sums.z * scale + weights * mean[2], sums.w * scale + weights * mean[3]);
                                   });
            if (SEVERAL) __syncthreads(); /* states are no longer read */
        }
        arrive<HD, WARPS * 32>(a, s, parts, rest);
    };
    if constexpr (SEVERAL) {
        own = queries.parts;
        uint32_t row = row_of_part(a, own.first), count;
#pragma unroll 1
        for (uint32_t part = own.first; part < own.end; part += count, row++) {
            count = own.of_row(a, part, blockIdx.y, row, s);
            take_heads(s, launch.first_query, CENTROID_QUERIES);
            stretches = stretch_states<HD, WARPS>(a, s);
            prepare();
            __syncthreads(); /* queries are there, and the row before this one is left */
            leave_row(count);
        }
    } else {
        leave_row(1);
    }
}

/* ---- Launches */

/* Gives each warp's ring as many slots as there is room for beside the tables; returns the bytes of shared memory that a CTA takes, 0:
 * there is no room. */
template <int HD, int UNIT, int WARPS, bool TABLES>
uint32_t fit_centroids(const struct attend_decode *a, struct centroid_launch *launch) {
    using layout = centroid_layout<HD, UNIT, TABLES>;
    using memory = centroid_memory<HD, WARPS, layout, false>;
    using several = centroid_memory<HD, WARPS, layout, TABLES>;
    constexpr uint32_t before = memory::queries + (TABLES ? 2 * TABLE_BYTES : 0);
    const uint32_t room = (uint32_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    launch->slot_bytes = TABLES ? layout::piece_bytes : ring_slot_bytes(a);
    if (launch->slot_bytes < LOGIT_BYTES) launch->slot_bytes = LOGIT_BYTES;
    launch->slots = before < room ? ring_slots(launch->slot_bytes, WARPS, room - before) : 0;
    if constexpr (TABLES) launch->slots = launch->slots < layout::slots ? 0 : layout::slots;
    const uint32_t pages = before + launch->slots * WARPS * launch->slot_bytes,
                   after = memory::queries + (memory::after > several::after ? memory::after : several::after);
    const uint32_t bytes = pages > after ? pages : after;
    return launch->slots && bytes <= room ? bytes : 0;
}

/* Launches CTAs with so many bytes of shared memory; 0 is refused. */
template <int HD, int UNIT, int WARPS, bool TABLES>
cudaError_t launch_centroids(const struct attend_decode *a, struct centroid_launch launch, uint32_t bytes, cudaStream_t stream) {
    const bool several = TABLES && a->multiprocessor_parts > 1;
    const uint32_t most = a->multiprocessors / a->heads.kv_heads,
                   ctas = most ? most : 1; /* of a KV head, where they share the parts of all rows */
    const dim3 grid = several ? dim3(ctas, a->heads.kv_heads) : dim3(a->splits, a->heads.kv_heads, a->n_rows);
    const auto kernel = several ? attend_centroids_kernel<HD, UNIT, WARPS, TABLES, TABLES>
                                : attend_centroids_kernel<HD, UNIT, WARPS, TABLES, false>;
    if (!bytes) return cudaErrorInvalidConfiguration;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    kernel<<<grid, WARPS * 32, bytes, stream>>>(*a, launch);
    return cudaGetLastError();
}

/* Launches with tables in shared memory where codes have 8 bits and there is room for them beside the rings. A multiprocessor then
 * has room for one CTA. Of 12 warps each thread has 168 registers, so that eight tokens' look-ups are under way at once; of 16, with
 * 128, it waits for one after another. The memory of compute capability 8.0 is enough for 4. */
template <int HD, int UNIT> cudaError_t launch_tables(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    struct centroid_launch launch = {first_query, 0, 0};
    uint32_t bytes;
    if constexpr (HD * 2 <= TABLE_ROW && UNIT < 8) {
        if (a->centroid[0].bits == 8 && a->centroid[1].bits == 8) {
            bytes = fit_centroids<HD, UNIT, 12, true>(a, &launch);
            if (bytes) return launch_centroids<HD, UNIT, 12, true>(a, launch, bytes, stream);
            bytes = fit_centroids<HD, UNIT, 4, true>(a, &launch);
            if (bytes) return launch_centroids<HD, UNIT, 4, true>(a, launch, bytes, stream);
        }
    }
    bytes = fit_centroids<HD, UNIT, 8, false>(a, &launch);
    return launch_centroids<HD, UNIT, 8, false>(a, launch, bytes, stream);
}

template <int HD, int UNIT> cudaError_t launch_units(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t group = a->heads.query_heads / a->heads.kv_heads;
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0; first < group && result == cudaSuccess; first += CENTROID_QUERIES)
        result = launch_tables<HD, UNIT>(a, first, stream);
    return result;
}

/* Launches with units as wide as both sides' sub-vectors allow and as leave whole columns of 8 units; tables have units of at most 4. */
template <int HD> cudaError_t launch_widths(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t width = a->centroid[0].width < a->centroid[1].width ? a->centroid[0].width : a->centroid[1].width;
    const bool bytes = HD < 256 && a->centroid[0].bits == 8 && a->centroid[1].bits == 8;
    if (HD % 128 == 0 && width >= 8 && !bytes) return launch_units < HD, HD % 128 ? 2 : 8 > (a, stream);
    if (HD % 64 == 0 && width >= 4) return launch_units < HD, HD % 64 ? 2 : 4 > (a, stream);
    return launch_units<HD, 2>(a, stream);
}

#endif
