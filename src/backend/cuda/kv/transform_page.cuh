/* Has what writing and reading pages of learned codecs share, in a block of 256 threads: rows of a page are copied to numbers by
 * channel, and back; for the codec transform there are products with a matrix and the levels of codes. Floats are multiplied and
 * summed in the order of the CPU's vector kernels; files that include this are compiled so that no product and sum are fused but
 * where fmaf says so. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PAGE_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PAGE_CUH

#include "backend/cuda/kv/transform_product.cuh"
#include "format/transform_levels.h"

#define NO_PLANE 255

static __device__ inline const struct transform_view &view_of(const struct encode &e, const struct page_job &job) {
    const struct transform_view *own = job.item->rate.transforms[job.side];
    return (own ? own : (const struct transform_view *)e.learned[job.side])[job.place];
}

/* ---- Rows: numbers[channel][token] */

struct pair_channels {
    uint32_t a, b;
};

static __device__ inline struct pair_channels channels_of_pair(const struct head_view &heads, uint32_t pair) {
    return heads.pairing == ROPE_ADJACENT ? pair_channels{2 * pair, 2 * pair + 1} : pair_channels{pair, pair + heads.n_rot / 2};
}

/* Returns cosines and sines of the pairs from `pair` on at the position of a page's run. */
static __device__ inline const float2 *run_angles_from(const struct encode &e, uint32_t first, uint32_t pair) {
    return (const float2 *)e.run_angles + (size_t)(first / ROPE_RUN_TOKENS) * (e.heads.n_rot / 2) + pair;
}

static __device__ inline float2 rotate_forth(float2 x, float2 angle) {
    return make_float2(fmaf(-x.y, angle.y, x.x * angle.x), fmaf(x.x, angle.y, x.y * angle.x));
}
static __device__ inline float2 rotate_back(float2 x, float2 angle) { return rotate_forth(x, make_float2(angle.x, -angle.y)); }

/* A row_frame says what lies between a row and its numbers: keys are rotated back to their run, and of them their mean before rotation
 * is subtracted, rotated to their offsets as pre_rope_add of kv/pre_rope.h does, and then the mean. Either may be NULL. A thread's own
 * token may have no mean. */
struct row_frame {
    const float *pre_rope_mean, *mean; /* [HD] */
    bool no_mean;
};

#define PAIRS_TOGETHER 4    /* whose angles are loaded together: a sector of 32 bytes */
#define CHANNELS_TOGETHER 8 /* that are not rotated */

/* Loads the angles of pairs from `pair` on at an offset from the page's run; zeros past the pairs of the mean before rotation. */
static __device__ inline void load_angles(const struct encode &e, uint32_t offset, uint32_t pair,
                                          float2 (&angles)[PAIRS_TOGETHER]) {
    const float2 *const from = (const float2 *)e.pre_rope.offsets + (size_t)offset * (e.heads.n_rot / 2) + pair;
    if (e.heads.n_rot % (4 * PAIRS_TOGETHER) == 0 && pair + PAIRS_TOGETHER <= e.pre_rope.pairs) {
        const float4 low = ((const float4 *)from)[0], high = ((const float4 *)from)[1];
        angles[0] = make_float2(low.x, low.y), angles[1] = make_float2(low.z, low.w);
        angles[2] = make_float2(high.x, high.y), angles[3] = make_float2(high.z, high.w);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < PAIRS_TOGETHER; i++) angles[i] = pair + i < e.pre_rope.pairs ? from[i] : make_float2(0, 0);
}

/* Changes the rotated channels of a thread's token, as change_frame does. */
template <bool BACK, bool ADJACENT>
static __device__ void change_pairs(const struct encode &e, const struct page_job &job, const struct row_frame &frame,
                                    uint32_t pairs, float (*numbers)[NUMBERS_STRIDE]) {
    constexpr uint32_t step = ADJACENT ? 2 : 1;
    const uint32_t t = threadIdx.x % PAGE_TOKENS, first = job.item->set.first, other = ADJACENT ? 1 : pairs;
    for (uint32_t group = threadIdx.x / PAGE_TOKENS * PAIRS_TOGETHER; group < pairs; group += PAIRS_TOGETHER * TOKEN_PARTS) {
        float *const a = &numbers[step * group][t], *const b = &numbers[step * group + other][t];
        const float2 *const run = run_angles_from(e, first, group);
        float2 x[PAIRS_TOGETHER] = {}, runs[PAIRS_TOGETHER] = {}, angles[PAIRS_TOGETHER] = {}, means[PAIRS_TOGETHER] = {},
               own[PAIRS_TOGETHER] = {};
        const auto load_means = [&](const float *mean, float2(&to)[PAIRS_TOGETHER]) {
            const float *const from = mean + step * group, *const others = from + other;
#pragma unroll
            for (uint32_t i = 0; i < PAIRS_TOGETHER; i++)
                if (group + i < pairs) to[i] = make_float2(from[step * i], others[step * i]);
        };
        /* All are asked for before one is needed. */
        if (frame.pre_rope_mean) load_angles(e, first % ROPE_RUN_TOKENS + t, group, angles);
        if (frame.pre_rope_mean) load_means(frame.pre_rope_mean, own);
        if (frame.mean && !frame.no_mean) load_means(frame.mean, means);
#pragma unroll
        for (uint32_t i = 0; i < PAIRS_TOGETHER; i++)
            if (group + i < pairs) x[i] = make_float2(a[step * i * NUMBERS_STRIDE], b[step * i * NUMBERS_STRIDE]), runs[i] = run[i];
#pragma unroll
        for (uint32_t i = 0; i < PAIRS_TOGETHER; i++) {
            const float2 shift =
                make_float2(own[i].x * angles[i].x - own[i].y * angles[i].y, own[i].x * angles[i].y + own[i].y * angles[i].x);
            if (BACK) {
                x[i] = rotate_back(x[i], runs[i]);
                x[i] = make_float2(x[i].x - shift.x - means[i].x, x[i].y - shift.y - means[i].y);
                if (t >= job.count) x[i] = make_float2(0, 0);
            } else
                x[i] = rotate_forth(make_float2(x[i].x + means[i].x + shift.x, x[i].y + means[i].y + shift.y), runs[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < PAIRS_TOGETHER; i++)
            if (group + i < pairs) a[step * i * NUMBERS_STRIDE] = x[i].x, b[step * i * NUMBERS_STRIDE] = x[i].y;
    }
}

/* Changes rows that lie as numbers[channel][token] into numbers, zeros where there is no token, or with BACK false numbers into rows. */
template <int HD, bool BACK>
static __device__ void change_frame(const struct encode &e, const struct page_job &job, struct row_frame frame,
                                    float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS,
                   pairs = job.side == CODEC_KEYS ? e.heads.n_rot / 2 : 0;
    const bool has_mean = frame.mean && !frame.no_mean;
    if (e.heads.pairing == ROPE_ADJACENT)
        change_pairs<BACK, true>(e, job, frame, pairs, numbers);
    else
        change_pairs<BACK, false>(e, job, frame, pairs, numbers);
    for (uint32_t first = 2 * pairs + part; first < HD; first += CHANNELS_TOGETHER * TOKEN_PARTS) {
        float x[CHANNELS_TOGETHER], mean[CHANNELS_TOGETHER];
#pragma unroll
        for (uint32_t i = 0; i < CHANNELS_TOGETHER; i++) {
            const uint32_t c = first + i * TOKEN_PARTS;
            x[i] = c < HD ? numbers[c][t] : 0;
            mean[i] = c < HD && has_mean ? frame.mean[c] : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < CHANNELS_TOGETHER; i++) {
            const uint32_t c = first + i * TOKEN_PARTS;
            if (c < HD) numbers[c][t] = !BACK ? x[i] + mean[i] : t < job.count ? x[i] - mean[i] : 0;
        }
    }
    __syncthreads();
}

static __device__ inline void spread_halves(uint32_t word, float *low, float *high) {
    *low = __half2float(__ushort_as_half((unsigned short)(word & 0xffff)));
    *high = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
}

/* A page_sector is 8 channels of a token, of which a thread has the i-th. Neighbouring threads have a sector of 32 bytes of a row. */
struct page_sector {
    uint32_t t, c;
};
static __device__ inline struct page_sector sector_of(uint32_t i) {
    const uint32_t n = threadIdx.x + i * TRANSFORM_THREADS;
    return {n / 2 % PAGE_TOKENS, (n / (2 * PAGE_TOKENS) * 2 + n % 2) * 8};
}
template <int HD> constexpr uint32_t page_sectors = HD / 8 * PAGE_TOKENS / TRANSFORM_THREADS; /* of a thread */

template <int HD> struct page_rows { uint4 sectors[page_sectors<HD>]; };

/* Loads a thread's part of a page's rows; zeros where there is no token. */
template <int HD> static __device__ struct page_rows<HD> load_rows(const struct encode &e, const struct page_job &job) {
    struct page_rows<HD> rows;
#pragma unroll
    for (uint32_t i = 0; i < page_sectors<HD>; i++) {
        const struct page_sector at = sector_of(i);
        rows.sectors[i] = make_uint4(0, 0, 0, 0);
        if (at.t < job.count) rows.sectors[i] = *(const uint4 *)(job.rows + at.t * e.token_stride + at.c);
    }
    return rows;
}

/* Turns rows into numbers. */
template <int HD>
static __device__ void set_numbers(const struct encode &e, const struct page_job &job, const struct page_rows<HD> &rows,
                                   struct row_frame frame, float (*numbers)[NUMBERS_STRIDE]) {
#pragma unroll
    for (uint32_t i = 0; i < page_sectors<HD>; i++) {
        const struct page_sector at = sector_of(i);
        const uint4 x = rows.sectors[i];
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) spread_halves(words[k], &numbers[at.c + 2 * k][at.t], &numbers[at.c + 2 * k + 1][at.t]);
    }
    __syncthreads();
    change_frame<HD, true>(e, job, frame, numbers);
}

/* Loads a page's rows as numbers; zeros where there is no token. */
template <int HD>
static __device__ void load_numbers(const struct encode &e, const struct page_job &job, struct row_frame frame,
                                    float (*numbers)[NUMBERS_STRIDE]) {
    set_numbers<HD>(e, job, load_rows<HD>(e, job), frame, numbers);
}

/* Stores numbers as rows. */
template <int HD>
static __device__ void store_numbers(const struct encode &e, const struct page_job &job, const float (*numbers)[NUMBERS_STRIDE]) {
#pragma unroll 4
    for (uint32_t i = 0; i < page_sectors<HD>; i++) {
        const uint32_t t = sector_of(i).t, c = sector_of(i).c;
        if (t < job.count)
            *(uint4 *)(job.rows + t * e.token_stride + c) =
                make_uint4(two_halves(numbers[c][t], numbers[c + 1][t]), two_halves(numbers[c + 2][t], numbers[c + 3][t]),
                           two_halves(numbers[c + 4][t], numbers[c + 5][t]), two_halves(numbers[c + 6][t], numbers[c + 7][t]));
    }
}

/* ---- Coefficients */

/* Turns numbers less their means into coefficients in a view's basis, times sizes. */
template <int HD> static __device__ void find_coefficients(const struct transform_view &view, struct page_numbers<HD> &n) {
    const uint32_t row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 4;
    const uint4 *const metric = (const uint4 *)view.metric + metric_place(HD, row, column) / 8;
    const int16_t *const basis = view.basis + row * HD + column;
    struct product<HD> product;
    multiply<HD>(
        [&](uint32_t block, uint32_t first) {
            const uint4 *const at = metric + metric_place(HD, 16 * block, first) / 8;
            const uint4 own = at[0], rest = at[1];
            return row_block{{own.x, own.y, own.z, own.w}, {rest.x, rest.y, rest.z, rest.w}};
        },
        HD, n, product);
    const float unit = __uint_as_float(view.metric[HD * HD]);
    store_product<HD>(
        product, [&](uint32_t) { return unit; }, n);
    multiply<HD>(
        [&](uint32_t block, uint32_t first) {
            const int16_t *const at = basis + 16 * block * HD + first;
            const uint2 low = *(const uint2 *)at, high = *(const uint2 *)(at + 8 * HD);
            const uint2 own[4] = {split_integers(low.x), split_integers(high.x), split_integers(low.y), split_integers(high.y)};
            return row_block{{own[0].x, own[1].x, own[2].x, own[3].x}, {own[0].y, own[1].y, own[2].y, own[3].y}};
        },
        HD, n, product);
    store_product<HD>(
        product, [&](uint32_t component) { return INTEGER_UNIT * view.unit[component]; }, n);
}

/* ---- Layouts */

/* A page_layout has a layout, and tables that follow from it, in shared memory. */
struct page_layout {
    struct transform_layout layout;
    uint32_t first[TRANSFORM_QUADS_MAX], second[TRANSFORM_QUADS_MAX]; /* planes of a quad, or NO_PLANE */
};

static __constant__ float device_distortion[TRANSFORM_BITS_MAX + 1] = TRANSFORM_DISTORTION;

/* Loads the layout. All threads call this; they may read it after their next barrier. */
static __device__ inline void load_layout(const struct transform_layout &from, struct page_layout *to) {
    static_assert(sizeof(struct transform_layout) % 4 == 0, "words of a layout");
    for (uint32_t i = threadIdx.x; i < sizeof from / 4; i += TRANSFORM_THREADS)
        ((uint32_t *)&to->layout)[i] = ((const uint32_t *)&from)[i];
    for (uint32_t q = threadIdx.x; q < TRANSFORM_QUADS_MAX; q += TRANSFORM_THREADS) to->first[q] = NO_PLANE, to->second[q] = 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < to->layout.planes; p += TRANSFORM_THREADS) {
        atomicMin(&to->first[to->layout.plane[p].quad], p);
        atomicMax(&to->second[to->layout.plane[p].quad], p);
    }
    __syncthreads();
    for (uint32_t q = threadIdx.x; q < TRANSFORM_QUADS_MAX; q += TRANSFORM_THREADS)
        if (to->second[q] == to->first[q] || to->first[q] == NO_PLANE) to->second[q] = NO_PLANE;
}

/* Finds the integer levels of a quad's components by a plane. nibble(n) is a token's 16 bits of the n-th nibble, component 0 the
 * lowest. */
template <class Nibble>
static __device__ void plane_integers(const struct page_layout &l, uint32_t p, Nibble nibble, int32_t (&integers)[TRANSFORM_QUAD]) {
    const struct transform_plane plane = l.layout.plane[p];
    const uint32_t most = (1u << plane.bits) - 1, bits = nibble(plane.nibble) >> plane.shift;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) integers[i] = (int32_t)(2 * (bits >> 4 * i & most)) - (int32_t)most;
}

/* Finds the levels of a quad's components by all its planes, in units of the components' sizes. */
template <class Nibble>
static __device__ void quad_levels(const struct page_layout &l, uint32_t quad, Nibble nibble, float (&levels)[TRANSFORM_QUAD]) {
    int32_t integers[TRANSFORM_QUAD];
    const uint32_t first = l.first[quad], second = l.second[quad];
    plane_integers(l, first, nibble, integers);
    const float scale = l.layout.plane[first].scale;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) levels[i] = scale * (float)integers[i];
    if (second == NO_PLANE) return;
    plane_integers(l, second, nibble, integers);
    const float finer = l.layout.plane[second].scale;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) levels[i] = levels[i] + finer * (float)integers[i];
}

/* ---- Nibbles in a page (format/page_layout.h) */

/* Returns a lane's word of a nibble. A lane's bytes are the four components of tokens T, and in their upper halves of T + 16, where T =
 * lane % 16 + lane / 16 * 32; its word of a nibble has those of keys, or of values one component of four tokens. All lanes of the
 * warp call this. */
static __device__ inline uint32_t nibble_word(int side, uint32_t word) {
    const uint32_t t = threadIdx.x;
    if (side == CODEC_KEYS) return word;
    /* Four lanes' words are transposed: first pairs of lanes exchange bytes, then pairs of pairs. */
    word = permute(word, __shfl_xor_sync(~0u, word, 1), t % 2 ? 0x3715 : 0x6240);
    return permute(word, __shfl_xor_sync(~0u, word, 2), t / 2 % 2 ? 0x3276 : 0x5410);
}

/* Returns token t's 16 bits of a nibble's bytes, which begin at a multiple of 4. */
static __device__ inline uint32_t unpack_nibble(int side, const uint8_t *bytes, uint32_t t) {
    const uint8_t *octet = bytes + t / 32 * 64 + t / 8 % 2 * 32;
    uint32_t own = 0; /* bytes: components */
    if (side == CODEC_KEYS)
        own = *(const uint32_t *)(octet + t % 8 * 4);
    else
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) own |= (uint32_t)octet[16 * (t % 8 / 4) + 4 * i + t % 4] << (8 * i);
    own = own >> (t / 16 % 2 * 4) & 0x0f0f0f0f;
    own = (own | own >> 4) & 0x00ff00ff;
    return (own | own >> 8) & 0xffff;
}

/* Calls the launch for the heads' head_dim. */
#define TRANSFORM_HEAD_DIMS(heads, launch) \
    switch ((heads).head_dim) { \
    case 64: return launch(64); \
    case 96: return launch(96); \
    case 128: return launch(128); \
    case 256: return launch(256); \
    default: return cudaErrorNotSupported; \
    }

#endif
