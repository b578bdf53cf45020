/* Reads million-4's pages in the way of MILLION's paper, beside which bench_million_tables.cu times the kernel that ships: scores by tables of a
 * query's products with all centroids, and sums of values' weights by code. Heads have 128 channels in 64 sub-vectors of 256 centroids, and a KV head
 * has GROUP query heads, 1 or 4. The tables need the shared memory of compute capability 9.0.
 *
 * A lane looks up the codes of an octet of tokens, lane / 4, at each step of another sub-vector: 32 lanes take 32 different ones, (4 step + lane) %
 * 32. A row of a table, of one code, has 256 bytes, in which the sub-vector alone decides about the bank: so look-ups and additions meet no
 * bank conflicts, whatever the codes.
 *
 * Parts that a row and KV head's pages are cut into leave what they have as it is: logits need no merging, sums of values are not merged. */
#ifndef TERSE_BENCH_CUDA_MILLION_TABLES_CUH
#define TERSE_BENCH_CUDA_MILLION_TABLES_CUH

#include "backend/cuda/kv/attend_centroids.cuh"

constexpr int MILLION_HD = 128, MILLION_CODES = 256, MILLION_WARPS = 12;
constexpr uint32_t MILLION_PAGE = PAGE_TOKENS * MILLION_HD / 2; /* bytes of a side */
constexpr uint32_t AT_ONCE = 32;                                /* sub-vectors that a warp looks up at once: half of them */
constexpr uint32_t PLANE = MILLION_CODES * TABLE_ROW;           /* bytes of a table with 64 words for each code */

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

/* Asks, by a warp, for the codes of BYTES / 64 sub-vectors of a page. */
template <uint32_t BYTES> ATTEND_INLINE void copy_codes(uint32_t slot, const uint8_t *from) {
    const uint32_t lane = lane_id(), own = place_in_slot(lane / 4, 16 * (lane % 4));
#pragma unroll
    for (uint32_t i = 0; i < BYTES; i += 512) copy_async<16>(slot + own + i, from + 16 * lane + i);
}

ATTEND_INLINE uint32_t unit_of_step(uint32_t step) { return (4 * step + lane_id()) % AT_ONCE; }

ATTEND_INLINE octet_codes<true> codes_of_unit(uint32_t slot, uint32_t unit) {
    const uint2 bytes = load_shared_pair(slot + place_in_slot(unit, 8 * (lane_id() / 4)));
    return {{bytes.x, bytes.y}};
}

/* Returns where the row of a token's code has byte `at`. */
ATTEND_INLINE uint32_t place_of_code(const octet_codes<true> &codes, int token, uint32_t at) {
    return permute(codes.of[token / 4], at, 0x7604 | token % 4 << 4);
}

/* ---- Scores */

/* A table has, for each code, floats of the 64 sub-vectors where there is one query, else halves of the four queries for each sub-vector, half of the
 * sub-vectors behind the others. */
template <int GROUP> struct score_layout {
    static constexpr uint32_t table_bytes = GROUP == 1 ? PLANE : 2 * PLANE;
    static constexpr int slots = GROUP == 1 ? 3 : 2; /* of a warp's ring */
    static constexpr uint32_t bytes = table_bytes + MILLION_WARPS * slots * MILLION_PAGE;
};

/* Stores two units at an address, and `distance` behind it. Every other row does so in the other order, by which lanes of two rows write to different
 * banks. */
ATTEND_INLINE void store_two(uint32_t address, uint32_t distance, uint4 x, uint4 y) {
    const bool odd = lane_id() / 4 % 2;
    store_shared_quad(address + (odd ? distance : 0), odd ? y : x);
    store_shared_quad(address + (odd ? 0 : distance), odd ? x : y);
}

/* Computes, by all warps of a CTA, products of queries and centroids by those of tensor cores, whose rows are codes and whose columns
 * sub-vectors: column 2 t of lane t of four has the query in the inner indices of its own first sub-vector alone, and column 2 t + 1 in those of its
 * second one. A warp has half of the sub-vectors, in two blocks of 16. */
template <int GROUP> ATTEND_INLINE void make_tables(const struct million_step &a, const float *q, uint32_t table) {
    constexpr int TURNS = (MILLION_CODES / 16 + MILLION_WARPS / 2 - 1) / (MILLION_WARPS / 2);
    const uint32_t warp = threadIdx.x / 32, g = lane_id() / 4, t = lane_id() % 4, half = warp % 2;
    const uint8_t *const centroids = reinterpret_cast<const uint8_t *>(a.centroids[0][blockIdx.y].centroids) + 128 * half + 16 * t;
    uint4 c[TURNS][2][2]; /* [turn][block][code g, code g + 8]: all are asked for before the first is multiplied */
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t code = min(16 * (warp / 2 + turn * (MILLION_WARPS / 2)), MILLION_CODES - 16) + g + i % 2 * 8;
            c[turn][i / 2][i % 2] = __ldg(reinterpret_cast<const uint4 *>(centroids + code * TABLE_ROW + 64 * (i / 2)));
        }
    uint32_t b[2][GROUP][4];
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
        for (int query = 0; query < GROUP; query++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x =
                    __ldg(reinterpret_cast<const float2 *>(q + query * MILLION_HD + 64 * half + 32 * block + 8 * t + 2 * i));
                b[block][query][i] = g == 2 * t + i % 2 ? pack_halves(x.x * a.scale, x.y * a.scale) : 0;
            }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const uint32_t code = 16 * (warp / 2 + turn * (MILLION_WARPS / 2)) + g;
        if (code >= MILLION_CODES) break;
        float d[2][2][GROUP][4] = {}; /* [block][pair of sub-vectors][query][of codes g and g + 8 the two] */
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int query = 0; query < GROUP; query++) {
                const uint4 x = c[turn][block][0], y = c[turn][block][1];
                const uint32_t(&of)[4] = b[block][query];
                mma(d[block][0][query], x.x, y.x, x.y, y.y, of[0], of[1]);
                mma(d[block][1][query], x.z, y.z, x.w, y.w, of[2], of[3]);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t row = table + (code + 8 * h) * TABLE_ROW;
            if constexpr (GROUP == 1) {
                uint4 x[2];
#pragma unroll
                for (int block = 0; block < 2; block++) {
                    const float(&own)[2][GROUP][4] = d[block];
                    x[block] = make_uint4(__float_as_uint(own[0][0][2 * h]), __float_as_uint(own[0][0][2 * h + 1]),
                                          __float_as_uint(own[1][0][2 * h]), __float_as_uint(own[1][0][2 * h + 1]));
                }
                store_two(row + 128 * half + 16 * t, 64, x[0], x[1]);
            } else {
#pragma unroll
                for (int block = 0; block < 2; block++) {
                    uint4 x[2];
#pragma unroll
                    for (int pair = 0; pair < 2; pair++) {
                        const float(&own)[GROUP][4] = d[block][pair];
                        x[pair] = make_uint4(pack_halves(own[0][2 * h], own[1 % GROUP][2 * h]),
                                             pack_halves(own[2 % GROUP][2 * h], own[3 % GROUP][2 * h]),
                                             pack_halves(own[0][2 * h + 1], own[1 % GROUP][2 * h + 1]),
                                             pack_halves(own[2 % GROUP][2 * h + 1], own[3 % GROUP][2 * h + 1]));
                    }
                    store_two(row + PLANE * half + 128 * block + 32 * t, 16, x[0], x[1]);
                }
            }
        }
    }
}

/* Calls work(group, unit, codes) for each sub-vector AT_ONCE * group + unit that the lane looks up, with its octet's codes. */
template <class Work> ATTEND_INLINE void each_look_up(uint32_t slot, Work work) {
#pragma unroll
    for (int group = 0; group < 2; group++)
#pragma unroll
        for (int step = 0; step < 8; step++) {
            const uint32_t unit = unit_of_step(step);
            const octet_codes<true> codes = codes_of_unit(slot, AT_ONCE * group + unit);
            work(group, unit, codes);
        }
}

/* Adds up, in floats, what the look-ups of one query have; four lanes have those of an octet, two tokens of which each of them then writes. */
ATTEND_INLINE void score_page_of_one(uint32_t slot, uint32_t table, float *logits) {
    const uint32_t t = lane_id() % 4;
    float sum[8] = {};
    each_look_up(slot, [&](int group, uint32_t unit, const octet_codes<true> &codes) {
        uint32_t x[8]; /* all are asked for before the first is added */
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = load_shared(table + 128 * group + place_of_code(codes, j, 4 * unit));
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += __uint_as_float(x[j]);
    });
    float four[4], two[2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float other = __shfl_xor_sync(ALL_LANES, t / 2 ? sum[j] : sum[4 + j], 2);
        four[j] = (t / 2 ? sum[4 + j] : sum[j]) + other;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float other = __shfl_xor_sync(ALL_LANES, t % 2 ? four[j] : four[2 + j], 1);
        two[j] = (t % 2 ? four[2 + j] : four[j]) + other;
    }
    *reinterpret_cast<float2 *>(logits + 2 * lane_id()) = make_float2(two[0], two[1]);
}

/* Adds up, by tensor cores, what the look-ups of four queries have: columns are octets, rows queries, those of 4 .. 7 once more. Of the inner
 * indices the first half is of queries 0 and 1, the second of 2 and 3, and a row has ones where they are of its query. */
ATTEND_INLINE void score_page_of_four(uint32_t slot, uint32_t table, float *logits, size_t tokens) {
    const uint32_t g = lane_id() / 4, t = lane_id() % 4, query = g % 4;
    const uint32_t one = query % 2 ? 0x3c000000 : 0x3c00, low = query < 2 ? one : 0, high = query < 2 ? 0 : one;
    float d[8][4] = {};
    each_look_up(slot, [&](int group, uint32_t unit, const octet_codes<true> &codes) {
        uint2 x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = load_shared_pair(table + PLANE * group + place_of_code(codes, j, 8 * unit));
#pragma unroll
        for (int j = 0; j < 8; j++) mma(d[j], low, 0, high, 0, x[j].x, x[j].y);
    });
    float own[8]; /* of the two columns one in each copy of the rows */
#pragma unroll
    for (int j = 0; j < 8; j++) own[j] = g < 4 ? d[j][0] : d[j][1];
    float4 *const to = reinterpret_cast<float4 *>(logits + query * tokens + 16 * t + (g < 4 ? 0 : 8));
    to[0] = make_float4(own[0], own[1], own[2], own[3]), to[1] = make_float4(own[4], own[5], own[6], own[7]);
}

template <int GROUP>
__global__ void __launch_bounds__(MILLION_WARPS * 32, 1) score_by_tables(const __grid_constant__ struct million_step a) {
    using layout = score_layout<GROUP>;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = threadIdx.x / 32, end = first_page(a, blockIdx.x + 1, gridDim.x);
    const uint32_t table = uniform(shared_address(shared));
    const uint32_t ring = table + layout::table_bytes + warp * layout::slots * MILLION_PAGE;
    const size_t tokens = (size_t)a.pages * PAGE_TOKENS, query = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * GROUP;
    const uint8_t *const pages = own_pages(a, 0);
    uint32_t page = first_page(a, blockIdx.x, gridDim.x) + warp;
    const auto ask = [&](uint32_t slot, uint32_t next) {
        if (next < end) copy_codes<MILLION_PAGE>(ring + slot * MILLION_PAGE, pages + (size_t)next * MILLION_PAGE);
        commit_copies();
    };
    for (uint32_t i = 0; i < layout::slots; i++) ask(i, page + i * MILLION_WARPS);
    make_tables<GROUP>(a, a.q + query * MILLION_HD, table);
    __syncthreads();
#pragma unroll 1
    for (uint32_t slot = 0; page < end; page += MILLION_WARPS, slot = slot + 1 < layout::slots ? slot + 1 : 0) {
        wait_copies<layout::slots - 1>();
        __syncwarp();
        float *const logits = a.logits + query * tokens + (size_t)page * PAGE_TOKENS;
        if constexpr (GROUP == 1)
            score_page_of_one(ring + slot * MILLION_PAGE, table, logits);
        else
            score_page_of_four(ring + slot * MILLION_PAGE, table, logits, tokens);
        __syncwarp();
        ask(slot, page + layout::slots * MILLION_WARPS);
    }
}

/* ---- Sums of values */

/* Sums of weights by code are integers, which shared memory adds to by itself; additions of floats would be loops of compare-and-swap. A row has words
 * of the 64 sub-vectors where there is one query. Those of four queries are too many for one CTA, so that each has half of the
 * sub-vectors, whose codes lie together in a page: a row has words of these for two queries, and the rows of the other two lie behind. */
template <int GROUP> struct sum_layout {
    static constexpr uint32_t halves = GROUP == 1 ? 1 : 2; /* CTAs that share a page */
    static constexpr int groups = GROUP == 1 ? 2 : 1;      /* of sub-vectors that a CTA has */
    static constexpr int cells = groups * GROUP;           /* of a lane for each code */
    static constexpr uint32_t cell_bytes = cells * PLANE / 2;
    static constexpr int slots = GROUP == 1 ? 3 : 2;
    static constexpr uint32_t code_bytes = MILLION_PAGE / halves, slot_bytes = code_bytes + GROUP * PAGE_TOKENS * 4;
    static constexpr uint32_t bytes = cell_bytes + MILLION_WARPS * slots * slot_bytes;

    static ATTEND_INLINE uint32_t place_of_cell(int cell) { return 128 * (cell % 2) + PLANE * (cell / 2); }
};

/* Adds the weights of a page, which lie behind its codes. */
template <int GROUP> ATTEND_INLINE void add_weights(uint8_t *shared, uint32_t slot, float one) {
    using layout = sum_layout<GROUP>;
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
#pragma unroll
    for (int group = 0; group < layout::groups; group++)
#pragma unroll
        for (int step = 0; step < 8; step++) {
            const uint32_t unit = unit_of_step(step);
            const octet_codes<true> codes = codes_of_unit(slot, AT_ONCE * group + unit);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint8_t *const row = shared + place_of_code(codes, j, 4 * unit);
#pragma unroll
                for (int query = 0; query < GROUP; query++)
                    atomicAdd(reinterpret_cast<uint32_t *>(row + layout::place_of_cell(group + query)), w[query][j]);
            }
        }
}

/* Multiplies the sums by the centroids, a warp some codes, and adds up what the warps have, by way of `scratch`. */
template <int GROUP>
ATTEND_INLINE void finish_sums(const struct million_step &a, const uint8_t *shared, float2 *scratch, uint32_t half, float *to) {
    using layout = sum_layout<GROUP>;
    const uint32_t warp = threadIdx.x / 32, lane = lane_id();
    const __half2 *const centroids =
        reinterpret_cast<const __half2 *>(a.centroids[1][blockIdx.y].centroids) + AT_ONCE * half + lane;
    float2 sum[layout::cells] = {};
#pragma unroll 8
    for (uint32_t code = warp; code < MILLION_CODES; code += MILLION_WARPS) {
        float2 c[layout::groups];
#pragma unroll
        for (int group = 0; group < layout::groups; group++)
            c[group] = __half22float2(__ldg(centroids + 64 * code + AT_ONCE * group));
#pragma unroll
        for (int cell = 0; cell < layout::cells; cell++) {
            const float w =
                (float)*reinterpret_cast<const uint32_t *>(shared + code * TABLE_ROW + layout::place_of_cell(cell) + 4 * lane);
            const float2 x = c[cell % layout::groups];
            sum[cell] = make_float2(sum[cell].x + w * x.x, sum[cell].y + w * x.y);
        }
    }
#pragma unroll
    for (int cell = 0; cell < layout::cells; cell++) scratch[(warp * layout::cells + cell) * 32 + lane] = sum[cell];
    __syncthreads();
    if (warp >= layout::cells) return;
    float2 all = {0, 0};
    for (uint32_t i = 0; i < MILLION_WARPS; i++) {
        const float2 x = scratch[(i * layout::cells + warp) * 32 + lane];
        all = make_float2(all.x + x.x, all.y + x.y);
    }
    const uint32_t query = GROUP == 1 ? 0 : warp, group = GROUP == 1 ? warp : half;
    reinterpret_cast<float2 *>(to + query * MILLION_HD)[AT_ONCE * group + lane] = make_float2(all.x / a.one, all.y / a.one);
}

/* Parts follow one another in the grid, the halves of the sub-vectors of each side by side. */
template <int GROUP>
__global__ void __launch_bounds__(MILLION_WARPS * 32, 1) sum_by_code(const __grid_constant__ struct million_step a) {
    using layout = sum_layout<GROUP>;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = threadIdx.x / 32, lane = lane_id(), half = blockIdx.x % layout::halves;
    const uint32_t part = blockIdx.x / layout::halves, parts = gridDim.x / layout::halves, end = first_page(a, part + 1, parts);
    uint8_t *const rings = shared + layout::cell_bytes;
    const uint32_t ring = uniform(shared_address(rings)) + warp * layout::slots * layout::slot_bytes;
    const size_t tokens = (size_t)a.pages * PAGE_TOKENS, head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const uint8_t *const pages = own_pages(a, 1) + half * layout::code_bytes;
    uint32_t page = first_page(a, part, parts) + warp;
    const auto ask = [&](uint32_t slot, uint32_t next) {
        if (next < end) {
            const uint32_t to = ring + slot * layout::slot_bytes;
            copy_codes<layout::code_bytes>(to, pages + (size_t)next * MILLION_PAGE);
            for (uint32_t i = lane; i < GROUP * PAGE_TOKENS / 4; i += 32)
                copy_async<16>(to + layout::code_bytes + 16 * i,
                               a.weights + (head * GROUP + i / 16) * tokens + (size_t)next * PAGE_TOKENS + i % 16 * 4);
        }
        commit_copies();
    };
    for (uint32_t i = 0; i < layout::slots; i++) ask(i, page + i * MILLION_WARPS);
    for (uint32_t i = 16 * threadIdx.x; i < layout::cell_bytes; i += 16 * MILLION_WARPS * 32)
        *reinterpret_cast<uint4 *>(shared + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 1
    for (uint32_t slot = 0; page < end; page += MILLION_WARPS, slot = slot + 1 < layout::slots ? slot + 1 : 0) {
        wait_copies<layout::slots - 1>();
        __syncwarp();
        add_weights<GROUP>(shared, ring + slot * layout::slot_bytes, a.one);
        __syncwarp();
        ask(slot, page + layout::slots * MILLION_WARPS);
    }
    __syncthreads();
    finish_sums<GROUP>(a, shared, reinterpret_cast<float2 *>(rings), half, a.sums + (head * parts + part) * GROUP * MILLION_HD);
}

#endif
