/* Has how a warp reads a page of codecs with centroids. Centroids enter the products of tensor cores as the halves that they are, looked up as
 * fragments: nothing is decoded to memory. A launch serves four query heads of a KV head.
 *
 * UNIT is how many neighbouring channels of a sub-vector a lane takes with one load: 2, 4 or 8. TABLES says whether both sides'
 * centroids lie in shared memory, a row of TABLE_ROW bytes for each code, all of whose codes have 8 bits; else they are read from
 * global memory, through its caches, and codes have 4 to 12 bits.
 *
 * A lane's bank in a table depends on its unit alone. So lanes that look up at the same time take different units, although the
 * products of tensor cores want the same units of different tokens: what they multiply by is there in several orders.
 *
 * Scores: rows of a product are queries in `orders` orders of units, its columns tokens, its inner index channels. A lane of column g
 * looks up the units of order g % orders, and of the sums only those of a token with its own order are read: they go through
 * shared memory to lanes in the way of weigh, where columns 4 .. 7 are those of queries 0 .. 3 once more.
 *
 * Sums of values: rows are queries in `value_orders` orders, columns units, the inner index tokens, of which lane t of four has
 * 16 t .. 16 t + 15, as weigh leaves them. At turn i it looks up the units of order (t + i) % value_orders, and its weights are zeros
 * in the rows of other orders; so a sum is of the same unit at all turns.
 *
 * Keys in runs (vq, gain-shape) meet queries that a warp rotates to the run of its pages, once for each run; with gain-shape a
 * logit is gain * product + <q, mean>, and a value's weight is multiplied by its gain. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_PAGE_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_PAGE_CUH

#include "backend/cuda/kv/attend_ring.cuh"
#include "backend/cuda/kv/attend_stretches.cuh"

constexpr uint32_t CENTROID_QUERIES = 4; /* that a launch serves */
constexpr uint32_t TABLE_ROW = 256, TABLE_BYTES = 256 * TABLE_ROW;

/* Says how the units of a page are looked up. */
template <int HD, int UNIT, bool TABLES> struct centroid_layout {
    static constexpr int units = HD / UNIT;
    /* Scores: lanes read 32 banks at a time, of which a unit has UNIT / 2. */
    static constexpr int orders = UNIT == 2 ? 8 : 4, sets = UNIT == 2 ? 2 : 1; /* tiles of 16 rows */
    static constexpr int blocks = units % 32 ? units / 4 : 8;                  /* of 4 units, through which orders go in turn */
    static constexpr int groups = units / 4 / blocks;                          /* of blocks */
    static constexpr int step_units = UNIT == 2 ? 2 : 1, products = UNIT == 8 ? 2 : 1; /* of a step, for each tile */
    static constexpr int kept_steps = TABLES && UNIT == 4 ? blocks : 0; /* whose operands stay in registers from page to page */
    /* The keys' codes of each step lie at other places of a slot in each lane. With heads of 128 channels in units of 2 there is no
     * room for these places in registers, and L1 has none for what the compiler spills beside this much shared memory. So that many
     * words of each lane, one for each step, lie in shared memory. */
    static constexpr int place_words = TABLES && UNIT == 2 && groups == 2 ? units / 4 : 0;
    /* Of a warp's ring: pieces of a side, bytes of the largest, slots, of which 12 warps' have room beside tables on an H100. */
    static constexpr int pieces = TABLES ? groups : 1;
    static constexpr uint32_t piece_bytes = TABLES ? PAGE_TOKENS + PAGE_TOKENS * units / pieces : 0;
    static constexpr uint32_t slots = TABLES ? 6656 / piece_bytes : 0;
    /* Sums of values. */
    static constexpr int value_orders = units % 32 == 0 ? 4 : units % 16 == 0 ? 2 : 1;
    static constexpr int value_groups = units / 8 / value_orders; /* tiles of 8 columns */

    /* Returns the unit, of a group of blocks, that a lane takes at a step of its order g % orders: unit t of a block. */
    static ATTEND_INLINE uint32_t unit_of_step(uint32_t step) { return (4 * step + lane_id() % (4 * orders)) % (4 * blocks); }
    /* Returns the unit of a column and order, of a group. */
    static ATTEND_INLINE uint32_t unit_of_column(uint32_t order, uint32_t column) {
        return UNIT == 4 ? 4 * value_orders * (column / 4) + 4 * order + column % 4 : 8 * order + column;
    }
};

/* ---- A side */

struct centroid_side {
    struct centroid_shape shape;
    uint32_t log_units;    /* of the units of a sub-vector */
    uint32_t table;        /* address in shared memory, where TABLES */
    const uint8_t *memory; /* else, [code][HD] halves */
    bool normalized;       /* a page has gains, PAGE_TOKENS bytes, before its codes */
    float gain_scale;
    const float *mean;
};

/* A unit_words holds a unit of a centroid. */
template <int UNIT> struct unit_words { uint32_t of[UNIT / 2]; };

template <int UNIT> ATTEND_INLINE unit_words<UNIT> load_unit(uint32_t address) {
    unit_words<UNIT> u;
    if (UNIT == 2) {
        u.of[0] = load_shared(address);
    } else if (UNIT == 4) {
        const uint2 x = load_shared_pair(address);
        u.of[0] = x.x, u.of[UNIT / 2 - 1] = x.y;
    } else {
        const uint4 x = load_shared_quad(address);
        u.of[0] = x.x, u.of[1 % (UNIT / 2)] = x.y, u.of[2 % (UNIT / 2)] = x.z, u.of[UNIT / 2 - 1] = x.w;
    }
    return u;
}

template <int UNIT> ATTEND_INLINE unit_words<UNIT> load_unit(const uint8_t *address) {
    unit_words<UNIT> u;
    if (UNIT == 2) {
        u.of[0] = __ldg(reinterpret_cast<const uint32_t *>(address));
    } else if (UNIT == 4) {
        const uint2 x = __ldg(reinterpret_cast<const uint2 *>(address));
        u.of[0] = x.x, u.of[UNIT / 2 - 1] = x.y;
    } else {
        const uint4 x = __ldg(reinterpret_cast<const uint4 *>(address));
        u.of[0] = x.x, u.of[1 % (UNIT / 2)] = x.y, u.of[2 % (UNIT / 2)] = x.z, u.of[UNIT / 2 - 1] = x.w;
    }
    return u;
}

/* An octet_codes holds the codes of a sub-vector of 8 tokens: bytes, where TABLES, else 16 bits each. */
template <bool TABLES> struct octet_codes { uint32_t of[TABLES ? 2 : 4]; };

/* In a slot of the ring, where TABLES, the 16-byte columns of each row of 64 bytes lie in another order, so that lanes read octets
 * of four rows from different banks. Returns where byte `at` of a row lies in a slot. */
ATTEND_INLINE uint32_t place_in_slot(uint32_t row, uint32_t at) {
    const uint32_t begin = 64 * row;
    return begin + (at ^ (begin >> 2 & 32));
}

/* Loads the codes of a sub-vector of 8 tokens from 8 `octet` on. The codes of sub-vectors begin with row `row` of a slot, after gains or
 * at once. */
template <bool TABLES>
ATTEND_INLINE octet_codes<TABLES> load_codes(const centroid_side &side, uint32_t slot, uint32_t row, uint32_t part,
                                             uint32_t octet) {
    octet_codes<TABLES> to;
    if constexpr (TABLES) {
        const uint2 bytes = load_shared_pair(slot + place_in_slot(row + part, 8 * octet));
        to.of[0] = bytes.x, to.of[1] = bytes.y;
    } else {
        uint32_t plane = slot + 64 * row + part * (PAGE_TOKENS / 8) * side.shape.bits, shift = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) to.of[i] = 0;
        if (side.shape.bits & 8) {
            const uint2 bytes = load_shared_pair(plane + 8 * octet);
            to.of[0] = permute(bytes.x, 0, 0x4140), to.of[1] = permute(bytes.x, 0, 0x4342);
            to.of[2] = permute(bytes.y, 0, 0x4140), to.of[3] = permute(bytes.y, 0, 0x4342);
            plane += 64, shift = 8;
        }
        if (side.shape.bits & 4) {
            const uint32_t nibbles = load_shared(plane + 4 * octet);
#pragma unroll
            for (int i = 0; i < 4; i++) to.of[i] |= (nibbles >> (8 * i) & 15 | nibbles >> (8 * i + 4) << 16 & 0xf0000) << shift;
            plane += 32, shift += 4;
        }
        if (side.shape.bits & 2) {
            const uint32_t two = load_shared(plane + octet / 2 * 4) >> (octet % 2 * 16);
#pragma unroll
            for (int i = 0; i < 4; i++) to.of[i] |= (two >> (4 * i) & 3 | two >> (4 * i + 2) << 16 & 0x30000) << shift;
            plane += 16, shift += 2;
        }
        if (side.shape.bits & 1) {
            const uint32_t one = load_shared(plane + octet / 4 * 4) >> (octet % 4 * 8);
#pragma unroll
            for (int i = 0; i < 4; i++) to.of[i] |= (one >> (2 * i) & 1 | one >> (2 * i + 1) << 16 & 0x10000) << shift;
        }
    }
    return to;
}

/* Looks up the unit at byte `offset` of the centroids with the code of a token of an octet. */
template <int HD, int UNIT, bool TABLES>
ATTEND_INLINE unit_words<UNIT> look_up(const centroid_side &side, const octet_codes<TABLES> &codes, int token, uint32_t offset) {
    if constexpr (TABLES) /* the code becomes byte 1 of the offset */
        return load_unit<UNIT>(side.table + permute(codes.of[token / 4], offset, 0x7604 | token % 4 << 4));
    else
        return load_unit<UNIT>(side.memory + (codes.of[token / 2] >> (token % 2 * 16) & 0xffff) * (2 * HD) + offset);
}

/* ---- Queries */

/* The queries of a warp are halves [query % 2][HD / 2][query / 2][2]: the pairs of channels of two queries side by side, which are
 * rows g and g + 8 of a product. */
template <int HD, int WARPS> struct centroid_queries {
    query_fragments<HD, 1> window, exact; /* for rows of halves */
    struct of_warp {
        uint32_t rotated[CENTROID_QUERIES * HD / 2]; /* to the run that the warp reads */
        float ups[8];                                /* queries times it have their largest channel in [1, 2) */
        /* These are of warps that read stretches of several parts: row, part, the row's parts and pages, and the list. */
        uint4 reads, list[KEPT_LIST_BYTES / 16];
    } warp[WARPS];
    cta_parts parts; /* that the CTA reads, of several */
};

/* Computes, by a warp, `ups` and the factors of logits of its columns' queries as prepare_queries does. */
template <int HD>
ATTEND_INLINE void scale_queries(const struct attend_decode &a, const struct share &s, float *ups, float (&factor)[2]) {
    const float *const q = a.q + queries_at<HD>(a, s);
    float largest[CENTROID_QUERIES];
#pragma unroll
    for (uint32_t query = 0; query < CENTROID_QUERIES; query++) {
        largest[query] = 0;
#pragma unroll
        for (uint32_t i = 0; i < (HD + 63) / 64; i++) {
            const uint32_t c = 2 * (lane_id() + 32 * i), own = query * HD + (c < HD ? c : 0); /* a number twice does no harm */
            const float2 x = query < s.group ? __ldcg(reinterpret_cast<const float2 *>(q + own)) : make_float2(0, 0);
            largest[query] = fmaxf(largest[query], fmaxf(fabsf(x.x), fabsf(x.y)));
        }
    }
    __syncwarp(); /* `ups` of the row before are read */
#pragma unroll
    for (uint32_t query = 0; query < CENTROID_QUERIES; query++) {
        for (int o = 16; o; o /= 2) largest[query] = fmaxf(largest[query], __shfl_xor_sync(ALL_LANES, largest[query], o));
        const power_of_two power = power_of(largest[query]);
        if (lane_id() == 0) ups[query] = power.up;
#pragma unroll
        for (int c = 0; c < 2; c++)
            if ((2 * lane_id() + c) % CENTROID_QUERIES == query)
                factor[c] = query < s.group ? power.down * a.heads.scale * LOG2_E : 0;
    }
    __syncwarp();
}

/* Returns channels c and c + 1 of a query, rotated back by `angles` (NULL: as they are). */
ATTEND_INLINE float2 rotated_pair(const float *q, const struct head_view &heads, const float *angles, uint32_t c) {
    const float2 x = *reinterpret_cast<const float2 *>(q + c);
    if (!angles || c >= heads.n_rot) return x;
    if (heads.pairing == ROPE_ADJACENT) {
        const float2 angle = __ldg(reinterpret_cast<const float2 *>(angles + c));
        return make_float2(x.x * angle.x + x.y * angle.y, x.y * angle.x - x.x * angle.y);
    }
    const uint32_t half = heads.n_rot / 2;
    float2 y;
    float *const to = &y.x;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        const uint32_t own = c + e;
        if (own >= heads.n_rot) {
            to[e] = q[own];
            continue;
        }
        const bool first = own < half;
        const float2 angle = __ldg(reinterpret_cast<const float2 *>(angles + 2 * (first ? own : own - half)));
        to[e] = q[own] * angle.x + (first ? 1 : -1) * q[first ? own + half : own - half] * angle.y;
    }
    return y;
}

/* Writes a warp's queries rotated to a run, times `ups`: channels are less than 2 before they are rotated. `means` gets the products of
 * queries (2 t + c) % 4, c 0 and 1, with the keys' mean. */
template <int HD>
ATTEND_INLINE void rotate_queries(const struct attend_decode &a, const struct share &s, const float *angles,
                                  const centroid_side &keys, const float *ups, uint32_t *to, float (&means)[2]) {
    constexpr int PAIRS = (HD + 63) / 64; /* of a lane's channels */
    const unsigned lane = lane_id();
    const float *const q = a.q + queries_at<HD>(a, s);
    float2 x[CENTROID_QUERIES][PAIRS];
#pragma unroll
    for (uint32_t query = 0; query < CENTROID_QUERIES; query++) {
        const float up = ups[query];
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t c = 2 * (lane + 32 * i);
            const float2 own = query < s.group && c < HD ? rotated_pair(q + query * HD, a.heads, angles, c) : make_float2(0, 0);
            x[query][i] = make_float2(own.x * up, own.y * up);
        }
    }
    __syncwarp();
#pragma unroll
    for (uint32_t query = 0; query < CENTROID_QUERIES; query++) {
        float mean = 0;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t own = 2 * (lane + 32 * i),
                           c = own < HD ? own : 0; /* no lane leaves: shuffles follow; its numbers are zeros */
            if (own < HD) to[query % 2 * HD + c + query / 2] = pack_halves(x[query][i].x, x[query][i].y);
            if (keys.normalized) mean += x[query][i].x * keys.mean[c] + x[query][i].y * keys.mean[c + 1];
        }
        if (keys.normalized)
            for (int o = 16; o; o /= 2) mean += __shfl_xor_sync(ALL_LANES, mean, o);
#pragma unroll
        for (int c = 0; c < 2; c++) means[c] = (2 * lane + c) % CENTROID_QUERIES == query ? mean : means[c];
    }
    __syncwarp();
}

/* Returns, of what a lane has for query (2 t + c) % 4, that of query g % 4. */
ATTEND_INLINE float of_row_query(const float (&columns)[2]) {
    const unsigned g = lane_id() / 4;
    const float low = __shfl_sync(ALL_LANES, columns[0], g % 4 / 2), high = __shfl_sync(ALL_LANES, columns[1], g % 4 / 2);
    return g % 2 ? high : low;
}

/* ---- A page */

/* A query_operands holds what a step's products multiply by: [tile of rows][product of the step]. */
template <class LAYOUT> struct query_operands { uint32_t a[LAYOUT::sets][LAYOUT::products][4]; };

/* Loads them from a warp's `queries`, given where the step's units begin in a row of centroids. */
template <int HD, class LAYOUT>
ATTEND_INLINE void load_operands(uint32_t queries, const uint32_t (&at)[LAYOUT::step_units], query_operands<LAYOUT> &to) {
    if constexpr (LAYOUT::sets == 2) {
#pragma unroll
        for (int set = 0; set < 2; set++)
#pragma unroll
            for (int l = 0; l < 2; l++) {
                const uint2 x = load_shared_pair(queries + 4 * HD * set + 2 * at[l]);
                to.a[set][0][2 * l] = x.x, to.a[set][0][2 * l + 1] = x.y;
            }
    } else {
#pragma unroll
        for (int k = 0; k < LAYOUT::products; k++) {
            const uint4 x = load_shared_quad(queries + 4 * HD * (lane_id() / 16) + 2 * at[0] + 16 * k);
            to.a[0][k][0] = x.x, to.a[0][k][1] = x.y, to.a[0][k][2] = x.z, to.a[0][k][3] = x.w;
        }
    }
}

/* Logits lie in shared memory as floats [CENTROID_QUERIES][PAGE_TOKENS], in rows of so many bytes, which lanes read from different
 * banks; tokens 4 .. 7 of an octet come before 0 .. 3 in the page's second half, so that lanes write to different banks, too. */
constexpr uint32_t LOGIT_ROW = PAGE_TOKENS * 4 + 32, LOGIT_BYTES = CENTROID_QUERIES * LOGIT_ROW;

/* Returns the row of a slot with which the codes of a group's sub-vectors begin: gains take row 0 of a page. */
template <class LAYOUT> ATTEND_INLINE uint32_t first_row(const centroid_side &side, int group) {
    return side.normalized && (group == 0 || LAYOUT::pieces == 1) ? 1 : 0;
}

/* Writes, by all warps of a CTA, the places of the keys' codes: words [group][step / 4][lane][step % 4]. */
template <class LAYOUT> ATTEND_INLINE void prepare_places(const centroid_side &keys, uint32_t *places) {
    for (int i = (int)threadIdx.x / 32; i < LAYOUT::place_words; i += (int)blockDim.x / 32) {
        const uint32_t row = first_row<LAYOUT>(keys, i / LAYOUT::blocks);
        const uint32_t part = LAYOUT::unit_of_step(i % LAYOUT::blocks) >> keys.log_units;
        places[i / 4 * 128 + 4 * lane_id() + i % 4] = place_in_slot(row + part, 8 * (lane_id() / 4));
    }
}

/* Computes centroids times queries; tile d[j] has those of tokens 8 column + j. Reads all pieces of the page's keys and releases them
 * but for the last one. Returns the codes of the gains of tokens 8 g .. 8 g + 7, if there are any. */
template <int HD, int UNIT, bool TABLES, class LAYOUT, class RING>
ATTEND_INLINE uint2 multiply_page(const centroid_side &keys, RING &ring, uint32_t page, uint32_t queries, uint32_t places,
                                  const query_operands<LAYOUT> *kept, float (&d)[8][LAYOUT::sets][4]) {
    const unsigned g = lane_id() / 4;
    constexpr int SETS = LAYOUT::sets, PER_STEP = LAYOUT::step_units, PRODUCTS = LAYOUT::products;
    constexpr int UNROLL = TABLES ? LAYOUT::blocks : 1;
    uint2 gains = make_uint2(0, 0);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int c = 0; c < 4; c++) d[j][set][c] = 0;
    ring.wait(1);
    if (keys.normalized) gains = load_shared_pair(ring.slot(0) + 8 * g);
#pragma unroll
    for (int group = 0; group < LAYOUT::groups; group++) {
        constexpr uint32_t units = 4 * LAYOUT::blocks;
        const uint32_t row = first_row<LAYOUT>(keys, group), slot = ring.slot(0);
        uint4 place = make_uint4(0, 0, 0, 0); /* of steps 4 i .. 4 i + 3 */
#pragma unroll UNROLL
        for (int step = 0; step < LAYOUT::blocks; step += PER_STEP) {
            octet_codes<TABLES> codes[PER_STEP];
            uint32_t at[PER_STEP];
            if (LAYOUT::place_words && step % 4 == 0)
                place = load_shared_quad(places + 128 * (LAYOUT::blocks * group + step) + 16 * lane_id());
#pragma unroll
            for (int l = 0; l < PER_STEP; l++) {
                uint32_t unit = LAYOUT::unit_of_step(step + l);
                if (LAYOUT::pieces == 1) unit += units * group;
                at[l] = unit * UNIT * 2 + (LAYOUT::pieces == 1 ? 0 : units * group * UNIT * 2);
                if constexpr (LAYOUT::place_words) {
                    const uint2 bytes = load_shared_pair(slot + (step % 4 ? l ? place.w : place.z : l ? place.y : place.x));
                    codes[l] = {{bytes.x, bytes.y}};
                } else {
                    codes[l] = load_codes<TABLES>(keys, slot, row, unit >> keys.log_units, g);
                }
            }
            query_operands<LAYOUT> q = kept[LAYOUT::kept_steps ? step : 0];
            if constexpr (!LAYOUT::kept_steps) load_operands<HD>(queries, at, q);
            unit_words<UNIT> u[8][PER_STEP]; /* all are asked for before the first is multiplied */
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int l = 0; l < PER_STEP; l++) u[j][l] = look_up<HD, UNIT, TABLES>(keys, codes[l], j, at[l]);
#pragma unroll
            for (int set = 0; set < SETS; set++)
#pragma unroll
                for (int k = 0; k < PRODUCTS; k++)
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        mma(d[j][set], q.a[set][k][0], q.a[set][k][1], q.a[set][k][2], q.a[set][k][3], u[j][0].of[2 * k],
                            u[j][PER_STEP - 1].of[UNIT == 2 ? 0 : 2 * k + 1]);
        }
        __syncwarp();
        if (group + 1 < LAYOUT::pieces) ring.release(page, group), ring.wait(1);
    }
    return gains;
}

/* Hands the products of tokens and queries to the lanes that weigh them: x has, for column 2 t + c, query (2 t + c) % 4, in
 * TOKENS_BY_OCTET. `scratch` is LOGIT_BYTES of the warp's. */
template <class LAYOUT>
ATTEND_INLINE void exchange_products(uint32_t scratch, const float (&d)[8][LAYOUT::sets][4], float (&x)[4][1][4]) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    constexpr int ORDERS = LAYOUT::orders;
    if (t % (ORDERS / 2) == g % ORDERS / 2) { /* of columns 2 t and 2 t + 1, one has the order of row g */
        const uint32_t to = scratch + 32 * (2 * t + g % 2), swapped = t / 2;
#pragma unroll
        for (int set = 0; set < LAYOUT::sets; set++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t own[4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        own[j] = __float_as_uint(g % 2 ? d[4 * i + j][set][2 * h + 1] : d[4 * i + j][set][2 * h]);
                    store_shared_quad(to + LOGIT_ROW * (set + g / ORDERS + 2 * h) + 16 * (i ^ swapped),
                                      make_uint4(own[0], own[1], own[2], own[3]));
                }
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const uint32_t from = scratch + LOGIT_ROW * ((2 * t + c) % CENTROID_QUERIES) + 32 * g;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 four = load_shared_quad(from + 16 * (i ^ g / 4));
            x[2 * i][0][c] = __uint_as_float(four.x), x[2 * i][0][2 + c] = __uint_as_float(four.y);
            x[2 * i + 1][0][c] = __uint_as_float(four.z), x[2 * i + 1][0][2 + c] = __uint_as_float(four.w);
        }
    }
}

/* Computes gain * product + mean, for tokens 8 g + 2 i and the next. A lane makes the gains of tokens 8 g + t and 8 g + 4 + t for all
 * lanes with its g. */
ATTEND_INLINE void apply_gains(const centroid_side &keys, uint2 codes, const float (&means)[2], float (&x)[4][1][4]) {
    const unsigned lane = lane_id(), shift = 8 * (lane % 4);
    const float low = keys.gain_scale * relative_gain(codes.x >> shift & 0xff);
    const float high = keys.gain_scale * relative_gain(codes.y >> shift & 0xff);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float gain = __shfl_sync(ALL_LANES, i < 4 ? low : high, lane / 4 * 4 + i % 4);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float &product = x[i / 2][0][i % 2 * 2 + c];
            product = gain * product + means[c];
        }
    }
}

/* Sums of values: acc[group][channel of a unit] has rows g and g + 8, query g % 4 in orders g / 4 and g / 4 + 2, of columns 2 t and
 * 2 t + 1. */
template <int HD, int UNIT, bool TABLES> struct sums_by_unit {
    using layout = centroid_layout<HD, UNIT, TABLES>;
    static constexpr int groups = layout::value_groups;

    /* Calls visit(sum, channel) for all sums of the lane that are not of an order that does not exist. */
    template <class Visit> static ATTEND_INLINE void for_each(float (&acc)[groups][UNIT][4], Visit visit) {
        const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int d = 0; d < 4; d++) {
            const uint32_t order = g / 4 + d / 2 * 2;
            if (order >= layout::value_orders) continue;
            const uint32_t unit = layout::unit_of_column(order, 2 * t + d % 2);
#pragma unroll
            for (int group = 0; group < groups; group++)
#pragma unroll
                for (int c = 0; c < UNIT; c++) visit(acc[group][c][d], (8 * layout::value_orders * group + unit) * UNIT + c);
        }
    }

    /* Adds the values of a page, whose pieces are all there, times w, as weigh leaves it. */
    template <class RING>
    static ATTEND_INLINE void add_page(const centroid_side &values, const RING &ring, const uint32_t (&w)[4][1][2],
                                       float (&acc)[groups][UNIT][4]) {
        const unsigned g = lane_id() / 4, t = lane_id() % 4;
        constexpr uint32_t units = 8 * layout::value_orders;
        constexpr int UNROLL = TABLES ? layout::value_orders : 1;
#pragma unroll UNROLL
        for (int turn = 0; turn < layout::value_orders; turn++) {
            const uint32_t order = (t + turn) % layout::value_orders, column = layout::unit_of_column(order, g);
            const bool low = order == g / 4, high = order == g / 4 + 2;
            octet_codes<TABLES> codes[groups][2];
            uint32_t at[groups];
#pragma unroll
            for (int group = 0; group < groups; group++) {
                const uint32_t row = first_row<layout>(values, group);
                const uint32_t slot = ring.slot(layout::pieces == 1 ? 0 : group);
                const uint32_t unit = column + (layout::pieces == 1 ? units * group : 0);
                at[group] = column * UNIT * 2 + units * group * UNIT * 2;
                const uint32_t part = unit >> values.log_units;
                if constexpr (TABLES) {
                    const uint4 bytes = load_shared_quad(slot + place_in_slot(row + part, 16 * t));
                    codes[group][0] = {{bytes.x, bytes.y}}, codes[group][1] = {{bytes.z, bytes.w}};
                } else {
#pragma unroll
                    for (int o = 0; o < 2; o++) codes[group][o] = load_codes<TABLES>(values, slot, row, part, 2 * t + o);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a0 = low ? w[i][0][0] : 0, a2 = low ? w[i][0][1] : 0;
                const uint32_t a1 = high ? w[i][0][0] : 0, a3 = high ? w[i][0][1] : 0;
#pragma unroll
                for (int group = 0; group < groups; group++) {
                    unit_words<UNIT> u[2][2]; /* of tokens 16 t + 2 i + h and 8 more */
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int o = 0; o < 2; o++)
                            u[h][o] = look_up<HD, UNIT, TABLES>(values, codes[group][o], 2 * i + h, at[group]);
#pragma unroll
                    for (int c = 0; c < UNIT; c++) {
                        const uint32_t half = c % 2 ? 0x7632 : 0x5410;
                        mma(acc[group][c], a0, a1, a2, a3, permute(u[0][0].of[c / 2], u[0][1].of[c / 2], half),
                            permute(u[1][0].of[c / 2], u[1][1].of[c / 2], half));
                    }
                }
            }
        }
    }
};

#endif
