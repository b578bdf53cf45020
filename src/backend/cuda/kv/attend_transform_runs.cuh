/* Prepares queries for runs: keys of pages of transform are rotated by their offset from the first position of a run of 256 tokens,
 * so queries are rotated back to it, once for each run, before any page is read.
 *
 * A query rotated to a run, times the basis, times the sizes and the scales of planes, becomes integers of 16 bits with a unit of
 * its own: upper and lower bytes are columns 2 j and 2 j + 1 of the products of query j with codes. With them goes the sum of these integers
 * times the largest code of their plane, which is what levels, 2 code - most, differ by. What keys' mean adds to a
 * logit is a number of the run, too.
 *
 * Each warp of a CTA has a tile of 16 components of the basis in registers. The CTA takes several runs at a time; for each of them
 * a warp rotates queries and makes bytes. One CTA of a row and KV head prepares what positions are scored by
 * (attend_transform_positions.cuh). */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_RUNS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_RUNS_CUH

#include "backend/cuda/kv/append_decode.cuh"
#include "backend/cuda/kv/attend_transform_positions.cuh"
#include "backend/cuda/launch.cuh"

constexpr float BYTES_MOST = 32512; /* of an integer whose upper and lower part are bytes with signs */

template <int HD> struct transform_side {
    const struct transform_view *view;
    const float *mean;
    float gain_zero, gain_step, gain;
};

template <int HD> ATTEND_INLINE transform_side<HD> side_of(const struct attend_decode &a, const struct share &s, int side) {
    const struct transform_view *own = s.sequence->rates[a.rate].transforms[side];
    const struct transform_view *view =
        (own ? own : static_cast<const struct transform_view *>(a.learned[side])) + (size_t)a.layer * a.heads.kv_heads + s.head;
    return {view, view->mean, view->gain_zero, view->gain_step, view->gain};
}

/* Makes the CTA's row read the pages of the launch's rate. Returns how many parts its pages of other rates before that one have. */
ATTEND_INLINE uint32_t take_rate(const struct attend_decode &a, struct share &s) {
    uint32_t before = 0;
    if (!a.rates) return 0;
    for (uint32_t rate = 0; rate < a.rate; rate++) before += s.sequence->rate_splits[rate];
    s.parts = s.sequence->rate_splits[a.rate];
    s.first_page = s.sequence->rate_first[a.rate], s.n_pages = s.sequence->rate_first[a.rate + 1] - s.first_page;
    return before;
}

/* Returns a run's record, one of run_record_words for each run of a launch of 4 NQ queries; run 0 is that of the sequence's first
 * page. In front of it lies the record of the row's and KV head's positions. */
template <int HD, int NQ> ATTEND_INLINE uint32_t *run_record(const struct attend_decode &a, const struct share &s, uint32_t run) {
    const size_t at = ((size_t)s.row * a.heads.kv_heads + s.head) * (a.runs + 1) + 1 + run;
    return a.run_queries + at * run_record_words(NQ, HD / 2);
}
template <int HD, int NQ> ATTEND_INLINE uint32_t *position_record(const struct attend_decode &a, const struct share &s) {
    static_assert(position_query_bytes(NQ, HD / 2) <= 4 * NQ * (12 + HD / 2 * 8), "positions have a record's room");
    return run_record<HD, NQ>(a, s, 0) - run_record_words(NQ, HD / 2);
}

constexpr int RUNS_WARPS = 8;

template <int HD, int NQ> struct runs_memory {
    static constexpr int runs = HD == 256 ? 4 : 8; /* at a time, one for a warp */
    static constexpr int columns = runs * 4 * NQ;
    float q[4 * NQ][HD]; /* largest channel in [1, 2); zeros from G on */
    float factor[4 * NQ];
    float mean[HD]; /* of keys */
    __half rotated[columns][HD + 8];
    float products[columns][HD + 4];
};

template <int HD, int NQ>
ATTEND_INLINE void stage_queries(const struct attend_decode &a, const struct share &s, runs_memory<HD, NQ> &to) {
    const unsigned lane = lane_id();
    const step_queries queries = step_queries_of<HD>(a, s);
    for (unsigned n = threadIdx.x / 32; n < 4 * NQ; n += RUNS_WARPS) {
        float x[HD / 32], largest = 0;
#pragma unroll
        for (int i = 0; i < HD / 32; i++) x[i] = n < s.group ? __ldcg(queries.q + n * HD + lane + 32 * i) : 0;
        if (queries.rotates) {
#pragma unroll
            for (int i = 0; i < HD / 32; i++) to.q[n][lane + 32 * i] = x[i];
            __syncwarp();
#pragma unroll 1
            for (unsigned pair = lane; pair < a.heads.n_rot / 2; pair += 32) {
                const uint2 at = pair_channels(a.heads, pair);
                const float2 rotated = queries.rotated(a, pair, make_float2(to.q[n][at.x], to.q[n][at.y]));
                to.q[n][at.x] = rotated.x, to.q[n][at.y] = rotated.y;
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < HD / 32; i++) x[i] = to.q[n][lane + 32 * i];
        }
#pragma unroll
        for (int i = 0; i < HD / 32; i++) largest = fmaxf(largest, fabsf(x[i]));
        for (int o = 16; o; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const power_of_two power = power_of(largest);
#pragma unroll
        for (int i = 0; i < HD / 32; i++) to.q[n][lane + 32 * i] = x[i] * power.up;
        if (lane == 0) to.factor[n] = n < s.group ? power.down * a.heads.scale * LOG2_E : 0;
    }
}

/* A lane has channels c = 2 lane + 64 i and c + 1; lane_turns has the cosines and sines of their pairs, 1 and 0 where channels do not
 * turn. */
template <int HD> constexpr int lane_channels = (HD + 63) / 64;
template <int HD> struct lane_turns { float2 of[lane_channels<HD>][2]; };

template <int HD> ATTEND_INLINE void load_turns(const struct head_view &heads, const float *angles, lane_turns<HD> &to) {
    const float2 *const of_pairs = reinterpret_cast<const float2 *>(angles);
#pragma unroll
    for (int i = 0; i < lane_channels<HD>; i++) {
        const unsigned c = 2 * lane_id() + 64 * i, half = heads.n_rot / 2;
        to.of[i][0] = to.of[i][1] = make_float2(1, 0);
        if (heads.pairing == ROPE_ADJACENT) {
            if (c < heads.n_rot) to.of[i][0] = to.of[i][1] = __ldg(of_pairs + c / 2);
        } else {
#pragma unroll
            for (unsigned k = 0; k < 2; k++)
                if (c + k < heads.n_rot) to.of[i][k] = __ldg(of_pairs + (c + k < half ? c + k : c + k - half));
        }
    }
}

/* Returns the other channel of a channel's pair, or itself where it does not turn. */
ATTEND_INLINE unsigned other_channel(const struct head_view &heads, unsigned c) {
    const unsigned half = heads.n_rot / 2;
    return c >= heads.n_rot ? c : c < half ? c + half : c - half;
}

template <int HD, int NQ, bool ADJACENT>
ATTEND_INLINE void rotate_pairs(const struct head_view &heads, const lane_turns<HD> &turns, unsigned first_column,
                                runs_memory<HD, NQ> &m, float (&with_mean)[4 * NQ]) {
    const unsigned half = heads.n_rot / 2;
#pragma unroll
    for (int i = 0; i < lane_channels<HD>; i++) {
        const unsigned c = 2 * lane_id() + 64 * i;
        if (HD % 64 && c >= HD) continue;
        const float2 mean = *reinterpret_cast<const float2 *>(m.mean + c), (&turn)[2] = turns.of[i];
        const float sines[2] = {ADJACENT || c < half ? turn[0].y : -turn[0].y, !ADJACENT && c + 1 < half ? turn[1].y : -turn[1].y};
#pragma unroll
        for (int n = 0; n < 4 * NQ; n++) {
            const float2 q = *reinterpret_cast<const float2 *>(m.q[n] + c);
            float2 other = make_float2(q.y, q.x);
            if (!ADJACENT) other = make_float2(m.q[n][other_channel(heads, c)], m.q[n][other_channel(heads, c + 1)]);
            const float x = q.x * turn[0].x + other.x * sines[0], y = q.y * turn[1].x + other.y * sines[1];
            with_mean[n] += x * mean.x + y * mean.y;
            *reinterpret_cast<uint32_t *>(m.rotated[first_column + n] + c) = pack_halves(x, y);
        }
    }
}

/* Rotates, by a warp, all queries back by a run's position, to rows first_column .. of `rotated`, and computes the lane's part of their
 * products with the mean. */
template <int HD, int NQ>
ATTEND_INLINE void rotate_queries(const struct head_view &heads, const lane_turns<HD> &turns, unsigned first_column,
                                  runs_memory<HD, NQ> &m, float (&with_mean)[4 * NQ]) {
#pragma unroll
    for (int n = 0; n < 4 * NQ; n++) with_mean[n] = 0;
    if (heads.pairing == ROPE_ADJACENT)
        rotate_pairs<HD, NQ, true>(heads, turns, first_column, m, with_mean);
    else
        rotate_pairs<HD, NQ, false>(heads, turns, first_column, m, with_mean);
}

/* Returns the sum over all lanes of x[lane % 4]. */
ATTEND_INLINE float sum_by_lane(const float *x) {
    const bool odd = lane_id() & 1, later = lane_id() & 2;
    float first = (odd ? x[1] : x[0]) + __shfl_xor_sync(ALL_LANES, odd ? x[0] : x[1], 1),
          second = (odd ? x[3] : x[2]) + __shfl_xor_sync(ALL_LANES, odd ? x[2] : x[3], 1),
          sum = (later ? second : first) + __shfl_xor_sync(ALL_LANES, later ? first : second, 2);
    for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    return sum;
}

/* Returns integer i of two that are 16 bits each, as a number. It stands as the last bits of 2^23, with 2^15 added, as which its flipped
 * sign bit counts: a conversion takes a pipe that a multiprocessor has a fourth of. */
ATTEND_INLINE float integer_of(uint32_t integers, int i) {
    const uint32_t sign_flipped = integers ^ 0x80008000u;
    return __uint_as_float(permute(sign_flipped, 0x4b000000, i ? 0x7632 : 0x7610)) - (0x1p23f + 0x1p15f);
}

/* Returns two integers of the basis as halves: they differ from them by 2^-12 of themselves at most. */
ATTEND_INLINE uint32_t halves_of(uint32_t integers) { return pack_halves(integer_of(integers, 0), integer_of(integers, 1)); }

/* A basis_tile has the basis' integers as fragments a of its products with queries: of tile i of 16 components and channels 32 k to
 * 32 k + 31, lane (g, t) has 8 channels from 32 k + 8 t on of components g and g + 8; k of the products is permuted. With them go the
 * steps of these components. */
template <int HD> struct basis_tile {
    uint4 of[HD / 32][2];
    float step[2];
};

template <int HD> ATTEND_INLINE void load_basis(const struct transform_view &view, unsigned tile, basis_tile<HD> &to) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    const int16_t *const basis = view.basis;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) to.step[upper] = view.step[16 * tile + 8 * upper + g];
#pragma unroll
    for (int k = 0; k < HD / 32; k++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const uint4 x = *reinterpret_cast<const uint4 *>(basis + (16 * tile + 8 * upper + g) * HD + 32 * k + 8 * t);
            to.of[k][upper] = make_uint4(halves_of(x.x), halves_of(x.y), halves_of(x.z), halves_of(x.w));
        }
}

/* Multiplies, by a warp, a tile of the basis by all columns, also those of runs that the CTA does not have, which are not read. Products
 * that are added to one sum wait for each other, so that those of other columns stand between them. */
template <int HD, int NQ> ATTEND_INLINE void multiply_tile(const basis_tile<HD> &a, unsigned tile, runs_memory<HD, NQ> &m) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    constexpr int tiles = runs_memory<HD, NQ>::columns / 8, together = tiles < 4 ? tiles : 4;
#pragma unroll
    for (int first = 0; first < tiles; first += together) {
        float d[together][4] = {};
#pragma unroll
        for (int k = 0; k < HD / 32; k++) {
            const uint4 &low = a.of[k][0], &high = a.of[k][1];
            uint4 b[together];
#pragma unroll
            for (int j = 0; j < together; j++)
                b[j] = *reinterpret_cast<const uint4 *>(&m.rotated[8 * (first + j) + g][32 * k + 8 * t]);
#pragma unroll
            for (int j = 0; j < together; j++) mma(d[j], low.x, high.x, low.y, high.y, b[j].x, b[j].y);
#pragma unroll
            for (int j = 0; j < together; j++) mma(d[j], low.z, high.z, low.w, high.w, b[j].z, b[j].w);
        }
#pragma unroll
        for (int j = 0; j < together; j++) {
            const unsigned column = 8 * (first + j) + 2 * t, row = 16 * tile + g;
            m.products[column][row] = d[j][0] * a.step[0], m.products[column + 1][row] = d[j][1] * a.step[0];
            m.products[column][row + 8] = d[j][2] * a.step[1], m.products[column + 1][row + 8] = d[j][3] * a.step[1];
        }
    }
}

/* Returns a plane's scale for codes where they lie in their nibble, 2^shift times as large. */
ATTEND_INLINE float scale_in_place(const struct transform_plane &plane) {
    return plane.scale * __uint_as_float((127u - plane.shift) << 23);
}

/* A lane's planes are g, g + 8, ...; lane_scales has the factors and largest codes of their codes where these lie
 * in a nibble, and their quads. */
template <int HD> struct lane_scales {
    float scale[HD / 16];
    uint8_t quad[HD / 16], most[HD / 16];
};

/* Behind the last plane a layout has zeros, which become these. */
template <int HD> ATTEND_INLINE void load_scales(const transform_side<HD> &keys, lane_scales<HD> &to) {
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        const struct transform_plane plane = keys.view->layout.plane[8 * i + lane_id() / 4];
        to.scale[i] = scale_in_place(plane);
        to.quad[i] = plane.quad;
        to.most[i] = (uint8_t)(((1 << plane.bits) - 1) << plane.shift);
    }
}

/* Returns a number's product with `steps`, below 2^22, as an integer: the last bits of 3 2^22 plus the product are the product's. A
 * conversion takes a pipe that a multiprocessor has a fourth of. */
ATTEND_INLINE int32_t round_whole(float x, float steps) {
    return (int32_t)(__float_as_uint(fmaf(x, steps, 12582912.0f)) - 0x4b400000u);
}

/* Returns bytes `byte` of four integers. */
ATTEND_INLINE uint32_t bytes_of(const int32_t (&x)[4], uint32_t byte) {
    const uint32_t pick = byte * 0x11 + 0x40;
    return permute(permute((uint32_t)x[0], (uint32_t)x[1], pick), permute((uint32_t)x[2], (uint32_t)x[3], pick), 0x5410);
}

/* Writes, by a warp, a run's record. */
template <int HD, int NQ>
ATTEND_INLINE void write_record(const lane_scales<HD> &scales, unsigned planes, unsigned first_column, const runs_memory<HD, NQ> &m,
                                const float (&with_mean)[4 * NQ], uint32_t *record) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4, padded = (planes + 3) / 4 * 4;
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        const float *const products = m.products[first_column + 4 * n + t];
        float4 y[HD / 16];
        float largest = 1e-30f;
        int32_t sum = 0;
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            if (8 * i >= padded) continue;
            const float s = scales.scale[i];
            y[i] = *reinterpret_cast<const float4 *>(products + 4 * scales.quad[i]);
            y[i] = make_float4(y[i].x * s, y[i].y * s, y[i].z * s, y[i].w * s);
            largest = fmaxf(largest, fmaxf(fmaxf(fabsf(y[i].x), fabsf(y[i].y)), fmaxf(fabsf(y[i].z), fabsf(y[i].w))));
        }
        for (int o = 4; o < 32; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const float steps = __fdividef(BYTES_MOST, largest);
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            const unsigned p = 8 * i + g;
            if (8 * i >= padded) continue;
            int32_t x[4] = {round_whole(y[i].x, steps), round_whole(y[i].y, steps), round_whole(y[i].z, steps),
                            round_whole(y[i].w, steps)};
            const uint32_t low = bytes_of(x, 0);
#pragma unroll
            for (int c = 0; c < 4; c++) sum += x[c] * scales.most[i], x[c] += 128; /* the lower byte has a sign */
            if (p < padded)                                                        /* behind the last plane scales are zeros */
                *reinterpret_cast<uint2 *>(record + 12 * NQ + (n * padded + p) * 8 + 2 * t) = make_uint2(bytes_of(x, 1), low);
        }
        for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        const float own = sum_by_lane(with_mean + 4 * n), factor = m.factor[4 * n + t];
        if (g == 0) {
            record[4 * n + t] = __float_as_uint(largest * (1 / BYTES_MOST) * factor);
            record[4 * NQ + 4 * n + t] = __float_as_uint(own * factor);
            record[8 * NQ + 4 * n + t] = (uint32_t)sum;
        }
    }
}

/* Appends, by all warps of a CTA, `n` query heads of a row from `first` on and, with the first of a KV head, its key and value. */
static ATTEND_APART void append_heads(const struct append_decode &a, uint32_t row, uint32_t first, uint32_t n) {
    const struct query_row_view query = a.rows[row];
    const uint32_t head = first / (a.heads.query_heads / a.heads.kv_heads),
                   sides = first % (a.heads.query_heads / a.heads.kv_heads) ? 0 : 2;
    for (uint32_t i = threadIdx.x / 32; i < n + sides; i += RUNS_WARPS)
        append_head(a, query, a.sequences[query.sequence], row,
                    i < n ? first + i : a.heads.query_heads + (i - n) * a.heads.kv_heads + head);
}

/* Writes, for query heads first_query .. of each group, at most 4 NQ, of every row, the records of all runs from that of the first
 * page to that of the last. Each CTA of a row and KV head writes some of them; the last one writes what positions are scored by instead,
 * where `apart`, else the first one does too. `early` says that the next kernel's CTAs have room beside these, and begin at once; else
 * they begin when the kernels before this one have ended. */
template <int HD, int NQ>
__global__ void __launch_bounds__(RUNS_WARPS * 32, HD <= 128 ? 2 : 1)
    transform_runs_kernel(const __grid_constant__ struct attend_decode a, uint32_t first_query, bool apart, bool early) {
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    auto &m = *reinterpret_cast<runs_memory<HD, NQ> *>(shared_bytes);
    constexpr unsigned at_once = runs_memory<HD, NQ>::runs;
    const unsigned warp = uniform(threadIdx.x / 32);
    if (early) let_next_kernel_begin();
    basis_tile<HD> basis;
    struct share s;
    share_of(a, 0, blockIdx.y, blockIdx.z, s);
    take_rate(a, s);
    const transform_side<HD> keys = side_of<HD>(a, s, 0);
    const unsigned shares = gridDim.x - apart;
    if (warp < HD / 16 && blockIdx.x < shares) load_basis<HD>(*keys.view, warp, basis);
    uint32_t first = 0, n = 0;
    if (s.n_pages) {
        first = run_of(first_listed(s)) / ROPE_RUN_TOKENS;
        n = (run_of(last_listed(s)) / ROPE_RUN_TOKENS - first) / a.run_step + 1;
    }
    const unsigned planes = uniform(keys.view->layout.planes);
    const auto angles_of = [&](uint32_t run) {
        return a.run_angles + (size_t)(first + min(run, n - 1) * a.run_step) * a.heads.n_rot;
    };
    lane_scales<HD> scales;
    lane_turns<HD> turns;
    const uint32_t step = shares * at_once;
    uint32_t from = blockIdx.x < shares ? blockIdx.x * at_once : n;
    if (from < n) {
        load_scales(keys, scales);
        load_turns(a.heads, angles_of(from + warp), turns);
        for (unsigned c = threadIdx.x; c < HD; c += RUNS_WARPS * 32) m.mean[c] = keys.mean[c];
    }
    take_heads(s, first_query, 4 * NQ);
    wait_for_kernels();
    let_next_kernel_begin();
    if (blockIdx.x == (apart ? shares : 0))
        stage_positions<HD, NQ, RUNS_WARPS>(a, s, keys.view->pre_rope_mean, position_record<HD, NQ>(a, s));
    if (from < n) stage_queries<HD, NQ>(a, s, m);
    __syncthreads();
#pragma unroll 1
    for (; from < n; from += step) {
        const uint32_t run = from + warp;
        const bool mine = warp < at_once && run < n;
        float with_mean[4 * NQ];
        if (mine) rotate_queries<HD, NQ>(a.heads, turns, warp * 4 * NQ, m, with_mean);
        load_turns(a.heads, angles_of(run + step), turns);
        __syncthreads();
        for (unsigned tile = warp; tile < HD / 16; tile += RUNS_WARPS) {
            if (HD / 16 > RUNS_WARPS) load_basis<HD>(*keys.view, tile, basis);
            multiply_tile(basis, tile, m);
        }
        __syncthreads();
        if (mine) write_record(scales, planes, warp * 4 * NQ, m, with_mean, run_record<HD, NQ>(a, s, run));
    }
    if (a.append.q && blockIdx.x == (apart ? shares : 0)) append_heads(a.append, s.row, s.first_head, s.group);
}

/* Returns how many CTAs prepare the runs and positions of a row and KV head (x), and whether the last of them takes positions apart (y).
 * A multiprocessor has two CTAs, so that the tables with which a CTA begins serve many runs. Positions have their own, if those have
 * room beside the others: else these, or they, would begin when the first ones end. */
template <int HD, int NQ> uint2 runs_shares(const struct attend_decode &a) {
    constexpr int at_once = runs_memory<HD, NQ>::runs;
    const unsigned shares = a.heads.kv_heads * a.n_rows,
                   multiprocessors = (unsigned)device_attribute(cudaDevAttrMultiProcessorCount),
                   most = 2 * multiprocessors > shares ? 2 * multiprocessors / shares : 1, all = (a.runs + at_once - 1) / at_once,
                   some = all < most ? all : most, n = some ? some : 1;
    const bool apart = (n + 1) * shares <= 2 * multiprocessors;
    return make_uint2(n + apart, apart);
}

/* `before_pages`: the next kernel's CTAs load their first pages meanwhile, and take most of a multiprocessor's shared memory. They begin beside
 * one of these only where it gives as much to shared memory already, but are to begin on empty ones where there are some. */
template <int HD, int NQ>
cudaError_t launch_runs(const struct attend_decode *a, uint32_t first_query, bool before_pages, cudaStream_t stream) {
    const auto kernel = transform_runs_kernel<HD, NQ>;
    constexpr int bytes = (int)sizeof(runs_memory<HD, NQ>);
    const uint2 shares = runs_shares<HD, NQ>(*a);
    const unsigned multiprocessors = (unsigned)device_attribute(cudaDevAttrMultiProcessorCount),
                   all = a->heads.kv_heads * a->n_rows;
    const bool apart = shares.y, early = (shares.x - shares.y) * all <= multiprocessors;
    const int carveout =
        before_pages && shares.x * all >= multiprocessors ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result == cudaSuccess) result = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout);
    if (result != cudaSuccess) return result;
    return launch_kernel(a->lists_written, kernel, dim3(shares.x, a->heads.kv_heads, a->n_rows), dim3(RUNS_WARPS * 32), bytes,
                         stream, *a, first_query, apart, early);
}

#endif
