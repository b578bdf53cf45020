/* Has the look-ups of attention by tables (attend_tables.cu), MILLION's way, for heads of 64 and 128 channels in sub-vectors of 2 channels and 256
 * centroids: a table of a query's products with all centroids, whose entries are added up for the codes of a key; and sums of weights by code, which
 * are multiplied by the values' centroids in the end. Heads of 256 channels are not read so: beside their table of 128 KB the 227 KB of a CTA have no
 * room for the 152 KB of rings and logits.
 *
 * A row of either, of one code, has a word for each sub-vector: TABLE_ROW bytes with 128 channels, half as many with 64. Four lanes have the codes of an
 * octet of tokens, lane / 4, each of another sub-vector: 32 lanes take 32 different ones at a time, (4 step + lane) % 32. The sub-vector alone decides
 * about the bank, so that look-ups and additions meet no bank conflicts, whatever the codes. Rows lie TABLE_ROW bytes apart and begin at a multiple of
 * 64 KB: then a permutation of bytes puts a code into an address, and nothing is to be added. With 64 channels a table's row and one of sums lie side by
 * side, and the table stays for all pages; with 128 sums take the table's place.
 *
 * Weights are added up as integers, to which shared memory adds by itself; additions of floats would be loops of compare-and-swap. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TABLES_CUH

#include "backend/cuda/kv/attend_centroids.cuh"

constexpr int TABLES_CODES = 256, TABLES_WARPS = 12;
constexpr uint32_t TABLE = TABLES_CODES * TABLE_ROW; /* bytes from the first row on */
constexpr uint32_t UNITS_AT_ONCE = 32;               /* sub-vectors that a warp looks up at once: a piece of a page and of a row */
constexpr uint32_t PIECE_PAGE = PAGE_TOKENS * UNITS_AT_ONCE, PIECE_ROW = 4 * UNITS_AT_ONCE;

template <int HD> struct table_layout {
    static constexpr uint32_t pieces = HD / 2 / UNITS_AT_ONCE;
    static constexpr uint32_t page_bytes = pieces * PIECE_PAGE; /* of a side */
    static constexpr uint32_t row_bytes = pieces * PIECE_ROW;   /* of a row of the table or of sums, and of a centroid in memory */
    static constexpr bool side_by_side = 2 * row_bytes <= TABLE_ROW;
    static constexpr uint32_t sums = side_by_side ? row_bytes : 0; /* where they begin */
    static_assert(HD % (2 * UNITS_AT_ONCE) == 0 && row_bytes <= TABLE_ROW, "heads of 64 and 128 channels");
};

/* Returns the first address behind `front`, or there, at which a table can begin. */
ATTEND_INLINE uint32_t table_behind(uint32_t front) { return (front + TABLE - 1) / TABLE * TABLE; }

/* Dynamic shared memory begins behind what the system keeps: 1 KB on compute capability 9.0. */
constexpr uint32_t SHARED_BEFORE = 2 << 10;

/* ---- Codes of a piece of a page, in the order of place_in_slot */

/* Asks, by a warp, for the codes of BYTES / 64 sub-vectors of a page. */
template <uint32_t BYTES> ATTEND_INLINE void copy_codes(uint32_t slot, const uint8_t *from) {
    const uint32_t lane = lane_id(), own = place_in_slot(lane / 4, 16 * (lane % 4));
#pragma unroll
    for (uint32_t i = 0; i < BYTES; i += 512) copy_once(slot + own + i, from + 16 * lane + i);
}

/* Calls work(unit, codes) for each sub-vector that the lane looks up of a piece, with the codes of its octet. */
template <class Work> ATTEND_INLINE void each_unit(uint32_t slot, Work work) {
    octet_codes<true> codes[8];
#pragma unroll
    for (uint32_t step = 0; step < 8; step++) {
        const uint32_t unit = (4 * step + lane_id()) % UNITS_AT_ONCE;
        const uint2 bytes = load_shared_pair(slot + place_in_slot(unit, 8 * (lane_id() / 4)));
        codes[step] = {{bytes.x, bytes.y}};
    }
#pragma unroll
    for (uint32_t step = 0; step < 8; step++) work((4 * step + lane_id()) % UNITS_AT_ONCE, codes[step]);
}

/* Returns where the row of a token's code has byte `at`, given the address for code 0. */
ATTEND_INLINE uint32_t place_of_code(const octet_codes<true> &codes, int token, uint32_t at) {
    return permute(codes.of[token / 4], at, 0x7604 | token % 4 << 4);
}

/* ---- Products of queries and centroids */

/* Returns what product_operands has for a pair of channels, 8 t + 2 i of a block of 16 sub-vectors. */
ATTEND_INLINE uint32_t product_operand(int i, uint32_t pair) {
    const uint32_t g = lane_id() / 4, t = lane_id() % 4;
    return g == 2 * t + i % 2 ? pair : 0;
}

/* Computes, by all warps of a CTA, the products of queries and centroids by those of tensor cores, whose rows are codes and whose columns
 * sub-vectors: column 2 t of lane t of four has the query in the inner indices of its own first sub-vector alone, and column 2 t + 1 in those of its
 * second one. A warp has the piece warp % pieces of the sub-vectors, in two blocks of 16: operands[block][query][i] is the product_operand of channels
 * 64 piece + 32 block + 8 t + 2 i.
 *
 * Calls put(code, d): d[block][pair][query][j] is of sub-vector 4 t + 2 pair + j % 2 of the block, and of code + j / 2 * 8. */
template <int HD, int QUERIES, class Put>
ATTEND_INLINE void multiply_centroids(const uint8_t *centroids, const uint32_t (&operands)[2][QUERIES][4], Put put) {
    using layout = table_layout<HD>;
    constexpr int RANKS = TABLES_WARPS / layout::pieces, TURNS = (TABLES_CODES / 16 + RANKS - 1) / RANKS;
    const uint32_t warp = threadIdx.x / 32, rank = warp / layout::pieces, g = lane_id() / 4, t = lane_id() % 4;
    const uint8_t *const own = centroids + PIECE_ROW * (warp % layout::pieces) + 16 * t;
    uint4 c[TURNS][2][2]; /* [turn][block][code g, code g + 8]: all are asked for before the first is multiplied */
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t code = min(16 * (rank + turn * RANKS), TABLES_CODES - 16) + g + i % 2 * 8;
            c[turn][i / 2][i % 2] = __ldg(reinterpret_cast<const uint4 *>(own + code * layout::row_bytes + 64 * (i / 2)));
        }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const uint32_t code = 16 * (rank + turn * RANKS) + g;
        if (code >= TABLES_CODES) break;
        float d[2][2][QUERIES][4] = {};
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int query = 0; query < QUERIES; query++) {
                const uint4 x = c[turn][block][0], y = c[turn][block][1];
                const uint32_t(&of)[4] = operands[block][query];
                mma(d[block][0][query], x.x, y.x, x.y, y.y, of[0], of[1]);
                mma(d[block][1][query], x.z, y.z, x.w, y.w, of[2], of[3]);
            }
        put(code, d);
    }
}

/* Stores two units at an address, and `distance` behind it. Every other row does so in the other order, by which lanes of two rows write to different
 * banks. */
ATTEND_INLINE void store_two(uint32_t address, uint32_t distance, uint4 x, uint4 y) {
    const bool odd = lane_id() / 4 % 2;
    store_shared_quad(address + (odd ? distance : 0), odd ? y : x);
    store_shared_quad(address + (odd ? 0 : distance), odd ? x : y);
}

/* Makes, by all warps of a CTA, the table of one query, in floats. */
template <int HD> ATTEND_INLINE void make_table(const uint8_t *centroids, const uint32_t (&operands)[2][1][4], uint32_t table) {
    const uint32_t piece = threadIdx.x / 32 % table_layout<HD>::pieces, t = lane_id() % 4;
    multiply_centroids<HD, 1>(centroids, operands, [&](uint32_t code, const float(&d)[2][2][1][4]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 x[2];
#pragma unroll
            for (int block = 0; block < 2; block++) {
                const float(&own)[2][1][4] = d[block];
                x[block] = make_uint4(__float_as_uint(own[0][0][2 * h]), __float_as_uint(own[0][0][2 * h + 1]),
                                      __float_as_uint(own[1][0][2 * h]), __float_as_uint(own[1][0][2 * h + 1]));
            }
            store_two(table + (code + 8 * h) * TABLE_ROW + PIECE_ROW * piece + 16 * t, 64, x[0], x[1]);
        }
    });
}

/* ---- Scores */

/* Adds to sum[j] what the lane's look-ups of a piece have of token j of its octet; `table` is that of this piece. */
ATTEND_INLINE void add_scores(uint32_t slot, uint32_t table, float (&sum)[8]) {
    each_unit(slot, [&](uint32_t unit, const octet_codes<true> &codes) {
        uint32_t x[8]; /* all are asked for before the first is added */
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = load_shared(place_of_code(codes, j, table + 4 * unit));
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += __uint_as_float(x[j]);
    });
}

/* Adds up what the four lanes of an octet have, and returns the sums of the page's tokens 2 lane and 2 lane + 1. */
ATTEND_INLINE float2 join_scores(const float (&sum)[8]) {
    const uint32_t t = lane_id() % 4;
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
    return make_float2(two[0], two[1]);
}

/* ---- Sums of weights by code */

/* Adds the weights of the lane's octet to the sums of their codes in a piece; `sums` are those of this piece. */
ATTEND_INLINE void add_weights(uint32_t slot, const uint32_t (&w)[8], uint32_t sums) {
    each_unit(slot, [&](uint32_t unit, const octet_codes<true> &codes) {
#pragma unroll
        for (int j = 0; j < 8; j++) add_shared(place_of_code(codes, j, sums + 4 * unit), w[j]);
    });
}

/* An own_centroids has the centroids of a warp's codes: lane `lanes` h + i has channels 8 i .. 8 i + 7 of codes at_once (warp + WARPS turn) + h. */
template <int HD> struct own_centroids {
    static constexpr int lanes = HD / 8, at_once = 32 / lanes;
    static constexpr int turns = (TABLES_CODES / at_once + TABLES_WARPS - 1) / TABLES_WARPS;
    uint4 of[turns];

    static ATTEND_INLINE uint32_t code(uint32_t turn) {
        return at_once * (threadIdx.x / 32 + turn * TABLES_WARPS) + lane_id() / lanes;
    }
};

template <int HD> ATTEND_INLINE own_centroids<HD> load_centroids(const uint8_t *centroids) {
    own_centroids<HD> c;
#pragma unroll
    for (uint32_t turn = 0; turn < c.turns; turn++) {
        const uint32_t code = min(c.code(turn), TABLES_CODES - 1);
        c.of[turn] =
            __ldg(reinterpret_cast<const uint4 *>(centroids + code * table_layout<HD>::row_bytes + 16 * (lane_id() % c.lanes)));
    }
    return c;
}

/* Multiplies the sums of a warp's codes by their centroids: the first HD / 8 lanes get those of channels 8 lane .. 8 lane + 7. Returns the sum of the
 * weights that have these codes in one of the lane's sub-vectors. */
template <int HD> ATTEND_INLINE float multiply_sums(uint32_t sums, const own_centroids<HD> &c, float (&to)[8]) {
    float weights = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = 0;
#pragma unroll
    for (uint32_t turn = 0; turn < c.turns; turn++) {
        const uint32_t code = c.code(turn);
        if (code >= TABLES_CODES) break;
        const uint4 four = load_shared_quad(sums + code * TABLE_ROW + 16 * (lane_id() % c.lanes));
        const float w[4] = {(float)four.x, (float)four.y, (float)four.z, (float)four.w};
        const uint32_t pair[4] = {c.of[turn].x, c.of[turn].y, c.of[turn].z, c.of[turn].w};
        weights += w[0];
#pragma unroll
        for (int i = 0; i < 4; i++) to[2 * i] += w[i] * low_half(pair[i]), to[2 * i + 1] += w[i] * high_half(pair[i]);
    }
#pragma unroll
    for (int o = 16; o >= c.lanes; o /= 2) {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] += __shfl_xor_sync(ALL_LANES, to[i], o);
        weights += __shfl_xor_sync(ALL_LANES, weights, o);
    }
    return weights;
}

#endif
