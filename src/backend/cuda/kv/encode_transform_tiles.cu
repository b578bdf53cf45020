/* Writes pages of the codec transform as encode_transform.cu does, by tiles (transform_tiles.cuh): a warp has 16 tokens from the halves that it
 * loads to the codes that it writes. */
#include "backend/cuda/kv/encode_transform.cuh"
#include "backend/cuda/kv/transform_tiles.cuh"

#include <string.h>

/* A quad_codes says how a quad is coded: its planes, and 2^bits less a little, so that no number below 1 times it is rounded up to
 * 2^bits. */
struct quad_codes {
    uint32_t
        planes[2]; /* nibble, then from bits 8, 16 and 24 on `below`, shift and mask of the code's bits; 0 where there is none */
    float codes, zero; /* and of sizes that are tried, as in add_trials */
};

template <int HD> struct tile_memory {
    struct tile_matrix<HD> matrices[2]; /* the metric and the basis, which begin at multiples of 1024 */
    /* By channel: */
    alignas(16) float mean[HD], pre_rope_mean[HD];
    /* By component: `unit` of a product; `reach` as in struct layout_limits of transform_encode.c, infinite where there are no bits; what
     * brings coefficients of a row of size 1 to between -1/2 and 1/2; 2^bits times how far levels lie apart, and the highest one. */
    alignas(16) float unit[HD], reach[HD], inverse[HD], spread[HD], top[HD];
    struct quad_codes quads[HD / TRANSFORM_QUAD];
    float noise, metric_unit;
    union {
        alignas(16) uint32_t nibbles[HD / 2][8]; /* of a tile: words of 8 tokens and of those 16 behind them */
        struct {
            float weighed[HD], whole[HD];
        } row; /* that may be coded less no mean: times the metric, and its coefficients */
    } own[TILE_WARPS];
};

/* ---- What a CTA has in shared memory for pages of a view */

template <int HD> static __device__ void stage_matrices(const struct transform_view &view, struct tile_memory<HD> &m) {
    constexpr uint32_t n = HD * (HD / 16);
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < n; first += STAGED_TOGETHER * TILE_THREADS) {
        uint4 metric[STAGED_TOGETHER][4][2], basis[STAGED_TOGETHER][2];
#pragma unroll
        for (uint32_t i = 0; i < STAGED_TOGETHER; i++) {
            const uint32_t at = min(first + i * TILE_THREADS, n - 1), k = at / HD,
                           row = at % HD / 16 * 16 + order_in_block(at % 16);
            const uint4 *const of_metric = (const uint4 *)view.metric + metric_place(HD, row / 16 * 16 + row % 8, 16 * k) / 8,
                               *const of_basis = (const uint4 *)(view.basis + row * HD + 16 * k);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) metric[i][j][0] = of_metric[2 * j], metric[i][j][1] = of_metric[2 * j + 1];
            basis[i][0] = of_basis[0], basis[i][1] = of_basis[1];
        }
#pragma unroll
        for (uint32_t i = 0; i < STAGED_TOGETHER; i++) {
            const uint32_t at = first + i * TILE_THREADS, k = at / HD, row = at % HD;
            if (at >= n) break;
            const bool upper = order_in_block(row % 16) >= 8;
            uint32_t halves[8], rests[8];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const uint4 own = metric[i][j][0], rest = metric[i][j][1];
                halves[2 * j] = upper ? own.y : own.x, halves[2 * j + 1] = upper ? own.w : own.z;
                rests[2 * j] = upper ? rest.y : rest.x, rests[2 * j + 1] = upper ? rest.w : rest.z;
            }
            put_block(halves, m.matrices[0].halves[k / 4], row, k);
            put_block(rests, m.matrices[0].rests[k / 4], row, k);
            put_integers<HD>(basis[i], m.matrices[1], row, k);
        }
    }
}

/* Asks for all that does not wait for something else before it uses any of it. */
template <int HD> static __device__ void stage_quad(const struct transform_view &view, uint32_t quad, struct tile_memory<HD> &m) {
    const struct transform_quad own = view.quad[quad];
    const struct transform_plane planes[2] = {view.layout.plane[own.plane[0]], view.layout.plane[own.plane[1]]};
    const uint32_t quad_bits = view.layout.quad_bits[quad];
    float size[TRANSFORM_QUAD];
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) size[i] = view.size[quad * TRANSFORM_QUAD + i];
    const uint32_t n = quad < view.layout.quads ? own.planes : 0, bits = n ? quad_bits : 0;
    struct quad_codes codes = {};
    float reach = n ? 0 : INFINITY, scale = 0;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        if (k >= n) continue;
        const uint32_t below = k == 0 ? bits - planes[k].bits : 0, mask = (1u << planes[k].bits) - 1;
        reach = reach + planes[k].scale * (float)mask;
        scale = planes[k].scale;
        codes.planes[k] = planes[k].nibble | below << 8 | (uint32_t)planes[k].shift << 16 | mask << 24;
    }
    codes.codes = (float)(1u << bits) * 0x1.fffffep-1f;
    codes.zero = 0x1p23f / (float)(1u << bits);
    m.quads[quad] = codes;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
        const uint32_t c = quad * TRANSFORM_QUAD + i;
        const float half_step = scale * size[i];
        m.reach[c] = n ? size[i] * reach : INFINITY;
        m.inverse[c] = half_step > 0 ? 1 / (2 * half_step * (float)(1u << bits)) : 0;
        m.spread[c] = 2 * half_step * (float)(1u << bits);
        m.top[c] = half_step * (float)((1u << bits) - 1);
    }
}

/* All threads call this, while none reads what was staged before. */
template <int HD>
static __device__ void stage(const struct encode &e, const struct transform_view &view, struct tile_memory<HD> &m) {
    stage_matrices(view, m);
    for (uint32_t c = threadIdx.x; c < HD; c += TILE_THREADS) {
        const uint32_t half = e.heads.n_rot / 2, pair = e.heads.pairing == ROPE_ADJACENT ? c / 2 : c < half ? c : c - half;
        const float mean = view.mean[c], pre_rope_mean = view.pre_rope_mean[c], unit = view.unit[c];
        m.mean[c] = mean;
        m.pre_rope_mean[c] = c < 2 * half && pair < e.pre_rope.pairs ? pre_rope_mean : 0;
        m.unit[c] = INTEGER_UNIT * unit;
    }
    if (threadIdx.x < HD / TRANSFORM_QUAD) stage_quad(view, threadIdx.x, m);
    if (threadIdx.x / 32 == TILE_WARPS - 1) {
        float noise = 0;
        for (uint32_t c = threadIdx.x % 32; c < view.layout.quads * (uint32_t)TRANSFORM_QUAD; c += 32)
            noise = noise + view.size[c] * view.size[c] * device_distortion[view.layout.quad_bits[c / TRANSFORM_QUAD]];
        for (uint32_t lanes = 16; lanes; lanes /= 2) noise = noise + __shfl_xor_sync(~0u, noise, lanes);
        m.noise = noise;
        m.metric_unit = __uint_as_float(view.metric[HD * HD]);
    }
    end_staging();
}

/* Rotates a pair of channels back, and subtracts its mean before rotation, which is rotated to the token's offset (struct row_frame of
 * transform_page.cuh). */
static __device__ inline float2 rotate_pair_back(float2 x, float2 run, float2 mean, float2 offset) {
    const float2 own = rotate_back(x, run);
    return make_float2(own.x - fmaf(-mean.y, offset.y, mean.x * offset.x), own.y - fmaf(mean.y, offset.x, mean.x * offset.y));
}

/* Rotates four channels from c on and their partners back; `angles` are of the first one's pair, by run and by offset. Neighbours are each
 * other's partners. */
template <bool NEIGHBOURS, int HD>
static __device__ void rotate_four_back(const struct tile_memory<HD> &m, uint32_t c, uint32_t partner, const float2 *run,
                                        const float2 *offset, struct four_numbers &x, struct four_numbers &y) {
    const struct four_numbers mean = four_at(&m.pre_rope_mean[c]), others = four_at(&m.pre_rope_mean[partner]);
    float2 runs[4], offsets[4];
    four_angles<!NEIGHBOURS>(run, runs);
    four_angles<!NEIGHBOURS>(offset, offsets);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        if (NEIGHBOURS && j % 2) continue;
        float &a = x.of[j], &b = NEIGHBOURS ? x.of[j + 1] : y.of[j];
        const float2 own =
            rotate_pair_back(make_float2(a, b), runs[NEIGHBOURS ? j / 2 : j],
                             make_float2(mean.of[j], NEIGHBOURS ? mean.of[j + 1] : others.of[j]), offsets[NEIGHBOURS ? j / 2 : j]);
        a = own.x, b = own.y;
    }
}

/* Rotates a token's row x[HD / 16][4] back. */
template <enum rotation ROTATION, int HD>
static __device__ void rotate_row_back(const struct encode &e, const struct page_job &job, uint32_t t,
                                       const struct tile_memory<HD> &m, struct four_numbers (&x)[HD / 16]) {
    constexpr uint32_t blocks = HD / 16;
    const uint32_t first = job.item->set.first, half = e.heads.n_rot / 2;
    const float2 *const runs = run_angles_from(e, first, 0), *const offsets = (const float2 *)e.pre_rope.offsets +
                                                                              (size_t)(first % ROPE_RUN_TOKENS + t) * half;
    const __half *const row = (const __half *)(job.rows + min(t, job.count - 1) * e.token_stride);
    if (ROTATION == ROTATE_HALVES)
#pragma unroll
        for (uint32_t k = 0; k < blocks / 2; k++) {
            const uint32_t c = first_of(k);
            rotate_four_back<false>(m, c, c + HD / 2, runs + c, offsets + c, x[k], x[k + blocks / 2]);
        }
    else
#pragma unroll
        for (uint32_t k = 0; k < blocks; k++) {
            const uint32_t c = first_of(k);
            if (c >= 2 * half) continue;
            if (ROTATION == ROTATE_NEIGHBOURS) {
                rotate_four_back<true>(m, c, c, runs + c / 2, offsets + c / 2, x[k], x[k]);
                continue;
            }
            const bool second = c >= half;
            const uint32_t low = second ? c - half : c;
            struct four_numbers other = four_of_halves(*(const uint2 *)(row + (second ? low : c + half)));
            if (second)
                rotate_four_back<false>(m, low, c, runs + low, offsets + low, other, x[k]);
            else
                rotate_four_back<false>(m, c, c + half, runs + c, offsets + c, x[k], other);
        }
}

/* Loads rows, rotates keys back and subtracts the mean; zeros where there is no token, for which the last one is loaded. Also finds the sums of the squares of rows as
 * they are, which is of use for values. */
template <enum rotation ROTATION, int HD>
static __device__ void load_tile(const struct encode &e, const struct tile &tile, const struct tile_memory<HD> &m,
                                 tile_numbers<HD> &x, float (&whole)[2]) {
    constexpr uint32_t blocks = HD / 16;
    uint2 rows[2][blocks];
#pragma unroll
    for (uint32_t k = 0; k < blocks; k++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t t = min(tile.token[i], tile.job.count - 1);
            rows[i][k] = *(const uint2 *)(tile.job.rows + t * e.token_stride + first_of(k));
        }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        struct four_numbers own[blocks];
#pragma unroll
        for (uint32_t k = 0; k < blocks; k++) own[k] = four_of_halves(rows[i][k]);
        if (ROTATION != ROTATE_NOTHING) rotate_row_back<ROTATION>(e, tile.job, tile.token[i], m, own);
#pragma unroll
        for (uint32_t k = 0; k < blocks; k++) {
            const struct four_numbers mean = four_at(&m.mean[first_of(k)]);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                if (ROTATION == ROTATE_NOTHING) whole[i] = fmaf(own[k].of[j], own[k].of[j], whole[i]);
                x[i][k][j] = own[k].of[j] - mean.of[j];
            }
        }
        if (tile.job.count == PAGE_TOKENS) continue;
        asm volatile(""); /* full pages branch over what follows, which else were an instruction for each number */
#pragma unroll
        for (uint32_t k = 0; k < blocks; k++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (tile.token[i] >= tile.job.count) x[i][k][j] = 0;
    }
}

/* Makes coefficients of a tile's numbers. */
template <int HD> static __device__ void find_coefficients(const struct tile_memory<HD> &m, tile_numbers<HD> &x) {
    float unit[2] = {m.metric_unit, m.metric_unit};
#pragma unroll 1 /* since instructions are read through a cache, too */
    for (uint32_t k = 0; k < 2; k++) multiply_tile<false, HD>(m.matrices[k], x, unit);
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        const struct four_numbers own = four_at(&m.unit[first_of(k)]);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[i][k][j] = x[i][k][j] * unit[i] * own.of[j];
    }
}

/* ---- Sizes of rows */

/* Finds what levels cut off of a lane's part of a row that is coded as one of so many times its size, for each of some sizes. It is summed in
 * units of coefficients, which takes one operation of four less. */
template <int HD, int N>
static __device__ void sum_cut_off(const struct tile_memory<HD> &m, const float (&z)[HD / 16][4], float size,
                                   const float (&scales)[N], float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = 0;
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        const struct four_numbers reach = four_at(&m.reach[first_of(k)]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float beyond = fmaxf(fmaf(-reach.of[j], size * scales[i], fabsf(z[k][j])), 0); /* NaN becomes 0, too */
                sums[i] = fmaf(beyond, beyond, sums[i]);
            }
    }
}

/* Finds what levels cut off of both rows as they are. The rows' sums, each a chain of additions, are built side by side. */
template <int HD>
static __device__ void find_cut_off(const struct tile_memory<HD> &m, const tile_numbers<HD> &z, const float (&unit)[2],
                                    float (&cut)[2]) {
    const float size[2] = {1 / unit[0], 1 / unit[1]};
    float sums[2][1];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) sum_cut_off<HD, 1>(m, z[i], size[i], {1}, sums[i]);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) cut[i] = row_sum(sums[i][0]) * (unit[i] * unit[i]);
}

/* A row_scale says how much a row is expected to err, and as which of so many times its size it is coded then. */
struct row_scale {
    float error, scale;
};

/* Finds whether a row errs less at some sizes that it `may` have, as far as gains reach. */
template <int HD, int N>
static __device__ void try_scales(const struct transform_view &view, const struct tile_memory<HD> &m, const float (&z)[HD / 16][4],
                                  float unit, const float (&scales)[N], bool may, struct row_scale &least) {
    const float most = (view.gain_zero + 255 * view.gain_step) * unit;
    float sums[N];
    sum_cut_off(m, z, 1 / unit, scales, sums);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float error = row_sum(sums[i]) * (unit * unit) + m.noise * (scales[i] * scales[i]);
        if (may && scales[i] <= most && error < least.error) least = {error, scales[i]};
    }
}

/* Returns the unit of the size with which a token's row errs least (TRANSFORM_ROW_SCALES), as far as gains reach; `cut` is what levels
 * cut off of the row as it is. Few rows may err less at the larger sizes, by whose noise alone they would err more. */
template <int HD>
static __device__ float scaled_unit(const struct transform_view &view, const struct tile_memory<HD> &m,
                                    const float (&z)[HD / 16][4], float unit, float cut) {
    constexpr float scales[] = TRANSFORM_ROW_SCALE, small[] = {scales[0], scales[1]}, large[] = {scales[2], scales[3], scales[4]};
    static_assert(sizeof scales == sizeof small + sizeof large, "these are all sizes");
    const bool may_be_small = cut > (small[0] * small[0] - 1) * m.noise;
    struct row_scale least = {cut + m.noise, 1};
    if (!__any_sync(~0u, may_be_small)) return unit;
    try_scales(view, m, z, unit, small, may_be_small, least);
    const bool may_be_large = may_be_small && m.noise * (large[0] * large[0]) < least.error;
    if (__any_sync(~0u, may_be_large)) try_scales(view, m, z, unit, large, may_be_large, least);
    return unit / least.scale;
}

/* Finds the squares of both rows' sizes. */
template <int HD> static __device__ void find_squares(const tile_numbers<HD> &z, float (&square)[2]) {
    square[0] = square[1] = 0;
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) square[i] = fmaf(z[i][k][j], z[i][k][j], square[i]);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) square[i] = row_sum(square[i]);
}

/* ---- Rows of values less no mean */

/* Returns how much a row is expected to err: what is cut off, the levels' noise, and components without bits. */
template <int HD>
static __device__ float expected_error(const struct tile_memory<HD> &m, const float (&z)[HD / 16][4], float unit) {
    float rest = 0;
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (m.reach[first_of(k) + j] == INFINITY) rest = rest + z[k][j] * z[k][j];
    float cut[1];
    sum_cut_off<HD, 1>(m, z, 1 / unit, {1}, cut);
    return (row_sum(cut[0]) * (unit * unit) + m.noise) / (unit * unit) + row_sum(rest);
}

/* Computes the coefficients of a token's row itself, by the whole warp. */
template <int HD>
static __device__ void find_whole(const struct encode &e, const struct page_job &job, const struct transform_view &view, uint32_t t,
                                  struct tile_memory<HD> &m) {
    const __half *const metric = (const __half *)view.metric, *const row = (const __half *)(job.rows + t * e.token_stride);
    auto &own = m.own[threadIdx.x / 32].row;
    for (uint32_t c = lane_of_warp(); c < HD; c += 32) {
        float sum = 0;
        for (uint32_t i = 0; i < HD; i++) {
            const __half *const at = metric + metric_place(HD, c, i);
            sum = sum + (__half2float(at[0]) + __half2float(at[METRIC_REST])) * __half2float(row[i]);
        }
        own.weighed[c] = sum * m.metric_unit;
    }
    __syncwarp();
    for (uint32_t c = lane_of_warp(); c < HD; c += 32) {
        float sum = 0;
        for (uint32_t i = 0; i < HD; i++) sum = sum + (float)view.basis[(size_t)HD * c + i] * own.weighed[i];
        own.whole[c] = view.unit[c] * sum;
    }
    __syncwarp();
}

/* A coded_tile has a tile's coefficients, units and codes of gains. */
template <int HD> struct coded_tile {
    tile_numbers<HD> z;
    float unit[2];
    uint32_t gain[2];
};

/* Codes the marked ones of the lanes' tokens less no mean if they err less so with one of the gains that there are. It is a call, with what
 * it changes in memory, since it is seldom made: where it stood in write_tile all else had fewer registers. */
template <int HD>
static __device__ __noinline__ void leave_out_means(const struct encode &e, const struct tile &tile,
                                                    const struct transform_view &view, uint32_t marked, struct tile_memory<HD> &m,
                                                    struct coded_tile<HD> &coded) {
#pragma unroll 1
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t left = __ballot_sync(~0u, (marked >> i & 1) && lane_of_warp() % 4 == 0);
#pragma unroll 1
        for (; left; left &= left - 1) {
            const uint32_t lane = (uint32_t)__ffs((int)left) - 1;
            float whole[HD / 16][4], least = expected_error<HD>(m, coded.z[i], coded.unit[i]);
            uint32_t best = TRANSFORM_NO_MEAN_GAINS;
            find_whole(e, tile.job, view, __shfl_sync(~0u, tile.token[i], (int)lane), m);
#pragma unroll
            for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) whole[k][j] = m.own[threadIdx.x / 32].row.whole[first_of(k) + j];
#pragma unroll 1
            for (uint32_t code = 0; code < TRANSFORM_NO_MEAN_GAINS; code++) {
                const float error = expected_error<HD>(m, whole, 1 / TRANSFORM_NO_MEAN_GAIN(view.gain, code));
                if (error < least) least = error, best = code;
            }
            if (lane_of_warp() / 4 == lane / 4 && best < TRANSFORM_NO_MEAN_GAINS) {
#pragma unroll
                for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) coded.z[i][k][j] = whole[k][j];
                coded.unit[i] = 1 / TRANSFORM_NO_MEAN_GAIN(view.gain, best);
                coded.gain[i] = best;
            }
            __syncwarp();
        }
    }
}

/* ---- Rows at some sizes. Levels lie alike on both sides of 0, so that the errors of a coefficient are those of its absolute value. */

#define TRIALS_OF_LANE 2 /* sizes of a row whose fits one of its four lanes finds */
#define TRIAL_SLOTS (4 * TRIALS_OF_LANE)
static __constant__ float device_row_trial[TRANSFORM_ROW_TRIALS] = TRANSFORM_ROW_TRIAL;
static_assert(TRANSFORM_ROW_TRIALS <= TRIAL_SLOTS, "four lanes find the fits of all sizes");

/* A trial_sums has sums over the components with bits of a row: of the squares of what levels leave, and of the products of that with the
 * levels, by size; and of the squares of its coefficients. */
struct trial_sums {
    float rest[TRIAL_SLOTS], cross[TRIAL_SLOTS], square;
};

/* Returns the unit of a row that is coded as one of `scale` times its size: the quotient, as a division rounds it. `inverse` is what 1 / scale is
 * rounded to. */
static __device__ inline float unit_at(float unit, float scale, float inverse) {
    const float near = unit * inverse;
    return fmaf(fmaf(-scale, near, unit), inverse, near);
}

/* Adds a component's absolute value to a row's sums. Its levels lie at `top` and below, multiples of spread / 2^bits apart. Adding
 * `zero`, which is 2^(23 - bits), cuts off what is less than that part of the spread, and `last` is the last such sum that there is. */
static __device__ inline void add_trials(float x, float inverse, float spread, float top, float zero, float last,
                                         const float (&units)[TRANSFORM_ROW_TRIALS], struct trial_sums &sums) {
    const float place = x * inverse;
    sums.square = fmaf(x, x, sums.square);
#pragma unroll
    for (int n = 0; n < TRANSFORM_ROW_TRIALS; n++) {
        const float below_top = __saturatef(last - __fmaf_rz(place, units[n], zero)), level = fmaf(-spread, below_top, top),
                    rest = fmaf(x, units[n], -level);
        sums.rest[n] = fmaf(rest, rest, sums.rest[n]);
        sums.cross[n] = fmaf(rest, level, sums.cross[n]);
    }
}

/* Returns the lane's sums of its row i. */
template <int HD>
static __device__ struct trial_sums sum_trials(const struct tile_memory<HD> &m, const tile_numbers<HD> &z, int i, float unit) {
    constexpr float trials[TRANSFORM_ROW_TRIALS] = TRANSFORM_ROW_TRIAL;
    struct trial_sums sums = {};
    float units[TRANSFORM_ROW_TRIALS];
#pragma unroll
    for (int n = 0; n < TRANSFORM_ROW_TRIALS; n++) units[n] = unit_at(unit, trials[n], 1 / trials[n]);
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        const uint32_t c = first_of(k);
        const struct quad_codes &quad = m.quads[c / TRANSFORM_QUAD];
        if (!quad.planes[0]) continue;
        const float zero = quad.zero, last = zero + 0.5f - zero * 0x1p-23f;
        const struct four_numbers inverse = four_at(&m.inverse[c]), spread = four_at(&m.spread[c]), top = four_at(&m.top[c]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            add_trials(fabsf(i ? z[1][k][j] : z[0][k][j]), inverse.of[j], spread.of[j], top.of[j], zero, last, units, sums);
    }
    return sums;
}

/* Of 2 N sums of a lane and of the lane `mask` from it, leaves the first N, or in the `upper` lane the others, summed up over both. */
template <int N> static __device__ inline void share_sums(float (&sums)[TRIAL_SLOTS], bool upper, int mask) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float given = upper ? sums[n] : sums[n + N];
        sums[n] = (upper ? sums[n + N] : sums[n]) + __shfl_xor_sync(~0u, given, mask);
    }
}

/* Sums up over the lanes of a token. Each lane has its own sizes' sums then, which come first; returns the first one's number. */
static __device__ inline int sum_lanes(struct trial_sums &sums) {
    const bool odd = lane_of_warp() & 1, upper = lane_of_warp() & 2;
    share_sums<TRIAL_SLOTS / 2>(sums.rest, odd, 1);
    share_sums<TRIAL_SLOTS / 2>(sums.cross, odd, 1);
    share_sums<TRIAL_SLOTS / 4>(sums.rest, upper, 2);
    share_sums<TRIAL_SLOTS / 4>(sums.cross, upper, 2);
    sums.square = row_sum(sums.square);
    return (odd ? TRIAL_SLOTS / 2 : 0) + (upper ? TRIAL_SLOTS / 4 : 0);
}

/* Codes each row as one of the size with which it errs least (TRANSFORM_ROW_TRIALS), the first of these, and finds its gain, but for rows
 * less no mean, which have one. */
template <int HD>
static __device__ void try_sizes(int side, const struct transform_view &view, const struct tile_memory<HD> &m,
                                 const tile_numbers<HD> &z, const float (&square)[2], float (&unit)[2], uint32_t (&gain)[2]) {
#pragma unroll 1 /* since instructions are read through a cache, too */
    for (int i = 0; i < 2; i++) {
        const float own = i ? unit[1] : unit[0], own_square = i ? square[1] : square[0];
        struct trial_sums sums = sum_trials<HD>(m, z, i, own);
        const int first = sum_lanes(sums);
        float least = INFINITY;
        uint32_t best = TRANSFORM_NO_MEAN_GAINS; /* 256 times the size's number, and its gain */
#pragma unroll
        for (int n = 0; n < TRIALS_OF_LANE; n++) {
            const int trial = min(first + n, TRANSFORM_ROW_TRIALS - 1);
            const float scaled = own / device_row_trial[trial], rest = sums.rest[n], cross = sums.cross[n];
            const struct row_fit fit =
                fit_row(side, view, own_square, scaled, {rest, cross, sums.square * (scaled * scaled) - rest - 2 * cross});
            if (trial == first + n && fit.error < least) least = fit.error, best = (uint32_t)trial << 8 | fit.gain;
        }
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2) {
            const float error = __shfl_xor_sync(~0u, least, mask);
            const uint32_t other = __shfl_xor_sync(~0u, best, mask);
            if (error < least || (error == least && other < best)) least = error, best = other;
        }
        if ((i ? gain[1] : gain[0]) != TRANSFORM_NO_MEAN_GAINS) continue;
        const float scaled = own / device_row_trial[best >> 8];
        if (i)
            unit[1] = scaled, gain[1] = best & 0xff;
        else
            unit[0] = scaled, gain[0] = best & 0xff;
    }
}

/* ---- Codes */

/* Returns the code of what is x in a row of size 1, as lowest bits. The middle is rounded up, since `codes` is not quite a power of two. NaN
 * becomes 0. */
static __device__ inline uint32_t code_of(float x, float inverse, float codes) {
    return __float_as_uint(__fmaf_rz(__saturatef(fmaf(x, inverse, 0.5f + 0x1p-23f)), codes, 0x1p23f));
}

/* Returns a quad's codes of a token, a byte each. */
static __device__ inline uint32_t quantize(const float (&z)[4], float unit, const struct four_numbers &inverse, float codes) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) words[j] = code_of(z[j] * unit, inverse.of[j], codes);
    return permute(permute(words[0], words[1], 0x0040), permute(words[2], words[3], 0x0040), 0x5410);
}

/* Puts a plane's bits of a quad's codes, of the lane's two tokens, among a tile's nibbles. Shifts go by the lowest 5 bits of what they are
 * given. */
static __device__ inline void put_plane(uint32_t plane, uint32_t codes, uint32_t others, uint32_t (*nibbles)[8]) {
    if (!plane) return;
    const uint32_t below = plane >> 8, mask = permute(plane, 0, 0x3333), own = __funnelshift_r(codes, 0, below) & mask,
                   upper = __funnelshift_r(others, 0, below) & mask;
    atomicOr(&nibbles[plane & 0xff][lane_of_warp() / 4], __funnelshift_l(0, own | upper << 4, plane >> 16));
}

/* Returns four words of a tile's nibble as a page has them (nibble_word). */
static __device__ inline uint4 nibble_words(int side, uint4 words) {
    if (side == CODEC_KEYS) return words;
    const uint32_t a = permute(words.x, words.y, 0x5140), b = permute(words.z, words.w, 0x5140),
                   c = permute(words.x, words.y, 0x7362), d = permute(words.z, words.w, 0x7362);
    return make_uint4(permute(a, b, 0x5410), permute(a, b, 0x7632), permute(c, d, 0x5410), permute(c, d, 0x7632));
}

/* Writes a tile's nibbles. */
template <int HD>
static __device__ void write_nibbles(const struct tile &tile, const struct transform_view &view, const tile_numbers<HD> &z,
                                     const float (&unit)[2], struct tile_memory<HD> &m) {
    uint32_t(*const nibbles)[8] = m.own[threadIdx.x / 32].nibbles;
    uint4 *const fours = (uint4 *)nibbles, *const to = (uint4 *)(tile.job.page + PAGE_TOKENS) + 2 * tile.index;
    const uint32_t n = 2 * view.layout.nibbles;
    for (uint32_t i = lane_of_warp(); i < n; i += 32) fours[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        const uint32_t c = first_of(k);
        const struct quad_codes quad = m.quads[c / TRANSFORM_QUAD];
        if (!quad.planes[0]) continue;
        const struct four_numbers inverse = four_at(&m.inverse[c]);
        uint32_t codes[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) codes[i] = quantize(z[i][k], unit[i], inverse, quad.codes);
        put_plane(quad.planes[0], codes[0], codes[1], nibbles);
        put_plane(quad.planes[1], codes[0], codes[1], nibbles);
    }
    __syncwarp();
    for (uint32_t i = lane_of_warp(); i < n; i += 32)
        to[i / 2 * (PAGE_TRANSFORM_NIBBLE / 16) + i % 2] = nibble_words(tile.job.side, fours[i]);
    __syncwarp(); /* before another tile's nibbles come there */
}

/* ---- Tiles and pages */

template <int HD>
static __device__ void write_tile(const struct encode &e, const struct tile &tile, const struct transform_view &view,
                                  struct tile_memory<HD> &m) {
    tile_numbers<HD> z;
    float whole[2] = {}, square[2], unit[2], cut[2];
    bool small[2] = {};
    uint32_t gain[2] = {TRANSFORM_NO_MEAN_GAINS, TRANSFORM_NO_MEAN_GAINS};
    if (tile.job.side == CODEC_VALUES || !e.heads.n_rot)
        load_tile<ROTATE_NOTHING>(e, tile, m, z, whole);
    else if (e.heads.pairing == ROPE_ADJACENT)
        load_tile<ROTATE_NEIGHBOURS>(e, tile, m, z, whole);
    else if (e.heads.n_rot == HD)
        load_tile<ROTATE_HALVES>(e, tile, m, z, whole);
    else
        load_tile<ROTATE_SOME>(e, tile, m, z, whole);
    if (tile.job.side == CODEC_VALUES && view.gain > 0) {
        float less_mean[2];
        find_squares<HD>(z, less_mean);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float own = row_sum(whole[i]);
            small[i] = tile.token[i] < tile.job.count && TRANSFORM_MUCH_SMALLER * own < less_mean[i];
        }
    }
    find_coefficients(m, z);
    find_squares<HD>(z, square);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        unit[i] = square[i] > 0 ? sqrtf((float)HD / square[i]) : 0;
        if (!isfinite(unit[i])) unit[i] = 0;
    }
    find_cut_off<HD>(m, z, unit, cut);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) unit[i] = scaled_unit(view, m, z[i], unit[i], cut[i]);
    if (__any_sync(~0u, small[0] || small[1])) {
        struct coded_tile<HD> coded = {
            {}, {unit[0], unit[1]}, { gain[0], gain[1] }
        };
        memcpy(coded.z, z, sizeof z);
        leave_out_means(e, tile, view, (uint32_t)small[0] | (uint32_t)small[1] << 1, m, coded);
        memcpy(z, coded.z, sizeof z);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) unit[i] = coded.unit[i], gain[i] = coded.gain[i];
    }
    try_sizes<HD>(tile.job.side, view, m, z, square, unit, gain);
    write_nibbles(tile, view, z, unit, m);
    if (lane_of_warp() % 4) return;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) tile.job.page[tile.token[i]] = tile.token[i] < tile.job.count ? (uint8_t)gain[i] : 0;
}

template <int HD>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    encode_tiles_kernel(const __grid_constant__ struct encode e, struct encode_sides sides, uint32_t pages, uint32_t each) {
    extern __shared__ __align__(1024) uint8_t memory[];
    struct tile_memory<HD> &m = *(struct tile_memory<HD> *)memory;
    each_tile(
        e, sides, pages, each, [&](const struct transform_view &view) { stage(e, view, m); },
        [&](const struct tile &tile, const struct transform_view &view) {
            if (tile.job.count)
                write_tile(e, tile, view, m);
            else
                clear_page(e, tile.job, tile.index * 32 + lane_of_warp(), PAGE_TILES * 32);
        });
}

bool encode_transform_has_tiles(const struct head_view *heads) {
    return heads->head_dim <= 128 && heads->n_rot % 8 == 0 &&
           sizeof(struct tile_memory<128>) <= (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

cudaError_t encode_transform_tiles(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    switch (encode->heads.head_dim) {
    case 64: return launch_tiles(encode_tiles_kernel<64>, sizeof(struct tile_memory<64>), encode, sides, stream);
    case 96: return launch_tiles(encode_tiles_kernel<96>, sizeof(struct tile_memory<96>), encode, sides, stream);
    case 128: return launch_tiles(encode_tiles_kernel<128>, sizeof(struct tile_memory<128>), encode, sides, stream);
    default: return cudaErrorNotSupported;
    }
}
