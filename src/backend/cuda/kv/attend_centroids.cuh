/* Implements decoding over pages of codecs with centroids: pq, vq, gain-shape. Centroids enter the products of tensor cores as the
 * halves that they are, looked up as fragments: nothing is decoded to memory.
 *
 * UNIT is how many neighbouring channels of a sub-vector a lane takes with one load: 2, 4 or 8. Tokens are rows of the products
 * with queries, 16 at a time: a lane has tokens 8 g + 2 i and the next of tile i and, of each 16 channels, 4, by which query
 * fragments are ordered. Where values are summed up, the inner index is not the token but (token, channel of a pair): weights are
 * those of a query in the column of one channel of the pair and zeros in the other's, so that pairs of channels stay as they were
 * loaded. Columns of both products are pairs for that reason: query 4 n + t has columns 2 t and 2 t + 1 of tile n, and a lane's
 * maximum, sum of weights and sums of values are of one query.
 *
 * Keys in runs (vq, gain-shape) meet queries that a warp rotates to the run of its pages, once for each run; with gain-shape a
 * logit is gain * product + <q, mean>, and a value's weight is multiplied by its gain.
 *
 * TABLES says whether both sides' centroids lie in shared memory; else they are read from global memory, through its caches. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_CENTROIDS_CUH

#include "backend/cuda/kv/attend_centroids.h"
#include "backend/cuda/kv/attend_ring.cuh"
#include "backend/cuda/launch.cuh"

/* ---- A side */

struct centroid_side {
    struct centroid_shape shape;
    uint32_t log_width;
    uint32_t table;        /* address in shared memory, where TABLES */
    const uint8_t *memory; /* else */
    uint32_t codes;        /* where a page has them */
    bool normalized;
    float gain_scale;
    const float *mean;
};

/* A unit_words holds a unit of a centroid. */
template <int UNIT> struct unit_words { uint32_t of[UNIT / 2]; };

template <int UNIT, bool TABLES> ATTEND_INLINE unit_words<UNIT> load_unit(const centroid_side &side, uint32_t offset) {
    unit_words<UNIT> u;
    if (UNIT == 2) {
        u.of[0] = TABLES ? load_shared(side.table + offset) : __ldg(reinterpret_cast<const uint32_t *>(side.memory + offset));
    } else if (UNIT == 4) {
        const uint2 x =
            TABLES ? load_shared_pair(side.table + offset) : __ldg(reinterpret_cast<const uint2 *>(side.memory + offset));
        u.of[0] = x.x, u.of[UNIT / 2 - 1] = x.y;
    } else {
        const uint4 x =
            TABLES ? load_shared_quad(side.table + offset) : __ldg(reinterpret_cast<const uint4 *>(side.memory + offset));
        u.of[0] = x.x, u.of[1 % (UNIT / 2)] = x.y, u.of[2 % (UNIT / 2)] = x.z, u.of[UNIT / 2 - 1] = x.w;
    }
    return u;
}

/* Loads the codes of a sub-vector of 8 tokens from 8 `octet` on, 16 bits each. `slot` is the page's in shared memory. */
ATTEND_INLINE void load_codes(const centroid_side &side, uint32_t slot, uint32_t part, uint32_t octet, uint32_t (&codes)[4]) {
    uint32_t plane = slot + side.codes + part * (PAGE_TOKENS / 8) * side.shape.bits, shift = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) codes[i] = 0;
    if (side.shape.bits & 8) {
        const uint2 bytes = load_shared_pair(plane + 8 * octet);
        codes[0] = permute(bytes.x, 0, 0x4140), codes[1] = permute(bytes.x, 0, 0x4342);
        codes[2] = permute(bytes.y, 0, 0x4140), codes[3] = permute(bytes.y, 0, 0x4342);
        plane += 64, shift = 8;
    }
    if (side.shape.bits & 4) {
        const uint32_t nibbles = load_shared(plane + 4 * octet);
#pragma unroll
        for (int i = 0; i < 4; i++) codes[i] |= (nibbles >> (8 * i) & 15 | nibbles >> (8 * i + 4) << 16 & 0xf0000) << shift;
        plane += 32, shift += 4;
    }
    if (side.shape.bits & 2) {
        const uint32_t two = load_shared(plane + octet / 2 * 4) >> (octet % 2 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) codes[i] |= (two >> (4 * i) & 3 | two >> (4 * i + 2) << 16 & 0x30000) << shift;
        plane += 16, shift += 2;
    }
    if (side.shape.bits & 1) {
        const uint32_t one = load_shared(plane + octet / 4 * 4) >> (octet % 4 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) codes[i] |= (one >> (2 * i) & 1 | one >> (2 * i + 1) << 16 & 0x10000) << shift;
    }
}

ATTEND_INLINE uint32_t code_of(const uint32_t (&codes)[4], int token) { return codes[token / 2] >> (token % 2 * 16) & 0xffff; }

/* A unit_place says to which sub-vector a unit belongs, and the part of a table's byte offset that does not depend on the code. */
struct unit_place {
    uint32_t part, offset;
};

template <int UNIT> ATTEND_INLINE unit_place place_of_unit(const centroid_side &side, uint32_t unit) {
    const uint32_t channel = unit * UNIT, part = channel >> side.log_width;
    return {part, ((part << (side.shape.bits + side.log_width)) + (channel & (side.shape.width - 1))) * 2};
}

/* ---- Queries */

/* Returns the channel of row k = 2 t + e (h = 0) or 2 t + 8 + e (h = 1) of the s-th step of 16 channels. */
template <int UNIT> ATTEND_INLINE uint32_t channel_of_row(uint32_t s, uint32_t h, uint32_t t) {
    return UNIT == 2 ? 16 * s + 8 * h + 2 * t : UNIT == 4 ? 16 * s + 4 * t + 2 * h : 32 * (s / 2) + 8 * t + 4 * (s % 2) + 2 * h;
}

template <int HD, int NT, int WARPS> struct centroid_queries {
    query_fragments<HD, NT> window, exact; /* in order of channels */
    uint2 rotated[WARPS][HD / 16][NT][32]; /* each warp's, to the run that it reads, in order of channel_of_row */
    float up[NT * 4];                      /* queries times it have their largest channel in [1, 2) */
};

/* Writes, by all warps, the fragments of q[group][HD], with query 4 n + c / 2 in column c of tile n, and a column's power of
 * two. */
template <int HD, int NT, int WARPS>
ATTEND_INLINE void prepare_pairs(const float *q, uint32_t group, float scale, query_fragments<HD, NT> &to, float *ups) {
    for (unsigned query = threadIdx.x / 32; query < NT * 4; query += WARPS) {
        const unsigned lane = lane_id(), n = query / 4;
        float2 x[(HD + 63) / 64];
        float largest = 0;
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            const unsigned c = 2 * (lane + 32 * i);
            x[i] = query < group && c < HD ? *reinterpret_cast<const float2 *>(q + query * HD + c) : make_float2(0, 0);
            largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
        }
        for (int o = 16; o; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 64u), 253u);
        const float up = __uint_as_float((254 - exponent) << 23), down = __uint_as_float(exponent << 23);
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            const unsigned c = 2 * (lane + 32 * i);
            if (c >= HD) continue;
            const uint32_t pair = pack_halves(x[i].x * up, x[i].y * up);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t *word = reinterpret_cast<uint32_t *>(&to.b[c / 16][n][(query % 4 * 2 + e) * 4 + c % 8 / 2]);
                word[c % 16 / 8] = pair;
            }
        }
        if (lane < 2) to.factor[2 * query + lane] = query < group ? down * scale * LOG2_E : 0;
        if (lane == 0 && ups) ups[query] = up;
    }
}

/* Returns channels c and c + 1 of a query, rotated back by `angles` (NULL: as they are). */
ATTEND_INLINE float2 rotated_pair(const float *q, const struct head_view &heads, const float *angles, uint32_t c) {
    const float2 x = *reinterpret_cast<const float2 *>(q + c);
    if (!angles || c >= heads.n_rot) return x;
    if (heads.pairing == ROPE_ADJACENT) {
        const float2 angle = *reinterpret_cast<const float2 *>(angles + c);
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
        const float2 angle = *reinterpret_cast<const float2 *>(angles + 2 * (first ? own : own - half));
        to[e] = q[own] * angle.x + (first ? 1 : -1) * q[first ? own + half : own - half] * angle.y;
    }
    return y;
}

/* Writes a warp's fragments of the queries rotated to a run; returns in `means` the products of the lane's queries with the keys'
 * mean. */
template <int HD, int UNIT, int NT, int WARPS>
ATTEND_INLINE void rotate_queries(const struct attend_decode &a, const struct share &s, const float *angles,
                                  const centroid_side &keys, centroid_queries<HD, NT, WARPS> &queries, float (&means)[NT]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    const float *const q = a.q + queries_at<HD>(a, s);
    uint2(*const to)[NT][32] = queries.rotated[threadIdx.x / 32];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t query = 4 * n + g / 2;
        const float up = queries.up[query];
        float mean = 0;
#pragma unroll 4
        for (int step = 0; step < HD / 16; step++) {
            uint32_t words[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t c = channel_of_row<UNIT>(step, h, t);
                float2 x = query < s.group ? rotated_pair(q + query * HD, a.heads, angles, c) : make_float2(0, 0);
                x.x *= up, x.y *= up;
                if (keys.normalized) mean += x.x * keys.mean[c] + x.y * keys.mean[c + 1];
                words[h] = pack_halves(x.x, x.y);
            }
            to[step][n][lane] = make_uint2(words[0], words[1]);
        }
        mean += __shfl_xor_sync(ALL_LANES, mean, 1);
        mean += __shfl_xor_sync(ALL_LANES, mean, 2);
        means[n] = __shfl_sync(ALL_LANES, mean, 8 * t); /* of query 4 n + t */
    }
    __syncwarp();
}

/* ---- A page */

/* Computes x[64 tokens][queries] = centroids times queries. */
template <int HD, int UNIT, int NT, bool TABLES>
ATTEND_INLINE void score_page(const centroid_side &keys, uint32_t slot, const uint2 (*q)[NT][32], float (&x)[4][NT][4]) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    constexpr int STEPS = UNIT == 8 ? 2 : 1, LOADS = UNIT == 2 ? 2 : 1; /* steps that a load serves, loads that a step takes */
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) x[i][n][c] = 0;
#pragma unroll
    for (int s = 0; s < HD / 16; s += STEPS) {
        uint32_t codes[LOADS][4], from[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const unit_place place = place_of_unit<UNIT>(keys, LOADS * 4 * (s / STEPS) + 4 * l + t);
            load_codes(keys, slot, place.part, g, codes[l]);
            from[l] = place.offset;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unit_words<UNIT> u[LOADS][2];
#pragma unroll
            for (int l = 0; l < LOADS; l++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    u[l][r] = load_unit<UNIT, TABLES>(keys, from[l] + (code_of(codes[l], 2 * i + r) << (keys.log_width + 1)));
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                constexpr int second = UNIT == 2 ? 0 : 1;
                const uint32_t a0 = u[0][0].of[2 * k], a1 = u[0][1].of[2 * k];
                const uint32_t a2 = u[LOADS - 1][0].of[2 * k + second], a3 = u[LOADS - 1][1].of[2 * k + second];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint2 b = q[s + k][n][lane];
                    mma(x[i][n], a0, a1, a2, a3, b.x, b.y);
                }
            }
        }
    }
}

/* Computes gain * product + mean, for tokens 8 g + 2 i and the next. */
template <int NT>
ATTEND_INLINE void apply_gains(const centroid_side &keys, uint32_t slot, const float (&means)[NT], float (&x)[4][NT][4]) {
    const uint2 bytes = load_shared_pair(slot + 8 * (lane_id() / 4));
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t code = (i < 2 ? bytes.x : bytes.y) >> (i % 2 * 16 + r * 8) & 0xff;
            const float gain = keys.gain_scale * relative_gain(code);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) x[i][n][2 * r + c] = gain * x[i][n][2 * r + c] + means[n];
        }
}

/* Returns the weight of the lower (upper 0) or of the upper of two tokens, in the half of the lane's column: fragment b of (token,
 * channel of a pair). */
ATTEND_INLINE uint32_t weight_of_pair(uint32_t weights, int upper) {
    const bool second = lane_id() / 4 % 2;
    return permute(weights, 0, upper ? (second ? 0x3244 : 0x4432) : (second ? 0x1044 : 0x4410));
}

/* Sums values by pairs of channels: tile UNIT / 2 m + j has, of units 16 m + g and 16 m + g + 8, channels 2 j and 2 j + 1, for
 * query 4 n + t. */
template <int HD, int UNIT> struct sums_by_unit {
    static constexpr int tiles = HD / 32;
    static ATTEND_INLINE uint32_t channel(int tile, uint32_t row) {
        return UNIT * (16 * (tile / (UNIT / 2)) + row) + 2 * (tile % (UNIT / 2));
    }

    /* Adds rows of halves, for attend_rows. */
    template <int NT> static ATTEND_INLINE void add(uint32_t values, const uint32_t (&w)[NT][2], float (&acc)[tiles][NT][4]) {
        const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t c = channel(tile, g + i % 2 * 8), row = 2 * t + i / 2 + 8 * h;
                    a[i] = load_shared(values + half_rows<HD>::at(row, c / 8) + c % 8 * 2);
                }
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma(acc[tile][n], a[0], a[1], a[2], a[3], weight_of_pair(w[n][h], 0), weight_of_pair(w[n][h], 1));
            }
    }

    /* Adds a page's values. */
    template <int NT, bool TABLES>
    static ATTEND_INLINE void add_page(const centroid_side &values, uint32_t slot, const uint32_t (&w)[4][NT][2],
                                       float (&acc)[tiles][NT][4]) {
        const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int m = 0; m < HD / UNIT / 16; m++) {
            uint32_t codes[2][2][4], from[2]; /* [unit][octet] */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unit_place place = place_of_unit<UNIT>(values, 16 * m + g + 8 * r);
                from[r] = place.offset;
#pragma unroll
                for (int o = 0; o < 2; o++) load_codes(values, slot, place.part, 2 * t + o, codes[r][o]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    unit_words<UNIT> u[2][2]; /* [octet][unit] */
#pragma unroll
                    for (int o = 0; o < 2; o++)
#pragma unroll
                        for (int r = 0; r < 2; r++)
                            u[o][r] = load_unit<UNIT, TABLES>(
                                values, from[r] + (code_of(codes[r][o], 2 * i + h) << (values.log_width + 1)));
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        const uint32_t b0 = weight_of_pair(w[i][n][h], 0), b1 = weight_of_pair(w[i][n][h], 1);
#pragma unroll
                        for (int j = 0; j < UNIT / 2; j++)
                            mma(acc[m * (UNIT / 2) + j][n], u[0][0].of[j], u[0][1].of[j], u[1][0].of[j], u[1][1].of[j], b0, b1);
                    }
                }
        }
    }

    template <int NT>
    static ATTEND_INLINE void store(const partials<HD> &to, unsigned i, uint32_t group, const running<NT> &r,
                                    const float (&acc)[tiles][NT][4]) {
        const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t query = 4 * n + t;
            if (query >= group) continue;
            if (g == 0) to.max_sum[i * group + query] = make_float2(r.max[n][0], r.sum[n][0]);
#pragma unroll
            for (int tile = 0; tile < tiles; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *reinterpret_cast<float2 *>(to.sums + (i * group + query) * HD + channel(tile, g + 8 * half)) =
                        make_float2(acc[tile][n][2 * half], acc[tile][n][2 * half + 1]);
        }
    }
};

/* Turns sums of normalized values into sums of values, to which it adds the mean times the weights' sum. `r` covers pages alone. */
template <int HD, int UNIT, int NT>
ATTEND_INLINE void finish_values(const centroid_side &values, const running<NT> &r, float (&acc)[HD / 32][NT][4]) {
    const unsigned g = lane_id() / 4;
    if (!values.normalized) return;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float weights = r.sum[n][0];
        for (int o = 4; o < 32; o *= 2) weights += __shfl_xor_sync(ALL_LANES, weights, o);
#pragma unroll
        for (int tile = 0; tile < HD / 32; tile++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                acc[tile][n][c] = acc[tile][n][c] * values.gain_scale +
                                  weights * values.mean[sums_by_unit<HD, UNIT>::channel(tile, g + c / 2 * 8) + c % 2];
    }
}

/* ---- The kernel */

/* A CTA's shared memory holds queries, then tables, if they lie there, and rings. Later it holds rows of halves, then partial
 * states and the memory of merging. */
template <int HD, int NT, int WARPS> struct centroid_memory {
    static constexpr int queries = ((int)sizeof(centroid_queries<HD, NT, WARPS>) + 127) / 128 * 128;
    static constexpr int rows = WARPS * 2 * half_rows<HD>::bytes;
    static constexpr int states = ((int)partials_bytes<HD>(WARPS, 4 * NT) + 15) / 16 * 16;
    static constexpr int merging = states + WARPS * 32 * 24;
    static constexpr int after = rows > merging ? rows : merging; /* pages */
};

struct centroid_launch {
    uint32_t first_query;
    uint32_t tables[2];         /* bytes of both sides' centroids */
    uint32_t slots, slot_bytes; /* of rings */
};

template <bool TABLES>
ATTEND_INLINE centroid_side open_side(const struct attend_decode &a, const struct share &s, int side, uint32_t table,
                                      uint32_t bytes) {
    const struct centroid_view &view =
        static_cast<const struct centroid_view *>(a.learned[side])[(size_t)a.layer * a.heads.kv_heads + s.head];
    const uint8_t *const memory = reinterpret_cast<const uint8_t *>(view.centroids);
    if (TABLES)
        for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x) copy_async<16>(table + i, memory + i);
    return {view.shape,
            31u - __clz(view.shape.width),
            table,
            memory,
            view.normalized ? (uint32_t)PAGE_TOKENS : 0u,
            view.normalized,
            view.gain_scale,
            view.mean};
}

template <int HD, int UNIT, int NT, int WARPS, bool TABLES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    attend_centroids_kernel(const __grid_constant__ struct attend_decode a, struct centroid_launch launch) {
    using memory = centroid_memory<HD, NT, WARPS>;
    using sums = sums_by_unit<HD, UNIT>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto &queries = *reinterpret_cast<centroid_queries<HD, NT, WARPS> *>(shared);
    uint8_t *const rest = shared + memory::queries;
    const unsigned warp = threadIdx.x / 32, lane = lane_id();
    struct share s;
    if (!share_of(a, blockIdx.x, blockIdx.y, blockIdx.z, s)) return;
    take_heads(s, launch.first_query, 4 * NT);

    const uint32_t tables = shared_address(rest);
    const centroid_side keys = open_side<TABLES>(a, s, 0, tables, launch.tables[0]);
    const centroid_side values = open_side<TABLES>(a, s, 1, tables + launch.tables[0], launch.tables[1]);
    commit_copies();
    uint32_t first, end;
    share_pages(s, first, end);
    const uint32_t n = end - first, begin = first + n * warp / WARPS, pages = first + n * (warp + 1) / WARPS - begin;
    const struct listed_pages listed = listed_from(s, begin, 1);
    page_ring ring;
    ring.listed = listed, ring.n = pages, ring.slots = launch.slots, ring.slot_bytes = launch.slot_bytes;
    ring.place = a.places + (size_t)a.layer * a.heads.kv_heads + s.head;
    ring.bytes[0] = a.page_bytes[0], ring.bytes[1] = a.page_bytes[1];
    ring.base = tables + (TABLES ? launch.tables[0] + launch.tables[1] : 0) + warp * ring.slots * ring.slot_bytes;
    ring.start();
    prepare_pairs<HD, NT, WARPS>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, queries.window, queries.up);
    prepare_pairs<HD, NT, WARPS>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, queries.exact, nullptr);
    if (TABLES) wait_copies<0>();
    __syncthreads();

    running<NT> running;
    float acc[sums::tiles][NT][4] = {}, factor[NT][2], means[NT];
    clear_running(running);
    load_factors(queries.window, factor);
    column_slopes<NT> slopes;
    slopes.any = a.heads.slopes != nullptr, slopes.cap = LOG2_E * a.heads.cap;
#pragma unroll
    for (int i = 0; i < NT; i++)
        slopes.of[i][0] = slopes.of[i][1] =
            slopes.any && 4 * i + lane % 4 < s.group ? LOG2_E * a.heads.slopes[s.first_head + 4 * i + lane % 4] : 0;

    const bool in_runs = a.run_angles && a.heads.n_rot;
    uint32_t run = UINT32_MAX;
    struct page_of_lane of_lane;
#pragma unroll 1
    for (uint32_t page = 0; page < pages; page++) {
        if (page % 32 == 0) of_lane.load(listed, min(page + lane, pages - 1), a.rows[s.row].first);
        const uint32_t from = of_lane.first_of(page);
        const uint64_t live = of_lane.read_of(page, from, s.position);
        const uint32_t own_run = in_runs ? from / ROPE_RUN_TOKENS : 0;
        if (own_run != run) {
            run = own_run;
            rotate_queries<HD, UNIT>(a, s, in_runs ? a.run_angles + (size_t)run * a.heads.n_rot : nullptr, keys, queries, means);
        }
        float x[4][NT][4], rise[NT][2];
        uint32_t w[4][NT][2];
        ring.wait();
        score_page<HD, UNIT, NT, TABLES>(keys, ring.slot(page, 0), queries.rotated[warp], x);
        if (keys.normalized) apply_gains(keys, ring.slot(page, 0), means, x);
        __syncwarp();
        ring.ask_behind(page, 0);
        finish_logits<TOKENS_BY_OCTET>(x, factor, slopes, (int32_t)(from - s.position), live);
        if (weigh(x, running, rise, w)) scale_sums(acc, rise);
        ring.wait();
        if (values.normalized) weigh_gains(ring.slot(page, 1), w, [](uint32_t code, int) { return relative_gain(code); });
        sums::template add_page<NT, TABLES>(values, ring.slot(page, 1), w, acc);
        __syncwarp();
        ring.ask_behind(page, 1);
    }
    wait_copies<0>();
    finish_values<HD, UNIT>(values, running, acc);
    __syncthreads(); /* tables and rings are no longer read */
    attend_rows<HD, sums>(a, s, warp * s.parts + s.part, WARPS * s.parts, queries.exact, queries.window, slopes,
                          shared_address(rest) + warp * 2 * half_rows<HD>::bytes, running, acc);
    finish_running(running);
    __syncthreads(); /* nor rows */
    const partials<HD> states = partials_at<HD>(rest, WARPS, s.group);
    sums::store(states, warp, s.group, running, acc);
    __syncthreads();
    finish_share<HD, WARPS * 32>(a, s, states, WARPS, rest + memory::states);
}

/* ---- Launches */

/* Gives each warp's ring as many slots as there is room for beside so many bytes of tables; returns the bytes of shared memory that a
 * CTA takes, 0: there is no room. */
template <int HD, int NT, int WARPS>
uint32_t fit_centroids(const struct attend_decode *a, uint32_t tables, struct centroid_launch *launch) {
    using memory = centroid_memory<HD, NT, WARPS>;
    const uint32_t room = (uint32_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), before = memory::queries + tables;
    launch->slots = before < room ? ring_slots(a, WARPS, room - before) : 0, launch->slot_bytes = ring_slot_bytes(a);
    const uint32_t pages = before + launch->slots * WARPS * launch->slot_bytes, after = memory::queries + memory::after;
    const uint32_t bytes = pages > after ? pages : after;
    return launch->slots && bytes <= room ? bytes : 0;
}

/* Launches CTAs with so many bytes of shared memory; 0 is refused. */
template <int HD, int UNIT, int NT, int WARPS, bool TABLES>
cudaError_t launch_centroids(const struct attend_decode *a, const struct centroid_launch &launch, uint32_t bytes,
                             cudaStream_t stream) {
    const auto kernel = attend_centroids_kernel<HD, UNIT, NT, WARPS, TABLES>;
    if (!bytes) return cudaErrorInvalidConfiguration;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    kernel<<<dim3(a->splits, a->heads.kv_heads, a->n_rows), WARPS * 32, bytes, stream>>>(*a, launch);
    return cudaGetLastError();
}

/* Launches with tables in shared memory where there is room for them beside the rings. A multiprocessor has room for one CTA, whose
 * warps wait for shared memory with most of what they look up: the more of them, the faster. One tile of queries needs the 168
 * registers that a thread of twelve warps has. A thread of sixteen has 128 and spills some, which is faster still, but their queries
 * and rings need more memory. */
template <int HD, int UNIT, int NT>
cudaError_t launch_tables(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    struct centroid_launch launch = {first_query, {(HD * 2u) << a->centroid[0].bits, (HD * 2u) << a->centroid[1].bits}, 0, 0};
    const uint32_t tables = launch.tables[0] + launch.tables[1];
    uint32_t bytes;
    if constexpr (HD < 256 && NT == 1) {
        bytes = fit_centroids<HD, NT, 16>(a, tables, &launch);
        if (bytes) return launch_centroids<HD, UNIT, NT, 16, true>(a, launch, bytes, stream);
    }
    if constexpr (HD < 256) {
        constexpr int WARPS = NT == 1 ? 12 : 8;
        bytes = fit_centroids<HD, NT, WARPS>(a, tables, &launch);
        if (bytes) return launch_centroids<HD, UNIT, NT, WARPS, true>(a, launch, bytes, stream);
    }
    constexpr int WARPS = HD < 256 ? 8 : 4;
    bytes = fit_centroids<HD, NT, WARPS>(a, 0, &launch);
    return launch_centroids<HD, UNIT, NT, WARPS, false>(a, launch, bytes, stream);
}

template <int HD, int UNIT> cudaError_t launch_units(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t group = a->heads.query_heads / a->heads.kv_heads;
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0; first < group && result == cudaSuccess; first += 8)
        result = group - first > 4 ? launch_tables<HD, UNIT, 2>(a, first, stream) : launch_tables<HD, UNIT, 1>(a, first, stream);
    return result;
}

/* Launches with units as wide as both sides' sub-vectors allow and as leave whole tiles of 16 units. */
template <int HD> cudaError_t launch_widths(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t width = a->centroid[0].width < a->centroid[1].width ? a->centroid[0].width : a->centroid[1].width;
    if (HD % 128 == 0 && width >= 8) return launch_units < HD, HD % 128 ? 2 : 8 > (a, stream);
    if (HD % 64 == 0 && width >= 4) return launch_units < HD, HD % 64 ? 2 : 4 > (a, stream);
    return launch_units<HD, 2>(a, stream);
}

#endif
