/* Measures the parts of attention by tables apart, for bench_million_tables.cu: scores by tables of a query's products with all centroids, and sums of
 * values' weights by code. A KV head has GROUP query heads of HD channels: with 1 they are made of what ships (attend_tables.cuh), with 4, of 128 channels,
 * they are such as could have shipped beside it. The tables need the shared memory of compute capability 9.0.
 *
 * Parts that a row and KV head's pages are cut into leave what they have as it is: logits need no merging, sums of values are not merged. */
#ifndef TERSE_BENCH_CUDA_MILLION_TABLES_CUH
#define TERSE_BENCH_CUDA_MILLION_TABLES_CUH

#include "backend/cuda/kv/attend_tables.cuh"

struct million_step {
    const uint8_t *pool; /* a chunk of `pages` page sets for each row */
    size_t row_bytes;    /* of a chunk */
    uint32_t pages;
    const struct place_view *places;          /* [Hk] */
    const struct centroid_view *centroids[2]; /* by side, [Hk] */
    const float *q;                           /* [rows][Hq][hd] */
    float scale;
    float *logits;        /* [rows][Hq][tokens] */
    const float *weights; /* [rows][Hq][tokens], from 0 to 1 */
    float one;   /* by which weights become integers: a power of two, of which as many as a CTA has tokens are a word at most */
    float *sums; /* [rows][Hk][parts][GROUP][hd] */
};

/* The grid is of parts, KV heads and rows. Returns where the pages of the CTA's row and KV head begin. */
ATTEND_INLINE const uint8_t *own_pages(const struct million_step &a, int side) {
    struct page_set_view first = {};
    first.chunk = const_cast<uint8_t *>(a.pool) + blockIdx.z * a.row_bytes, first.sets = a.pages;
    return page_address(&first, &a.places[blockIdx.y], side);
}

ATTEND_INLINE uint32_t first_page(const struct million_step &a, uint32_t part, uint32_t parts) {
    return (uint32_t)((uint64_t)part * a.pages / parts);
}

/* Shared memory holds tables or sums, MIDDLE bytes, between the rings of the first FRONT warps and those of the others, RING bytes each. With FRONT 0
 * the middle begins at no certain multiple. */
template <int FRONT, uint32_t MIDDLE, uint32_t RING> struct rings_around {
    static constexpr uint32_t bytes = (FRONT ? TABLE : 0) + MIDDLE + (TABLES_WARPS - FRONT) * RING;
    static_assert(!FRONT || SHARED_BEFORE + FRONT * RING <= TABLE, "the middle begins at the size of a table");
    static_assert(bytes <= 227 << 10, "a CTA of compute capability 9.0 has so much");

    static ATTEND_INLINE uint32_t middle(uint32_t shared) { return FRONT ? table_behind(shared + FRONT * RING) : shared; }
    /* Returns where the warp's ring lies. */
    static ATTEND_INLINE uint32_t ring(uint32_t shared) {
        const int warp = (int)threadIdx.x / 32;
        return warp < FRONT ? shared + warp * RING : middle(shared) + MIDDLE + (warp - FRONT) * RING;
    }
};

/* ---- Scores */

/* A table has, for each code, floats of the sub-vectors where there is one query, else halves of the four queries for each sub-vector, half of the
 * sub-vectors behind the others. */
template <int HD, int GROUP> struct score_layout {
    static constexpr int slots = GROUP == 1 ? 3 * 128 / HD : 2; /* of a warp's ring */
    static constexpr uint32_t slot_bytes = table_layout<HD>::page_bytes;
    using memory = rings_around<GROUP == 1 ? 5 : 0, GROUP == 1 ? TABLE : 2 * TABLE, slots * slot_bytes>;
};

/* Makes, by all warps of a CTA, the tables of q[GROUP][HD]. */
template <int HD, int GROUP> ATTEND_INLINE void make_tables(const struct million_step &a, const float *q, uint32_t table) {
    const uint32_t piece = threadIdx.x / 32 % table_layout<HD>::pieces, t = lane_id() % 4;
    const uint8_t *const centroids = reinterpret_cast<const uint8_t *>(a.centroids[0][blockIdx.y].centroids);
    uint32_t operands[2][GROUP][4];
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
        for (int query = 0; query < GROUP; query++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x = __ldg(reinterpret_cast<const float2 *>(q + query * HD + 64 * piece + 32 * block + 8 * t + 2 * i));
                operands[block][query][i] = product_operand(i, pack_halves(x.x * a.scale, x.y * a.scale));
            }
    if constexpr (GROUP == 1) {
        make_table<HD>(centroids, operands, table);
    } else {
        multiply_centroids<HD, GROUP>(centroids, operands, [&](uint32_t code, const float(&d)[2][2][GROUP][4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) { /* of codes and blocks */
                const int h = i / 2, block = i % 2;
                uint4 x[2];
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    const float(&own)[GROUP][4] = d[block][pair];
                    x[pair] = make_uint4(pack_halves(own[0][2 * h], own[1][2 * h]), pack_halves(own[2][2 * h], own[3][2 * h]),
                                         pack_halves(own[0][2 * h + 1], own[1][2 * h + 1]),
                                         pack_halves(own[2][2 * h + 1], own[3][2 * h + 1]));
                }
                store_two(table + (code + 8 * h) * TABLE_ROW + TABLE * piece + 128 * block + 32 * t, 16, x[0], x[1]);
            }
        });
    }
}

template <int HD> ATTEND_INLINE void score_page_of_one(uint32_t slot, uint32_t table, float *logits) {
    float sum[8] = {};
#pragma unroll
    for (uint32_t piece = 0; piece < table_layout<HD>::pieces; piece++)
        add_scores(slot + PIECE_PAGE * piece, table + PIECE_ROW * piece, sum);
    *reinterpret_cast<float2 *>(logits + 2 * lane_id()) = join_scores(sum);
}

/* Adds up, by tensor cores, what the look-ups of four queries have: columns are octets, rows queries, those of 4 .. 7 once more. Of the inner
 * indices the first half is of queries 0 and 1, the second of 2 and 3, and a row has ones where they are of its query. */
ATTEND_INLINE void score_page_of_four(uint32_t slot, uint32_t table, float *logits, size_t tokens) {
    const uint32_t g = lane_id() / 4, t = lane_id() % 4, query = g % 4;
    const uint32_t one = query % 2 ? 0x3c000000 : 0x3c00, low = query < 2 ? one : 0, high = query < 2 ? 0 : one;
    float d[8][4] = {};
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
        each_unit(slot + PIECE_PAGE * half, [&](uint32_t unit, const octet_codes<true> &codes) {
            uint2 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = load_shared_pair(table + TABLE * half + place_of_code(codes, j, 8 * unit));
#pragma unroll
            for (int j = 0; j < 8; j++) mma(d[j], low, 0, high, 0, x[j].x, x[j].y);
        });
    float own[8]; /* of the two columns one in each copy of the rows */
#pragma unroll
    for (int j = 0; j < 8; j++) own[j] = g < 4 ? d[j][0] : d[j][1];
    float4 *const to = reinterpret_cast<float4 *>(logits + query * tokens + 16 * t + (g < 4 ? 0 : 8));
    to[0] = make_float4(own[0], own[1], own[2], own[3]), to[1] = make_float4(own[4], own[5], own[6], own[7]);
}

template <int HD, int GROUP>
__global__ void __launch_bounds__(TABLES_WARPS * 32, 1) score_by_tables(const __grid_constant__ struct million_step a) {
    using layout = score_layout<HD, GROUP>;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = threadIdx.x / 32, end = first_page(a, blockIdx.x + 1, gridDim.x);
    const uint32_t table = uniform(layout::memory::middle(shared_address(shared)));
    const uint32_t ring = layout::memory::ring(shared_address(shared));
    const size_t tokens = (size_t)a.pages * PAGE_TOKENS, query = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * GROUP;
    const uint8_t *const pages = own_pages(a, 0);
    uint32_t page = first_page(a, blockIdx.x, gridDim.x) + warp;
    const auto ask = [&](uint32_t slot, uint32_t next) {
        if (next < end) copy_codes<layout::slot_bytes>(ring + slot * layout::slot_bytes, pages + (size_t)next * layout::slot_bytes);
        commit_copies();
    };
    for (uint32_t i = 0; i < layout::slots; i++) ask(i, page + i * TABLES_WARPS);
    make_tables<HD, GROUP>(a, a.q + query * HD, table);
    __syncthreads();
#pragma unroll 1
    for (uint32_t slot = 0; page < end; page += TABLES_WARPS, slot = slot + 1 < layout::slots ? slot + 1 : 0) {
        wait_copies<layout::slots - 1>();
        __syncwarp();
        float *const logits = a.logits + query * tokens + (size_t)page * PAGE_TOKENS;
        if constexpr (GROUP == 1)
            score_page_of_one<HD>(ring + slot * layout::slot_bytes, table, logits);
        else
            score_page_of_four(ring + slot * layout::slot_bytes, table, logits, tokens);
        __syncwarp();
        ask(slot, page + layout::slots * TABLES_WARPS);
    }
}

/* ---- Sums of values */

/* A row has words of the sub-vectors where there is one query. Those of four queries are too many for one CTA, so that each has half of the
 * sub-vectors, whose codes lie together in a page: a row has words of these for two queries, and the rows of the other two lie behind. */
template <int HD, int GROUP> struct sum_layout {
    static constexpr uint32_t halves = GROUP == 1 ? 1 : 2; /* CTAs that share a page */
    static constexpr uint32_t cell_bytes = GROUP == 1 ? TABLE : GROUP * TABLE / 2;
    static constexpr int slots = HD == 64 ? 3 : 2;
    static constexpr uint32_t code_bytes = table_layout<HD>::page_bytes / halves, slot_bytes = code_bytes + GROUP * PAGE_TOKENS * 4;
    using memory = rings_around<GROUP == 1 ? 7 : 0, cell_bytes, slots * slot_bytes>;

    static ATTEND_INLINE uint32_t place_of_cell(int query) { return 128 * (query % 2) + TABLE * (query / 2); }
};

/* Adds the weights of a page, which lie behind its codes. */
template <int HD, int GROUP> ATTEND_INLINE void add_page(uint32_t cells, uint32_t slot, float one) {
    using layout = sum_layout<HD, GROUP>;
    uint32_t w[GROUP][8];
#pragma unroll
    for (int query = 0; query < GROUP; query++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = load_shared_quad(slot + layout::code_bytes + 256 * query + 32 * (lane_id() / 4) + 16 * i);
            w[query][4 * i] = __float2uint_rn(__uint_as_float(x.x) * one),
                         w[query][4 * i + 1] = __float2uint_rn(__uint_as_float(x.y) * one);
            w[query][4 * i + 2] = __float2uint_rn(__uint_as_float(x.z) * one),
                             w[query][4 * i + 3] = __float2uint_rn(__uint_as_float(x.w) * one);
        }
    if constexpr (GROUP == 1) {
#pragma unroll
        for (uint32_t piece = 0; piece < table_layout<HD>::pieces; piece++)
            add_weights(slot + PIECE_PAGE * piece, w[0], cells + PIECE_ROW * piece);
    } else {
        each_unit(slot, [&](uint32_t unit, const octet_codes<true> &codes) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t row = cells + place_of_code(codes, j, 4 * unit);
#pragma unroll
                for (int query = 0; query < GROUP; query++) add_shared(row + layout::place_of_cell(query), w[query][j]);
            }
        });
    }
}

/* Multiplies, by a warp, sums of its codes by the centroids, and stores what they are: `to` has GROUP rows of so many channels as the CTA has. */
template <int HD, int GROUP> ATTEND_INLINE void multiply_cells(const uint8_t *centroids, uint32_t cells, uint32_t half, float *to) {
    using layout = sum_layout<HD, GROUP>;
    const uint32_t warp = threadIdx.x / 32, lane = lane_id();
    if constexpr (GROUP == 1) {
        float sum[8];
        multiply_sums(cells, load_centroids<HD>(centroids), sum);
        if (lane >= HD / 8) return;
#pragma unroll
        for (int i = 0; i < 2; i++)
            reinterpret_cast<float4 *>(to)[2 * lane + i] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    } else {
        const __half2 *const own = reinterpret_cast<const __half2 *>(centroids) + UNITS_AT_ONCE * half + lane;
        float2 sum[GROUP] = {};
#pragma unroll 8
        for (uint32_t code = warp; code < TABLES_CODES; code += TABLES_WARPS) {
            const float2 c = __half22float2(__ldg(own + 64 * code));
#pragma unroll
            for (int query = 0; query < GROUP; query++) {
                const float w = (float)load_shared(cells + code * TABLE_ROW + layout::place_of_cell(query) + 4 * lane);
                sum[query] = make_float2(sum[query].x + w * c.x, sum[query].y + w * c.y);
            }
        }
#pragma unroll
        for (int query = 0; query < GROUP; query++) reinterpret_cast<float2 *>(to)[UNITS_AT_ONCE * query + lane] = sum[query];
    }
}

/* Multiplies the sums by the centroids, a warp some codes, and adds up what the warps have, by way of `scratch`. */
template <int HD, int GROUP>
ATTEND_INLINE void finish_sums(const struct million_step &a, uint32_t cells, float *scratch, uint32_t half, float *to) {
    constexpr uint32_t channels = HD / sum_layout<HD, GROUP>::halves, sums = GROUP * channels;
    multiply_cells<HD, GROUP>(reinterpret_cast<const uint8_t *>(a.centroids[1][blockIdx.y].centroids), cells, half,
                              scratch + threadIdx.x / 32 * sums);
    __syncthreads();
    if (threadIdx.x >= sums) return;
    float all = 0;
    for (uint32_t warp = 0; warp < TABLES_WARPS; warp++) all += scratch[warp * sums + threadIdx.x];
    to[threadIdx.x / channels * HD + half * channels + threadIdx.x % channels] = all / a.one;
}

/* Parts follow one another in the grid, the halves of the sub-vectors of each side by side. */
template <int HD, int GROUP>
__global__ void __launch_bounds__(TABLES_WARPS * 32, 1) sum_by_code(const __grid_constant__ struct million_step a) {
    using layout = sum_layout<HD, GROUP>;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = threadIdx.x / 32, lane = lane_id(), half = blockIdx.x % layout::halves;
    const uint32_t part = blockIdx.x / layout::halves, parts = gridDim.x / layout::halves, end = first_page(a, part + 1, parts);
    const uint32_t cells = uniform(layout::memory::middle(shared_address(shared)));
    const uint32_t ring = layout::memory::ring(shared_address(shared));
    uint8_t *const rings = shared + (GROUP == 1 ? 0 : layout::cell_bytes); /* of some warps */
    const size_t tokens = (size_t)a.pages * PAGE_TOKENS, head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const uint8_t *const pages = own_pages(a, 1) + half * layout::code_bytes;
    uint32_t page = first_page(a, part, parts) + warp;
    const auto ask = [&](uint32_t slot, uint32_t next) {
        if (next < end) {
            const uint32_t to = ring + slot * layout::slot_bytes;
            copy_codes<layout::code_bytes>(to, pages + (size_t)next * table_layout<HD>::page_bytes);
            for (uint32_t i = lane; i < GROUP * PAGE_TOKENS / 4; i += 32)
                copy_async<16>(to + layout::code_bytes + 16 * i,
                               a.weights + (head * GROUP + i / 16) * tokens + (size_t)next * PAGE_TOKENS + i % 16 * 4);
        }
        commit_copies();
    };
    for (uint32_t i = 0; i < layout::slots; i++) ask(i, page + i * TABLES_WARPS);
    for (uint32_t i = 16 * threadIdx.x; i < layout::cell_bytes; i += 16 * TABLES_WARPS * 32)
        store_shared_quad(cells + i, make_uint4(0, 0, 0, 0));
    __syncthreads();
#pragma unroll 1
    for (uint32_t slot = 0; page < end; page += TABLES_WARPS, slot = slot + 1 < layout::slots ? slot + 1 : 0) {
        wait_copies<layout::slots - 1>();
        __syncwarp();
        add_page<HD, GROUP>(cells, ring + slot * layout::slot_bytes, a.one);
        __syncwarp();
        ask(slot, page + layout::slots * TABLES_WARPS);
    }
    __syncthreads();
    finish_sums<HD, GROUP>(a, cells, reinterpret_cast<float *>(rings), half, a.sums + (head * parts + part) * GROUP * HD);
}

#endif
